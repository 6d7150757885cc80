//! The live actor tree on a screen: as many actors as fit, notable ones first.
//!
//! An actor is notable if it is not healthy, has restarted since the first refresh, has handled a message for long, or has
//! pending work. It gets further lines for that. Its ancestors are shown with it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::actors::{children, items, more_children, name_of, when};
use crate::cli::output::{Table, cell};

/// In milliseconds. A message handled for this long gets a line.
const LONG_HANDLING_MS: u64 = 100;
/// Columns of a name with its branches; longer names are truncated.
const NAME_WIDTH: usize = 36;
/// Lines besides the actors: the headings, and the count of actors left out.
const EXTRA_LINES: usize = 2;

/// The incarnation of each actor at the first refresh.
#[derive(Default)]
pub struct Baseline(BTreeMap<(String, String), u64>);

/// One actor to be drawn.
struct Row<'a> {
    actor: &'a Value,
    /// The row of its parent.
    parent: Option<usize>,
    depth: usize,
    name: String,
    details: Vec<String>,
    weight: u8,
}

/// The lines of one tree, or of every node's: at most `height` lines, none wider than `width`.
pub fn live(document: &Value, baseline: &mut Baseline, (width, height): (usize, usize)) -> Vec<String> {
    let rows = rows(document, baseline);
    let kept = choose(&rows, height.saturating_sub(EXTRA_LINES));
    let mut lines = draw(&rows, &kept);
    let left_out = rows.len() - kept.iter().filter(|kept| **kept).count();
    if left_out > 0 {
        let idle = rows.iter().zip(&kept).all(|(row, kept)| *kept || row.weight == 0);
        let how = if idle { "healthy and idle" } else { "some of them busy or unhealthy" };
        lines.push(format!("{left_out} more actors, {how}"));
    }
    lines.iter().map(|line| line.chars().take(width).collect()).collect()
}

fn rows<'a>(document: &'a Value, baseline: &mut Baseline) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    let mut now = BTreeMap::new();
    if !document["items"].is_array() {
        add(&mut rows, document, None, "", baseline, &mut now);
    }
    for item in items(document) {
        let node = item["name"].as_str().unwrap_or("?");
        let begin = rows.len();
        match item["error"]["message"].as_str() {
            Some(why) => {
                let details = vec![format!("no answer: {why}")];
                rows.push(Row { actor: &Value::Null, parent: None, depth: 0, name: String::new(), details, weight: 3 });
            }
            None => add(&mut rows, &item["root"], None, node, baseline, &mut now),
        }
        rows[begin].name = node.to_owned();
    }
    *baseline = Baseline(now);
    rows
}

fn add<'a>(
    rows: &mut Vec<Row<'a>>,
    actor: &'a Value,
    parent: Option<usize>,
    node: &str,
    baseline: &Baseline,
    now: &mut BTreeMap<(String, String), u64>,
) {
    let incarnation = actor["incarnation"].as_u64().unwrap_or(0);
    let key = (node.to_owned(), cell(&actor["path"]));
    let first = baseline.0.get(&key).copied().unwrap_or(incarnation);
    now.insert(key, first);
    let details = details(actor, incarnation > first);
    let healthy = matches!(actor["state"].as_str(), Some("healthy" | "done"));
    let queued = actor["mailbox"].as_u64() > Some(0);
    let weight = if !healthy {
        3
    } else if !details.is_empty() {
        2
    } else {
        u8::from(queued)
    };
    let depth = parent.map_or(0, |parent: usize| rows[parent].depth + 1);
    rows.push(Row { actor, parent, depth, name: name_of(actor), details, weight });
    let own_index = rows.len() - 1;
    for child in children(actor) {
        add(rows, child, Some(own_index), node, baseline, now);
    }
}

/// The further lines of an actor.
fn details(actor: &Value, restarted: bool) -> Vec<String> {
    let mut details = Vec::new();
    let handling = &actor["handling"];
    if let Some(ms) = handling["for_ms"].as_u64().filter(|ms| *ms >= LONG_HANDLING_MS) {
        details.push(format!("handling {} for {}.{} s", cell(&handling["message"]), ms / 1000, ms % 1000 / 100));
    }
    if let Some(view) = actor["view"].as_object() {
        let pending = view.iter().filter(|(key, _)| key.starts_with("pending"));
        for (key, work) in pending.filter_map(|(key, value)| Some((key, value.as_array().filter(|v| !v.is_empty())?))) {
            let why = work[0]["reason"].as_str().map_or_else(String::new, |why| format!(" ({why})"));
            details.push(format!("{}: {}{why}", key.replace('_', " "), work.len()));
        }
    }
    let healthy = matches!(actor["state"].as_str(), Some("healthy" | "done"));
    let last = actor["last_exits"].as_array().and_then(|exits| exits.last());
    if let Some(exit) = last.filter(|_| restarted || !healthy) {
        let at = when(&exit["at"]);
        // The heading shows the date.
        let time = at.split_once('T').map_or(at.as_str(), |(_, time)| time);
        details.push(format!("{} at {time}: {}", cell(&exit["kind"]), cell(&exit["text"])));
    }
    details.extend(more_children(actor));
    details
}

