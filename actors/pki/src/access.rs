//! Access tokens: `muster-<id>-<secret>`, sent as bearer tokens (RFC 6750) by clients without a certificate. The cluster
//! stores only a digest: a reader of its state cannot impersonate a user.

use muster_messages::Secret;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::token::{new_token_id, new_token_secret};

/// The longest token that is parsed.
const MAX_TOKEN_LENGTH: usize = 128;

/// An access token with its secret.
#[derive(Clone, Debug)]
pub struct BearerToken {
    pub id: String,
    secret: Secret,
}

impl BearerToken {
    pub fn random() -> Self {
        Self { id: new_token_id(), secret: new_token_secret() }
    }
    /// Parses a client's token; `None` if it is not one of Muster's.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
        let (id, secret) = text.strip_prefix("muster-").filter(|_| text.len() <= MAX_TOKEN_LENGTH)?.split_once('-')?;
        (plain(id) && plain(secret)).then(|| Self { id: id.to_owned(), secret: Secret::new(secret) })
    }
    /// The text that its user sends. Shown once, when it is created.
    pub fn to_text(&self) -> String {
        format!("muster-{}-{}", self.id, self.secret.expose())
    }
    /// The digest that the cluster stores.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.secret.expose()).into()
    }
    /// Whether this is the token with the stored `digest`; in constant time.
    pub fn is(&self, digest: &[u8; 32]) -> bool {
        self.digest().ct_eq(digest).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_token_round_trips_and_matches_only_its_digest() {
        let token = BearerToken::random();
        let read = BearerToken::parse(&token.to_text()).unwrap();
        assert_eq!(read.id, token.id);
        assert!(read.is(&token.digest()));
        assert!(!BearerToken::random().is(&token.digest()));
        assert!(!format!("{token:?}").contains(token.secret.expose()));
    }

    #[test]
    fn other_texts_are_not_access_tokens() {
        for bad in ["", "muster-", "muster-a", "muster-a-", "muster--b", "MSTR-1-a-b", "muster-a-B", "muster-a-b-c"] {
            assert!(BearerToken::parse(bad).is_none(), "{bad}");
        }
        assert!(BearerToken::parse(&format!("muster-a-{}", "b".repeat(200))).is_none());
    }
}
