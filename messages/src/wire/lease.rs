//! Leases over `muster-api/1`: the requests of native clients. Answers are JSON text as for every request.

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

/// Requests about leases. A lease is answered as `muster lease get` prints it (`LEASE` below). Reads and writes behave as
/// described at [`super::Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseRequest {
    /// `{"revision","items":[LEASE…]}`. `None`: of every namespace that the caller may read. Read: repeat freely.
    List { namespace: Option<String> },
    /// LEASE. Read: repeat freely.
    Get { lease: LeaseRef },
    /// LEASE. Refused as `conflict` if it exists. Write: by request id, see [`super::Request`]. Repeated under another
    /// id: `conflict`.
    Create { lease: LeaseRef, holder: Option<String>, duration_ms: Option<u64> },
    /// `{"namespace","name","deleted":true}`. Refused as `conflict` while a native session holds the lease alive.
    /// Write: by request id, see [`super::Request`]. Repeated under another id: `not_found`.
    Delete { lease: LeaseRef },
    /// LEASE. A new renew time, and the holder and duration given, if the lease is still at this revision; otherwise
    /// `conflict`. Always an entry in the log. Write: by request id, see [`super::Request`]. Repeated under another id:
    /// `conflict`.
    Update { lease: LeaseRef, revision: Revision, holder: Option<String>, duration_ms: Option<u64> },
    /// LEASE, with the fencing token under which `holder` holds it from now on. Refused as `conflict` while another
    /// holder has it. The lease lives for `duration_ms` from the moment the leader received this, unless renewed; leave
    /// the time of a round trip, and count from before the call. Write: by request id, see [`super::Request`]. Repeated
    /// under another id by the same session: the same token, its time starts again. Late: takes the lease if it is free
    /// by then.
    Acquire { lease: LeaseRef, holder: String, session: SessionId, duration_ms: u64 },
    /// `{"items":[{"namespace","name","renewed":true,"expires_in_ms"}|{"namespace","name","renewed":false,"message"}]}`,
    /// in the order asked. Not an entry in the log: answered once a quorum has confirmed the leader after the request
    /// came. Count the lease's time from before the call. Lost: renew again. Repeated: renewed twice. Late: a lease
    /// that was lost by then is not renewed.
    Renew { session: SessionId, held: Vec<(LeaseRef, FencingToken)> },
    /// LEASE. Write: by request id, see [`super::Request`]. Repeated under another id: no change. Late: it ends
    /// whatever this session holds under this token, so acquire the lease again only through another session;
    /// `conflict` under another token.
    Release { lease: LeaseRef, session: SessionId, token: FencingToken },
    /// `{"revision","lease":LEASE|null}` once the lease has changed after `seen` (also: expired), or after `wait_ms`.
    /// Read: repeat freely, with the revision of the answer as `seen`.
    Watch { lease: LeaseRef, seen: Revision, wait_ms: u64 },
    /// `{"items":[{"namespace","lease","mode"}]}`. Read: repeat freely.
    Guards,
    /// `{}`. Write: by request id, see [`super::Request`]. Repeated under another id: set again, the last one written
    /// wins.
    SetGuard { scope: GuardScope, mode: Option<GuardMode> },
    /// The same as `Delete` for a lease that a native session holds alive; operators only. What the session runs may
    /// need its whole duration to end: until then the lease stays, held by no session under the name `held_by`, and the
    /// answer has `{"held_by","available_in_ms"}` as well. Write: by request id, see [`super::Request`]. Repeated: no
    /// change, and the answer lacks those two. Repeated under another id: deletes the lease that was kept.
    DeleteHeld { lease: LeaseRef },
}
