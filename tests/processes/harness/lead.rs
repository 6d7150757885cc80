//! Who leads, where a scenario needs it to be a certain node.

use super::{World, eventually_so};

impl World {
    /// Hands leadership over until this node leads, as its own copy says. A transfer may be refused: the node may have to catch
    /// up, and on a busy machine there may be no leader at this very moment.
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
