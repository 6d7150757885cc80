//! The live actor tree.

use muster_messages::{ActorNode, HANDLER_BOUNDS_MS, HandlerTimes, ListView, Name, NodeActorsView, OfNodeView, word};

use super::{Names, when};
use crate::cli::output::{Table, lines, or_dash, printable_lines, short};

/// The actors of one node, or with `--all` of each node.
pub enum Trees {
    One(OfNodeView<ActorNode>),
    All(ListView<NodeActorsView>),
}

pub fn actors(trees: &Trees, names: &Names) -> String {
    let all = match trees {
        Trees::One(of) => return node_heading(of) + &table(&of.answer, names),
        Trees::All(all) => all,
    };
    let each = all.items.iter().map(|item| {
        let node = item.name.as_ref().map_or_else(|| item.node.to_string(), Name::to_string);
        let trouble = item.error.as_ref().map(|error| format!("no answer: {}\n", error.message));
        let shown = trouble.unwrap_or_else(|| item.root.as_ref().map(|root| table(root, names)).unwrap_or_default());
        format!("{node}\n{shown}")
    });
    each.collect::<Vec<_>>().join("\n")
}

/// Every path, one per line.
pub fn actor_paths(trees: &Trees) -> String {
    let mut paths = Vec::new();
    match trees {
        Trees::One(of) => collect_paths(&of.answer, &mut paths),
        Trees::All(all) => {
            for item in &all.items {
                match &item.root {
                    Some(root) => collect_paths(root, &mut paths),
                    None => paths.push("-"),
                }
            }
        }
    }
    lines(paths)
}

fn collect_paths<'a>(actor: &'a ActorNode, paths: &mut Vec<&'a str>) {
    paths.push(&actor.path);
    for child in &actor.children {
        collect_paths(child, paths);
    }
}

/// The node of these actors. Daemons of earlier releases do not report it.
fn node_heading(of: &OfNodeView<ActorNode>) -> String {
    of.node_name.as_ref().map_or_else(String::new, |name| format!("node {name} ({})\n", or_dash(of.node)))
}

fn table(root: &ActorNode, names: &Names) -> String {
    let mut table = Table::new(&["ACTOR", "KIND", "STATE", "INCARNATION", "RESTARTS", "MAILBOX", "HANDLED", "NOW"]);
    branch(&mut table, root, names, "", "");
    table.render()
}

/// The last segment of its path. Ids in names (`session-<node>`) are replaced by node names, or shortened.
pub(super) fn name_of(actor: &ActorNode, names: &Names) -> String {
    let name = actor.path.rsplit('/').next().unwrap_or(&actor.path);
    let Some((kind, id)) = name.split_once('-') else { return name.to_owned() };
    match id.parse().ok().and_then(|id| names.get(&id)) {
        Some(node) => format!("{kind}-{node}"),
        None if id.len() == muster_messages::ID_LEN => format!("{kind}-{}", short(id)),
        None => name.to_owned(),
    }
}

/// The message in progress.
fn handling(actor: &ActorNode) -> Option<String> {
    actor.handling.as_ref().map(|handling| format!("{} for {} ms", handling.message, handling.for_ms))
}

fn branch(table: &mut Table, actor: &ActorNode, names: &Names, lead: &str, below: &str) {
    table.row([
        format!("{lead}{}", name_of(actor, names)),
        actor.kind.clone(),
        word(actor.state),
        actor.incarnation.to_string(),
        actor.restarts.to_string(),
        actor.mailbox.to_string(),
        actor.handled.to_string(),
        handling(actor).unwrap_or_default(),
    ]);
    let more: Vec<String> = more_children(actor).collect();
    let last = (actor.children.len() + more.len()).saturating_sub(1);
    for (index, child) in actor.children.iter().enumerate() {
        let (bend, bar) = if index == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        branch(table, child, names, &format!("{below}{bend}"), &format!("{below}{bar}"));
    }
    for (index, more) in more.into_iter().enumerate() {
        let bend = if actor.children.len() + index == last { "└─ " } else { "├─ " };
        table.row([format!("{below}{bend}({more})")]);
    }
}

/// Children that are not shown.
pub(super) fn more_children(actor: &ActorNode) -> impl Iterator<Item = String> {
    actor.more_children.iter().map(|(kind, count)| format!("{count} more {kind}"))
}

