//! The live tree.

use serde_json::Value;

use super::{items, when};
use crate::cli::output::{Table, cell, short};

/// One tree, or each node's with `--all`.
pub fn actors(document: &Value) -> String {
    if !document["items"].is_array() {
        return tree(document);
    }
    let each = items(document).iter().map(|item| {
        let trouble = item["error"]["message"].as_str().map(|why| format!("no answer: {why}\n"));
        format!("{}\n{}", cell(&item["node"]), trouble.unwrap_or_else(|| tree(&item["root"])))
    });
    each.collect::<Vec<_>>().join("\n")
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

fn children(actor: &Value) -> &[Value] {
    actor["children"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn tree(root: &Value) -> String {
    let mut table = Table::new(&["ACTOR", "KIND", "STATE", "INCARNATION", "RESTARTS", "MAILBOX", "HANDLED", "NOW"]);
    branch(&mut table, root, "", "");
    table.render()
}

fn branch(table: &mut Table, actor: &Value, lead: &str, below: &str) {
    let path = actor["path"].as_str().unwrap_or("?");
    let name = path.rsplit('/').next().unwrap_or(path);
    // Ids in names (session-<node>) are long; their beginning tells them apart.
    let name = match name.split_once('-') {
        Some((kind, id)) if id.len() == muster_messages::ID_LEN => format!("{kind}-{}", short(id)),
        _ => name.to_owned(),
    };
    let handling = &actor["handling"];
    let now = match handling["message"].as_str() {
        Some(message) => format!("{message} for {} ms", cell(&handling["for_ms"])),
        None => String::new(),
    };
    let columns = ["kind", "state", "incarnation", "restarts", "mailbox", "handled"].map(|key| cell(&actor[key]));
    table.row([format!("{lead}{name}")].into_iter().chain(columns).chain([now]));
    let last = children(actor).len().saturating_sub(1);
    for (index, child) in children(actor).iter().enumerate() {
        let (bend, bar) = if index == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        branch(table, child, &format!("{below}{bend}"), &format!("{below}{bar}"));
    }
}

/// One actor with everything it says of itself.
pub fn actor(actor: &Value) -> String {
    let mut table = Table::bare();
    for key in ["path", "kind", "state", "incarnation", "restarts", "mailbox", "handled"] {
        table.row([key.to_owned(), cell(&actor[key])]);
    }
    table.row(["since".to_owned(), when(&actor["since"])]);
    for exit in actor["last_exits"].as_array().map(Vec::as_slice).unwrap_or_default() {
        table.row([
            "exit".to_owned(),
            format!("{} {}: {}", when(&exit["at"]), cell(&exit["kind"]), cell(&exit["text"])),
        ]);
    }
    let view = serde_json::to_string_pretty(&actor["view"]).unwrap_or_default();
    format!("{}view\n{view}", table.render())
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
    fn of_all_nodes_each_tree_stands_below_its_node() {
        let all = json!({"items": [{"node": "abc", "root": some_tree()}]});
        assert!(actors(&all).starts_with("abc\nACTOR"));
        assert_eq!(actor_paths(&all).lines().count(), 5);
    }
}
