//! RFC 6902, with limits: a short patch must not create a large document.

use json_patch::{PatchOperation, patch_unsafe};
use serde_json::{Value, json};

use crate::status::{Reason, Status};

/// Operations in one patch.
const MAX_OPERATIONS: usize = 10_000;
/// Keys in one pointer. Documents here are a few levels deep; values may be as deep as JSON is read.
const MAX_POINTER_DEPTH: usize = 32;
/// Bytes that all copies of one patch may create together. Each copy could double the document.
const MAX_COPIED_BYTES: usize = 64 * 1024;

const REVISION: &str = "/metadata/resourceVersion";
const HOLDER: &str = "/spec/holderIdentity";

pub(super) struct Operations(Vec<PatchOperation>);

impl Operations {
    pub(super) fn read(json: Value) -> Result<Self, Status> {
        let count = json.as_array().map_or(0, Vec::len);
        if count > MAX_OPERATIONS {
            let message = format!("the patch has {count} operations; at most {MAX_OPERATIONS} are allowed");
            return Err(Status::new(Reason::RequestEntityTooLarge, message));
        }
        let operations: Vec<PatchOperation> = serde_json::from_value(json)
            .map_err(|error| Status::bad_request(format!("the body is not a JSON patch: {error}")))?;
        let pointers = operations.iter().flat_map(|operation| match operation {
            PatchOperation::Move(op) => vec![&op.from, &op.path],
            PatchOperation::Copy(op) => vec![&op.from, &op.path],
            PatchOperation::Add(op) => vec![&op.path],
            PatchOperation::Remove(op) => vec![&op.path],
            PatchOperation::Replace(op) => vec![&op.path],
            PatchOperation::Test(op) => vec![&op.path],
        });
        if pointers.into_iter().any(|pointer| pointer.tokens().count() > MAX_POINTER_DEPTH) {
            return Err(Status::bad_request(format!("a pointer of the patch is deeper than {MAX_POINTER_DEPTH} keys")));
        }
        Ok(Self(operations))
    }

    /// Testing the revision is as good a precondition as writing it.
    pub(super) fn name_revision(&self) -> bool {
        self.0.iter().any(|operation| match operation {
            PatchOperation::Test(op) => op.path.as_str() == REVISION,
            PatchOperation::Add(op) => op.path.as_str() == REVISION && !op.value.is_null(),
            PatchOperation::Replace(op) => op.path.as_str() == REVISION && !op.value.is_null(),
            _ => false,
        })
    }

    /// The holder that the patch tests before any operation that changes something, as a document.
    pub(super) fn tested(&self) -> Value {
        let tests = self.0.iter().map_while(|operation| match operation {
            PatchOperation::Test(op) => Some(op),
            _ => None,
        });
        let holder = tests.filter(|op| op.path.as_str() == HOLDER).map(|op| op.value.clone()).last();
        holder.map_or(Value::Null, |holder| json!({"spec": {"holderIdentity": holder}}))
    }

    pub(super) fn make(&self, document: &mut Value) -> Result<(), Status> {
        let mut copied = 0;
        for (number, operation) in self.0.iter().enumerate() {
            match operation {
                PatchOperation::Copy(op) => {
                    let source = document.pointer(op.from.as_str());
                    copied += source.map_or(0, |value| value.to_string().len());
                    if copied > MAX_COPIED_BYTES {
                        let message = format!("the patch copies more than {MAX_COPIED_BYTES} bytes");
                        return Err(Status::new(Reason::RequestEntityTooLarge, message));
                    }
                }
                // Absent and null are equal here, so a patch can test for absence.
                PatchOperation::Test(op) if op.value.is_null() && document.pointer(op.path.as_str()).is_none() => {
                    continue;
                }
                _ => {}
            }
            patch_unsafe(document, std::slice::from_ref(operation)).map_err(|error| {
                let why = format!("operation {number} of the patch failed: {}", error.kind);
                Status::unprocessable(error.path.as_str(), why)
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn patched(mut document: Value, patch: Value) -> Result<Value, u16> {
        let made = Operations::read(patch).and_then(|operations| operations.make(&mut document));
        made.map(|()| document).map_err(|status| status.reason.code())
    }

    #[test]
    fn json_patch_operations_apply_in_order() {
        let patch = json!([
            {"op": "test", "path": "/spec/holderIdentity", "value": "a"},
            {"op": "test", "path": "/spec/renewTime", "value": null},
            {"op": "replace", "path": "/spec/holderIdentity", "value": "b"},
            {"op": "copy", "from": "/spec/holderIdentity", "path": "/spec/preferredHolder"},
            {"op": "add", "path": "/metadata/labels/a~1b", "value": "c"},
            {"op": "remove", "path": "/spec/leaseTransitions"},
        ]);
        let document = json!({"metadata": {"labels": {}}, "spec": {"holderIdentity": "a", "leaseTransitions": 1}});
        assert_eq!(
            patched(document, patch),
            Ok(json!({"metadata": {"labels": {"a/b": "c"}}, "spec": {"holderIdentity": "b", "preferredHolder": "b"}}))
        );
    }

    #[test]
    fn json_patch_failures_have_the_right_status() {
        let refused = |patch: Value| patched(json!({"a": 1}), patch).unwrap_err();
        assert_eq!(refused(json!([{"op": "test", "path": "/a", "value": 2}])), 422);
        assert_eq!(refused(json!([{"op": "remove", "path": "/b"}])), 422);
        assert_eq!(refused(json!([{"op": "replace", "path": "/b/c", "value": 1}])), 422);
        assert_eq!(refused(json!([{"op": "paint", "path": "/a"}])), 400);
        assert_eq!(refused(json!({"a": 2})), 400);
        let many: Vec<Value> = (0..=MAX_OPERATIONS).map(|_| json!({"op": "test", "path": "/a", "value": 1})).collect();
        assert_eq!(refused(many.into()), 413);
        assert_eq!(refused(json!([{"op": "add", "path": "/a".repeat(33), "value": 1}])), 400);
    }

    #[test]
    fn json_patch_copies_are_bounded() {
        let text = "x".repeat(100);
        let doubling: Vec<Value> =
            (0..64).map(|n| json!({"op": "copy", "from": "", "path": format!("/c{n}")})).collect();
        assert_eq!(patched(json!({"a": text}), doubling.into()), Err(413));
    }

    #[test]
    fn json_patch_that_names_the_revision_is_detected() {
        let names = |patch| Operations::read(patch).unwrap().name_revision();
        assert!(names(json!([{"op": "test", "path": "/metadata/resourceVersion", "value": "7"}])));
        assert!(names(json!([{"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}])));
        assert!(!names(json!([{"op": "remove", "path": "/metadata/resourceVersion"}])));
        assert!(!names(json!([{"op": "test", "path": "/spec/holderIdentity", "value": "7"}])));
    }

    proptest! {
        #[test]
        fn json_patch_never_breaks_a_document(ops in proptest::collection::vec((0..6usize, "(/[ab01-]){0,3}", "(/[ab01-]){0,3}"), 0..12)) {
            let names = ["add", "remove", "replace", "move", "copy", "test"];
            let patch = ops.iter().map(|(op, path, from)| json!({"op": names[*op], "path": path, "from": from, "value": [1]}));
            let _may_refuse = patched(json!({"a": {"b": [1, 2]}, "b": [{"a": 1}]}), patch.collect());
        }
    }
}
