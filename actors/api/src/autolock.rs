//! Requests about the cluster's unlock key, carried out by the leader. The key is made here, and an answer shows the one in the state:
//! a repeated request made another one in vain.

use muster_messages::{
    Autolock, AutolockChange, AutolockOffView, AutolockRefusal, Change, CommandRefusal, ErrorBody, ErrorCode, Replica,
    Revision, Secret, UnlockKeyView,
};
use muster_sealing::UnlockKey;

use crate::work::{Proposed, Work};

/// A request about autolock, to the leader.
pub(crate) struct AutolockRequests<'a> {
    pub work: Work<'a>,
}

impl AutolockRequests<'_> {
    pub async fn on(&self) -> Result<UnlockKeyView, ErrorBody> {
        let (changed, replica) = self.change("autolock switched on", AutolockChange::Enable { key: new_key() }).await?;
        shown(&replica.tables.autolock, None, Some(changed))
    }

    pub async fn rotate(&self) -> Result<UnlockKeyView, ErrorBody> {
        let (changed, replica) = self.change("unlock key rotated", AutolockChange::Rotate { key: new_key() }).await?;
        shown(&replica.tables.autolock, None, Some(changed))
    }

    pub async fn off(&self) -> Result<AutolockOffView, ErrorBody> {
        let (changed, replica) = self.change("autolock switched off", AutolockChange::Disable).await?;
        let autolock = &replica.tables.autolock;
        Ok(AutolockOffView { enabled: autolock.is_on(), version: autolock.version, changed })
    }

    pub async fn key(&self, version: Option<Revision>) -> Result<UnlockKeyView, ErrorBody> {
        shown(&self.work.confirmed().await?.tables.autolock, version, None)
    }

    /// Whether this request has made the change, also if it is repeated, and the state with it.
    async fn change(&self, reason: &str, change: AutolockChange) -> Result<(bool, std::sync::Arc<Replica>), ErrorBody> {
        let command = self.work.command(reason).change(Change::Autolock(Box::new(change)));
        match self.work.try_propose(command).await? {
            Proposed::Applied(at, replica) => Ok((replica.tables.autolock.version == at, replica)),
            Proposed::Refused(refusal) => Err(refusal.into()),
        }
    }
}

fn new_key() -> Secret {
    Secret::new(UnlockKey::new().to_text().as_str())
}

fn shown(autolock: &Autolock, version: Option<Revision>, changed: Option<bool>) -> Result<UnlockKeyView, ErrorBody> {
    let enabled = autolock.is_on();
    let version = match version {
        Some(version) => version,
        None if enabled => autolock.version,
        None => return Err(CommandRefusal::Autolock(AutolockRefusal::NotEnabled).into()),
    };
    let (key, set_at) = autolock.key_of(version).ok_or_else(|| {
        let text = format!(
            "no unlock key of version {version} is on record: none had that version, or every manager has left it"
        );
        ErrorBody::new(ErrorCode::NotFound, text)
    })?;
    Ok(UnlockKeyView { enabled, version, key: key.expose().to_owned(), set_at, changed })
}

#[cfg(test)]
#[path = "autolock_tests.rs"]
mod tests;
