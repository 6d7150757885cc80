//! The live tree on a screen: what fits, and of that what somebody looks for.
//!
//! Rows that have something to tell (not healthy, started again since the first look, at something for long, with work
//! pending) have further lines for that, and come first where not all fit; their ancestors come with them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::actors::{children, more_children, name_of};
use super::{items, when};
use crate::cli::output::{Table, cell};

/// A message in progress for so long is worth a line, in milliseconds.
const LONG: u64 = 100;
/// Columns of a name with its branches; longer ones are cut.
const NAME_WIDTH: usize = 36;
/// The headings, and the line that says what is left out.
const BESIDES: usize = 2;

/// What the looks before have seen: which incarnation each actor was in at the first.
#[derive(Default)]
pub struct Looks(BTreeMap<(String, String), u64>);

/// One actor on its way to the screen.
struct Row<'a> {
    actor: &'a Value,
    /// Which row is its parent's.
    parent: Option<usize>,
    depth: usize,
    name: String,
    notes: Vec<String>,
    weight: u8,
}

/// The lines of a tree, or of every node's: at most `height` of them, none wider than `width`.
pub fn live(document: &Value, looks: &mut Looks, (width, height): (usize, usize)) -> Vec<String> {
    let rows = rows(document, looks);
    let kept = choose(&rows, height.saturating_sub(BESIDES));
    let mut lines = draw(&rows, &kept);
    let left_out = rows.len() - kept.iter().filter(|kept| **kept).count();
    if left_out > 0 {
        let calm = rows.iter().zip(&kept).all(|(row, kept)| *kept || row.weight == 0);
        let how = if calm { "with nothing to tell" } else { "some of them not well" };
        lines.push(format!("{left_out} more actors, {how}"));
    }
    lines.iter().map(|line| line.chars().take(width).collect()).collect()
}

fn rows<'a>(document: &'a Value, looks: &mut Looks) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    let mut now = BTreeMap::new();
    if !document["items"].is_array() {
        add(&mut rows, document, None, "", looks, &mut now);
    }
    for item in items(document) {
        let node = item["name"].as_str().unwrap_or("?");
        let begin = rows.len();
        match item["error"]["message"].as_str() {
            Some(why) => {
                let notes = vec![format!("no answer: {why}")];
                rows.push(Row { actor: &Value::Null, parent: None, depth: 0, name: String::new(), notes, weight: 3 });
            }
            None => add(&mut rows, &item["root"], None, node, looks, &mut now),
        }
        rows[begin].name = node.to_owned();
    }
    *looks = Looks(now);
    rows
}

fn add<'a>(
    rows: &mut Vec<Row<'a>>,
    actor: &'a Value,
    parent: Option<usize>,
    node: &str,
    looks: &Looks,
    now: &mut BTreeMap<(String, String), u64>,
) {
    let incarnation = actor["incarnation"].as_u64().unwrap_or(0);
    let key = (node.to_owned(), cell(&actor["path"]));
    let first = looks.0.get(&key).copied().unwrap_or(incarnation);
    now.insert(key, first);
    let notes = notes(actor, incarnation > first);
    let well = matches!(actor["state"].as_str(), Some("healthy" | "done"));
    let waits = actor["mailbox"].as_u64() > Some(0);
    let weight = if !well {
        3
    } else if !notes.is_empty() {
        2
    } else {
        u8::from(waits)
    };
    let depth = parent.map_or(0, |parent: usize| rows[parent].depth + 1);
    rows.push(Row { actor, parent, depth, name: name_of(actor), notes, weight });
    let me = rows.len() - 1;
    for child in children(actor) {
        add(rows, child, Some(me), node, looks, now);
    }
}