/// Selects the rows to draw: by weight, with their ancestors, then from the top.
fn choose(rows: &[Row<'_>], room: usize) -> Vec<bool> {
    let cost = |row: &Row<'_>| 1 + row.details.len();
    let mut kept = vec![false; rows.len()];
    // If all rows fit, no line counts those left out.
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

/// The table, with the further lines between its rows.
fn draw(rows: &[Row<'_>], kept: &[bool]) -> Vec<String> {
    let mut table = Table::new(&["ACTOR", "STATE", "INC", "RESTARTS", "MAILBOX", "HANDLED"]);
    // For each row: the prefix of its children's branches, and its further lines.
    let mut below: Vec<String> = vec![String::new(); rows.len()];
    let mut details: Vec<Vec<String>> = Vec::new();
    for (at, row) in rows.iter().enumerate().filter(|(at, _)| kept[*at]) {
        let has_later_row =
            |parent: Option<usize>| rows.iter().zip(kept).skip(at + 1).any(|(r, kept)| *kept && r.parent == parent);
        let lead = match row.parent {
            None => String::new(),
            Some(parent) => {
                let (bend, bar) = if has_later_row(row.parent) { ("├─ ", "│  ") } else { ("└─ ", "   ") };
                below[at] = format!("{}{bar}", below[parent]);
                format!("{}{bend}", below[parent])
            }
        };
        let name: String = format!("{lead}{}", row.name).chars().take(NAME_WIDTH).collect();
        let columns = ["state", "incarnation", "restarts", "mailbox", "handled"].map(|key| cell(&row.actor[key]));
        table.row([name].into_iter().chain(columns));
        let bar = if has_later_row(Some(at)) { "│  " } else { "   " };
        details.push(row.details.iter().map(|detail| format!("{}{bar}{detail}", below[at])).collect());
    }
    let table = table.render();
    let (heading, drawn) = table.split_once('\n').unwrap_or((&table, ""));
    let lines = drawn.lines().zip(details).flat_map(|(line, details)| std::iter::once(line.to_owned()).chain(details));
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

    const ROLE_MANAGER_POINTER: &str = "/children/1/children/0/children/0";

    #[test]
    fn tree_that_fits_is_drawn_completely() {
        let lines = live(&tree(2), &mut Baseline::default(), (80, 24));
        let names: Vec<&str> = lines.iter().map(|line| line.split("  h").next().unwrap_or("").trim_end()).collect();
        assert_eq!(
            names[1..],
            ["node", "├─ agent", "└─ manager", "   ├─ leader", "   │  └─ role-manager", "   ├─ w00", "   └─ w01"]
        );
    }

    #[test]
    fn restarted_actor_stays_on_a_small_screen_with_details() {
        let mut baseline = Baseline::default();
        let mut now = tree(40);
        let before = live(&now, &mut baseline, (80, 24));
        assert!(before.len() <= 24 && !before.iter().any(|line| line.contains("role-manager")), "{before:#?}");
        assert_eq!(before.last().map(String::as_str), Some("23 more actors, healthy and idle"));
        *now.pointer_mut(ROLE_MANAGER_POINTER).unwrap() = json!({"path": "node/manager/leader/role-manager", "incarnation": 2,
            "restarts": 1, "state": "healthy", "mailbox": 0, "handled": 9, "handling": {"message": "tick", "for_ms": 2500},
            "view": {"pending_reconciliation": [{"reason": "waiting_for_node"}], "pending_removal": []},
            "last_exits": [{"kind": "panic", "at": "2024-01-01T00:00:09.5Z", "text": "crashed\non request"}]});
        let after = live(&now, &mut baseline, (80, 24));
        assert!(after.len() <= 24 && after.iter().all(|line| line.chars().count() <= 80), "{after:#?}");
        let at = after.iter().position(|line| line.contains("role-manager")).expect("it is there now");
        assert!(after[at].contains("healthy  2    1 "), "{}", after[at]);
        let details = [
            "handling tick for 2.5 s",
            "pending reconciliation: 1 (waiting_for_node)",
            "panic at 00:00:09Z: crashed\u{fffd}on request",
        ];
        assert!(after[at + 1..].iter().zip(details).all(|(line, detail)| line.ends_with(detail)), "{after:#?}");
        // A new first refresh does not show earlier exits.
        let first = live(&now, &mut Baseline::default(), (200, 24)).join("\n");
        assert!(first.contains("pending reconciliation: 1") && !first.contains("panic at"), "{first}");
    }

    #[test]
    fn lines_fit_a_screen_of_any_size() {
        for size in [(1, 1), (20, 3), (80, 4), (10_000, 10_000)] {
            let lines = live(&tree(30), &mut Baseline::default(), size);
            assert!(lines.len() <= size.1.max(EXTRA_LINES) && lines.iter().all(|line| line.chars().count() <= size.0));
        }
    }

    #[test]
    fn each_tree_has_its_node_name_or_the_reason_for_no_answer() {
        let all = json!({"items": [{"node": "1", "name": "n1", "root": tree(1)},
            {"node": "2", "name": "n2", "root": null, "error": {"message": "it is down"}}]});
        let lines = live(&all, &mut Baseline::default(), (80, 24));
        assert!(lines[1].starts_with("n1 ") && lines.iter().any(|line| line.starts_with("n2 ")), "{lines:#?}");
        assert_eq!(lines.last().map(|line| line.trim()), Some("no answer: it is down"));
    }
}
