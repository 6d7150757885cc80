//! The content of a line.
//!
//! Owns        the fields of an entry and their form as JSON.
//! Inputs      an [`Entry`].
//! Outputs     one line, without its line break.
//! Invariants  AUDIT-2  no secret, no token and no body is in a line: texts of callers are bounded, and anything in them that looks
//!                      like a token or a key is removed.

use muster_messages::{ErrorCode, NodeId, Principal, PrincipalView, RequestId, Revision, WallTime, printable};
use serde::Serialize;

/// Characters of a name or an id in a line. The longest name of a Kubernetes object has 253.
const MAX_NAME: usize = 256;
/// Characters of a reason. The longest refusal texts have about as many.
const MAX_REASON: usize = 400;
/// An access token's secret has more digits than this; a handwritten id has fewer.
const SECRET_DIGITS: usize = 16;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Via {
    /// From this process itself, or forwarded by another manager.
    #[default]
    Internal,
    /// The admin socket, and the process that connected to it. A process in another pid namespace has no pid here.
    Socket {
        uid: u32,
        pid: Option<i32>,
    },
    Addr(String),
}

/// The origin of a request, besides its principal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub via: Via,
    /// The serial number of the certificate of the connection.
    pub serial: Option<String>,
    /// The manager that forwarded it and authenticated its caller.
    pub forwarder: Option<NodeId>,
}

