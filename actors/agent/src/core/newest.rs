//! How new something is that hosts send, views and lists of workloads alike.
//!
//! Owns        the newest stamp, and since when everything has been older than it.
//! Invariants  AGENT-10  a false stamp makes nothing permanently old: it is forgotten when everything has been older for longer than a
//!                       host lags behind. One of another incarnation is not: a host's certificate must vouch for an incarnation.

use std::time::Duration;

use muster_messages::{Incarnation, Moment, Revision};

/// The state that something is of: a recovery begins another history.
pub type Stamp = (Incarnation, Revision);

#[derive(Clone, Debug, Default)]
pub(super) struct Newest {
    stamp: Stamp,
    /// Since when everything has been older than that.
    older_since: Option<Moment>,
}

/// How something compares with what was received before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// As new, or newer.
    Current,
    Older,
    /// Older than a stamp that has proven false.
    NewestWasFalse,
}

impl Newest {
    pub fn of(stamp: Stamp) -> Self {
        Self { stamp, older_since: None }
    }

    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Something that is not judged has this stamp.
    pub fn raise(&mut self, stamp: Stamp) {
        self.stamp = self.stamp.max(stamp);
    }

    /// Whether this is not older; then it is the newest from now on. Something older that is not followed says nothing about the newest.
    pub fn replace(&mut self, stamp: Stamp) -> bool {
        let is_current = stamp >= self.stamp;
        if is_current {
            *self = Self::of(stamp);
        }
        is_current
    }

    /// Unless it is `Older`, it is the newest from now on.
    pub fn judge(&mut self, now: Moment, stamp: Stamp, forget_after: Duration) -> Age {
        let mut age = Age::Current;
        if stamp < self.stamp {
            let since = *self.older_since.get_or_insert(now);
            if stamp.0 != self.stamp.0 || now.since(since) < forget_after {
                return Age::Older;
            }
            age = Age::NewestWasFalse;
        }
        *self = Self::of(stamp);
        age
    }
}
