//! JWTs of workloads (JWT-SVIDs), signed with the key of a root.
//!
//! Why the root's own key: its holder can certify any key, so another one in the same hands would protect nothing. Nodes have its public
//! half in their bundle already, vouched for, before it signs anything, and lose it with the root.
//! Why no signature is good for another purpose: what is signed here begins with `eyJ`, a certificate with the byte 0x30, and what a root
//! says about another one with a context of its own.

use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use muster_messages::{ClusterId, RootId, WallTime, WorkloadName};
use serde_json::json;

use crate::issue::{Issuer, SignError};

/// The longest lifetime of a JWT. It can be copied by each program that it is sent to, and is asked for anew at half of it. No longer than
/// the shortest lifetime of a certificate of a workload: the same time is waited for before a root is retired.
pub const JWT_LIFETIME: Duration = Duration::from_secs(5 * 60);
/// The shortest one, near the end of its root.
const MIN_JWT_LIFETIME: Duration = Duration::from_secs(60);

/// Some libraries refuse a token that was issued later than their own clock says.
const BACK_DATED_SECS: i64 = 30;

/// The content of a JWT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtProfile {
    pub cluster: ClusterId,
    pub workload: WorkloadName,
    /// Who is to accept it.
    pub audience: Vec<String>,
    pub now: WallTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedJwt {
    /// In the compact form.
    pub token: String,
    pub not_after: WallTime,
    pub issuer: RootId,
}

impl Issuer {
    /// Signs a JWT. Its `kid` is the id of the root.
    ///
    /// # Errors
    /// The root ends within the shortest lifetime.
    pub fn sign_jwt(&self, profile: &JwtProfile) -> Result<SignedJwt, SignError> {
        let until = profile.now.plus(JWT_LIFETIME).min(self.expires());
        if until < profile.now.plus(MIN_JWT_LIFETIME) {
            return Err(SignError::RootExpires(self.expires()));
        }
        let seconds = |at: WallTime| at.0.div_euclid(1000);
        let header = json!({"alg": "ES256", "kid": self.id().to_string(), "typ": "JWT"});
        let claims = json!({
            "sub": profile.workload.spiffe_id(profile.cluster), "aud": profile.audience,
            "iat": seconds(profile.now) - BACK_DATED_SECS, "exp": seconds(until),
        });
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let failed = |what: &str| SignError::Signer(what.to_owned());
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, self.key_der())
            .map_err(|_| failed("the root key cannot sign JWTs"))?;
        let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).map_err(|_| failed("no JWT was signed"))?;
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
        Ok(SignedJwt { token, not_after: WallTime::from_unix_secs(seconds(until)), issuer: self.id() })
    }
}
