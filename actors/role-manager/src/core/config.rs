//! The role manager's durations and bounds.

use std::time::Duration;

/// The role manager's settings. `election_timeout` follows the daemon's configuration; the others are constants with a reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How often all pending work is retried. Events normally drive it; this covers what no event reports.
    pub retry: Duration,
    /// A membership change that takes longer is shown as `conf_change_slow`.
    pub slow_change: Duration,
    /// The shortest election timeout. An older acknowledgement proves nothing about the next election, and a younger
    /// leader has not received acknowledgements from all voters yet.
    pub election_timeout: Duration,
    /// A learner that is silent for longer is removed until it asks again.
    pub learner_silence: Duration,
    /// How many entries a learner may lag behind the commit index when it becomes a voter. A thousand are some tens of
    /// milliseconds at the log's highest rate, far below an election timeout.
    pub catch_up_slack: u64,
    /// How long a proposal may take before its caller gets an answer.
    pub propose_deadline: Duration,
    /// How long a successful dial-back counts. Longer than a queue of membership changes, shorter than a reboot.
    pub dial_back_counts: Duration,
    /// How long a node that asks for membership waits before it is answered with the reason for the wait.
    pub membership_timeout: Duration,
    /// The retry time suggested to a node that must ask again.
    pub ask_again: Duration,
    /// How many callers may wait for the end of one removal; further ones are asked to retry.
    pub waiters_per_removal: usize,
    /// Injected bugs, so that a simulation can show that it detects them.
    #[cfg(feature = "bug-injection")]
    pub bugs: BugInjection,
}

/// Test-only switches.
#[cfg(feature = "bug-injection")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BugInjection {
    /// Breaks ROLE-3: no membership change waits for quorum.
    pub skip_quorum_gate: bool,
    /// Breaks ROLE-3: a recent acknowledgement counts as proof that a voter is alive.
    pub trust_recent_acks: bool,
    /// Breaks INTENT-1: a request is answered when it is proposed.
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
            membership_timeout: Duration::from_secs(2),
            ask_again: Duration::from_secs(1),
            waiters_per_removal: 16,
            #[cfg(feature = "bug-injection")]
            bugs: BugInjection::default(),
        }
    }
}

impl Config {
    pub(crate) fn answers_before_written(&self) -> bool {
        #[cfg(feature = "bug-injection")]
        return self.bugs.answer_before_written;
        #[cfg(not(feature = "bug-injection"))]
        false
    }
    /// How long the resulting voters of a membership change have to respond: for longer than that a voter counts as silent anyway.
    pub(crate) fn confirm_within(&self) -> Option<Duration> {
        (!self.skips_quorum_gate() && !self.trusts_recent_acks()).then_some(self.election_timeout)
    }
    pub(crate) fn trusts_recent_acks(&self) -> bool {
        #[cfg(feature = "bug-injection")]
        return self.bugs.trust_recent_acks;
        #[cfg(not(feature = "bug-injection"))]
        false
    }
    pub(crate) fn skips_quorum_gate(&self) -> bool {
        #[cfg(feature = "bug-injection")]
        return self.bugs.skip_quorum_gate;
        #[cfg(not(feature = "bug-injection"))]
        false
    }
}
