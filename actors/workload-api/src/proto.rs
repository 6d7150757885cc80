//! The messages of the SPIFFE Workload API (`workload.proto`), and the codec for them.
//!
//! Written by hand: they are few, have not changed in years, and so need neither a compiler of protocol files nor a build script.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use prost::Message;
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
    fn debug_text_contains_no_key() {
        let svid = X509Svid { spiffe_id: "s".into(), x509_svid_key: vec![77; 3], ..X509Svid::default() };
        let response = X509SvidResponse { svids: vec![svid], ..X509SvidResponse::default() };
        assert!(!format!("{response:?}").contains("77"));
    }
}
