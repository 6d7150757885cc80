//! A client of the Workload API: what a program of this repository needs to get an identity, and what the tests of others ask with.

use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::{Status, Streaming};

use crate::proto::{
    Empty, JwtBundlesResponse, JwtSvidRequest, JwtSvidResponse, ProtoCodec, SECURITY_HEADER, SERVICE,
    ValidateJwtSvidRequest, ValidateJwtSvidResponse, X509BundlesResponse, X509SvidResponse,
};

/// One connection to the socket of a node; a copy is another way to the same connection.
#[derive(Clone)]
pub struct WorkloadClient {
    grpc: Grpc<Connection>,
}

impl WorkloadClient {
    /// Connects. The connection is of the process that calls this, whichever process uses it.
    ///
    /// # Errors
    /// `Unavailable`: nothing serves there, or not now.
    pub async fn connect(socket: &Path) -> Result<Self, Status> {
        let stream = UnixStream::connect(socket).await.map_err(|error| unavailable(&error))?;
        let connected = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (requests, connection) = connected.map_err(|error| unavailable(&error))?;
        tokio::spawn(connection);
        // The connection has no host name: gRPC over a Unix socket sends `localhost`.
        Ok(Self { grpc: Grpc::with_origin(Connection(requests), Uri::from_static("http://localhost")) })
    }

    /// The identities of this process, as a stream: each message replaces the one before.
    ///
    /// # Errors
    /// `PermissionDenied`: this process has no identity. `Unavailable`: later, perhaps.
    pub async fn fetch_x509_svid(&mut self) -> Result<Streaming<X509SvidResponse>, Status> {
        self.stream("FetchX509SVID", &[(SECURITY_HEADER, "true")]).await
    }

    /// The roots, as a stream: each message replaces the one before.
    ///
    /// # Errors
    /// As of [`Self::fetch_x509_svid`].
    pub async fn fetch_x509_bundles(&mut self) -> Result<Streaming<X509BundlesResponse>, Status> {
        self.stream("FetchX509Bundles", &[(SECURITY_HEADER, "true")]).await
    }

    /// The keys that verify JWTs, as a stream: each message replaces the one before.
    ///
    /// # Errors
    /// As of [`Self::fetch_x509_svid`].
    pub async fn fetch_jwt_bundles(&mut self) -> Result<Streaming<JwtBundlesResponse>, Status> {
        self.stream("FetchJWTBundles", &[(SECURITY_HEADER, "true")]).await
    }

    /// JWTs of this process.
    ///
    /// # Errors
    /// `PermissionDenied`: no identity of it may have any. `Unavailable`: later, perhaps.
    pub async fn fetch_jwt_svid(&mut self, request: JwtSvidRequest) -> Result<JwtSvidResponse, Status> {
        self.call("FetchJWTSVID", request).await
    }

    /// Whether a JWT is good.
    ///
    /// # Errors
    /// `InvalidArgument`: why it is not.
    pub async fn validate_jwt_svid(
        &mut self,
        request: ValidateJwtSvidRequest,
    ) -> Result<ValidateJwtSvidResponse, Status> {
        self.call("ValidateJWTSVID", request).await
    }

    async fn call<Q, A>(&mut self, method: &str, request: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.grpc.ready().await.map_err(|error| unavailable(&error))?;
        let path = format!("/{SERVICE}/{method}");
        let path = PathAndQuery::try_from(path).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let mut request = tonic::Request::new(request);
        request.metadata_mut().append(SECURITY_HEADER, tonic::metadata::MetadataValue::from_static("true"));
        let answer = self.grpc.unary(request, path, ProtoCodec::<Q, A>::default()).await?;
        Ok(answer.into_inner())
    }

    /// Opens a stream with this method and this metadata.
    ///
    /// # Errors
    /// The refusal of the server.
    pub async fn stream<M: Message + Default + 'static>(
        &mut self,
        method: &str,
        metadata: &[(&'static str, &'static str)],
    ) -> Result<Streaming<M>, Status> {
        self.grpc.ready().await.map_err(|error| unavailable(&error))?;
        let path = format!("/{SERVICE}/{method}");
        let path = PathAndQuery::try_from(path).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let mut request = tonic::Request::new(Empty {});
        for (key, value) in metadata {
            request.metadata_mut().append(*key, tonic::metadata::MetadataValue::from_static(value));
        }
        let answer = self.grpc.server_streaming(request, path, ProtoCodec::<Empty, M>::default()).await?;
        Ok(answer.into_inner())
    }
}

fn unavailable(error: &dyn std::error::Error) -> Status {
    Status::unavailable(error.to_string())
}

/// hyper's connection, as tonic's client wants it.
#[derive(Clone)]
struct Connection(SendRequest<Body>);

impl GrpcService<Body> for Connection {
    type ResponseBody = Incoming;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }
    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
