//! Events of the cluster, in order, for people and scripts.

use serde::{Deserialize, Serialize};

use super::word::words_of;
use super::{NodeId, Principal, Revision, WallTime};

/// The subject matter of an event. In the log it is a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    Cluster,
    Node,
    Role,
    Certificate,
    Membership,
    Liveness,
    Token,
    User,
    Lease,
    Gate,
    /// From feature level 3 on.
    Workload,
}

words_of! {
    EventKind {
        Cluster => "cluster",
        Node => "node",
        Role => "role",
        Certificate => "certificate",
        Membership => "membership",
        Liveness => "liveness",
        Token => "token",
        User => "user",
        Lease => "lease",
        Gate => "gate",
        Workload => "workload",
    }
}

/// One change, as `muster events` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub revision: Revision,
    pub at: WallTime,
    pub kind: EventKind,
    pub node: Option<NodeId>,
    pub by: Principal,
    pub reason: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::word;
    use crate::model::Words;

    #[test]
    fn words_of_kinds_are_those_in_json() {
        for kind in EventKind::ALL {
            assert_eq!((kind.text(), EventKind::of(kind.text())), (word(kind).as_str(), Some(*kind)));
        }
        assert_eq!(EventKind::of("of-a-newer-release"), None);
    }
}
