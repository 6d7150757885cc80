//! What is wrong with what a definition says from feature level 5 on: conditions between waves, where it runs, and how.

use muster_messages::{
    Action, CommandLimits, CommandOptions, Definition, MAX_NODE_LABELS, Placement, WaveCondition, check_labels,
    is_dns_label, is_dns_subdomain,
};

use crate::define::{MAX_WAVES, wave_range};

/// Maximum conditions of one definition: each is evaluated for each object that is written.
const MAX_CONDITIONS: usize = 64;
/// Maximum bytes of a JSON pointer, and of the value with which it is compared.
const MAX_POINTER_BYTES: usize = 512;
/// Files of one command's environment.
const MAX_ENV_FILES: usize = 16;
/// Maximum bytes of a path.
const MAX_PATH_BYTES: usize = 4096;
/// The longest name of a user that common systems allow.
const MAX_USER_BYTES: usize = 32;

pub(crate) fn fault_of_options(d: &Definition) -> Option<String> {
    let options = &d.options;
    fault_of_conditions(d, &options.wave_conditions)
        .or_else(|| fault_of_placement(&options.placement))
        .or_else(|| fault_of_command_options(&d.action, &options.command))
}

fn fault_of_conditions(d: &Definition, conditions: &[WaveCondition]) -> Option<String> {
    let Action::Objects(objects) = &d.action else {
        return (!conditions.is_empty())
            .then(|| "`waits` are for objects in waves: a command or a handler waits by itself".to_owned());
    };
    if conditions.len() > MAX_CONDITIONS {
        return Some(format!("{} conditions; {MAX_CONDITIONS} is the limit", conditions.len()));
    }
    conditions.iter().find_map(|WaveCondition { wave, key, path, equals }| {
        let why = |why: String| Some(format!("the wait after wave {wave} for {key}: {why}"));
        if *wave >= MAX_WAVES {
            return why(wave_range());
        }
        if ![&key.kind, &key.namespace].into_iter().all(|text| is_dns_label(text)) || !is_dns_subdomain(&key.name) {
            return why("kind and namespace are DNS labels, a name is a DNS subdomain (RFC 1123)".to_owned());
        }
        if !(path.is_empty() || path.starts_with('/')) || path.len().max(equals.len()) > MAX_POINTER_BYTES {
            return why(format!(
                "path is a JSON pointer such as `/status/phase`, and neither it nor `equals` has more than {MAX_POINTER_BYTES} bytes"
            ));
        }
        if serde_json::from_str::<serde_json::Value>(equals).is_err() {
            return why("`equals` is not JSON".to_owned());
        }
        let own = objects.iter().any(|object| object.key == *key);
        d.every_ms.filter(|_| own).and_then(|ms| {
            why(format!(
                "this definition keeps that object as it is written here, and would undo what others report in it every {ms} ms; let them \
                 report in an object of their own, or set `every = \"once\"`"
            ))
        })
    })
}

fn fault_of_placement(placement: &Placement) -> Option<String> {
    let labels = &placement.node_selector;
    if labels.len() > MAX_NODE_LABELS {
        return Some(format!("node_selector: {} labels; {MAX_NODE_LABELS} is the limit", labels.len()));
    }
    check_labels(labels).err().map(|why| format!("node_selector: {why}"))
}

