//! The unlock key and who is sealed under it, as tables.

use muster_messages::{AutolockView, LockedView, ManagerSealView, OldKeyView, UnlockKeyView, word};

use super::{list, when};
use crate::cli::output::{Table, or_dash, printable};

pub fn unlock_key(view: &UnlockKeyView) -> String {
    let mut table = Table::bare();
    let version = format!("{}{}", view.version, if view.enabled { "" } else { " (autolock is off)" });
    for (key, value) in [("version", version), ("set", when(view.set_at)), ("key", printable(&view.key))] {
        table.row([key.to_owned(), value]);
    }
    table.render()
}

/// `muster autolock status`.
pub fn autolock(view: &AutolockView) -> String {
    let mut table = Table::bare();
    let state = match (view.enabled, view.set_at) {
        (true, _) => format!("on, version {} of the key", view.version),
        (false, Some(_)) => format!("off, since version {}", view.version),
        (false, None) => "off".to_owned(),
    };
    table.row(["autolock".to_owned(), state]);
    table.row(["since".to_owned(), when(view.set_at)]);
    let managers = list(
        &view.managers,
        &["MANAGER", "STATE", "VERSION", "UNLOCKS BY", "LIVENESS", "REPORTED"],
        &[
            |manager: &ManagerSealView| manager.name.to_string(),
            |manager| word(manager.state),
            |manager| or_dash(manager.version),
            |manager| word(manager.auto),
            |manager| word(manager.liveness),
            |manager| when(manager.at),
        ],
        "no managers",
    );
    let mut text = format!("{}\n{managers}", table.render());
    if !view.needs_old_key.is_empty() {
        text += "\n";
        text += &list(
            &view.needs_old_key,
            &["NEEDS AN EARLIER KEY TO START", "VERSION", "SET"],
            &[|old: &OldKeyView| old.name.to_string(), |old| old.version.to_string(), |old| when(old.since)],
            "",
        );
    }
    text
}

/// `muster status` of a locked daemon.
pub fn locked(view: &LockedView) -> String {
    if !view.locked {
        return format!("unlocked with version {} of the cluster's unlock key; the daemon starts\n", view.version);
    }
    let mut text = format!(
        "locked: the daemon needs version {} of the cluster's unlock key; its keyring was last written at {}\n\
         `muster unlock` asks for it; on another manager `muster autolock key --version {}` prints it\n",
        view.version,
        when(view.since),
        view.version
    );
    if let Some(why) = &view.unattended {
        text += &format!("it does not unlock by itself: {}\n", printable(why));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn status_names_managers_that_need_an_earlier_key() {
        let node = "0000000000000000000000001";
        let view: AutolockView = serde_json::from_value(json!({
            "enabled": true, "version": 418, "set_at": "2026-01-01T00:00:00Z",
            "managers": [
                {"node": node, "name": "n1", "state": "sealed", "version": 418, "auto": "credential", "at": "2026-01-01T00:00:01Z",
                    "liveness": "ready"},
                {"node": node, "name": "n3", "state": "unknown", "version": null, "auto": "none", "at": null, "liveness": "down"}],
            "needs_old_key": [{"node": node, "name": "n2", "version": 60, "since": "2025-01-01T00:00:00Z"}]
        }))
        .unwrap();
        let text = autolock(&view);
        assert!(text.starts_with("autolock  on, version 418 of the key\n"), "{text}");
        assert!(text.contains("n1       sealed   418      credential  ready     2026-01-01T00:00:01Z\n"), "{text}");
        assert!(text.contains("n3       unknown  -        none        down      -\n"), "{text}");
        assert!(text.contains("n2                             60       2025-01-01T00:00:00Z\n"), "{text}");
    }

    #[test]
    fn locked_daemon_says_which_key_it_needs() {
        let view = LockedView {
            locked: true,
            node: None,
            version: muster_messages::Revision(418),
            since: None,
            unattended: Some("the key in\n/etc/key is of another version".to_owned()),
        };
        let text = locked(&view);
        assert!(text.contains("muster autolock key --version 418") && text.lines().count() == 3, "{text}");
        // It answers for a moment after it was unlocked.
        let text = locked(&LockedView { locked: false, ..view });
        assert!(text.starts_with("unlocked with version 418") && text.lines().count() == 1, "{text}");
    }
}
