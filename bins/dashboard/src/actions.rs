//! What an operator can do in the browser, with `--actions`: each is one request of the command line's.
//!
//! Owns        the request ids of the dialogs that were opened lately.
//! Invariants  DASH-7  without `--actions` there is no route that changes anything.
//!             DASH-8  a dialog is one request, however often it is sent: a double click, a lost answer and a retry have the same id.

use std::collections::VecDeque;
use std::time::Duration;

use muster_client::{Client, Failure, Outcome, Target};
use muster_kernel::Clock;
use muster_messages::wire::{ActorsAsk, ActorsOf, ReconcilerRequest, Request};
use muster_messages::{ErrorCode, RequestId, Role};
use serde::{Deserialize, Serialize};

/// How long the outcome is waited for. A removal waits until the member is gone.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Dialogs that are remembered.
const MAX_DIALOGS: usize = 64;
/// Bytes of a dialog's own name.
const MAX_DIALOG: usize = 64;

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
                let node = match node.as_str() {
                    "" => ActorsOf::Here,
                    "leader" => ActorsOf::Leader,
                    _ => ActorsOf::Node(node),
                };
                Request::Actors { node, ask: ActorsAsk::Restart { path } }
            }
            Action::RetryReconciler { name } => Request::Reconciler(ReconcilerRequest::Retry { name, release: None }),
            Action::ResumeReconciler { name } => Request::Reconciler(ReconcilerRequest::Pause { name, paused: false }),
        }
    }
}

/// An action, and the dialog that confirmed it: a text of the browser's, fresh for each dialog.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirmed {
    dialog: String,
    pub action: Action,
}

/// The request ids of dialogs.
#[derive(Default)]
pub struct Dialogs(VecDeque<(String, Action, RequestId)>);

impl Dialogs {
    /// The id of a dialog's request. Refused if the dialog was about something else.
    pub fn id(&mut self, confirmed: &Confirmed) -> Outcome<RequestId> {
        let invalid = |why: &str| Err(Failure::new(ErrorCode::Invalid, why));
        if confirmed.dialog.is_empty() || confirmed.dialog.len() > MAX_DIALOG {
            return invalid("a dialog has a name of 1 to 64 bytes");
        }
        if let Some((_, action, id)) = self.0.iter().find(|(dialog, ..)| *dialog == confirmed.dialog) {
            return if *action == confirmed.action { Ok(*id) } else { invalid("this dialog was about another action") };
        }
        let id = RequestId::fresh(Clock.wall(), rand::random());
        self.0.push_back((confirmed.dialog.clone(), confirmed.action.clone(), id));
        if self.0.len() > MAX_DIALOGS {
            self.0.pop_front();
        }
        Ok(id)
    }
}

/// Asks the cluster for it.
pub async fn ask(target: Target, action: &Action, id: RequestId) -> Outcome<String> {
    Client::to(target, TIMEOUT).call_as(id, action.request()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confirmed(dialog: &str, node: &str) -> Confirmed {
        Confirmed { dialog: dialog.to_owned(), action: Action::Promote { node: node.to_owned() } }
    }

    #[test]
    fn a_dialog_is_one_request_and_about_one_thing() {
        let mut dialogs = Dialogs::default();
        let id = dialogs.id(&confirmed("a", "n1")).unwrap();
        assert_eq!(dialogs.id(&confirmed("a", "n1")).unwrap(), id, "a double click");
        assert_ne!(dialogs.id(&confirmed("b", "n1")).unwrap(), id, "asked anew");
        assert!(dialogs.id(&confirmed("a", "n2")).unwrap_err().message.contains("another action"));
        for wrong in [String::new(), "x".repeat(65)] {
            assert!(dialogs.id(&confirmed(&wrong, "n1")).is_err());
        }
        for n in 0..200 {
            dialogs.id(&confirmed(&n.to_string(), "n1")).unwrap();
        }
        assert_eq!(dialogs.0.len(), MAX_DIALOGS);
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
