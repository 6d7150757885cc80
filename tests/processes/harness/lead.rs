//! Leadership on a certain node, where a scenario needs it.

use super::{World, eventually_so};

impl World {
    /// Transfers leadership until this node's own replica says that it leads. A transfer may be refused: the node may have to catch
    /// up, and on a busy machine there may be no leader at this moment.
    #[track_caller]
    pub fn make_lead(&self, name: &str) {
        eventually_so(&format!("{name} leads"), || {
            let leads = self.leader_seen_by(name) == name;
            if !leads {
                let _tried = self.muster_at(name, &["--timeout", "10s", "raft", "transfer-leader", name]);
            }
            leads
        });
    }
}
