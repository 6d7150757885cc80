//! The role manager's durations and bounds.

use std::time::Duration;

/// How patient the role manager is. Every value is a key of the daemon's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How often everything pending is tried again. Events do the work; this is for what no event announces.
    pub retry: Duration,
    /// A membership change that takes longer is shown as `conf_change_slow`.
    pub slow_change: Duration,
    /// The shortest election timeout. An acknowledgement older than this proves nothing about the next election,
    /// and a leader younger than this has not heard everybody yet.
    pub election_timeout: Duration,
    /// A learner that is silent for longer loses its seat until it asks again.
    pub learner_silence: Duration,
    /// How many entries a learner may lag behind the commit index when it becomes a voter. A thousand are some tens of
    /// milliseconds at the highest rate the log takes, far below an election timeout.
    pub catch_up_slack: u64,
    /// How long a proposal may take before its caller is told.
    pub propose_deadline: Duration,
    /// How long a successful dial-back counts. Longer than a queue of membership changes, shorter than a reboot.
    pub dial_back_counts: Duration,
    /// How long a node that asks for a seat is kept waiting before it is told what it waits for.
    pub seat_patience: Duration,
    /// The pause suggested to a node that is told to ask again.
    pub ask_again: Duration,
    /// How many asks for one removal may wait for its end; further ones are told to ask again.
    pub waiters_per_removal: usize,
    /// Promises broken on purpose, so that a simulation can show that it notices.
    #[cfg(feature = "sabotage")]
    pub sabotage: Sabotage,
}

/// Test-only switches.
#[cfg(feature = "sabotage")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sabotage {
    /// Breaks ROLE-3: no membership change is held back for quorum.
    pub skip_quorum_gate: bool,
    /// Breaks ROLE-3: a recent acknowledgement counts as proof that a voter is alive.
    pub trust_recent_acks: bool,
    /// Breaks WISH-1: a wish is answered when it is proposed.
    pub answer_before_written: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            retry: Duration::from_secs(5),
            slow_change: Duration::from_secs(5),
            election_timeout: Duration::from_millis(600),
            learner_silence: Duration::from_secs(30),
            catch_up_slack: 1000,
            propose_deadline: Duration::from_secs(5),
            dial_back_counts: Duration::from_secs(10),
            seat_patience: Duration::from_secs(2),
            ask_again: Duration::from_secs(1),
            waiters_per_removal: 16,
            #[cfg(feature = "sabotage")]
            sabotage: Sabotage::default(),
        }
    }
}

impl Config {
    pub(crate) fn answers_before_written(&self) -> bool {
        #[cfg(feature = "sabotage")]
        return self.sabotage.answer_before_written;
        #[cfg(not(feature = "sabotage"))]
        false
    }
    pub(crate) fn trusts_recent_acks(&self) -> bool {
        #[cfg(feature = "sabotage")]
        return self.sabotage.trust_recent_acks;
        #[cfg(not(feature = "sabotage"))]
        false
    }
    pub(crate) fn skips_quorum_gate(&self) -> bool {
        #[cfg(feature = "sabotage")]
        return self.sabotage.skip_quorum_gate;
        #[cfg(not(feature = "sabotage"))]
        false
    }
}
