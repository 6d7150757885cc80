//! Access tokens: `muster-<id>-<secret>`, what clients without a certificate send as bearer token (RFC 6750). The
//! cluster keeps a digest only: who reads its state cannot speak for anybody.

use muster_messages::Secret;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::token::{new_token_id, new_token_secret};

/// Longer texts are no tokens.
const LONGEST: usize = 128;

/// An access token as its user has it.
#[derive(Clone, Debug)]
pub struct BearerToken {
    /// Which token; public.
    pub id: String,
    secret: Secret,
}

impl BearerToken {
    /// A new one, of 128 random bits.
    pub fn random() -> Self {
        Self { id: new_token_id(), secret: new_token_secret() }
    }
    /// Reads what a client sent; `None` if it is no token of ours.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
        let (id, secret) = text.strip_prefix("muster-").filter(|_| text.len() <= LONGEST)?.split_once('-')?;
        (plain(id) && plain(secret)).then(|| Self { id: id.to_owned(), secret: Secret::new(secret) })
    }
    /// The text that its user sends. Shown once, when it is made.
    pub fn to_text(&self) -> String {
        format!("muster-{}-{}", self.id, self.secret.expose())
    }
    /// What the cluster keeps of it.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.secret.expose()).into()
    }
    /// Whether this is the token of which the cluster kept `digest`; in a time that tells nothing.
    pub fn is(&self, digest: &[u8; 32]) -> bool {
        self.digest().ct_eq(digest).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_round_trips_and_only_it_matches_its_digest() {
        let token = BearerToken::random();
        let read = BearerToken::parse(&token.to_text()).unwrap();
        assert_eq!(read.id, token.id);
        assert!(read.is(&token.digest()));
        assert!(!BearerToken::random().is(&token.digest()));
        assert!(!format!("{token:?}").contains(token.secret.expose()));
    }

    #[test]
    fn other_texts_are_no_tokens() {
        for bad in ["", "muster-", "muster-a", "muster-a-", "muster--b", "MSTR-1-a-b", "muster-a-B", "muster-a-b-c"] {
            assert!(BearerToken::parse(bad).is_none(), "{bad}");
        }
        assert!(BearerToken::parse(&format!("muster-a-{}", "b".repeat(200))).is_none());
    }
}
