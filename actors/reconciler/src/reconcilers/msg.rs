//! The messages of the actor, and the watch that brings the definitions.

use muster_messages::protocol::Named;
use muster_messages::wire::{Definitions, ReconcilerRequest};
use muster_messages::{ErrorBody, Revision, Triple};

use crate::cluster_requests::WatchedValue;

/// Messages of the actor, all sent by itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    Definitions(Triple, Result<Definitions, ErrorBody>),
    /// Another release is declared.
    Declared,
    Stopped(String),
    Retire,
}

/// The watch of the reconcilers that a release defines.
pub struct Names(pub Triple);

impl WatchedValue for Names {
    type View = Definitions;
    fn request(&self, seen: Revision, wait_ms: u64) -> ReconcilerRequest {
        ReconcilerRequest::Definitions { release: self.0, seen, wait_ms }
    }
    fn revision(view: &Definitions) -> Revision {
        view.revision
    }
}
