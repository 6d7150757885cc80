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
use crate::proto::{
    JwtBundlesResponse, JwtSvid, JwtSvidRequest, JwtSvidResponse, ProtoCodec, ValidateJwtSvidRequest,
    ValidateJwtSvidResponse,
};
use crate::serve::{Fetch, FromAnswer, MAX_REQUEST_BYTES};

/// A call that is answered once.
pub(crate) trait Call: Message + Default + 'static {
    type Response: Message + 'static;
    /// What the core is asked for.
    fn kind(&self) -> Result<Kind, Status>;
    fn answer(self, answer: &Answer) -> Result<Self::Response, Status>;
}

impl Call for JwtSvidRequest {
    type Response = JwtSvidResponse;
    fn kind(&self) -> Result<Kind, Status> {
        check_jwt_audience(&self.audience).map_err(Status::invalid_argument)?;
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

impl Call for ValidateJwtSvidRequest {
    type Response = ValidateJwtSvidResponse;
    /// The roots: a process without an identity is told nothing.
    fn kind(&self) -> Result<Kind, Status> {
        if self.audience.is_empty() {
            return Err(Status::invalid_argument("an audience is required: whom the token must be for"));
        }
        Ok(Kind::Roots)
    }
    fn answer(self, answer: &Answer) -> Result<ValidateJwtSvidResponse, Status> {
        let validated = answer.roots.jwt_keys.validate(&self.svid, &self.audience, answer.cluster, Clock.wall());
        let validated = validated.map_err(|why| Status::invalid_argument(why.to_string()))?;
        Ok(ValidateJwtSvidResponse { spiffe_id: validated.spiffe_id, claims: Some(validated.claims.into()) })
    }
}

impl FromAnswer for JwtBundlesResponse {
    const KIND: Kind = Kind::Roots;
    fn from_answer(answer: &Answer) -> Self {
        let domain = format!("spiffe://{}", answer.cluster);
        Self { bundles: BTreeMap::from([(domain, answer.roots.jwt_keys.to_json())]) }
    }
}

pub(crate) async fn unary<C: Call>(fetch: Fetch, request: Request<Incoming>) -> Response<Body> {
    let codec = ProtoCodec::<C::Response, C>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(MAX_REQUEST_BYTES);
    grpc.unary(Once(fetch), request).await
}

struct Once(Fetch);

impl<C: Call> UnaryService<C> for Once {
    type Response = C::Response;
    type Future = BoxFuture<'static, Result<tonic::Response<C::Response>, Status>>;

    fn call(&mut self, request: tonic::Request<C>) -> Self::Future {
        let request = request.into_inner();
        let asked = request.kind().and_then(|kind| self.0.ask(kind));
        Box::pin(async move {
            let (answer, _call) = asked?.first().await?;
            Ok(tonic::Response::new(request.answer(&answer)?))
        })
    }
}