fn fault_of_command_options(action: &Action, options: &CommandOptions) -> Option<String> {
    if *options == CommandOptions::default() {
        return None;
    }
    if !matches!(action, Action::Command(_) | Action::Chain(_)) {
        return Some("user, directory, env_files and limits are for commands".to_owned());
    }
    let CommandOptions { user, directory, env_files, limits } = options;
    let is_user = |name: &&String| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        (1..=MAX_USER_BYTES).contains(&name.len()) && name.chars().all(is_part) && !name.starts_with('-')
    };
    if let Some(name) = user.as_ref().filter(|name| !is_user(name)) {
        return Some(format!(
            "user {name:?}: the name of a user of the node, of letters, digits, '.', '_' and '-'; ids are different on each node"
        ));
    }
    if env_files.len() > MAX_ENV_FILES {
        return Some(format!("{} files of its environment; {MAX_ENV_FILES} is the limit", env_files.len()));
    }
    let is_path = |path: &&String| path.starts_with('/') && path.len() <= MAX_PATH_BYTES && !path.contains('\0');
    if let Some(path) = directory.iter().chain(env_files).find(|path| !is_path(path)) {
        return Some(format!("{path:?}: a directory or a file of a node is a path that begins with `/`"));
    }
    let CommandLimits { memory_bytes, processes, open_files, cpu_secs } = *limits;
    let named = [("memory", memory_bytes), ("processes", processes), ("open_files", open_files), ("cpu", cpu_secs)];
    let zero = named.into_iter().find(|(_, limit)| *limit == Some(0));
    zero.map(|(name, _)| format!("limits: {name} of 0 lets no command run; leave it out for the daemon's own limit"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_messages::{CommandAction, DesiredObject, ManagedKey, Triple};

    use super::*;

    fn definition(action: Action, change: impl FnOnce(&mut Definition)) -> Option<String> {
        let release = "1.0.0".parse().unwrap();
        let mut definition = Definition::new("schema", release, "db", Triple::default(), action);
        change(&mut definition);
        fault_of_options(&definition)
    }
    fn key(name: &str) -> ManagedKey {
        ManagedKey { kind: "job".into(), namespace: "default".into(), name: name.into() }
    }
    fn objects() -> Action {
        let (key, labels, body) = (key("own"), BTreeMap::new(), "{}".to_owned());
        Action::Objects(vec![DesiredObject { key, labels, body, wave: 0 }])
    }
    fn command() -> Action {
        Action::Command(CommandAction { argv: vec!["true".into()], env: BTreeMap::new() })
    }
    fn waits(name: &str, path: &str, equals: &str) -> WaveCondition {
        WaveCondition { wave: 0, key: key(name), path: path.into(), equals: equals.into() }
    }

    #[test]
    fn unworkable_options_are_refused_with_the_reason() {
        let one = |condition: WaveCondition| definition(objects(), |d| d.options.wave_conditions = vec![condition]);
        assert_eq!(one(waits("other", "/status/phase", "\"done\"")), None);
        for (condition, why) in [
            (waits("other", "status", "1"), "JSON pointer"),
            (waits("other", "/status", "done"), "not JSON"),
            (waits("Other", "/status", "1"), "DNS"),
            (waits("own", "/status", "1"), "every = \"once\""),
            (WaveCondition { wave: 1000, ..waits("other", "", "1") }, "0 to 999"),
        ] {
            let refused = one(condition).expect(why);
            assert!(refused.contains(why) && refused.contains("job default/"), "{refused}");
        }
        let own = |d: &mut Definition| {
            (d.options.wave_conditions, d.every_ms) = (vec![waits("own", "/status", "1")], None);
        };
        assert_eq!(definition(objects(), own), None);
        let of_command = |d: &mut Definition| d.options.wave_conditions = vec![waits("other", "/a", "1")];
        assert!(definition(command(), of_command).unwrap().contains("waits by itself"));
        let options = |change: fn(&mut CommandOptions)| definition(command(), |d| change(&mut d.options.command));
        assert_eq!(options(|o| o.user = Some("migrate".into())), None);
        assert_eq!(options(|o| o.env_files = vec!["/etc/shop/env".into()]), None);
        assert!(options(|o| o.user = Some("a:b".into())).unwrap().contains("a:b"));
        assert!(options(|o| o.user = Some(String::new())).is_some());
        assert!(options(|o| o.directory = Some("opt".into())).unwrap().contains("begins with `/`"));
        assert!(options(|o| o.limits.open_files = Some(0)).unwrap().contains("open_files of 0"));
        let misplaced = definition(objects(), |d| d.options.command.user = Some("root".into()));
        assert!(misplaced.unwrap().contains("for commands"));
        let selector =
            definition(objects(), |d| drop(d.options.placement.node_selector.insert(String::new(), "x".into())));
        assert!(selector.unwrap().contains("node_selector"));
    }
}
