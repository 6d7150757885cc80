//! Errors as users and scripts see them: a code with a fixed exit status and HTTP status, a sentence, details.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{DetailField, Details};

/// The contract's word for one of its fixed values, as in JSON; empty if it has none.
pub fn word(value: impl Serialize) -> String {
    let value = serde_json::to_value(value).ok();
    value.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident => $text:literal, $http:literal, $exit:literal;)*) => {
        /// The codes of the contract. Each fixes a word, an HTTP status and an exit status.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum ErrorCode { $($(#[$doc])* #[serde(rename = $text)] $variant,)* }
        impl ErrorCode {
            #[cfg(test)]
            const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// The word that scripts match.
            pub fn text(self) -> &'static str { match self { $(ErrorCode::$variant => $text,)* } }
            /// The code with this word. `None`: this release does not know it.
            pub fn of(text: &str) -> Option<Self> { match text { $($text => Some(ErrorCode::$variant),)* _ => None } }
            /// The HTTP status of this code.
            pub fn http_status(self) -> u16 { match self { $(ErrorCode::$variant => $http,)* } }
            /// The exit status of `muster` for this code.
            pub fn exit_status(self) -> u8 { match self { $(ErrorCode::$variant => $exit,)* } }
            /// Whether the same request may be answered otherwise later: no decision was made, or none is known.
            pub fn is_transient(self) -> bool { matches!(self.http_status(), 429 | 500 | 503 | 504) }
        }
    };
}

codes! {
    /// The request is malformed, or what it names is.
    Invalid => "invalid", 400, 2;
    /// The caller has no valid identity.
    Unauthenticated => "unauthenticated", 401, 6;
    /// The caller may not make this request.
    Forbidden => "forbidden", 403, 6;
    /// What the request names does not exist.
    NotFound => "not_found", 404, 4;
    /// The state has changed, or another holds what was asked for.
    Conflict => "conflict", 409, 8;
    /// The cluster would be left without a manager.
    LastManager => "last_manager", 409, 6;
    /// A majority of the managers might not answer afterwards.
    QuorumAtRisk => "quorum_at_risk", 409, 6;
    /// A manager is demoted before it is removed.
    DemoteFirst => "demote_first", 409, 6;
    /// A node that answers is removed only by force.
    NodeNotDown => "node_not_down", 409, 6;
    /// The node is blocked.
    Blocked => "blocked", 409, 6;
    /// The node is not a manager any more.
    Demoted => "demoted", 409, 6;
    /// The node is not in the cluster any more.
    Removed => "removed", 409, 6;
    /// The join token is not of this cluster, or was revoked.
    BadToken => "bad_token", 409, 6;
    /// The join token has expired.
    TokenExpired => "token_expired", 409, 6;
    /// The join token was used as often as it may be.
    TokenUsedUp => "token_used_up", 409, 6;
    /// The root is not the one that the token names.
    DigestMismatch => "digest_mismatch", 409, 6;
    /// This node is not a manager: ask one.
    NotAManager => "not_a_manager", 409, 6;
    /// A serving member is incompatible with it, or a gate does not admit a member.
    GateClosed => "gate_closed", 409, 6;
    /// The request is larger than its limit.
    TooLarge => "too_large", 413, 2;
    /// A limit of concurrent requests is reached.
    TooManyRequests => "too_many_requests", 429, 6;
    /// No majority of the managers answers.
    NoQuorum => "no_quorum", 503, 5;
    /// The server cannot be reached, or is starting.
    Unreachable => "unreachable", 503, 5;
    /// This manager has not applied the state that the request needs.
    NotKnownHereYet => "not_known_here_yet", 503, 5;
    /// Leadership was lost while the proposal was in flight: retry with the same request id.
    UnknownOutcome => "unknown_outcome", 503, 5;
    /// The deadline passed before there was an answer.
    TimedOut => "timed_out", 504, 3;
    /// A bug, or a fault of the machine.
    Internal => "internal", 500, 1;
    /// The replicated state has no room for this change. Deletions and renewals are still possible.
    StateFull => "state_full", 507, 6;
    /// The audit log of this daemon is required and cannot be written: nothing was done.
    AuditUnavailable => "audit_unavailable", 503, 5;
    /// The cluster has a root with this key already.
    SameKey => "same_key", 409, 6;
    /// The cluster has as many roots as it may have.
    TooManyRoots => "too_many_roots", 409, 6;
    /// Managers, or certificates that are valid, depend on the root.
    RootInUse => "root_in_use", 409, 6;
    /// Autolock is off.
    NotEnabled => "not_enabled", 409, 6;
    /// Managers that are away keep too many former unlock keys.
    TooManyKeys => "too_many_keys", 409, 6;
    /// The key opens nothing of this daemon.
    BadUnlockKey => "bad_unlock_key", 409, 6;
    /// The daemon is sealed under an earlier key than the one given.
    OldKeyNeeded => "old_key_needed", 409, 6;
    /// The daemon is not locked.
    NotLocked => "not_locked", 409, 6;
    /// The daemon waits for its unlock key.
    Locked => "locked", 503, 5;
    /// Changes after the given revision are no longer known here: list again.
    Expired => "expired", 410, 8;
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// An error as sent to the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ErrorBody {
    /// What scripts match.
    pub code: ErrorCode,
    /// What was refused, why, and what would help; lower case, no full stop.
    pub message: String,
    /// A JSON object as text, `{}` if there is nothing to add. (Text, because bincode has no JSON value.)
    pub details: String,
    /// When a retry makes sense, for the codes with `Retry-After`.
    pub retry_after_ms: Option<u64>,
}

