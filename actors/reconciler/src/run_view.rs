//! The runner as the live tree shows it.

use muster_messages::{FencingToken, Progress};
use serde::{Deserialize, Serialize};

use crate::core::run::Tally;

/// The actor's view in the tree, from which metrics are made too.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunView {
    /// The current term's fencing token. `None`: nothing runs.
    pub term: Option<FencingToken>,
    /// Absent if nothing runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Over all terms of this process. `None`: nothing has run yet.
    pub runs: Option<Tally>,
}
