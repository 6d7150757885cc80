//! Steps of a root rotation: carried out on the leader by the actor that rotates the roots.

use muster_messages::protocol::{RootRotationMsg, RootsChange};
use muster_messages::{ErrorBody, RootChangeView};

use crate::core;
use crate::reads::to_text;
use crate::work::Work;

/// A request that changes the roots, to the leader.
pub(crate) struct RootRequests<'a> {
    pub work: Work<'a>,
}

impl RootRequests<'_> {
    /// The answer names the root.
    pub async fn change(&self, change: RootsChange) -> Result<String, ErrorBody> {
        to_text(&self.changed(change).await?)
    }

    /// The answer describes the beginning of the rotation, too.
    pub async fn rotate(&self, change: RootsChange) -> Result<String, ErrorBody> {
        let changed = self.changed(change).await?;
        // The change is applied here, but the roots may have changed again since.
        let status = core::roots(&self.work.local().tables)?;
        to_text(&RootChangeView { status: Some(status), ..changed })
    }

    async fn changed(&self, change: RootsChange) -> Result<RootChangeView, ErrorBody> {
        let asked = self.work.asked;
        let (by, request) = (asked.caller.clone(), asked.request_id);
        let make = |reply| RootRotationMsg::ChangeRoots { change, by, request, reply };
        let done = self.work.ask(&self.work.manager.leader.rotation, make).await?;
        Ok(RootChangeView { root: done.root, changed: done.changed, revision: done.revision, status: None })
    }
}
