//! Bodies in protobuf, which Go clients send, decoded to the JSON that other clients would have sent.
//!
//! Fields that are not listed here are skipped, as in JSON. Answers are JSON, which all of these clients accept.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde::{Serialize, Serializer, ser};
use serde_json::Value;

use crate::status::{Reason, Status};
use crate::time::Micros;

/// The prefix of every such body.
const MAGIC: &[u8] = b"k8s\0";

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
    #[prost(string, tag = "3")]
    content_encoding: String,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

/// Both of Kubernetes' time types. Go's clients write "no time" as a message without fields.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Timestamp {
    #[prost(int64, optional, tag = "1")]
    seconds: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    nanos: Option<i32>,
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if (self.seconds, self.nanos) == (None, None) {
            return s.serialize_none();
        }
        let time = Micros::from_parts(self.seconds.unwrap_or(0), self.nanos.unwrap_or(0));
        time.ok_or_else(|| ser::Error::custom("the time is outside the calendar"))?.serialize(s)
    }
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectMeta {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    generate_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    namespace: Option<String>,
    #[prost(string, optional, tag = "5")]
    uid: Option<String>,
    #[prost(string, optional, tag = "6")]
    resource_version: Option<String>,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    owner_references: Vec<Owner>,
    #[prost(string, repeated, tag = "14")]
    finalizers: Vec<String>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct Owner {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
    #[prost(string, tag = "5")]
    api_version: String,
    #[prost(bool, optional, tag = "6")]
    controller: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    block_owner_deletion: Option<bool>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct Lease {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<LeaseSpec>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct LeaseSpec {
    #[prost(string, optional, tag = "1")]
    holder_identity: Option<String>,
    #[prost(int32, optional, tag = "2")]
    lease_duration_seconds: Option<i32>,
    #[prost(message, optional, tag = "3")]
    acquire_time: Option<Timestamp>,
    #[prost(message, optional, tag = "4")]
    renew_time: Option<Timestamp>,
    #[prost(int32, optional, tag = "5")]
    lease_transitions: Option<i32>,
    #[prost(string, optional, tag = "6")]
    strategy: Option<String>,
    #[prost(string, optional, tag = "7")]
    preferred_holder: Option<String>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct LeaseCandidate {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<CandidateSpec>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct CandidateSpec {
    #[prost(string, tag = "1")]
    lease_name: String,
    #[prost(message, optional, tag = "2")]
    ping_time: Option<Timestamp>,
    #[prost(message, optional, tag = "3")]
    renew_time: Option<Timestamp>,
    #[prost(string, tag = "4")]
    binary_version: String,
    #[prost(string, tag = "5")]
    emulation_version: String,
    #[prost(string, tag = "6")]
    strategy: String,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigMap {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(btree_map = "string, string", tag = "2")]
    data: BTreeMap<String, String>,
    #[prost(btree_map = "string, bytes", tag = "3")]
    #[serde(serialize_with = "as_base64")]
    binary_data: BTreeMap<String, Vec<u8>>,
    #[prost(bool, optional, tag = "4")]
    immutable: Option<bool>,
}

fn as_base64<S: Serializer>(data: &BTreeMap<String, Vec<u8>>, s: S) -> Result<S::Ok, S::Error> {
    s.collect_map(data.iter().map(|(key, bytes)| (key, STANDARD.encode(bytes))))
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions {
    #[prost(message, optional, tag = "2")]
    preconditions: Option<Preconditions>,
    #[prost(string, repeated, tag = "5")]
    dry_run: Vec<String>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct Preconditions {
    #[prost(string, optional, tag = "1")]
    uid: Option<String>,
    #[prost(string, optional, tag = "2")]
    resource_version: Option<String>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct AccessReview {
    #[prost(message, optional, tag = "2")]
    spec: Option<AccessReviewSpec>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct AccessReviewSpec {
    #[prost(message, optional, tag = "1")]
    resource_attributes: Option<ResourceAttributes>,
    #[prost(message, optional, tag = "2")]
    non_resource_attributes: Option<PathAttributes>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct ResourceAttributes {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    verb: String,
    #[prost(string, tag = "3")]
    group: String,
    #[prost(string, tag = "4")]
    version: String,
    #[prost(string, tag = "5")]
    resource: String,
    #[prost(string, tag = "6")]
    subresource: String,
    #[prost(string, tag = "7")]
    name: String,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct PathAttributes {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(string, tag = "2")]
    verb: String,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct Event {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct RulesReview {
    #[prost(message, optional, tag = "2")]
    spec: Option<RulesReviewSpec>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct RulesReviewSpec {
    #[prost(string, tag = "1")]
    namespace: String,
}

/// The JSON of a protobuf body, `apiVersion` and `kind` included. `kind` is the kind that the path expects, used if the
/// body does not state one.
pub(crate) fn decode(body: &[u8], kind: &str) -> Result<Value, Status> {
    let bad = |why: &str| Status::bad_request(format!("the body is not Kubernetes protobuf: {why}"));
    let message = body.strip_prefix(MAGIC).ok_or_else(|| bad("it does not begin with the magic number"))?;
    let envelope = Envelope::decode(message).map_err(|error| bad(&error.to_string()))?;
    if !envelope.content_encoding.is_empty() {
        return Err(bad("its content has a nested encoding"));
    }
    let type_meta = envelope.type_meta.unwrap_or_default();
    let kind = if type_meta.kind.is_empty() { kind } else { &type_meta.kind };
    let raw = envelope.raw.as_slice();
    let json = match kind {
        "Lease" => json::<Lease>(raw),
        "LeaseCandidate" => json::<LeaseCandidate>(raw),
        "ConfigMap" => json::<ConfigMap>(raw),
        "DeleteOptions" => json::<DeleteOptions>(raw),
        "SelfSubjectAccessReview" => json::<AccessReview>(raw),
        // An event's name is enough: no event is kept.
        "Event" => json::<Event>(raw),
        "SelfSubjectRulesReview" => json::<RulesReview>(raw),
        // A question about the caller, without fields.
        "SelfSubjectReview" => Ok(Value::Object(serde_json::Map::new())),
        other => {
            let message = format!("protobuf is not supported for {other:?}; send JSON");
            return Err(Status::new(Reason::UnsupportedMediaType, message));
        }
    };
    let mut json = json.map_err(|why| bad(&why))?;
    json["apiVersion"] = type_meta.api_version.into();
    json["kind"] = kind.into();
    Ok(json)
}

fn json<M: Message + Default + Serialize>(raw: &[u8]) -> Result<Value, String> {
    let message = M::decode(raw).map_err(|error| error.to_string())?;
    serde_json::to_value(message).map_err(|error| error.to_string())
}

/// An enveloped body, as clients send it. For tests: no answer is in protobuf.
#[cfg(test)]
pub(crate) fn encode(api_version: &str, kind: &str, raw: Vec<u8>) -> Vec<u8> {
    let type_meta = Some(TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() });
    let envelope = Envelope { type_meta, raw, content_encoding: String::new() };
    [MAGIC, envelope.encode_to_vec().as_slice()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const LEASE: &str = "coordination.k8s.io/v1";

    /// As client-go 0.36 sent it: identity A acquires `lk1` for 4 s.
    const RECORDED: &str = "6b3873000a1f0a16636f6f7264696e6174696f6e2e6b38732e696f2f763112054c6561736512410a1a0a036c6b\
                            3112001a0764656661756c7422002a0032003800420012230a014110041a0c08b3dc84d80610d8bdd1fa01220c\
                            08b3dc84d80610d8bdd1fa0128001a002200";

    fn bytes(hex: &str) -> Vec<u8> {
        let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(pair).collect()
    }

    fn body(kind: &str, message: &impl Message) -> Vec<u8> {
        encode(LEASE, kind, message.encode_to_vec())
    }

    #[test]
    fn recorded_protobuf_body_is_decoded() {
        let lease = decode(&bytes(RECORDED), "Lease").unwrap();
        assert_eq!((&lease["kind"], &lease["apiVersion"]), (&json!("Lease"), &json!(LEASE)));
        let meta = &lease["metadata"];
        assert_eq!((&meta["name"], &meta["namespace"], &meta["uid"]), (&json!("lk1"), &json!("default"), &json!("")));
        assert_eq!(
            lease["spec"],
            json!({"holderIdentity": "A", "leaseDurationSeconds": 4, "acquireTime": "2026-11-21T05:37:55.525623Z",
                   "renewTime": "2026-11-21T05:37:55.525623Z", "leaseTransitions": 0, "strategy": null,
                   "preferredHolder": null})
        );
    }

    #[test]
    fn empty_field_is_present_but_empty_time_is_absent() {
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            acquire_time: Some(Timestamp::default()),
            renew_time: Some(Timestamp { seconds: Some(0), nanos: None }),
            ..LeaseSpec::default()
        };
        let json = decode(&body("Lease", &Lease { metadata: None, spec: Some(spec) }), "Lease").unwrap();
        assert_eq!(json["spec"]["holderIdentity"], "");
        assert_eq!(json["spec"]["leaseTransitions"], Value::Null);
        assert_eq!(json["spec"]["acquireTime"], Value::Null);
        assert_eq!(json["spec"]["renewTime"], "1970-01-01T00:00:00.000000Z");
    }

    #[test]
    fn other_protobuf_messages_are_decoded() {
        let uid = Some("u".to_owned());
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let options = DeleteOptions { preconditions, dry_run: vec!["All".to_owned()] };
        let json = decode(&body("DeleteOptions", &options), "Lease").unwrap();
        assert_eq!((&json["preconditions"]["uid"], &json["dryRun"]), (&json!("u"), &json!(["All"])));

        let attributes = ResourceAttributes { verb: "get".into(), resource: "leases".into(), ..Default::default() };
        let spec = AccessReviewSpec { resource_attributes: Some(attributes), non_resource_attributes: None };
        let json = decode(&body("SelfSubjectAccessReview", &AccessReview { spec: Some(spec) }), "").unwrap();
        assert_eq!(json["spec"]["resourceAttributes"]["verb"], "get");

        let data = BTreeMap::from([("k".to_owned(), vec![1, 2, 255])]);
        let json = decode(&body("ConfigMap", &ConfigMap { binary_data: data, ..Default::default() }), "").unwrap();
        assert_eq!(json["binaryData"], json!({"k": "AQL/"}));

        let spec = CandidateSpec { lease_name: "l".into(), binary_version: "1.30.0".into(), ..Default::default() };
        let candidate = LeaseCandidate { metadata: None, spec: Some(spec) };
        let json = decode(&body("LeaseCandidate", &candidate), "LeaseCandidate").unwrap();
        assert_eq!((&json["spec"]["leaseName"], &json["spec"]["binaryVersion"]), (&json!("l"), &json!("1.30.0")));
    }

    #[test]
    fn unsupported_protobuf_is_refused() {
        assert_eq!(decode(b"{}", "Lease").unwrap_err().reason.code(), 400);
        assert_eq!(decode(b"k8s\0\xff", "Lease").unwrap_err().reason.code(), 400);
        let pod = encode("v1", "Pod", vec![]);
        assert_eq!(decode(&pod, "Lease").unwrap_err().reason.code(), 415);
        let beyond = Some(Timestamp { seconds: Some(i64::MAX), nanos: Some(-1) });
        let spec = Some(LeaseSpec { renew_time: beyond, ..LeaseSpec::default() });
        assert_eq!(decode(&body("Lease", &Lease { metadata: None, spec }), "Lease").unwrap_err().reason.code(), 400);
    }

    proptest! {
        #[test]
        fn protobuf_decoder_never_panics(bytes: Vec<u8>, enveloped: bool) {
            let body = if enveloped { encode(LEASE, "Lease", bytes) } else { [MAGIC, &bytes].concat() };
            let _may_refuse = decode(&body, "Lease");
        }
    }
}
