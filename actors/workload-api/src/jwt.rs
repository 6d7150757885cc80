//! JWTs of workloads (JWT-SVIDs): their keys as a JWK Set, and whether a token is good.
//!
//! Owns        what of a token is believed: only what a root of this node's bundle has signed, as the leader signs it.
//! Invariants  SPIFFE-9  a token is good only if it names the key of a root that this node trusts, that key has signed it by ES256, its
//!                       subject is a workload of this cluster, one of its audiences is the one asked for, and it has not expired.

use std::collections::BTreeMap;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use muster_messages::{ClusterId, WallTime, WorkloadName};
use muster_pki::root_id;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// The most bytes of a token.
const MAX_TOKEN: usize = 16 << 10;
/// A point of P-256: a byte for the form, and two coordinates.
const POINT: usize = 65;
const COORDINATE: usize = 32;
/// By how much the clock of the leader that signed may differ from this node's.
const CLOCK_SKEW_SECS: i64 = 30;

/// The public keys that verify tokens, by their `kid`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JwtKeys(BTreeMap<String, Vec<u8>>);

/// Why a token is not good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadJwt {
    #[error("the token is not a JWT of three parts, of at most {MAX_TOKEN} bytes")]
    Form,
    #[error("the token's header is malformed: it has `alg`, `kid` and perhaps `typ`, and nothing else")]
    Header,
    #[error("the token is not signed by ES256, which is the only algorithm of this cluster")]
    Algorithm,
    #[error("no root that this node trusts has the token's `kid`")]
    UnknownKey,
    #[error("the token's signature is wrong")]
    Signature,
    #[error("the token's claims are malformed: `sub`, `aud` and `exp` are required")]
    Claims,
    #[error("the token's subject is not a workload of this trust domain")]
    Subject,
    #[error("the token is for another audience")]
    Audience,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    Early,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    kid: String,
    typ: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    aud: Audience,
    exp: i64,
    nbf: Option<i64>,
}

/// What a good token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Validated {
    pub(crate) spiffe_id: String,
    pub(crate) claims: Map<String, Value>,
}

impl JwtKeys {
    /// Adds the key of a root. One that is not ECDSA P-256 signs no tokens.
    pub(crate) fn add(&mut self, spki: &[u8], point: &[u8]) {
        if point.len() == POINT && point.first() == Some(&4) {
            self.0.insert(root_id(spki).to_string(), point.to_vec());
        }
    }

    /// The keys as a JWK Set.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let keys = self.0.iter().map(|(kid, point)| {
            let (x, y) = point[1..].split_at(COORDINATE);
            let [x, y] = [x, y].map(|coordinate| URL_SAFE_NO_PAD.encode(coordinate));
            json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "jwt-svid", "kid": kid, "x": x, "y": y})
        });
        json!({"keys": keys.collect::<Vec<_>>()}).to_string().into_bytes()
    }

    /// Judges a token that a program presented to another one (SPIFFE-9).
    ///
    /// # Errors
    /// Why it is not good.
    pub(crate) fn validate(
        &self,
        token: &str,
        audience: &str,
        cluster: ClusterId,
        now: WallTime,
    ) -> Result<Validated, BadJwt> {
        let parts = Parts::of(token)?;
        let key = self.0.get(&parts.header()?.kid).ok_or(BadJwt::UnknownKey)?;
        let verified = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key).verify(parts.signed, &parts.signature);
        verified.map_err(|_| BadJwt::Signature)?;
        parts.claims(audience, cluster, now)
    }
}

/// What a new token says, before its key may be known here.
///
/// # Errors
/// It says something else than it was asked for.
pub(crate) fn check_new(
    token: &str,
    workload: &WorkloadName,
    audience: &[String],
    cluster: ClusterId,
    now: WallTime,
) -> Result<(), BadJwt> {
    let parts = Parts::of(token)?;
    parts.header()?;
    for of in audience {
        let said = parts.claims(of, cluster, now)?;
        if said.spiffe_id != workload.spiffe_id(cluster) {
            return Err(BadJwt::Subject);
        }
    }
    Ok(())
}

struct Parts<'a> {
    signed: &'a [u8],
    header: Vec<u8>,
    claims: Vec<u8>,
    signature: Vec<u8>,
}

impl<'a> Parts<'a> {
    fn of(token: &'a str) -> Result<Self, BadJwt> {
        if token.len() > MAX_TOKEN {
            return Err(BadJwt::Form);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(BadJwt::Form)?;
        let (header, claims) = signed.split_once('.').ok_or(BadJwt::Form)?;
        let read = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| BadJwt::Form);
        Ok(Self {
            signed: signed.as_bytes(),
            header: read(header)?,
            claims: read(claims)?,
            signature: read(signature)?,
        })
    }

    /// A header that this cluster signs. Any other parameter could change what the token means.
    fn header(&self) -> Result<Header, BadJwt> {
        let header: Header = json(&self.header).ok_or(BadJwt::Header)?;
        if header.alg != "ES256" {
            return Err(BadJwt::Algorithm);
        }
        match header.typ.as_deref() {
            None | Some("JWT" | "JOSE") => Ok(header),
            Some(_) => Err(BadJwt::Header),
        }
    }

    fn claims(&self, audience: &str, cluster: ClusterId, now: WallTime) -> Result<Validated, BadJwt> {
        let all: Map<String, Value> = json(&self.claims).ok_or(BadJwt::Claims)?;
        // Read again, because a name that is there twice is an error here.
        let Claims { sub, aud, exp, nbf } = json(&self.claims).ok_or(BadJwt::Claims)?;
        let path = sub.strip_prefix(&format!("spiffe://{cluster}/workload/")).ok_or(BadJwt::Subject)?;
        path.parse::<WorkloadName>().map_err(|_| BadJwt::Subject)?;
        let is_meant = match &aud {
            Audience::One(one) => one == audience,
            Audience::Many(many) => many.iter().any(|one| one == audience),
        };
        let now = now.0.div_euclid(1000);
        if !is_meant || audience.is_empty() {
            Err(BadJwt::Audience)
        } else if exp.saturating_add(CLOCK_SKEW_SECS) <= now {
            Err(BadJwt::Expired)
        } else if nbf.is_some_and(|nbf| nbf.saturating_sub(CLOCK_SKEW_SECS) > now) {
            Err(BadJwt::Early)
        } else {
            Ok(Validated { spiffe_id: sub, claims: all })
        }
    }
}

fn json<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    serde_json::from_slice(bytes).ok()
}

#[cfg(test)]
mod tests;
