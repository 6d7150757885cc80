//! Requests about the cluster's unlock key, carried out by the leader. The key is made here, and an answer shows the one that the request
//! has put into the state, as of then: a repeated request made another one in vain, and another change may follow before the answer.

use std::sync::Arc;

use muster_messages::{
    Autolock, AutolockChange, AutolockOffView, AutolockRefusal, Change, CommandRefusal, Details, ErrorBody, ErrorCode,
    Replica, Revision, Secret, UnlockKeyView, detail,
};
use muster_sealing::UnlockKey;

use crate::work::{Proposed, Work};

/// A request about autolock, to the leader.
pub(crate) struct AutolockRequests<'a> {
    pub work: Work<'a>,
}

impl AutolockRequests<'_> {
    pub async fn on(&self) -> Result<UnlockKeyView, ErrorBody> {
        let (at, replica) = self.change("autolock switched on", AutolockChange::Enable { key: new_key() }).await?;
        let autolock = &replica.tables.autolock;
        match made(autolock, at) {
            Some(view) => Ok(view),
            None if autolock.is_on() => shown(autolock, None, Some(false)),
            None => Err(overtaken(autolock, "autolock is off")),
        }
    }

    pub async fn rotate(&self) -> Result<UnlockKeyView, ErrorBody> {
        let (at, replica) = self.change("unlock key rotated", AutolockChange::Rotate { key: new_key() }).await?;
        let autolock = &replica.tables.autolock;
        made(autolock, at).ok_or_else(|| {
            overtaken(autolock, "the key that this request made was deleted, because no manager needs it")
        })
    }

    pub async fn off(&self) -> Result<AutolockOffView, ErrorBody> {
        let (at, replica) = self.change("autolock switched off", AutolockChange::Disable).await?;
        let autolock = &replica.tables.autolock;
        match autolock.is_on() {
            false => Ok(AutolockOffView { enabled: false, version: autolock.version, changed: autolock.version == at }),
            true => Err(overtaken(autolock, "autolock is on")),
        }
    }

    pub async fn key(&self, version: Option<Revision>) -> Result<UnlockKeyView, ErrorBody> {
        shown(&self.work.confirmed().await?.tables.autolock, version, None)
    }

    /// The revision at which this request was applied for the first time, and a state that includes it and may be later.
    async fn change(&self, reason: &str, change: AutolockChange) -> Result<(Revision, Arc<Replica>), ErrorBody> {
        let command = self.work.command(reason).change(Change::Autolock(Box::new(change)));
        match self.work.try_propose(command).await? {
            Proposed::Applied(at, replica) => {
                let first = self.work.earlier(&replica.tables).and_then(Result::ok);
                Ok((first.unwrap_or(at), replica))
            }
            Proposed::Refused(refusal) => Err(refusal.into()),
        }
    }
}

/// The key that the change at this revision made. `None`: it made none, or the key was deleted because no manager needs it.
fn made(autolock: &Autolock, at: Revision) -> Option<UnlockKeyView> {
    let (key, set_at) = autolock.key_of(at)?;
    Some(UnlockKeyView { enabled: true, version: at, key: key.expose().to_owned(), set_at, changed: Some(true) })
}

/// Another request has changed autolock since, and what this one did is no longer on record.
fn overtaken(autolock: &Autolock, now: &str) -> ErrorBody {
    let version = autolock.version;
    let text = format!("another request has changed autolock since, at revision {version}: {now}");
    ErrorBody::new(ErrorCode::Conflict, text).with_details(&Details::default().with(detail::VERSION, &version))
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
            "no unlock key of version {version} is on record: it never existed, or was deleted because no manager needs it"
        );
        ErrorBody::new(ErrorCode::NotFound, text)
    })?;
    Ok(UnlockKeyView { enabled, version, key: key.expose().to_owned(), set_at, changed })
}

#[cfg(test)]
#[path = "autolock_tests.rs"]
mod tests;
