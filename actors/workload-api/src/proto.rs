//! The messages of the SPIFFE Workload API (`workload.proto`), and the codec for them.
//!
//! Written by hand: they are few, have not changed in years, and so need neither a compiler of protocol files nor a build script.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use prost::Message;
use prost_types::value::Kind;
use prost_types::{ListValue, NullValue, Struct, Value};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// The name of the service: it has no package.
pub const SERVICE: &str = "SpiffeWorkloadAPI";
/// The metadata that every call carries, with the value `true`. It keeps out requests that a proxy was tricked into sending.
pub const SECURITY_HEADER: &str = "workload.spiffe.io";

/// Asks for certificates, or for roots.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Empty {}

/// All certificates of a process.
#[derive(Clone, PartialEq, Message)]
pub struct X509SvidResponse {
    #[prost(message, repeated, tag = "1")]
    pub svids: Vec<X509Svid>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub crl: Vec<Vec<u8>>,
    #[prost(btree_map = "string, bytes", tag = "3")]
    pub federated_bundles: BTreeMap<String, Vec<u8>>,
}

/// A certificate with its key.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct X509Svid {
    #[prost(string, tag = "1")]
    pub spiffe_id: String,
    /// DER, the certificate first, then those that lead to older roots.
    #[prost(bytes = "vec", tag = "2")]
    pub x509_svid: Vec<u8>,
    /// PKCS #8, DER.
    #[prost(bytes = "vec", tag = "3")]
    pub x509_svid_key: Vec<u8>,
    /// The roots, DER, one after the other.
    #[prost(bytes = "vec", tag = "4")]
    pub bundle: Vec<u8>,
    #[prost(string, tag = "5")]
    pub hint: String,
}

impl fmt::Debug for X509Svid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "X509Svid({})", self.spiffe_id)
    }
}

/// The roots, by the ID of their trust domain.
#[derive(Clone, PartialEq, Message)]
pub struct X509BundlesResponse {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub crl: Vec<Vec<u8>>,
    #[prost(btree_map = "string, bytes", tag = "2")]
    pub bundles: BTreeMap<String, Vec<u8>>,
}

/// Asks for the JWTs of a process.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct JwtSvidRequest {
    #[prost(string, repeated, tag = "1")]
    pub audience: Vec<String>,
    /// Of this identity alone; empty: of all.
    #[prost(string, tag = "2")]
    pub spiffe_id: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct JwtSvidResponse {
    #[prost(message, repeated, tag = "1")]
    pub svids: Vec<JwtSvid>,
}

/// A JWT. Its holder can use it, whichever program that is.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct JwtSvid {
    #[prost(string, tag = "1")]
    pub spiffe_id: String,
    /// In the compact form.
    #[prost(string, tag = "2")]
    pub svid: String,
    #[prost(string, tag = "3")]
    pub hint: String,
}

impl fmt::Debug for JwtSvid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JwtSvid({})", self.spiffe_id)
    }
}

/// JWK Sets, by the ID of their trust domain.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct JwtBundlesResponse {
    #[prost(btree_map = "string, bytes", tag = "1")]
    pub bundles: BTreeMap<String, Vec<u8>>,
}

/// Asks whether a JWT is good.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct ValidateJwtSvidRequest {
    /// Who asks: one of the token's audiences.
    #[prost(string, tag = "1")]
    pub audience: String,
    #[prost(string, tag = "2")]
    pub svid: String,
}

impl fmt::Debug for ValidateJwtSvidRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ValidateJwtSvidRequest(for {:?})", self.audience)
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct ValidateJwtSvidResponse {
    #[prost(string, tag = "1")]
    pub spiffe_id: String,
    #[prost(message, optional, tag = "2")]
    pub claims: Option<Struct>,
}

/// A JSON object in the types of the standard.
pub(crate) fn proto_struct(object: serde_json::Map<String, serde_json::Value>) -> Struct {
    Struct { fields: object.into_iter().map(|(name, value)| (name, proto_value(value))).collect() }
}

fn proto_value(value: serde_json::Value) -> Value {
    use serde_json::Value as Json;
    let kind = match value {
        Json::Null => Kind::NullValue(NullValue::NullValue.into()),
        Json::Bool(bool) => Kind::BoolValue(bool),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(values) => Kind::ListValue(ListValue { values: values.into_iter().map(proto_value).collect() }),
        Json::Object(object) => Kind::StructValue(proto_struct(object)),
    };
    Value { kind: Some(kind) }
}