/// What there is to tell of an actor.
fn notes(actor: &Value, started_again: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let handling = &actor["handling"];
    if let Some(ms) = handling["for_ms"].as_u64().filter(|ms| *ms >= LONG) {
        notes.push(format!("at {} for {}.{} s", cell(&handling["message"]), ms / 1000, ms % 1000 / 100));
    }
    if let Some(view) = actor["view"].as_object() {
        let pending = view.iter().filter(|(key, _)| key.starts_with("pending"));
        for (key, work) in pending.filter_map(|(key, value)| Some((key, value.as_array().filter(|v| !v.is_empty())?))) {
            let why = work[0]["reason"].as_str().map_or_else(String::new, |why| format!(" ({why})"));
            notes.push(format!("{}: {}{why}", key.replace('_', " "), work.len()));
        }
    }
    let well = matches!(actor["state"].as_str(), Some("healthy" | "done"));
    let last = actor["last_exits"].as_array().and_then(|exits| exits.last());
    if let Some(exit) = last.filter(|_| started_again || !well) {
        let at = when(&exit["at"]);
        // The heading has the day.
        let time = at.split_once('T').map_or(at.as_str(), |(_, time)| time);
        notes.push(format!("{} at {time}: {}", cell(&exit["kind"]), cell(&exit["text"])));
    }
    notes.extend(more_children(actor));
    notes
}

/// Which rows are kept: the weightiest with their ancestors, then those at the top.
fn choose(rows: &[Row<'_>], room: usize) -> Vec<bool> {
    let cost = |row: &Row<'_>| 1 + row.notes.len();
    let mut kept = vec![false; rows.len()];
    // What fits whole needs no line that says what does not.
    if rows.iter().map(cost).sum::<usize>() <= room + 1 {
        return vec![true; rows.len()];
    }
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|at| (std::cmp::Reverse(rows[*at].weight), rows[*at].depth, *at));
    let mut left = room;
    for at in order {
        let lineage = std::iter::successors(Some(at), |at| rows[*at].parent).filter(|at| !kept[*at]);
        let lineage: Vec<usize> = lineage.collect();
        let price: usize = lineage.iter().map(|at| cost(&rows[*at])).sum();
        if price <= left {
            left -= price;
            lineage.into_iter().for_each(|at| kept[at] = true);
        }
    }
    kept
}

