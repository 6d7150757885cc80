//! What `muster actors inspect` shows of the actor.

use serde_json::{Value, json};

use crate::WorkloadApiPorts;
use crate::core::WorkloadCore;
use crate::serve::Inbox;

/// Workloads in the actor's view: it is made often.
const MAX_SHOWN: usize = 20;

pub(crate) fn shown(ports: &WorkloadApiPorts, inbox: &Inbox, core: &WorkloadCore) -> Value {
    let (held, signing, failed) = core.certificates().counts();
    let (sent, refused) = core.totals();
    let until = core.certificates().held().map(|(name, until)| (name.to_string(), json!(until)));
    let failing = core.certificates().failing().map(|(name, failure)| (name.to_string(), json!(failure.why)));
    json!({
        "socket": ports.socket, "streams": core.streams(), "sent": sent, "refused": refused,
        "refused_connections": inbox.refused_connections(),
        "entries": core.view().map(|view| view.entries.len()), "held": held, "signing": signing, "failed": failed,
        "jwts": core.tokens().held(),
        "until": until.take(MAX_SHOWN).collect::<serde_json::Map<_, _>>(),
        "failing": failing.take(MAX_SHOWN).collect::<serde_json::Map<_, _>>(),
    })
}
