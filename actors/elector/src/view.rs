//! An elector in the live tree.

use muster_messages::{Moment, millis};
use serde::Serialize;
use serde_json::Value;

use crate::core::ElectorView;

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    view: &'a ElectorView,
    /// Instead of `renewed`.
    renewed_ms_ago: Option<u64>,
}

/// For people: an age, because a moment of this clock means nothing elsewhere.
pub fn shown(view: &ElectorView, now: Moment) -> Value {
    let renewed_ms_ago = view.renewed.map(|renewed| millis(now.since(renewed)));
    serde_json::to_value(Document { view, renewed_ms_ago }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use muster_messages::Moment;

    use super::*;

    #[test]
    fn a_renewal_is_shown_by_its_age() {
        let view = ElectorView {
            phase: "leading",
            leader: None,
            token: None,
            renewed: Some(Moment(3_793_939_536)),
            blocked: None,
            terms: 1,
            renewals: 2,
            failures: 0,
            read_after_failed_renewal: 0,
        };
        let seen = shown(&view, Moment(3_793_939_536 + 1_500_000));
        assert_eq!((&seen["renewed_ms_ago"], &seen["renewed"]), (&1_500.into(), &Value::Null));
        assert_eq!(shown(&ElectorView { renewed: None, ..view }, Moment(1))["renewed_ms_ago"], Value::Null);
    }
}