impl Origin {
    pub fn forwarded_by(forwarder: NodeId) -> Self {
        Self { forwarder: Some(forwarder), ..Self::default() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Object {
    pub kind: &'static str,
    pub id: Option<String>,
    pub name: Option<String>,
}

impl Object {
    pub fn named(kind: &'static str, name: impl ToString) -> Self {
        Self { kind, id: None, name: Some(name.to_string()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Done,
    /// Recorded; the requested change is in progress.
    Accepted,
    /// Decided against; no effect.
    Refused,
    UnknownOutcome,
    /// No decision: no quorum, no leader, no time, a bug.
    Failed,
}

impl Outcome {
    /// The outcome of a request that was answered with this error.
    pub fn of(code: ErrorCode) -> Self {
        match code {
            ErrorCode::UnknownOutcome => Outcome::UnknownOutcome,
            ErrorCode::NoQuorum
            | ErrorCode::Unreachable
            | ErrorCode::NotKnownHereYet
            | ErrorCode::TimedOut
            | ErrorCode::Internal => Outcome::Failed,
            _ => Outcome::Refused,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub at: WallTime,
    /// `None`: the request has no id, and cannot be repeated under one.
    pub request: Option<RequestId>,
    pub node: NodeId,
    pub by: Principal,
    pub origin: Origin,
    pub verb: String,
    pub object: Object,
    pub outcome: Outcome,
    pub code: Option<ErrorCode>,
    pub reason: Option<String>,
    pub revision: Option<Revision>,
    pub took_ms: u64,
}

#[derive(Serialize)]
struct Line {
    at: WallTime,
    request: Option<String>,
    node: NodeId,
    by: By,
    via: Option<serde_json::Value>,
    forwarder: Option<NodeId>,
    verb: String,
    object: Object,
    outcome: Outcome,
    code: Option<ErrorCode>,
    reason: Option<String>,
    revision: Option<Revision>,
    took_ms: u64,
}

#[derive(Serialize)]
struct By {
    #[serde(flatten)]
    who: PrincipalView,
    serial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

pub fn line(entry: &Entry) -> String {
    let token = match &entry.by {
        Principal::Bearer { token, .. } => Some(text(token, MAX_NAME)),
        _ => None,
    };
    let via = match &entry.origin.via {
        Via::Internal => None,
        Via::Socket { uid, pid } => Some(serde_json::json!({"socket": {"uid": uid, "pid": pid}})),
        Via::Addr(addr) => Some(serde_json::json!({"addr": text(addr, MAX_NAME)})),
    };
    let name = |given: &Option<String>| given.as_deref().map(|given| text(given, MAX_NAME));
    let line = Line {
        at: entry.at,
        request: entry.request.map(|id| id.to_string()),
        node: entry.node,
        by: By { who: PrincipalView::from(&entry.by), serial: name(&entry.origin.serial), token },
        via,
        forwarder: entry.origin.forwarder,
        verb: text(&entry.verb, MAX_NAME),
        object: Object { kind: entry.object.kind, id: name(&entry.object.id), name: name(&entry.object.name) },
        outcome: entry.outcome,
        code: entry.code,
        reason: entry.reason.as_deref().map(|reason| text(reason, MAX_REASON)),
        revision: entry.revision,
        took_ms: entry.took_ms,
    };
    serde_json::to_string(&line).expect("every field of a line is JSON")
}

/// Removes secrets before it shortens: the start of a secret is secret too.
fn text(given: &str, max_chars: usize) -> String {
    printable(&without_secrets(given), max_chars)
}

/// A text in which join tokens, access tokens and keys are replaced by an ellipsis.
pub fn without_secrets(given: &str) -> String {
    // PEM has line breaks, and the key follows its first line.
    let given = given.split("-----BEGIN").next().unwrap_or_default();
    let mut out = String::with_capacity(given.len());
    let mut word = String::new();
    for c in given.chars().map(Some).chain([None]) {
        match c {
            Some(c) if c.is_ascii_alphanumeric() || c == '-' => word.push(c),
            end => {
                out.push_str(if is_secret(&word) { "…" } else { &word });
                word.clear();
                out.extend(end);
            }
        }
    }
    out
}

fn is_secret(word: &str) -> bool {
    let last = word.rsplit('-').next().unwrap_or_default();
    let lower = word.to_ascii_lowercase();
    let digits = last.len() >= SECRET_DIGITS && last.bytes().any(|b| b.is_ascii_digit());
    lower.contains("mstr-") || lower.contains("muster-") && digits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            at: WallTime(0),
            request: Some(RequestId(0xab)),
            node: NodeId::from_entropy(1),
            by: Principal::Operator,
            origin: Origin { via: Via::Socket { uid: 1000, pid: Some(812) }, ..Origin::default() },
            verb: "node.promote".to_owned(),
            object: Object { kind: "node", id: Some("x".to_owned()), name: Some("n4".to_owned()) },
            outcome: Outcome::Accepted,
            code: None,
            reason: None,
            revision: Some(Revision(120)),
            took_ms: 3,
        }
    }

    #[test]
    fn line_has_the_fields_in_their_order() {
        let node = NodeId::from_entropy(1);
        let expected = format!(
            r#"{{"at":"1970-01-01T00:00:00.000Z","request":"000000000000000000000000000000ab","node":"{node}","by":{{"kind":"operator","id":null,"serial":null}},"via":{{"socket":{{"uid":1000,"pid":812}}}},"forwarder":null,"verb":"node.promote","object":{{"kind":"node","id":"x","name":"n4"}},"outcome":"accepted","code":null,"reason":null,"revision":120,"took_ms":3}}"#
        );
        let parsed: serde_json::Value = serde_json::from_str(&line(&entry())).unwrap();
        assert_eq!(parsed, serde_json::from_str::<serde_json::Value>(&expected).unwrap());
        let order = |text: &str| ["\"at\"", "\"by\"", "\"via\"", "\"verb\"", "\"took_ms\""].map(|key| text.find(key));
        assert!(order(&line(&entry())).is_sorted());
    }

    #[test]
    fn callers_are_named_by_certificate_and_token_id() {
        let user = || "ann".parse().unwrap();
        let by = Principal::Bearer { user: user(), token: "t17".to_owned() };
        let forwarder = NodeId::from_entropy(2);
        let origin = Origin { serial: Some("0a".to_owned()), ..Origin::forwarded_by(forwarder) };
        let rendered: serde_json::Value = serde_json::from_str(&line(&Entry { by, origin, ..entry() })).unwrap();
        assert_eq!(rendered["by"], serde_json::json!({"kind": "user", "id": "ann", "serial": "0a", "token": "t17"}));
        assert_eq!(
            (&rendered["via"], &rendered["forwarder"]),
            (&serde_json::Value::Null, &serde_json::json!(forwarder))
        );
    }

    #[test]
    fn tokens_and_keys_in_caller_texts_are_removed() {
        let access = "muster-9x2ab-1q2w3e4r5t6y7u8i9o0p1q2w3e";
        let join = "MSTR-1-0abcdefghij0abcdefghij0abcdefghij0abcdefghij-zyx9876543210zyx987654321";
        for secret in [access, join] {
            let object = Object { kind: "token", id: Some(secret.to_owned()), name: Some(format!("\"{secret}\"")) };
            let reason = Some(format!("no token {secret}; -----BEGIN PRIVATE KEY-----\nMIGH"));
            let rendered = line(&Entry { verb: format!("x:{secret}"), object, reason, ..entry() });
            let tail = secret.rsplit('-').next().unwrap();
            assert!(!rendered.contains(tail) && !rendered.contains("MIGH"), "{rendered}");
            assert!(rendered.contains("no token …"), "{rendered}");
        }
        assert_eq!(without_secrets("muster-agent on n1-2 is fine"), "muster-agent on n1-2 is fine");
    }

    #[test]
    fn long_and_unprintable_texts_are_bounded() {
        let reason = Some("x\n".repeat(10_000));
        let object = Object::named("lease", "y".repeat(10_000));
        let rendered = line(&Entry { reason, object, ..entry() });
        assert!(rendered.len() < 3_000 && !rendered.contains('\n') && !rendered.contains("\\n"), "{}", rendered.len());
    }
}
