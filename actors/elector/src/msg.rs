//! The messages of the elector's actor.

use muster_messages::protocol::Named;

use crate::machine::Input;

/// Messages of the actor, all sent by itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    Woke,
    Answered(Input),
    Changed,
    WorkEnded,
    Stop,
}
