//! Objects as client-go encodes them: Kubernetes' protobuf envelope around proto2 messages in which metadata
//! strings are always present, even if empty, and fields of a spec only when they are set.
//!
//! Written independently of the server's decoder, so that they share no mistake.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::coordination::v1beta1::LeaseCandidate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.raw_varint(field << 3 | 2);
        self.raw_varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }
    fn string(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }
    fn message(self, field: u64, message: Message) -> Self {
        self.bytes(field, &message.0)
    }
    fn varint(mut self, field: u64, value: i64) -> Self {
        self.raw_varint(field << 3);
        self.raw_varint(value as u64);
        self
    }
    /// A field that is present only when it is set.
    fn set<T>(self, value: Option<T>, write: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => write(self, value),
            None => self,
        }
    }
    fn entries<'a>(self, field: u64, entries: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        entries.into_iter().fold(self, |message, (key, value)| {
            message.message(field, Message::default().string(1, key).string(2, value))
        })
    }
}

fn time(at: Timestamp) -> Message {
    Message::default().varint(1, at.as_second()).varint(2, at.subsec_nanosecond().into())
}

/// The envelope of every body.
pub fn envelope(api_version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
    let kind = Message::default().string(1, api_version).string(2, kind);
    let message = Message::default().message(1, kind).bytes(2, object).string(3, "").string(4, "");
    [b"k8s\0".to_vec(), message.0].concat()
}

fn metadata(meta: &ObjectMeta) -> Message {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let message = Message::default()
        .string(1, &text(&meta.name))
        .string(2, &text(&meta.generate_name))
        .string(3, &text(&meta.namespace))
        .string(4, "")
        .string(5, &text(&meta.uid))
        .string(6, &text(&meta.resource_version))
        .varint(7, meta.generation.unwrap_or(0))
        .message(8, meta.creation_timestamp.as_ref().map_or_else(Message::default, |at| time(at.0)))
        .entries(11, meta.labels.iter().flatten())
        .entries(12, meta.annotations.iter().flatten());
    meta.managed_fields.iter().flatten().fold(message, |message, entry| message.message(17, managed(entry)))
}

fn managed(entry: &ManagedFieldsEntry) -> Message {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let fields = entry.fields_v1.as_ref().map(|fields| fields.0.to_string());
    Message::default()
        .string(1, &text(&entry.manager))
        .string(2, &text(&entry.operation))
        .string(3, &text(&entry.api_version))
        .set(entry.time.as_ref(), |message, at| message.message(4, time(at.0)))
        .string(6, &text(&entry.fields_type))
        .set(fields, |message, fields| message.message(7, Message::default().string(1, &fields)))
        .string(8, &text(&entry.subresource))
}

/// A lease as the body of a POST or PUT.
pub fn lease(lease: &Lease) -> Vec<u8> {
    let spec = lease.spec.clone().unwrap_or_default();
    let spec = Message::default()
        .set(spec.holder_identity, |message, holder| message.string(1, &holder))
        .set(spec.lease_duration_seconds, |message, secs| message.varint(2, secs.into()))
        .set(spec.acquire_time, |message, at| message.message(3, time(at.0)))
        .set(spec.renew_time, |message, at| message.message(4, time(at.0)))
        .set(spec.lease_transitions, |message, count| message.varint(5, count.into()))
        .set(spec.strategy, |message, strategy| message.string(6, &strategy))
        .set(spec.preferred_holder, |message, holder| message.string(7, &holder));
    let object = Message::default().message(1, metadata(&lease.metadata)).message(2, spec);
    envelope("coordination.k8s.io/v1", "Lease", &object.0)
}

/// A candidate as the body of a POST or PUT.
pub fn candidate(candidate: &LeaseCandidate) -> Vec<u8> {
    let spec = candidate.spec.clone();
    let spec = Message::default()
        .string(1, &spec.lease_name)
        .set(spec.ping_time, |message, at| message.message(2, time(at.0)))
        .set(spec.renew_time, |message, at| message.message(3, time(at.0)))
        .string(4, &spec.binary_version)
        .string(5, spec.emulation_version.as_deref().unwrap_or_default())
        .string(6, &spec.strategy);
    let object = Message::default().message(1, metadata(&candidate.metadata)).message(2, spec);
    envelope("coordination.k8s.io/v1beta1", "LeaseCandidate", &object.0)
}
