//! How the actors of a supervisor's children end.
//!
//! Owns        the child and run of each actor; exits that overtook the report of their actor's launch; the runs that were abandoned
//!             as stuck, shown until they end.
//! Inputs      launches and the runtime's supervision events.
//! Outputs     which run of which child has ended, and how.
//! Why exits are kept: supervision events overtake messages, so an actor may have ended before its supervisor learns whose it is.

use std::collections::HashMap;

use muster_messages::ExitKind;
use ractor::actor::messages::BoxedState;
use ractor::{ActorId, Signal, SupervisionEvent};

use crate::Fault;
use crate::panicked::Panicked;
use crate::tree::Registration;

/// The end of an actor, as its runtime reports it.
pub(super) struct ActorEnd {
    pub actor: ActorId,
    pub kind: ExitKind,
    pub text: String,
    /// What a killed actor still holds: it was not asked to release it.
    pub held: Option<BoxedState>,
}

impl ActorEnd {
    /// `None`: the event is not an end.
    pub fn of(event: SupervisionEvent) -> Option<Self> {
        match event {
            SupervisionEvent::ActorFailed(cell, error) => {
                let kind = if error.is::<Panicked>() { ExitKind::Panic } else { ExitKind::Error };
                Some(Self { actor: cell.get_id(), kind, text: error.to_string(), held: None })
            }
            SupervisionEvent::ActorTerminated(cell, state, reason) => {
                let text = reason.unwrap_or_default();
                // A task that its runtime has dropped leaves no state.
                let killed = state.is_none() || text == Signal::Kill.to_string();
                let (kind, held) = if killed { (ExitKind::Killed, state) } else { (ExitKind::Normal, None) };
                Some(Self { actor: cell.get_id(), kind, text, held })
            }
            _ => None,
        }
    }
}

/// The end of a child's run.
#[derive(Debug, PartialEq)]
pub(super) struct RunEnd {
    pub name: String,
    pub run: u64,
    pub kind: ExitKind,
    pub text: String,
}

/// See the module.
#[derive(Default)]
pub(super) struct Runs {
    running: HashMap<ActorId, (String, u64)>,
    early: HashMap<ActorId, (ExitKind, String)>,
    stuck: HashMap<u64, Registration>,
}

impl Runs {
    /// The launch of a run has ended: `actor` entered its fence. Its end, if it has failed or overtook this report.
    pub fn launched(
        &mut self,
        name: String,
        run: u64,
        actor: Option<ActorId>,
        result: Result<(), Fault>,
    ) -> Option<RunEnd> {
        let early = actor.and_then(|actor| self.early.remove(&actor));
        let (kind, text) = match (result, early) {
            (Err(fault), _) => (ExitKind::Start, fault.0),
            (Ok(()), Some(early)) => early,
            (Ok(()), None) => {
                let actor = actor.expect("a launched actor has entered its fence");
                self.running.insert(actor, (name, run));
                return None;
            }
        };
        Some(RunEnd { name, run, kind, text })
    }

    /// An actor has ended. `None`: its launch has not been reported yet.
    pub fn ended(&mut self, actor: ActorId, kind: ExitKind, text: String) -> Option<RunEnd> {
        let Some((name, run)) = self.running.remove(&actor) else {
            self.early.insert(actor, (kind, text));
            return None;
        };
        Some(RunEnd { name, run, kind, text })
    }

    /// It ignored stop and kill, and is shown at a path of its own until it ends.
    pub fn abandon(&mut self, run: u64, shown: Registration) {
        self.stuck.insert(run, shown);
    }
    /// Whether this run, which has ended, was shown as stuck.
    pub fn take_stuck(&mut self, run: u64) -> bool {
        self.stuck.remove(&run).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTOR: ActorId = ActorId::Local(7);

    fn end(kind: ExitKind, text: &str) -> Option<RunEnd> {
        Some(RunEnd { name: "a".to_owned(), run: 3, kind, text: text.to_owned() })
    }

    #[test]
    fn end_that_overtakes_its_launch_is_kept() {
        let mut runs = Runs::default();
        assert_eq!(runs.ended(ACTOR, ExitKind::Panic, "boom".to_owned()), None, "whose it is, is not known yet");
        assert_eq!(runs.launched("a".to_owned(), 3, Some(ACTOR), Ok(())), end(ExitKind::Panic, "boom"));
        assert_eq!(runs.launched("a".to_owned(), 3, Some(ACTOR), Ok(())), None, "delivered once");
        assert_eq!(runs.ended(ACTOR, ExitKind::Normal, String::new()), end(ExitKind::Normal, ""));
    }

    #[test]
    fn failed_launch_ends_its_run_once() {
        let mut runs = Runs::default();
        // The actor ended as it was being started.
        assert_eq!(runs.ended(ACTOR, ExitKind::Error, "no".to_owned()), None);
        let failed = runs.launched("a".to_owned(), 3, Some(ACTOR), Err(Fault::new("no port")));
        assert_eq!(failed, end(ExitKind::Start, "no port"));
        assert_eq!(runs.launched("a".to_owned(), 3, Some(ACTOR), Ok(())), None, "the early end went with it");
    }
}
