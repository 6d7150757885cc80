//! The calls about JWTs: two that are answered once, and one stream.
//!
//! Why a call is a stream of the core: who asks is looked at, admitted and counted as for certificates.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use muster_kernel::Clock;
use muster_messages::check_jwt_audience;
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};

use crate::core::{Answer, JwtRequest, Kind};
use crate::limits::Permit;
use crate::proto::{
    JwtBundlesResponse, JwtSvid, JwtSvidRequest, JwtSvidResponse, ProtoCodec, ValidateJwtSvidRequest,
    ValidateJwtSvidResponse, proto_struct,
};
use crate::serve::{Fetch, FromAnswer, MAX_REQUEST_BYTES};

/// The longest SPIFFE ID, by the standard. A call keeps it until its end.
const MAX_SPIFFE_ID: usize = 2048;

/// A call that is answered once.
pub(crate) trait UnaryCall: Message + Default + 'static {
    type Response: Message + 'static;
    /// What the core is asked for.
    fn kind(&self) -> Result<Kind, Status>;
    fn answer(self, answer: &Answer) -> Result<Self::Response, Status>;
}

impl UnaryCall for JwtSvidRequest {
    type Response = JwtSvidResponse;
    fn kind(&self) -> Result<Kind, Status> {
        check_jwt_audience(&self.audience).map_err(Status::invalid_argument)?;
        if self.spiffe_id.len() > MAX_SPIFFE_ID {
            return Err(Status::invalid_argument(format!("a SPIFFE ID has at most {MAX_SPIFFE_ID} bytes")));
        }
        let spiffe_id = Some(self.spiffe_id.clone()).filter(|id| !id.is_empty());
        Ok(Kind::Jwts(JwtRequest { audience: Arc::new(self.audience.clone()), spiffe_id }))
    }
    fn answer(self, answer: &Answer) -> Result<JwtSvidResponse, Status> {
        let svids = answer.tokens.iter().map(|of| JwtSvid {
            spiffe_id: of.name.spiffe_id(answer.cluster),
            svid: of.token.text.clone(),
            hint: of.hint.clone().unwrap_or_default(),
        });
        Ok(JwtSvidResponse { svids: svids.collect() })
    }
}

impl UnaryCall for ValidateJwtSvidRequest {
    type Response = ValidateJwtSvidResponse;
    /// `Kind::Roots`, so that a process without an identity is refused.
    fn kind(&self) -> Result<Kind, Status> {
        if self.audience.is_empty() {
            return Err(Status::invalid_argument("an audience is required: whom the token must be for"));
        }
        Ok(Kind::Roots)
    }
    fn answer(self, answer: &Answer) -> Result<ValidateJwtSvidResponse, Status> {
        let validated = answer.roots.jwt_keys.validate(&self.svid, &self.audience, answer.cluster, Clock.wall());
        let validated = validated.map_err(|why| Status::invalid_argument(why.to_string()))?;
        Ok(ValidateJwtSvidResponse { spiffe_id: validated.spiffe_id, claims: Some(proto_struct(validated.claims)) })
    }
}

impl FromAnswer for JwtBundlesResponse {
    const KIND: Kind = Kind::Roots;
    fn from_answer(answer: &Answer) -> Self {
        let domain = format!("spiffe://{}", answer.cluster);
        Self { bundles: BTreeMap::from([(domain, answer.roots.jwt_keys.to_json())]) }
    }
}

pub(crate) async fn unary<C: UnaryCall>(fetch: Fetch, request: Request<Incoming>) -> Response<Body> {
    let codec = ProtoCodec::<C::Response, C>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(MAX_REQUEST_BYTES);
    let arriving = match fetch.arriving() {
        Ok(permit) => permit,
        Err(refusal) => return refusal.into_http(),
    };
    grpc.unary(Once { fetch, arriving: Some(arriving) }, request).await
}

struct Once {
    fetch: Fetch,
    /// Until the request has arrived.
    arriving: Option<Permit>,
}

impl<C: UnaryCall> UnaryService<C> for Once {
    type Response = C::Response;
    type Future = BoxFuture<'static, Result<tonic::Response<C::Response>, Status>>;

    fn call(&mut self, request: tonic::Request<C>) -> Self::Future {
        let request = request.into_inner();
        drop(self.arriving.take());
        let asked = request.kind().and_then(|kind| self.fetch.ask(kind));
        Box::pin(async move {
            let (answer, _call) = asked?.first().await?;
            Ok(tonic::Response::new(request.answer(&answer)?))
        })
    }
}
