//! Messages to the elections actor: the leader's clock over all leases.

use std::collections::BTreeMap;

use super::{Named, Reply};
use crate::model::{ErrorBody, FencingToken, ObjectKey, SessionId};

/// Messages of the elections (`node/manager/leader/elections`). It learns from the replicated state which leases were
/// acquired, written or released.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum ElectionsMsg {
    /// A native session renews what it holds. Answered with one outcome per lease, in the order of `held`, once a
    /// quorum has confirmed this leader after the message arrived. Lost: renew again. Repeated: renewed twice, each
    /// time from its own arrival. Late: a lease that was lost by then is answered as lost. From an old leader: an error,
    /// because no quorum confirms it.
    Renew {
        session: SessionId,
        held: Vec<(ObjectKey, FencingToken)>,
        deadline_ms: u64,
        reply: Reply<Result<Vec<Renewal>, ErrorBody>>,
    },
    /// How many milliseconds the holders of these leases have left; leases without a clock are absent. Read: repeat
    /// freely. Lost: leases are shown without it. From an old leader: by that manager's clock, so it may be too little.
    Remaining { leases: Vec<ObjectKey>, reply: Reply<BTreeMap<ObjectKey, u64>> },
}

/// The outcome of one lease's renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Valid for this long from the moment the renewal arrived.
    Renewed { expires_in_ms: u64 },
    /// It is not this session's under this token, or its time has run out. Final: acquire it anew.
    Lost { message: String },
}
