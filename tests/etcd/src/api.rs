//! The part of etcd's v3 API that the load needs. Messages have the field numbers of etcd's `rpc.proto`; other fields are skipped.

use std::time::Duration;

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::Outcome;

/// The time limit of one answer, as of `muster bench`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, PartialEq, prost::Message)]
pub struct ResponseHeader {
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// Without `serializable` (7): a linearizable read.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValue {
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// The target of a comparison: the revision of the key's last change.
pub const TARGET_MOD: i32 = 2;

/// `result` (1) is left at its default: equal.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Compare {
    #[prost(int32, tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    /// A member of a `oneof`, which is sent even if it is 0.
    #[prost(int64, optional, tag = "6")]
    pub mod_revision: Option<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RequestOp {
    #[prost(message, optional, tag = "2")]
    pub request_put: Option<PutRequest>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    #[prost(uint64, tag = "6")]
    pub raft_term: u64,
}

/// A client on a connection of its own, without TLS.
pub struct Client {
    grpc: Grpc<Channel>,
}

impl Client {
    pub async fn connect(endpoint: &str) -> Outcome<Self> {
        let failed = |error: &dyn std::error::Error| format!("{endpoint}: {}", chain(error));
        let to = Endpoint::from_shared(endpoint.to_owned()).map_err(|error| failed(&error))?;
        let to = to.timeout(ANSWER_TIMEOUT).connect_timeout(ANSWER_TIMEOUT).tcp_nodelay(true);
        let channel = to.connect().await.map_err(|error| failed(&error))?;
        Ok(Self { grpc: Grpc::new(channel) })
    }

    pub async fn range(&mut self, request: RangeRequest) -> Outcome<RangeResponse> {
        self.ask("/etcdserverpb.KV/Range", request).await
    }

    pub async fn put(&mut self, request: PutRequest) -> Outcome<PutResponse> {
        self.ask("/etcdserverpb.KV/Put", request).await
    }

    pub async fn txn(&mut self, request: TxnRequest) -> Outcome<TxnResponse> {
        self.ask("/etcdserverpb.KV/Txn", request).await
    }

    pub async fn status(&mut self) -> Outcome<StatusResponse> {
        self.ask("/etcdserverpb.Maintenance/Status", StatusRequest {}).await
    }

    async fn ask<Q, A>(&mut self, path: &'static str, request: Q) -> Outcome<A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        self.grpc.ready().await.map_err(|error| format!("{path}: {}", chain(&error)))?;
        let request = tonic::Request::new(request);
        let answer = self.grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::default()).await;
        Ok(answer.map_err(|status| format!("{path}: {}: {}", status.code(), status.message()))?.into_inner())
    }
}

/// An error with its causes: the transport's own text names none.
fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