/// A mark for relays, as `"name": true` in an error's details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorMark {
    /// The same request will never get another answer.
    Final,
    /// The manager asked as the leader does not lead, and has done nothing: ask the leader.
    NotLeading,
    /// The request was not sent to the leader, or the leader refused to begin it.
    NotSent,
}

/// In the JSON form, the time to retry is among the details.
const RETRY_AFTER_MS: DetailField<u64> = DetailField::new("retry_after_ms");

impl ErrorMark {
    fn field(self) -> DetailField<bool> {
        DetailField::new(match self {
            ErrorMark::Final => "final",
            ErrorMark::NotLeading => "not_leading",
            ErrorMark::NotSent => "not_sent",
        })
    }
}

impl ErrorBody {
    /// An error without details.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: "{}".to_owned(), retry_after_ms: None }
    }
    /// The request is not valid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Invalid, message)
    }
    /// The caller may not make this request.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Forbidden, message)
    }
    /// A request that may have been carried out, or may still be: `why` says what is missing to know it.
    pub fn unknown_outcome(why: impl std::fmt::Display) -> Self {
        let text = format!("{why}; it may have been done or may still happen: check before you repeat it");
        Self::new(ErrorCode::UnknownOutcome, text)
    }
    /// Marks that the same request will never get another answer: a relay must not ask again.
    #[must_use]
    pub fn finally(self) -> Self {
        self.marked(ErrorMark::Final)
    }
    /// Whether the same request will never get another answer.
    pub fn is_final(&self) -> bool {
        self.is_marked(ErrorMark::Final)
    }
    /// Adds a mark for relays; other details stay.
    #[must_use]
    pub fn marked(mut self, mark: ErrorMark) -> Self {
        self.details = Details::parse(&self.details).with(mark.field(), &true).to_string();
        self
    }
    /// Whether it carries this mark. The same word elsewhere in the details, such as a user's name for a lease, does not count.
    pub fn is_marked(&self, mark: ErrorMark) -> bool {
        self.detail(mark.field()) == Some(true)
    }
    /// The value of a field of its details. `None`: it is not there, or is of another type.
    pub fn detail<T: DeserializeOwned>(&self, field: DetailField<T>) -> Option<T> {
        Details::parse(&self.details).get(field)
    }
    /// With these details only.
    #[must_use]
    pub fn with_details(mut self, details: &Details) -> Self {
        self.details = details.to_string();
        self
    }
    /// Sets the time to retry.
    #[must_use]
    pub fn retry_after(mut self, after: std::time::Duration) -> Self {
        self.retry_after_ms = Some(super::millis(after));
        self
    }
    /// `{"error":{"code","message","details"}}`.
    pub fn to_json(&self) -> serde_json::Value {
        let mut details = Details::parse(&self.details);
        if let Some(ms) = self.retry_after_ms {
            details = details.with(RETRY_AFTER_MS, &ms);
        }
        let details = serde_json::Value::from(details);
        serde_json::json!({"error": {"code": self.code, "message": self.message, "details": details}})
    }
}

