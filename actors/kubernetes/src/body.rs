//! Converts a body to JSON from any supported encoding.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::negotiate::Encoding;
use crate::proto;
use crate::status::Status;

/// Duplicate keys that a refusal names.
const MAX_NAMED_DUPLICATES: usize = 16;

/// Reads a body. `kind` is the expected kind, for protobuf that does not state it.
pub(crate) fn read(encoding: Encoding, body: &[u8], kind: &str) -> Result<Value, Status> {
    match encoding {
        Encoding::Json => json(body),
        Encoding::Protobuf => proto::decode(body, kind),
        Encoding::Yaml => yaml(body),
    }
}

pub(crate) fn json(body: &[u8]) -> Result<Value, Status> {
    if body.is_empty() {
        return Err(Status::bad_request("the body is empty"));
    }
    serde_json::from_slice(body).map_err(|error| Status::bad_request(format!("the body is not JSON: {error}")))
}

/// Duplicate keys of the body's objects, by path. JSON readers take the last one, which its writer may not intend.
/// Other encodings cannot contain duplicates, or are refused for them.
pub(crate) fn duplicates(encoding: Encoding, body: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    if encoding != Encoding::Protobuf {
        let seed = Keys { path: String::new(), found: &mut found };
        // A body that is not JSON is refused elsewhere.
        let _parsed = seed.deserialize(&mut serde_json::Deserializer::from_slice(body));
    }
    found
}

/// Searches a value for duplicate keys.
struct Keys<'a> {
    path: String,
    found: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Keys<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Keys<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = map.next_key::<String>()? {
            let path = if self.path.is_empty() { key.clone() } else { format!("{}.{key}", self.path) };
            if !seen.insert(key) && self.found.len() < MAX_NAMED_DUPLICATES {
                self.found.push(path.clone());
            }
            map.next_value_seed(Keys { path, found: &mut *self.found })?;
        }
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Keys { path: format!("{}[]", self.path), found: &mut *self.found })?.is_some() {}
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
}

/// Most YAML bodies are JSON, which needs no second parser.
pub(crate) fn yaml(body: &[u8]) -> Result<Value, Status> {
    if let Ok(json) = serde_json::from_slice(body) {
        return Ok(json);
    }
    let budget = serde_saphyr::budget! {
        max_depth: 32,
        max_documents: 1,
        max_nodes: 20_000,
        // References could expand a small text to a large tree; no client writes them.
        max_aliases: 0,
        max_merge_keys: 0,
    };
    let options = serde_saphyr::options! { budget: budget, with_snippet: false };
    serde_saphyr::from_slice_with_options(body, options)
        .map_err(|error| Status::bad_request(format!("the body is not YAML: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn yaml_bodies_of_clients_are_read() {
        let text = "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata:\n  name: x\n  labels: {a: \"1\"}\nspec:\n  \
                    holderIdentity: me # comment\n  leaseDurationSeconds: 15\n  renewTime: 2026-11-21T05:37:55.000000Z\n  \
                    acquireTime: null\n";
        let json = yaml(text.as_bytes()).unwrap();
        assert_eq!(json["metadata"], json!({"name": "x", "labels": {"a": "1"}}));
        assert_eq!(json["spec"]["leaseDurationSeconds"], 15);
        assert_eq!(json["spec"]["renewTime"], "2026-11-21T05:37:55.000000Z");
        assert_eq!(json["spec"]["acquireTime"], Value::Null);
        assert_eq!(yaml(br#"{"a": [1]}"#).unwrap(), json!({"a": [1]}));
    }

    #[test]
    fn yaml_body_with_references_or_deep_nesting_is_refused() {
        let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for (this, last) in "bcdefgh".chars().zip("abcdefg".chars()) {
            bomb += &format!("{this}: &{this} [{}]\n", vec![format!("*{last}"); 9].join(","));
        }
        assert_eq!(yaml(bomb.as_bytes()).unwrap_err().reason.code(), 400);
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        assert_eq!(yaml(deep.as_bytes()).unwrap_err().reason.code(), 400);
        assert_eq!(json(deep.as_bytes()).unwrap_err().reason.code(), 400);
        assert_eq!(json(b"").unwrap_err().reason.code(), 400);
    }

    proptest! {
        #[test]
        fn body_readers_never_panic(text in "[-a:{}\\[\\]\"'&*!|> \n]{0,60}") {
            let _may_refuse = yaml(text.as_bytes());
        }
    }
}
