//! What an operator can do in the browser, with `--actions`: each is one request of the command line's.
//!
//! Invariants  DASH-7  without `--actions` no route changes anything.
//!             DASH-8  a dialog is one request, however often it is sent: a double click, a lost answer and a retry have the same id.

use std::time::Duration;

use muster_client::{Client, Failure, Outcome, Target};
use muster_kernel::Clock;
use muster_messages::wire::{ActorsAsk, ReconcilerRequest, Request};
use muster_messages::{ErrorCode, RequestId, Role, WallTime};
use serde::{Deserialize, Serialize};

use crate::feed::actors_of;

/// How long the outcome is waited for. A removal waits until the member is gone.
const TIMEOUT: Duration = Duration::from_secs(15);
/// How far a browser's clock may differ: the time is a part of each request's id, by which the cluster judges whether it may have
/// forgotten an outcome.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(300);

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    Promote {
        node: String,
    },
    Demote {
        node: String,
    },
    Remove {
        node: String,
        force: bool,
    },
    RotateCertificate {
        node: String,
    },
    TransferLeadership {},
    /// `node` as in the address of the actor's page.
    RestartActor {
        node: String,
        path: String,
    },
    RetryReconciler {
        name: String,
    },
    ResumeReconciler {
        name: String,
    },
}

impl Action {
    fn request(&self) -> Request {
        match self.clone() {
            Action::Promote { node } => Request::SetRole { node, role: Role::Manager },
            Action::Demote { node } => Request::SetRole { node, role: Role::Worker },
            Action::Remove { node, force } => Request::NodeRemove { node, force },
            Action::RotateCertificate { node } => Request::CertRotate { node },
            Action::TransferLeadership {} => Request::TransferLeader { to: None },
            Action::RestartActor { node, path } => {
                Request::Actors { node: actors_of(&node), ask: ActorsAsk::Restart { path } }
            }
            Action::RetryReconciler { name } => Request::Reconciler(ReconcilerRequest::Retry { name, release: None }),
            Action::ResumeReconciler { name } => Request::Reconciler(ReconcilerRequest::Pause { name, paused: false }),
        }
    }
}

/// An action, and the dialog that confirmed it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirmed {
    /// The request's id, 32 hexadecimal digits: the browser makes one for each dialog. Sent for another action it is refused by the
    /// cluster.
    dialog: String,
    pub action: Action,
}

impl Confirmed {
    fn id(&self, now: WallTime) -> Outcome<RequestId> {
        let invalid = |why: &str| Err(Failure::new(ErrorCode::Invalid, why));
        let is_hex = self.dialog.len() == 32 && self.dialog.bytes().all(|b| b.is_ascii_hexdigit());
        let Some(id) = u128::from_str_radix(&self.dialog, 16).ok().filter(|_| is_hex).map(RequestId) else {
            return invalid("a dialog is named by 32 hexadecimal digits");
        };
        if u128::from(id.time().0.abs_diff(now.0)) > MAX_CLOCK_DIFFERENCE.as_millis() {
            return invalid(
                "the browser's clock differs from this machine's by more than five minutes, or the dialog is as old: open it again",
            );
        }
        Ok(id)
    }
}

/// Asks the cluster for it.
pub async fn ask(target: Target, confirmed: &Confirmed) -> Outcome<String> {
    let id = confirmed.id(Clock.wall())?;
    Client::to(target, TIMEOUT).call_as(id, confirmed.action.request()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dialog_is_one_request() {
        let now = WallTime(1_700_000_000_000);
        let confirmed =
            |dialog: &str| Confirmed { dialog: dialog.to_owned(), action: Action::Promote { node: "n1".to_owned() } };
        let fresh = RequestId::fresh(now, 7 << 100);
        assert_eq!(confirmed(&fresh.to_string()).id(now), Ok(fresh));
        for wrong in
            ["", "x", "+0000000000000000000000000000001", &format!("{fresh}0"), "é000000000000000000000000000000"]
        {
            assert!(confirmed(wrong).id(now).unwrap_err().message.contains("32 hexadecimal"), "{wrong}");
        }
        for (minutes, accepted) in [(-6, false), (-4, true), (4, true), (6, false)] {
            let at = WallTime(now.0 + minutes * 60_000);
            assert_eq!(confirmed(&fresh.to_string()).id(at).is_ok(), accepted, "{minutes}");
        }
    }

    #[test]
    fn unknown_actions_and_fields_are_refused() {
        let read = serde_json::from_str::<Confirmed>;
        assert!(read(r#"{"dialog":"a","action":{"do":"remove","node":"n1","force":false}}"#).is_ok());
        for wrong in [
            r#"{"dialog":"a","action":{"do":"force_floor","name":"x"}}"#,
            r#"{"dialog":"a","action":{"do":"promote","node":"n1","force":true}}"#,
            r#"{"dialog":"a","action":{"do":"remove","node":"n1"}}"#,
            r#"{"dialog":"a","more":1,"action":{"do":"promote","node":"n1"}}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
