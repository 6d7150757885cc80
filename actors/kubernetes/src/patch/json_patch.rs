//! RFC 6902, with bounds: a short patch must not make a large document.

use json_patch::{PatchOperation, patch_unsafe};
use serde_json::{Value, json};

use crate::status::{Reason, Status};

/// Operations in one patch.
const MOST_OPERATIONS: usize = 10_000;
/// Keys in one pointer. Documents here are a handful deep; values may be as deep as JSON is read.
const DEEPEST: usize = 32;
/// Bytes that all copies of one patch may make together. They could double a document each.
const MOST_COPIED: usize = 64 * 1024;

const REVISION: &str = "/metadata/resourceVersion";
const HOLDER: &str = "/spec/holderIdentity";

pub(super) struct Operations(Vec<PatchOperation>);

impl Operations {
    pub(super) fn read(json: Value) -> Result<Self, Status> {
        let count = json.as_array().map_or(0, Vec::len);
        if count > MOST_OPERATIONS {
            let message = format!("{count} operations in one patch are more than {MOST_OPERATIONS}");
            return Err(Status::new(Reason::RequestEntityTooLarge, message));
        }
        let operations: Vec<PatchOperation> = serde_json::from_value(json)
            .map_err(|error| Status::bad_request(format!("the body is no JSON patch: {error}")))?;
        let pointers = operations.iter().flat_map(|operation| match operation {
            PatchOperation::Move(op) => vec![&op.from, &op.path],
            PatchOperation::Copy(op) => vec![&op.from, &op.path],
            PatchOperation::Add(op) => vec![&op.path],
            PatchOperation::Remove(op) => vec![&op.path],
            PatchOperation::Replace(op) => vec![&op.path],
            PatchOperation::Test(op) => vec![&op.path],
        });
        if pointers.into_iter().any(|pointer| pointer.tokens().count() > DEEPEST) {
            return Err(Status::bad_request(format!("a pointer of the patch is deeper than {DEEPEST} keys")));
        }
        Ok(Self(operations))
    }

    /// A test of the revision is a precondition as good as writing it is.
    pub(super) fn name_revision(&self) -> bool {
        self.0.iter().any(|operation| match operation {
            PatchOperation::Test(op) => op.path.as_str() == REVISION,
            PatchOperation::Add(op) => op.path.as_str() == REVISION && !op.value.is_null(),
            PatchOperation::Replace(op) => op.path.as_str() == REVISION && !op.value.is_null(),
            _ => false,
        })
    }

    /// The holder that the patch tests for before any operation that changes something, as a document.
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
                    if copied > MOST_COPIED {
                        let message = format!("the patch copies more than {MOST_COPIED} bytes");
                        return Err(Status::new(Reason::RequestEntityTooLarge, message));
                    }
                }
                // Absent and null are the same here, so absence can be tested for.
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
    fn operations_are_made_in_order() {
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
    fn failures_say_whose_fault_they_are() {
        let refused = |patch: Value| patched(json!({"a": 1}), patch).unwrap_err();
        assert_eq!(refused(json!([{"op": "test", "path": "/a", "value": 2}])), 422);
        assert_eq!(refused(json!([{"op": "remove", "path": "/b"}])), 422);
        assert_eq!(refused(json!([{"op": "replace", "path": "/b/c", "value": 1}])), 422);
        assert_eq!(refused(json!([{"op": "paint", "path": "/a"}])), 400);
        assert_eq!(refused(json!({"a": 2})), 400);
        let many: Vec<Value> = (0..=MOST_OPERATIONS).map(|_| json!({"op": "test", "path": "/a", "value": 1})).collect();
        assert_eq!(refused(many.into()), 413);
        assert_eq!(refused(json!([{"op": "add", "path": "/a".repeat(33), "value": 1}])), 400);
    }

    #[test]
    fn copies_do_not_double_a_document_for_ever() {
        let text = "x".repeat(100);
        let doubling: Vec<Value> =
            (0..64).map(|n| json!({"op": "copy", "from": "", "path": format!("/c{n}")})).collect();
        assert_eq!(patched(json!({"a": text}), doubling.into()), Err(413));
    }

    #[test]
    fn naming_the_revision_is_noticed() {
        let names = |patch| Operations::read(patch).unwrap().name_revision();
        assert!(names(json!([{"op": "test", "path": "/metadata/resourceVersion", "value": "7"}])));
        assert!(names(json!([{"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}])));
        assert!(!names(json!([{"op": "remove", "path": "/metadata/resourceVersion"}])));
        assert!(!names(json!([{"op": "test", "path": "/spec/holderIdentity", "value": "7"}])));
    }

    proptest! {
        #[test]
        fn no_patch_breaks_a_document(ops in proptest::collection::vec((0..6usize, "(/[ab01-]){0,3}", "(/[ab01-]){0,3}"), 0..12)) {
            let names = ["add", "remove", "replace", "move", "copy", "test"];
            let patch = ops.iter().map(|(op, path, from)| json!({"op": names[*op], "path": path, "from": from, "value": [1]}));
            let _may_refuse = patched(json!({"a": {"b": [1, 2]}, "b": [{"a": 1}]}), patch.collect());
        }
    }
}