/// Encodes `E` and decodes `D`.
pub struct ProtoCodec<E, D>(PhantomData<(E, D)>);

impl<E, D> Default for ProtoCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E: Message + 'static, D: Message + Default + 'static> Codec for ProtoCodec<E, D> {
    type Encode = E;
    type Decode = D;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self::default()
    }
    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<E: Message, D> Encoder for ProtoCodec<E, D> {
    type Item = E;
    type Error = Status;
    fn encode(&mut self, item: E, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buf).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<E, D: Message + Default> Decoder for ProtoCodec<E, D> {
    type Item = D;
    type Error = Status;
    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        D::decode(buf).map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as other programs' encoders write them.
    #[test]
    fn messages_have_the_numbers_of_the_standard() {
        let svid = X509Svid {
            spiffe_id: "s".into(),
            x509_svid: vec![1],
            x509_svid_key: vec![2],
            bundle: vec![3],
            hint: "h".into(),
        };
        let bundles = BTreeMap::from([("d".to_owned(), vec![4])]);
        let response = X509SvidResponse { svids: vec![svid], crl: vec![vec![5]], federated_bundles: bundles.clone() };
        let expected: &[u8] = &[
            0x0a, 15, 0x0a, 1, b's', 0x12, 1, 1, 0x1a, 1, 2, 0x22, 1, 3, 0x2a, 1, b'h', 0x12, 1, 5, 0x1a, 6, 0x0a, 1,
            b'd', 0x12, 1, 4,
        ];
        assert_eq!(response.encode_to_vec(), expected);
        let roots = X509BundlesResponse { crl: Vec::new(), bundles };
        assert_eq!(roots.encode_to_vec(), [0x12, 6, 0x0a, 1, b'd', 0x12, 1, 4]);
        assert!(Empty::default().encode_to_vec().is_empty());
    }

    #[test]
    fn messages_about_jwts_have_the_numbers_of_the_standard() {
        let svid = JwtSvid { spiffe_id: "s".into(), svid: "t".into(), hint: "h".into() };
        let response = JwtSvidResponse { svids: vec![svid] };
        assert_eq!(response.encode_to_vec(), b"\x0a\x09\x0a\x01s\x12\x01t\x1a\x01h");
        let request = JwtSvidRequest { audience: vec!["a".into(), "b".into()], spiffe_id: "s".into() };
        assert_eq!(request.encode_to_vec(), b"\x0a\x01a\x0a\x01b\x12\x01s");
        let request = ValidateJwtSvidRequest { audience: "a".into(), svid: "t".into() };
        assert_eq!(request.encode_to_vec(), b"\x0a\x01a\x12\x01t");
        let claims = serde_json::json!({"a": [true, null, "t"], "n": 1});
        let claims = proto_struct(claims.as_object().unwrap().clone());
        let response = ValidateJwtSvidResponse { spiffe_id: "s".into(), claims: Some(claims) };
        let list = b"\x32\x0d\x0a\x02\x20\x01\x0a\x02\x08\x00\x0a\x03\x1a\x01t".to_vec();
        let a = [&b"\x0a\x14\x0a\x01a\x12\x0f"[..], &list].concat();
        let n = b"\x0a\x0e\x0a\x01n\x12\x09\x11\x00\x00\x00\x00\x00\x00\xf0\x3f".to_vec();
        assert_eq!(response.encode_to_vec(), [&b"\x0a\x01s\x12\x26"[..], &a, &n].concat());
    }

    #[test]
    fn debug_text_contains_no_token() {
        let svid = JwtSvid { spiffe_id: "s".into(), svid: "secret".into(), hint: String::new() };
        let request = ValidateJwtSvidRequest { audience: "a".into(), svid: "secret".into() };
        assert!(!format!("{svid:?} {request:?}").contains("secret"));
    }

    #[test]
    fn debug_text_contains_no_key() {
        let svid = X509Svid { spiffe_id: "s".into(), x509_svid_key: vec![77; 3], ..X509Svid::default() };
        let response = X509SvidResponse { svids: vec![svid], ..X509SvidResponse::default() };
        assert!(!format!("{response:?}").contains("77"));
    }
}
