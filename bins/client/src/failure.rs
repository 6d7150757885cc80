//! The failure of a command: a code, a sentence, details, and an exit status that follows from the code.

use muster_messages::{DetailField, Details, ErrorBody, ErrorCode, Word};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Why a command failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// What scripts match. A word that is not in the contract's list is kept as text: one of the command line itself, or of a newer server.
    pub code: Word<ErrorCode>,
    /// The exit status of `muster` for it.
    pub exit: u8,
    /// A sentence for people.
    pub message: String,
    /// What programs may use, as JSON.
    pub details: Value,
}

impl Failure {
    /// A failure with one of the contract's codes.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code: code.into(), exit: code.exit_status(), message: message.into(), details: json!({}) }
    }
    /// An unexpected failure: exit 1.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::Internal, message.to_string())
    }
    /// A refusal by the command line itself, with a code outside the contract: exit 6.
    pub fn refused(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.into(), exit: 6, message: message.into(), details: json!({}) }
    }
    /// A file or folder that could not be used.
    pub fn io(what: impl std::fmt::Display, error: &std::io::Error) -> Self {
        Self::internal(format!("{what}: {error}"))
    }
    /// Adds details.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Value>) -> Self {
        self.details = details.into();
        self
    }
    /// The value of a field of its details. `None`: it is not there, or is of another type.
    pub fn detail<T: DeserializeOwned>(&self, field: DetailField<T>) -> Option<T> {
        Details::of(&self.details).get(field)
    }
    /// Whether it has this code.
    pub fn is(&self, code: ErrorCode) -> bool {
        self.code == code
    }
    /// Whether it is transient: about the cluster's state, not about the request.
    pub fn is_transient(&self) -> bool {
        self.is(ErrorCode::TimedOut) || self.exit == ErrorCode::NoQuorum.exit_status()
    }
    /// Whether the same request may be answered later: the failure is transient, or about load, or about a replica that is behind.
    pub fn may_pass(&self) -> bool {
        self.is_transient()
            || [ErrorCode::UnknownOutcome, ErrorCode::NotKnownHereYet, ErrorCode::TooManyRequests]
                .iter()
                .any(|code| self.is(*code))
    }
    /// `{"error":{"code","message","details"}}`.
    pub fn to_json(&self) -> Value {
        json!({"error": {"code": self.code, "message": self.message, "details": self.details}})
    }
    /// The refusal in an HTTP answer: the code of its error document or, for a Kubernetes object, of the HTTP status.
    pub fn from_http(status: u16, document: &Value) -> Self {
        let error = &document["error"];
        let code = error["code"].as_str().and_then(ErrorCode::of).unwrap_or(match status {
            401 => ErrorCode::Unauthenticated,
            403 => ErrorCode::Forbidden,
            404 => ErrorCode::NotFound,
            409 => ErrorCode::Conflict,
            429 => ErrorCode::TooManyRequests,
            503 => ErrorCode::NoQuorum,
            504 => ErrorCode::TimedOut,
            _ => ErrorCode::Internal,
        });
        let said = error["message"].as_str().or_else(|| document["message"].as_str());
        let message = said.map_or_else(|| format!("HTTP status {status} without a reason"), str::to_owned);
        let details = error["details"].as_object().cloned().unwrap_or_default();
        Self::new(code, message).with_details(Value::Object(details))
    }
}

impl From<ErrorBody> for Failure {
    fn from(body: ErrorBody) -> Self {
        let document = body.to_json();
        Self {
            code: body.code.into(),
            exit: body.code.exit_status(),
            details: document["error"]["details"].clone(),
            message: body.message,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// The result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_refusal_takes_its_reason_from_either_document_kind() {
        let conflict = Failure::from_http(409, &json!({"kind": "Status", "message": "modified"}));
        let error = json!({"code": "no_quorum", "message": "no", "details": {"missing": []}});
        let refused = Failure::from_http(503, &json!({"error": error}));
        assert!(conflict.is(ErrorCode::Conflict) && conflict.message == "modified", "{conflict}");
        assert!(refused.is(ErrorCode::NoQuorum) && refused.message == "no", "{refused}");
        assert_eq!(refused.details, json!({"missing": []}));
        assert!(Failure::from_http(500, &Value::Null).is(ErrorCode::Internal));
    }

    #[test]
    fn a_servers_error_keeps_its_code_details_and_exit_status() {
        let needed = Details::of(&json!({"needed": 2}));
        let body = ErrorBody::new(ErrorCode::QuorumAtRisk, "it would leave 1 of 3 voters").with_details(&needed);
        let failure = Failure::from(body);
        assert_eq!(failure.exit, 6);
        assert_eq!(
            failure.to_json(),
            json!({"error": {"code": "quorum_at_risk", "message": "it would leave 1 of 3 voters", "details": {"needed": 2}}})
        );
    }

    #[test]
    fn codes_are_compared_as_values_and_other_words_are_kept() {
        let known = Failure::refused("conflict", "");
        assert!(known.is(ErrorCode::Conflict) && known.code.known() == Some(ErrorCode::Conflict), "{known:?}");
        let other = Failure::refused("of_a_newer_server", "");
        assert_eq!(other.code, Word::Other("of_a_newer_server".to_owned()));
        assert_eq!(other.to_json()["error"]["code"], "of_a_newer_server");
        assert!(!other.is(ErrorCode::Internal) && !other.may_pass(), "{other:?}");
    }

    #[test]
    fn only_transient_failures_are_retried() {
        for (code, waits) in [
            (ErrorCode::NoQuorum, true),
            (ErrorCode::Unreachable, true),
            (ErrorCode::TimedOut, true),
            (ErrorCode::UnknownOutcome, true),
            (ErrorCode::NotFound, false),
            (ErrorCode::Forbidden, false),
            (ErrorCode::Invalid, false),
        ] {
            assert_eq!(Failure::new(code, "").is_transient(), waits, "{code}");
        }
    }
}