/// Why a connection or a call is refused right after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    /// Final, from a replica that has applied the certificate's grant.
    Blocked,
    /// Final for the manager runtime, from a replica that has applied the certificate's grant.
    Demoted,
    /// Final, from a replica that has applied the certificate's grant.
    Removed,
    /// Try another manager.
    NotKnownHereYet,
    /// Ask a manager.
    NotAManager,
    /// No certificate where one is required, or one of the wrong kind.
    Unauthenticated,
    /// The caller may not make this call.
    Forbidden,
    /// An older incarnation of the cluster.
    OldIncarnation,
    /// Limits: too many connections, registrations or joins.
    TooManyRequests,
    /// The other side uses another version or broke the protocol.
    Protocol,
    /// This process is shutting down.
    ShuttingDown,
    /// Another process has this identity.
    Duplicate,
}

impl RefusalReason {
    /// The error code for callers.
    pub fn code(self) -> ErrorCode {
        match self {
            RefusalReason::Blocked => ErrorCode::Blocked,
            RefusalReason::Demoted => ErrorCode::Demoted,
            RefusalReason::Removed | RefusalReason::OldIncarnation => ErrorCode::Removed,
            RefusalReason::NotKnownHereYet => ErrorCode::NotKnownHereYet,
            RefusalReason::NotAManager => ErrorCode::NotAManager,
            RefusalReason::Unauthenticated => ErrorCode::Unauthenticated,
            RefusalReason::Forbidden => ErrorCode::Forbidden,
            RefusalReason::TooManyRequests => ErrorCode::TooManyRequests,
            RefusalReason::Protocol => ErrorCode::Invalid,
            RefusalReason::ShuttingDown => ErrorCode::Unreachable,
            RefusalReason::Duplicate => ErrorCode::Conflict,
        }
    }
}
impl std::fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&word(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_codes_are_their_names_in_snake_case() {
        for code in ErrorCode::ALL {
            let mut expected = String::new();
            for c in format!("{code:?}").chars() {
                if c.is_ascii_uppercase() && !expected.is_empty() {
                    expected.push('_');
                }
                expected.push(c.to_ascii_lowercase());
            }
            assert_eq!((code.text(), word(code)), (expected.as_str(), expected.clone()));
            assert_eq!(ErrorCode::of(code.text()), Some(*code));
        }
        assert_eq!(ErrorCode::of("of_a_newer_release"), None);
    }

    #[test]
    fn only_what_was_not_decided_is_transient() {
        use ErrorCode as C;
        let transient = [
            C::TooManyRequests,
            C::NoQuorum,
            C::Unreachable,
            C::NotKnownHereYet,
            C::UnknownOutcome,
            C::TimedOut,
            C::Internal,
            C::AuditUnavailable,
            C::Locked,
        ];
        assert!(transient.into_iter().all(C::is_transient));
        let decided =
            [C::Invalid, C::Forbidden, C::NotFound, C::Conflict, C::GateClosed, C::TooLarge, C::StateFull, C::Expired];
        assert!(!decided.into_iter().any(C::is_transient));
    }

    #[test]
    fn marks_differ_from_the_same_words_in_details() {
        let lease = Details::of(&serde_json::json!({"lease": "a"}));
        let error = ErrorBody::new(ErrorCode::Unreachable, "no").with_details(&lease);
        let marked = error.clone().marked(ErrorMark::NotLeading).marked(ErrorMark::NotSent);
        assert!(marked.is_marked(ErrorMark::NotLeading) && marked.is_marked(ErrorMark::NotSent) && !marked.is_final());
        assert!(marked.details.contains("\"lease\":\"a\""), "{}", marked.details);
        for details in [
            serde_json::json!({"lease": "not_leading"}),
            serde_json::json!({"not_leading": "true"}),
            serde_json::json!({"of": {"not_leading": true}}),
        ] {
            assert!(!error.clone().with_details(&Details::of(&details)).is_marked(ErrorMark::NotLeading), "{details}");
        }
    }
}
