//! Agents whose joining was delayed, recorded when they report it: what is known of those that have not joined yet counts too.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use muster_agent::{JoinProgress, JoinStage};

/// By the stage of the first failed attempt of an agent.
#[derive(Debug, Default)]
pub struct Delays(Mutex<BTreeMap<String, Delayed>>);

/// The agents that a stage delayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delayed {
    pub agents: u32,
    /// What the first of them reported.
    pub first: String,
}

impl Delays {
    /// A line of an agent. Only the first one that reports a failure counts: `recorded` says whether there was one.
    pub fn report(&self, recorded: &mut bool, progress: &JoinProgress) {
        if *recorded || progress.stage == JoinStage::Joined {
            return;
        }
        *recorded = true;
        let mut stages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Delayed { agents: 0, first: progress.text.clone() };
        stages.entry(progress.stage.to_string()).or_insert_with(new).agents += 1;
    }

    pub fn by_stage(&self) -> BTreeMap<String, Delayed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The stage that delayed most agents, in words.
    pub fn most_frequent(&self) -> String {
        let stages = self.by_stage();
        match stages.iter().max_by_key(|(_, delayed)| delayed.agents) {
            Some((stage, Delayed { agents, first })) => {
                format!("{agents} were delayed at the stage {stage}, the first because of: {first}")
            }
            None => "no attempt was reported as failed".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_delayed_agent_counts_once_at_its_first_stage() {
        let delays = Delays::default();
        assert_eq!(delays.most_frequent(), "no attempt was reported as failed");
        let at = |stage, text: &str| JoinProgress { addr: "a:1".to_owned(), stage, text: text.to_owned(), lasts: None };
        let agent = |lines: &[JoinProgress]| {
            let mut recorded = false;
            lines.iter().for_each(|line| delays.report(&mut recorded, line));
        };
        agent(&[at(JoinStage::Joined, "joined")]);
        agent(&[at(JoinStage::Tls, "timed out"), at(JoinStage::Token, "no leader"), at(JoinStage::Joined, "joined")]);
        agent(&[at(JoinStage::Token, "too many")]);
        agent(&[at(JoinStage::Tls, "closed")]);
        let delayed = |agents, first: &str| Delayed { agents, first: first.to_owned() };
        let expected = [("TLS".to_owned(), delayed(2, "timed out")), ("token".to_owned(), delayed(1, "too many"))];
        assert_eq!(delays.by_stage(), BTreeMap::from(expected));
        let text = delays.most_frequent();
        assert_eq!(text, "2 were delayed at the stage TLS, the first because of: timed out");
    }
}
