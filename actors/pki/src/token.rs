//! Join tokens: `MSTR-1-<base36 sha256 of the root>-<secret>`.
//!
//! The digest lets a joining node check the root that it received before it sends a secret; the secret lets the cluster
//! check the joining node.

use muster_messages::{NodeId, Secret};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::encoding::{self, BadPem};
use crate::random::entropy;

/// 36^50 > 2^256.
const DIGEST_LEN: usize = 50;
/// 36^25 > 2^128.
const SECRET_LEN: usize = 25;

/// Why a text is not a join token. Quotes no part of it, which may be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    #[error("not a join token: it must look like MSTR-1-<digest>-<secret>")]
    Shape,
    #[error("unsupported join token version; this release supports MSTR-1-…")]
    Version,
    #[error("the digest in the join token must be {DIGEST_LEN} digits of 0-9a-z; was the token truncated or retyped?")]
    Digest,
    #[error("the secret in the join token must be {SECRET_LEN} digits of 0-9a-z; was the token truncated or retyped?")]
    Secret,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// The [`digest`] of the root. Public.
    pub digest: String,
    pub secret: Secret,
}

impl JoinToken {
    /// A token for a cluster with this root.
    pub fn new(root_pem: &str, secret: Secret) -> Result<Self, BadPem> {
        Ok(Self { digest: digest(root_pem)?, secret })
    }
    /// Parses a token; surrounding white space is ignored.
    pub fn parse(text: &str) -> Result<Self, BadToken> {
        let parts: Vec<&str> = text.trim().split('-').collect();
        let (version, digest, secret) = match parts.as_slice() {
            ["MSTR", version, digest, secret] => (*version, *digest, *secret),
            ["MSTR", version, ..] if *version != "1" => return Err(BadToken::Version),
            _ => return Err(BadToken::Shape),
        };
        if version != "1" {
            return Err(BadToken::Version);
        }
        if !is_base36(digest, DIGEST_LEN) {
            return Err(BadToken::Digest);
        }
        if !is_base36(secret, SECRET_LEN) {
            return Err(BadToken::Secret);
        }
        Ok(Self { digest: digest.to_owned(), secret: Secret::new(secret) })
    }
    /// The whole text with the secret: for `token show`, never for a log.
    pub fn to_text(&self) -> String {
        format!("MSTR-1-{}-{}", self.digest, self.secret.expose())
    }
    pub fn is_for(&self, root_pem: &str) -> bool {
        digest(root_pem).is_ok_and(|d| d == self.digest)
    }
}

/// The SHA-256 of a root certificate (its DER, so that white space in the PEM does not matter), base 36, 50 digits.
pub fn digest(root_pem: &str) -> Result<String, BadPem> {
    let der = encoding::certificate(root_pem)?;
    Ok(base36_of_256(Sha256::digest(&der).into()))
}

/// A new secret for a token: 128 random bits.
pub fn new_token_secret() -> Secret {
    Secret::new(NodeId::from_entropy(entropy()).as_str())
}

/// A new public id for a token: 8 digits of base 36, enough to distinguish the few tokens of a cluster.
pub fn new_token_id() -> String {
    NodeId::from_entropy(entropy()).as_str()[SECRET_LEN - 8..].to_owned()
}

/// Whether two secrets are equal, in a time that depends only on their lengths.
pub fn secrets_equal(a: &Secret, b: &Secret) -> bool {
    a.expose().as_bytes().ct_eq(b.expose().as_bytes()).into()
}

fn is_base36(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase())
}

fn base36_of_256(mut number: [u8; 32]) -> String {
    let mut digits = [b'0'; DIGEST_LEN];
    for digit in digits.iter_mut().rev() {
        let mut remainder = 0u32;
        for byte in &mut number {
            let value = remainder << 8 | u32::from(*byte);
            *byte = (value / 36) as u8;
            remainder = value % 36;
        }
        *digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[remainder as usize];
    }
    digits.iter().map(|b| char::from(*b)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken { digest: base36_of_256([0xff; 32]), secret: new_token_secret() }
    }

    #[test]
    fn a_token_round_trips_and_keeps_its_secret_out_of_debug() {
        let token = token();
        assert_eq!(JoinToken::parse(&token.to_text()), Ok(token.clone()));
        assert_eq!(JoinToken::parse(&format!(" {}\n", token.to_text())), Ok(token.clone()));
        assert!(!format!("{token:?}").contains(token.secret.expose()));
    }

    #[test]
    fn each_token_fault_has_its_own_error() {
        let token = token();
        let (digest, secret) = (&token.digest, token.secret.expose());
        for (text, why) in [
            (String::new(), BadToken::Shape),
            ("SWMTKN-1-a-b".to_owned(), BadToken::Shape),
            (format!("MSTR-1-{digest}"), BadToken::Shape),
            (format!("MSTR-2-{digest}-{secret}"), BadToken::Version),
            (format!("MSTR-2-1-{digest}-{secret}"), BadToken::Version),
            (format!("MSTR-1-{}-{secret}", &digest[1..]), BadToken::Digest),
            (format!("MSTR-1-{}-{secret}", digest.to_uppercase()), BadToken::Digest),
            (format!("MSTR-1-{digest}-{}", &secret[1..]), BadToken::Secret),
        ] {
            assert_eq!(JoinToken::parse(&text), Err(why), "{text}");
        }
    }

    #[test]
    fn base36_keeps_all_256_bits() {
        assert_eq!(base36_of_256([0; 32]), "0".repeat(50));
        let mut one = [0; 32];
        one[31] = 36;
        assert_eq!(base36_of_256(one), format!("{}10", "0".repeat(48)));
        // 2^256 - 1
        assert_eq!(base36_of_256([0xff; 32]), "6dp5qcb22im238nr3wvp0ic7q99w035jmy2iw7i6n43d37jtof");
    }

    #[test]
    fn secrets_are_compared_completely() {
        let (a, b) = (Secret::new("abc"), Secret::new("abd"));
        assert!(secrets_equal(&a, &a));
        assert!(!secrets_equal(&a, &b));
        assert!(!secrets_equal(&a, &Secret::new("ab")));
    }
}
