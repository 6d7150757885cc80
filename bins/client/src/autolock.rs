//! Decides whether the managers have taken a change of the unlock key. Pure: the caller polls.

use muster_messages::{AutolockView, Liveness, ManagerSealView, Revision, SealState};

use crate::settled::Progress;

/// How many managers a sentence names.
const MAX_NAMED: usize = 5;

/// Evaluates one view. Managers that are down follow when they return: the wait does not include them.
pub fn autolock_progress(view: &AutolockView, version: Revision) -> Progress {
    if view.version > version {
        return Progress::Overridden;
    }
    if view.version < version {
        return Progress::Waiting("the answering manager has not applied the change yet".to_owned());
    }
    let ready = view.managers.iter().filter(|manager| manager.liveness == Liveness::Ready);
    let is_missing =
        |manager: &&ManagerSealView| manager.version != Some(version) || manager.state == SealState::Incomplete;
    let named = |manager: &ManagerSealView| match manager.version == Some(version) {
        true => format!("{} (its files are not sealed yet; see its log)", manager.name),
        false => manager.name.to_string(),
    };
    let missing: Vec<String> = ready.clone().filter(is_missing).map(named).collect();
    if missing.is_empty() {
        return Progress::Settled;
    }
    let (of, more) = (ready.count(), if missing.len() > MAX_NAMED { ", …" } else { "" });
    let names = missing[..missing.len().min(MAX_NAMED)].join(", ");
    let done = of - missing.len();
    Progress::Waiting(format!("keyrings: {done} of {of} managers follow; waiting for {names}{more}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn view(versions: [Option<u64>; 3], liveness: &str) -> AutolockView {
        let manager = |n: usize, version: Option<u64>| {
            let liveness = if n == 2 { liveness } else { "ready" };
            json!({"node": format!("{:025}", n + 1), "name": format!("n{}", n + 1), "state": "sealed", "version": version, "auto": "none",
                "at": null, "liveness": liveness})
        };
        let managers: Vec<_> = versions.into_iter().enumerate().map(|(n, version)| manager(n, version)).collect();
        let view = json!({"enabled": true, "version": 9, "set_at": null, "managers": managers, "needs_old_key": []});
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn managers_that_are_ready_hold_the_wait() {
        let behind = view([Some(9), None, Some(5)], "down");
        let Progress::Waiting(why) = autolock_progress(&behind, Revision(9)) else { panic!("n2 is ready") };
        assert_eq!(why, "keyrings: 1 of 2 managers follow; waiting for n2");
        assert_eq!(autolock_progress(&view([Some(9), Some(9), Some(5)], "down"), Revision(9)), Progress::Settled);
        assert!(matches!(
            autolock_progress(&view([Some(9), Some(9), Some(5)], "ready"), Revision(9)),
            Progress::Waiting(_)
        ));
    }

    /// The keyring is sealed at once; the Raft data follows, or cannot: its folder may be a mount point.
    #[test]
    fn data_in_clear_holds_the_wait() {
        let mut now = view([Some(9), Some(9), Some(9)], "ready");
        now.managers[2].state = SealState::Incomplete;
        let Progress::Waiting(why) = autolock_progress(&now, Revision(9)) else { panic!("n3 is incomplete") };
        assert!(why.ends_with("waiting for n3 (its files are not sealed yet; see its log)"), "{why}");
    }

    #[test]
    fn another_change_of_the_key_ends_the_wait() {
        let now = view([Some(9), Some(9), Some(9)], "ready");
        assert_eq!(autolock_progress(&now, Revision(8)), Progress::Overridden);
        assert!(matches!(autolock_progress(&now, Revision(10)), Progress::Waiting(_)), "an older replica");
    }
}
