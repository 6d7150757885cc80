//! The inbox of a session, filled by the host. A watched value, so that no start or crash in between loses it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_gateway::Connection;
use muster_messages::Revision;

use crate::core::node_update::NodeUpdate;
use crate::core::session::ConnId;

/// The revision up to which the host has passed on everything that concerns its sessions.
#[derive(Clone, Default)]
pub(crate) struct PassedOn(Arc<AtomicU64>);

impl PassedOn {
    /// Called once the inboxes hold everything as of this revision.
    pub(crate) fn set(&self, revision: Revision) {
        self.0.store(revision.0, Ordering::Release);
    }
    pub(crate) fn revision(&self) -> Revision {
        Revision(self.0.load(Ordering::Acquire))
    }
}

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct Inbox(Arc<Mutex<InboxContent>>);

#[derive(Default)]
struct InboxContent {
    connection: Option<(ConnId, Connection)>,
    /// Stays in the inbox: an incarnation that starts after a crash needs it too.
    node_update: Option<NodeUpdate>,
    last_taken: ConnId,
}

impl Inbox {
    /// The newest connection replaces one that was not taken yet.
    pub(crate) fn put_connection(&self, conn: ConnId, connection: Connection) {
        self.content().connection = Some((conn, connection));
    }
    pub(crate) fn tell(&self, node_update: NodeUpdate) {
        self.content().node_update = Some(node_update);
    }
    /// The newest connection that a session has taken, over all its incarnations.
    pub(crate) fn last_taken(&self) -> ConnId {
        self.content().last_taken
    }
    /// The connection that was not taken yet, and the newest update.
    pub(crate) fn take(&self) -> (Option<(ConnId, Connection)>, Option<NodeUpdate>) {
        let mut content = self.content();
        let connection = content.connection.take();
        if let Some((conn, _)) = &connection {
            content.last_taken = *conn;
        }
        (connection, content.node_update.clone())
    }
    fn content(&self) -> MutexGuard<'_, InboxContent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
