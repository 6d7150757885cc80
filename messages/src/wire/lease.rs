//! Leases over `muster-api/1`: what native clients ask. Answers are JSON text as for every request.

use serde::{Deserialize, Serialize};

use crate::model::{FencingToken, GuardMode, GuardScope, Revision, SessionId};

/// A lease by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseRef {
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for LeaseRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What can be asked about leases. A lease is answered as `muster lease get` prints it (`LEASE` below).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseRequest {
    /// `{"revision","items":[LEASE…]}`. `None`: of every namespace that the caller may read.
    List { namespace: Option<String> },
    /// LEASE.
    Get { lease: LeaseRef },
    /// LEASE. Refused as `conflict` if it exists.
    Create { lease: LeaseRef, holder: Option<String>, duration_ms: Option<u64> },
    /// `{"namespace","name","deleted":true}`. Refused as `conflict` while a native session holds the lease alive.
    Delete { lease: LeaseRef },
    /// LEASE. A new renew time, and the holder and duration given, if the lease is still at this revision; otherwise
    /// `conflict`. Always an entry in the log.
    Update { lease: LeaseRef, revision: Revision, holder: Option<String>, duration_ms: Option<u64> },
    /// LEASE, with the fencing token under which `holder` holds it from now on. Refused as `conflict` while it is
    /// another's. Repeated by the same session: the same token. The lease lives for `duration_ms` from the moment the
    /// leader heard of it, unless renewed; leave the time of a round trip, and count from before the call.
    Acquire { lease: LeaseRef, holder: String, session: SessionId, duration_ms: u64 },
    /// `{"items":[{"namespace","name","renewed":true,"expires_in_ms"}|{"namespace","name","renewed":false,"message"}]}`,
    /// in the order asked. Not an entry in the log: answered once a quorum has confirmed the leader after the request
    /// came. Count the lease's time from before the call. Lost: renew again. Repeated: renewed twice.
    Renew { session: SessionId, held: Vec<(LeaseRef, FencingToken)> },
    /// LEASE. Given up already: the same. Late: it ends whatever this session holds under this token; so whoever has
    /// asked for this acquires the lease again through another session only.
    Release { lease: LeaseRef, session: SessionId, token: FencingToken },
    /// `{"revision","lease":LEASE|null}` once the lease has changed after `seen` (also: expired), or after `wait_ms`.
    /// Go on with the revision of the answer.
    Watch { lease: LeaseRef, seen: Revision, wait_ms: u64 },
    /// `{"items":[{"namespace","lease","mode"}]}`.
    Guards,
    /// `{}`.
    SetGuard { scope: GuardScope, mode: Option<GuardMode> },
    /// The same for a lease that a native session holds alive; operators only. What the session runs may need its whole
    /// duration to end: until then the lease stays, held by nobody's session under the name `held_by`, and the answer has
    /// `{"held_by","available_in_ms"}` as well. Lost or repeated: the second one finds that lease, which it deletes.
    DeleteHeld { lease: LeaseRef },
}