/// The table, with the notes between its rows.
fn draw(rows: &[Row<'_>], kept: &[bool]) -> Vec<String> {
    let mut table = Table::new(&["ACTOR", "STATE", "INC", "RESTARTS", "MAILBOX", "HANDLED"]);
    // Below each row: what its children's branches begin with, and its notes.
    let mut below: Vec<String> = vec![String::new(); rows.len()];
    let mut notes: Vec<Vec<String>> = Vec::new();
    for (at, row) in rows.iter().enumerate().filter(|(at, _)| kept[*at]) {
        let goes_on =
            |parent: Option<usize>| rows.iter().zip(kept).skip(at + 1).any(|(r, kept)| *kept && r.parent == parent);
        let lead = match row.parent {
            None => String::new(),
            Some(parent) => {
                let (bend, bar) = if goes_on(row.parent) { ("├─ ", "│  ") } else { ("└─ ", "   ") };
                below[at] = format!("{}{bar}", below[parent]);
                format!("{}{bend}", below[parent])
            }
        };
        let name: String = format!("{lead}{}", row.name).chars().take(NAME_WIDTH).collect();
        let columns = ["state", "incarnation", "restarts", "mailbox", "handled"].map(|key| cell(&row.actor[key]));
        table.row([name].into_iter().chain(columns));
        let bar = if goes_on(Some(at)) { "│  " } else { "   " };
        notes.push(row.notes.iter().map(|note| format!("{}{bar}{note}", below[at])).collect());
    }
    let table = table.render();
    let (heading, drawn) = table.split_once('\n').unwrap_or((&table, ""));
    let lines = drawn.lines().zip(notes).flat_map(|(line, notes)| std::iter::once(line.to_owned()).chain(notes));
    std::iter::once(heading.to_owned()).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn leaf(path: &str) -> Value {
        json!({"path": path, "kind": "Kind", "incarnation": 1, "state": "healthy", "restarts": 0, "mailbox": 0,
            "handled": 3, "handling": null, "last_exits": [], "view": {}, "children": []})
    }

    fn tree(workers: usize) -> Value {
        let (mut root, mut manager, mut leader) = (leaf("node"), leaf("node/manager"), leaf("node/manager/leader"));
        leader["children"] = json!([leaf("node/manager/leader/role-manager")]);
        let mut children: Vec<Value> = (0..workers).map(|n| leaf(&format!("node/manager/w{n:02}"))).collect();
        children.insert(0, leader);
        manager["children"] = Value::Array(children);
        root["children"] = json!([leaf("node/agent"), manager]);
        root
    }

    const ROLES: &str = "/children/1/children/0/children/0";

    #[test]
    fn what_fits_is_drawn_whole() {
        let lines = live(&tree(2), &mut Looks::default(), (80, 24));
        let names: Vec<&str> = lines.iter().map(|line| line.split("  h").next().unwrap_or("").trim_end()).collect();
        assert_eq!(
            names[1..],
            ["node", "├─ agent", "└─ manager", "   ├─ leader", "   │  └─ role-manager", "   ├─ w00", "   └─ w01"]
        );
    }

    #[test]
    fn an_actor_that_started_again_keeps_its_place_on_a_small_screen_and_tells_why_and_what_it_owes() {
        let mut looks = Looks::default();
        let mut now = tree(40);
        let before = live(&now, &mut looks, (80, 24));
        assert!(before.len() <= 24 && !before.iter().any(|line| line.contains("role-manager")), "{before:#?}");
        assert_eq!(before.last().map(String::as_str), Some("23 more actors, with nothing to tell"));
        *now.pointer_mut(ROLES).unwrap() = json!({"path": "node/manager/leader/role-manager", "incarnation": 2,
            "restarts": 1, "state": "healthy", "mailbox": 0, "handled": 9, "handling": {"message": "tick", "for_ms": 2500},
            "view": {"pending_reconciliation": [{"reason": "waiting_for_node"}], "pending_removal": []},
            "last_exits": [{"kind": "panic", "at": "2024-01-01T00:00:09.5Z", "text": "crashed\non request"}]});
        let after = live(&now, &mut looks, (80, 24));
        assert!(after.len() <= 24 && after.iter().all(|line| line.chars().count() <= 80), "{after:#?}");
        let at = after.iter().position(|line| line.contains("role-manager")).expect("it is there now");
        assert!(after[at].contains("healthy  2    1 "), "{}", after[at]);
        let notes = [
            "at tick for 2.5 s",
            "pending reconciliation: 1 (waiting_for_node)",
            "panic at 00:00:09Z: crashed\u{fffd}on request",
        ];
        assert!(after[at + 1..].iter().zip(notes).all(|(line, note)| line.ends_with(note)), "{after:#?}");
        // Whoever looks for the first time now is not told of what was before.
        let first = live(&now, &mut Looks::default(), (200, 24)).join("\n");
        assert!(first.contains("pending reconciliation: 1") && !first.contains("panic at"), "{first}");
    }

    #[test]
    fn a_screen_of_any_size_is_kept_to() {
        for size in [(1, 1), (20, 3), (80, 4), (10_000, 10_000)] {
            let lines = live(&tree(30), &mut Looks::default(), size);
            assert!(lines.len() <= size.1.max(BESIDES) && lines.iter().all(|line| line.chars().count() <= size.0));
        }
    }

    #[test]
    fn of_all_nodes_each_tree_has_its_nodes_name_and_who_does_not_answer_says_why() {
        let all = json!({"items": [{"node": "1", "name": "n1", "root": tree(1)},
            {"node": "2", "name": "n2", "root": null, "error": {"message": "it is down"}}]});
        let lines = live(&all, &mut Looks::default(), (80, 24));
        assert!(lines[1].starts_with("n1 ") && lines.iter().any(|line| line.starts_with("n2 ")), "{lines:#?}");
        assert_eq!(lines.last().map(|line| line.trim()), Some("no answer: it is down"));
    }
}
