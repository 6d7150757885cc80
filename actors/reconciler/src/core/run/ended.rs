//! The end of an action.

use muster_messages::RunExit;

/// How an action ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The action asked to be retried later (a command: exit status 75).
    Later(String),
    Failed(String),
    /// A retry cannot succeed (a command: exit status 78).
    Permanent(String),
}

impl Outcome {
    /// In words; empty if there is nothing to say.
    pub fn why(&self) -> &str {
        match self {
            Self::Done => "",
            Self::Later(why) | Self::Failed(why) | Self::Permanent(why) => why,
        }
    }
}

/// The end of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub outcome: Outcome,
    /// Of a command; its text is that of the outcome.
    pub exit: RunExit,
    /// The beginning of what it wrote.
    pub head: String,
    /// The end of what it wrote.
    pub output: String,
}

impl From<Outcome> for Ended {
    /// It wrote nothing.
    fn from(outcome: Outcome) -> Self {
        Self { outcome, exit: RunExit::default(), head: String::new(), output: String::new() }
    }
}
