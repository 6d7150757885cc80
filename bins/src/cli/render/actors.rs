//! The live actor tree.

use serde_json::Value;

use super::Names;
use crate::cli::output::{Table, cell, printable, printable_lines, short, without_fraction};

/// One tree, or with `--all` that of each node.
pub fn actors(document: &Value) -> String {
    if !document["items"].is_array() {
        return node_heading(document) + &table(document);
    }
    let each = items(document).iter().map(|item| {
        let node = if item["name"].is_string() { &item["name"] } else { &item["node"] };
        let trouble = item["error"]["message"].as_str().map(|why| format!("no answer: {why}\n"));
        format!("{}\n{}", cell(node), trouble.unwrap_or_else(|| table(&item["root"])))
    });
    each.collect::<Vec<_>>().join("\n")
}

pub(super) fn items(document: &Value) -> &[Value] {
    document["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A time, to the second.
pub(super) fn when(value: &Value) -> String {
    value.as_str().map_or_else(|| cell(value), |time| printable(&without_fraction(time)))
}

/// Every path, one per line.
pub fn actor_paths(document: &Value) -> String {
    let mut paths = Vec::new();
    let roots = match document["items"].as_array() {
        Some(items) => items.iter().map(|item| &item["root"]).collect(),
        None => vec![document],
    };
    for root in roots {
        collect_paths(root, &mut paths);
    }
    paths.join("\n")
}

fn collect_paths(actor: &Value, paths: &mut Vec<String>) {
    paths.push(cell(&actor["path"]));
    for child in children(actor) {
        collect_paths(child, paths);
    }
}

pub(super) fn children(actor: &Value) -> &[Value] {
    actor["children"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The node of these actors. Daemons of earlier releases do not report it.
fn node_heading(document: &Value) -> String {
    match document["node_name"].as_str() {
        Some(name) => format!("node {} ({})\n", printable(name), cell(&document["node"])),
        None => String::new(),
    }
}

/// Replaces node ids in actor names by node names: `session-n4`.
pub fn name_nodes(document: &mut Value, names: &Names) {
    match document {
        Value::Array(items) => items.iter_mut().for_each(|item| name_nodes(item, names)),
        Value::Object(fields) => {
            let shown = fields.get("path").and_then(Value::as_str).and_then(|path| {
                let (kind, id) = path.rsplit('/').next()?.split_once('-')?;
                Some(format!("{kind}-{}", names.get(&id.parse().ok()?)?))
            });
            if let Some(shown) = shown {
                fields.insert("shown".to_owned(), shown.into());
            }
            for key in ["children", "items", "root"] {
                if let Some(below) = fields.get_mut(key) {
                    name_nodes(below, names);
                }
            }
        }
        _ => {}
    }
}

fn table(root: &Value) -> String {
    let mut table = Table::new(&["ACTOR", "KIND", "STATE", "INCARNATION", "RESTARTS", "MAILBOX", "HANDLED", "NOW"]);
    branch(&mut table, root, "", "");
    table.render()
}

/// The last segment of its path. Ids in names (`session-<node>`) are shortened.
pub(super) fn name_of(actor: &Value) -> String {
    if let Some(shown) = actor["shown"].as_str() {
        return printable(shown);
    }
    let path = actor["path"].as_str().unwrap_or("?");
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.split_once('-') {
        Some((kind, id)) if id.len() == muster_messages::ID_LEN => format!("{kind}-{}", short(id)),
        _ => name.to_owned(),
    }
}

fn branch(table: &mut Table, actor: &Value, lead: &str, below: &str) {
    let name = name_of(actor);
    let handling = &actor["handling"];
    let now = match handling["message"].as_str() {
        Some(message) => format!("{message} for {} ms", cell(&handling["for_ms"])),
        None => String::new(),
    };
    let columns = ["kind", "state", "incarnation", "restarts", "mailbox", "handled"].map(|key| cell(&actor[key]));
    table.row([format!("{lead}{name}")].into_iter().chain(columns).chain([now]));
    let more: Vec<String> = more_children(actor).collect();
    let last = (children(actor).len() + more.len()).saturating_sub(1);
    for (index, child) in children(actor).iter().enumerate() {
        let (bend, bar) = if index == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        branch(table, child, &format!("{below}{bend}"), &format!("{below}{bar}"));
    }
    for (index, more) in more.into_iter().enumerate() {
        let bend = if children(actor).len() + index == last { "└─ " } else { "├─ " };
        table.row([format!("{below}{bend}({more})")]);
    }
}

/// Children that are not shown.
pub(super) fn more_children(actor: &Value) -> impl Iterator<Item = String> {
    let more = actor["more_children"].as_object().into_iter().flatten();
    more.map(|(kind, count)| format!("{} more {kind}", cell(count)))
}

/// One actor with all of its details.
pub fn actor(actor: &Value) -> String {
    let mut table = Table::bare();
    if let Some(name) = actor["node_name"].as_str() {
        table.row(["node".to_owned(), format!("{name} ({})", cell(&actor["node"]))]);
    }
    for key in ["path", "kind", "state"] {
        table.row([key.to_owned(), cell(&actor[key])]);
    }
    table.row(["since".to_owned(), when(&actor["since"])]);
    for key in ["incarnation", "restarts"] {
        table.row([key.to_owned(), cell(&actor[key])]);
    }
    let limit = actor["mailbox_limit"].as_u64().map_or_else(String::new, |limit| format!(" of {limit}"));
    table.row(["mailbox".to_owned(), format!("{}{limit}", cell(&actor["mailbox"]))]);
    for key in ["refused", "stale", "handled"] {
        table.row([key.to_owned(), cell(&actor[key])]);
    }
    let handling = &actor["handling"];
    let now = handling["message"].as_str().map(|message| format!("{message} for {} ms", cell(&handling["for_ms"])));
    table.row(["handling".to_owned(), now.unwrap_or_else(|| "-".to_owned())]);
    table.row(["took".to_owned(), times(&actor["handler_times"])]);
    for exit in actor["last_exits"].as_array().map(Vec::as_slice).unwrap_or_default() {
        table.row([
            "exit".to_owned(),
            format!("{} {}: {}", when(&exit["at"]), cell(&exit["kind"]), cell(&exit["text"])),
        ]);
    }
    if !children(actor).is_empty() {
        let names = children(actor).iter().map(name_of).chain(more_children(actor));
        table.row(["children".to_owned(), names.collect::<Vec<_>>().join(", ")]);
    }
    let age = actor["view_age_ms"].as_u64().filter(|age| *age >= OLD_VIEW_MS);
    let age = age.map_or_else(String::new, |age| format!(", {age} ms old"));
    let view = serde_json::to_string_pretty(&actor["view"]).unwrap_or_default();
    format!("{}view{age}\n{}", table.render(), printable_lines(&view))
}

/// In milliseconds. An older view was not made for this request: the actor was busy.
const OLD_VIEW_MS: u64 = 100;

/// Numbers of messages by handling time: `312 up to 0.1 ms, 4 up to 10 ms, 1 longer`.
fn times(times: &Value) -> String {
    let mut below = 0;
    let mut said = Vec::new();
    for bucket in times["buckets"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let count = bucket["count"].as_u64().unwrap_or(0);
        let bound = bucket["le_ms"].as_f64().map_or_else(|| "longer".to_owned(), |ms| format!("up to {ms} ms"));
        if count > below {
            said.push(format!("{} {bound}", count - below));
        }
        below = count.max(below);
    }
    if said.is_empty() { "-".to_owned() } else { said.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn some_tree() -> Value {
        let leaf = |path: &str| {
            json!({"path": path, "kind": "Kind", "incarnation": 1, "state": "healthy", "restarts": 0,
            "mailbox": 0, "handled": 3, "handling": null, "children": []})
        };
        let mut root = leaf("node");
        let mut manager = leaf("node/manager");
        manager["children"] =
            json!([leaf("node/manager/raft-member"), leaf("node/manager/session-0000000000000000000000001")]);
        root["children"] = json!([leaf("node/agent"), manager]);
        root
    }

    #[test]
    fn the_tree_is_drawn_with_branches() {
        let text = actors(&some_tree());
        let first: Vec<&str> = text.lines().map(|l| l.split("  ").next().unwrap_or("")).collect();
        assert_eq!(&first[1..4], ["node", "├─ agent", "└─ manager"]);
        assert!(text.contains("   ├─ raft-member") && text.contains("   └─ session-00000000 "), "{text}");
    }

    #[test]
    fn one_actor_is_shown_with_work_exits_and_handling_times() {
        let seen = json!({"path": "node/x", "kind": "Kind", "state": "healthy", "since": "2024-01-01T00:00:00Z",
            "incarnation": 2, "restarts": 1, "mailbox": 3, "mailbox_limit": 8, "refused": 5, "stale": 6, "handled": 9,
            "handling": {"message": "write", "for_ms": 4100}, "view": {"n": 1}, "view_age_ms": 4100,
            "handler_times": {"sum_ms": 60.0, "buckets": [{"le_ms": 0.1, "count": 7}, {"le_ms": 100.0, "count": 7},
                {"le_ms": 1000.0, "count": 8}, {"le_ms": null, "count": 9}]},
            "last_exits": [{"kind": "panic", "text": "boom", "at": "2024-01-01T00:00:00Z"}],
            "children": [{"path": "node/x/y"}], "more_children": {"Session": 7}});
        let text = actor(&seen);
        for line in [
            "mailbox      3 of 8",
            "refused      5",
            "stale        6",
            "handling     write for 4100 ms",
            "took         7 up to 0.1 ms, 1 up to 1000 ms, 1 longer",
            "exit         2024-01-01T00:00:00Z panic: boom",
            "children     y, 7 more Session",
            "view, 4100 ms old",
        ] {
            assert!(text.lines().any(|said| said == line), "{line}\n{text}");
        }
        assert!(actors(&seen).contains("└─ (7 more Session)"));
    }

    #[test]
    fn actor_names_show_node_names_instead_of_ids() {
        let mut tree = some_tree();
        tree["node"] = "0000000000000000000000009".into();
        tree["node_name"] = "n9".into();
        name_nodes(&mut tree, &[("0000000000000000000000001".parse().unwrap(), "web-1".parse().unwrap())].into());
        let text = actors(&tree);
        assert!(text.starts_with("node n9 (0000000000000000000000009)\nACTOR"), "{text}");
        assert!(text.contains("└─ session-web-1 "), "{text}");
        assert_eq!(actor_paths(&tree).lines().last(), Some("node/manager/session-0000000000000000000000001"));
        let all = json!({"items": [{"node": "0000000000000000000000001", "name": "n4", "root": some_tree()}]});
        assert!(actors(&all).starts_with("n4\nACTOR"));
    }

    #[test]
    fn each_tree_is_below_its_node_name() {
        let all = json!({"items": [{"node": "abc", "root": some_tree()}]});
        assert!(actors(&all).starts_with("abc\nACTOR"));
        assert_eq!(actor_paths(&all).lines().count(), 5);
    }
}
