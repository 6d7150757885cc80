//! Messages to the actor that keeps the declared number of managers.

use super::{Named, Reply};
use crate::model::{AutopilotPolicy, AutopilotView, ErrorBody};

/// Messages of the autopilot (leader).
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum AutopilotMsg {
    /// What it sees and does next; with a policy, what it would do under that one. Nothing changes. Lost: ask again. Repeated: another
    /// answer, of its moment. Late: as repeated. From an old leader: what it would do, by its older state.
    State { policy: Option<Box<AutopilotPolicy>>, reply: Reply<Result<AutopilotView, ErrorBody>> },
}