/// One actor with all of its details.
pub fn actor(of: &OfNodeView<ActorNode>, names: &Names) -> String {
    let actor = &of.answer;
    let mut table = Table::bare();
    let mut row = |key: &str, value: String| table.row([key.to_owned(), value]);
    if let Some(name) = &of.node_name {
        row("node", format!("{name} ({})", or_dash(of.node)));
    }
    row("path", actor.path.clone());
    row("kind", actor.kind.clone());
    row("state", word(actor.state));
    row("since", when(actor.since));
    row("incarnation", actor.incarnation.to_string());
    row("restarts", actor.restarts.to_string());
    let limit = actor.mailbox_limit.map_or_else(String::new, |limit| format!(" of {limit}"));
    row("mailbox", format!("{}{limit}", actor.mailbox));
    row("refused", actor.refused.to_string());
    row("stale", actor.stale.to_string());
    row("handled", actor.handled.to_string());
    row("handling", or_dash(handling(actor)));
    row("took", times(&actor.handler_times));
    for exit in &actor.last_exits {
        row("exit", format!("{} {}: {}", when(exit.at), word(exit.kind), exit.text));
    }
    if !actor.children.is_empty() {
        let shown = actor.children.iter().map(|child| name_of(child, names)).chain(more_children(actor));
        row("children", shown.collect::<Vec<_>>().join(", "));
    }
    let age = actor.view_age_ms.filter(|age| *age >= OLD_VIEW_MS);
    let age = age.map_or_else(String::new, |age| format!(", {age} ms old"));
    let view = serde_json::to_string_pretty(&actor.view).unwrap_or_default();
    format!("{}view{age}\n{}", table.render(), printable_lines(&view))
}

/// In milliseconds. An older view was not made for this request: the actor was busy.
const OLD_VIEW_MS: u64 = 100;

/// Numbers of messages by handling time: `312 up to 0.1 ms, 4 up to 10 ms, 1 longer`.
fn times(times: &HandlerTimes) -> String {
    let bounds = HANDLER_BOUNDS_MS.iter().map(|ms| format!("up to {ms} ms")).chain(["longer".to_owned()]);
    let counted = times.counts.iter().zip(bounds).filter(|(count, _)| **count > 0);
    let said: Vec<String> = counted.map(|(count, bound)| format!("{count} {bound}")).collect();
    if said.is_empty() { "-".to_owned() } else { said.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_messages::ActorState;
    use serde_json::json;

    fn actor_at(path: &str, children: Vec<ActorNode>) -> ActorNode {
        ActorNode { kind: "Kind".to_owned(), state: ActorState::Healthy, children, ..ActorNode::unknown(path) }
    }

    fn some_tree() -> ActorNode {
        let leaf = |path: &str| actor_at(path, Vec::new());
        let manager = vec![leaf("node/manager/raft-member"), leaf("node/manager/session-0000000000000000000000001")];
        actor_at("node", vec![leaf("node/agent"), actor_at("node/manager", manager)])
    }

    fn one(answer: ActorNode) -> Trees {
        Trees::One(OfNodeView { node: None, node_name: None, answer })
    }

    #[test]
    fn the_tree_is_drawn_with_branches() {
        let text = actors(&one(some_tree()), &Names::new());
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
            "children": [some_tree()], "more_children": {"Session": 7}});
        let seen: OfNodeView<ActorNode> = serde_json::from_value(seen).unwrap();
        let text = actor(&seen, &Names::new());
        for line in [
            "mailbox      3 of 8",
            "refused      5",
            "stale        6",
            "handling     write for 4100 ms",
            "took         7 up to 0.1 ms, 1 up to 1000 ms, 1 longer",
            "exit         2024-01-01T00:00:00Z panic: boom",
            "children     node, 7 more Session",
            "view, 4100 ms old",
        ] {
            assert!(text.lines().any(|said| said == line), "{line}\n{text}");
        }
        assert!(actors(&Trees::One(seen), &Names::new()).contains("└─ (7 more Session)"));
    }

    #[test]
    fn actor_names_show_node_names_instead_of_ids() {
        let names = [("0000000000000000000000001".parse().unwrap(), "web-1".parse().unwrap())].into();
        let (node, node_name) = ("0000000000000000000000009".parse().ok(), "n9".parse().ok());
        let tree = Trees::One(OfNodeView { node, node_name, answer: some_tree() });
        let text = actors(&tree, &names);
        assert!(text.starts_with("node n9 (0000000000000000000000009)\nACTOR"), "{text}");
        assert!(text.contains("└─ session-web-1 "), "{text}");
        assert_eq!(actor_paths(&tree).lines().last(), Some("node/manager/session-0000000000000000000000001"));
    }

    #[test]
    fn each_tree_is_below_its_node_name() {
        let all = |name: Option<&str>| {
            let item = json!({"node": "0000000000000000000000001", "name": name, "root": some_tree()});
            Trees::All(serde_json::from_value(json!({"items": [item]})).unwrap())
        };
        assert!(actors(&all(None), &Names::new()).starts_with("0000000000000000000000001\nACTOR"));
        assert!(actors(&all(Some("n4")), &Names::new()).starts_with("n4\nACTOR"));
        assert_eq!(actor_paths(&all(None)).lines().count(), 5);
    }
}
