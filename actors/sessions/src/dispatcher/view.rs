//! The dispatcher as `muster actors inspect` shows it.

use muster_messages::{Moment, millis};
use serde_json::{Value, json};

use crate::core::dispatcher::Dispatcher;

pub fn shown(core: &Dispatcher, now: Moment) -> Value {
    let hosts: Vec<Value> = core
        .hosts()
        .map(|(host, sequence, sessions, received)| {
            let ago = millis(now.since(received));
            json!({"host": host, "sequence": sequence, "sessions": sessions, "heard_ms_ago": ago})
        })
        .collect();
    let doubts = core.doubts();
    let duplicates: Vec<Value> = doubts
        .duplicates
        .iter()
        .map(|(node, what)| json!({"node": node, "since": what.since, "processes": what.processes}))
        .collect();
    json!({
        "hosts": hosts,
        "stale": doubts.unconfirmed.len(),
        "in_flight": core.in_flight(),
        "waiting": core.waiting(),
        "duplicate_identities": duplicates,
        "labels_left_out": core.labels_left_out(),
    })
}
