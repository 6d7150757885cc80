//! The live actor tree on a screen: as many actors as fit, notable ones first.
//!
//! An actor is notable if it is not healthy, has restarted since the first refresh, has handled a message for long, or has
//! pending work. It gets further lines for that. Its ancestors are shown with it.

use std::collections::BTreeMap;

use muster_messages::{ActorNode, ActorState, Name, word};

use super::actors::{Trees, more_children, name_of};
use super::{Names, when};
use crate::cli::output::{Table, or_dash, printable};

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
    /// `None`: its node did not answer.
    actor: Option<&'a ActorNode>,
    /// The row of its parent.
    parent: Option<usize>,
    depth: usize,
    name: String,
    details: Vec<String>,
    weight: u8,
}

/// The lines of one tree, or of every node's: at most `height` lines, none wider than `width`.
pub fn live(trees: &Trees, names: &Names, baseline: &mut Baseline, (width, height): (usize, usize)) -> Vec<String> {
    let rows = rows(trees, names, baseline);
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

fn rows<'a>(trees: &'a Trees, names: &Names, baseline: &mut Baseline) -> Vec<Row<'a>> {
    let mut adding = Adding { rows: Vec::new(), names, baseline: &*baseline, now: BTreeMap::new() };
    match trees {
        Trees::One(of) => adding.add(&of.answer, None, ""),
        Trees::All(all) => {
            for item in &all.items {
                let node = item.name.as_ref().map_or("?", Name::as_str);
                let begin = adding.rows.len();
                match &item.root {
                    Some(root) => adding.add(root, None, node),
                    None => adding.add_missing(item.error.as_ref().map_or("-", |error| &error.message)),
                }
                node.clone_into(&mut adding.rows[begin].name);
            }
        }
    }
    let Adding { rows, now, .. } = adding;
    *baseline = Baseline(now);
    rows
}

/// The rows so far.
struct Adding<'a, 'b> {
    rows: Vec<Row<'a>>,
    names: &'b Names,
    baseline: &'b Baseline,
    /// The next baseline.
    now: BTreeMap<(String, String), u64>,
}

impl<'a> Adding<'a, '_> {
    /// An actor and what is below it.
    fn add(&mut self, actor: &'a ActorNode, parent: Option<usize>, node: &str) {
        let key = (node.to_owned(), actor.path.clone());
        let first = self.baseline.0.get(&key).copied().unwrap_or(actor.incarnation);
        self.now.insert(key, first);
        let details = details(actor, actor.incarnation > first);
        let weight = if !is_healthy(actor) {
            3
        } else if !details.is_empty() {
            2
        } else {
            u8::from(actor.mailbox > 0)
        };
        let depth = parent.map_or(0, |parent| self.rows[parent].depth + 1);
        let name = name_of(actor, self.names);
        self.rows.push(Row { actor: Some(actor), parent, depth, name, details, weight });
        let own_index = self.rows.len() - 1;
        for child in &actor.children {
            self.add(child, Some(own_index), node);
        }
    }

    /// A node that did not answer.
    fn add_missing(&mut self, why: &str) {
        let details = vec![format!("no answer: {why}")];
        self.rows.push(Row { actor: None, parent: None, depth: 0, name: String::new(), details, weight: 3 });
    }
}

fn is_healthy(actor: &ActorNode) -> bool {
    matches!(actor.state, ActorState::Healthy | ActorState::Done)
}

/// The further lines of an actor.
fn details(actor: &ActorNode, restarted: bool) -> Vec<String> {
    let mut details = Vec::new();
    if let Some(handling) = actor.handling.as_ref().filter(|handling| handling.for_ms >= LONG_HANDLING_MS) {
        let ms = handling.for_ms;
        details.push(format!("handling {} for {}.{} s", printable(&handling.message), ms / 1000, ms % 1000 / 100));
    }
    // The view is free-form: pending work is what it calls so.
    if let Some(view) = actor.view.as_object() {
        let pending = view.iter().filter(|(key, _)| key.starts_with("pending"));
        for (key, work) in pending.filter_map(|(key, value)| Some((key, value.as_array().filter(|v| !v.is_empty())?))) {
            let why = work[0]["reason"].as_str().map_or_else(String::new, |why| format!(" ({why})"));
            details.push(format!("{}: {}{why}", key.replace('_', " "), work.len()));
        }
    }
    if let Some(exit) = actor.last_exits.last().filter(|_| restarted || !is_healthy(actor)) {
        let at = when(exit.at);
        // The heading shows the date.
        let time = at.split_once('T').map_or(at.as_str(), |(_, time)| time);
        details.push(format!("{} at {time}: {}", word(exit.kind), printable(&exit.text)));
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
        let numbers = row.actor.map(|a| [a.incarnation, a.restarts, a.mailbox, a.handled]);
        let numbers = (0..4).map(|at| or_dash(numbers.map(|numbers| numbers[at])));
        table.row([name, or_dash(row.actor.map(|actor| word(actor.state)))].into_iter().chain(numbers));
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
    use muster_messages::{ActorExit, ExitKind, Handling, OfNodeView};
    use serde_json::json;

    use super::*;

    fn actor(path: &str, children: Vec<ActorNode>) -> ActorNode {
        let (kind, state) = ("Kind".to_owned(), ActorState::Healthy);
        ActorNode { kind, state, incarnation: 1, handled: 3, children, ..ActorNode::unknown(path) }
    }

    fn root(workers: usize, role_manager: ActorNode) -> ActorNode {
        let mut manager = vec![actor("node/manager/leader", vec![role_manager])];
        manager.extend((0..workers).map(|n| actor(&format!("node/manager/w{n:02}"), Vec::new())));
        actor("node", vec![actor("node/agent", Vec::new()), actor("node/manager", manager)])
    }

    fn role_manager() -> ActorNode {
        actor("node/manager/leader/role-manager", Vec::new())
    }

    fn one(answer: ActorNode) -> Trees {
        Trees::One(OfNodeView { node: None, node_name: None, answer })
    }

    fn tree(workers: usize) -> Trees {
        one(root(workers, role_manager()))
    }

    fn live(trees: &Trees, baseline: &mut Baseline, size: (usize, usize)) -> Vec<String> {
        super::live(trees, &Names::new(), baseline, size)
    }

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
        let before = live(&tree(40), &mut baseline, (80, 24));
        assert!(before.len() <= 24 && !before.iter().any(|line| line.contains("role-manager")), "{before:#?}");
        assert_eq!(before.last().map(String::as_str), Some("23 more actors, healthy and idle"));
        let at = serde_json::from_value(json!("2024-01-01T00:00:09.5Z")).unwrap();
        let now = one(root(
            40,
            ActorNode {
                incarnation: 2,
                restarts: 1,
                handled: 9,
                handling: Some(Handling { message: "tick".to_owned(), for_ms: 2500 }),
                view: json!({"pending_reconciliation": [{"reason": "waiting_for_node"}], "pending_removal": []}),
                last_exits: vec![ActorExit { kind: ExitKind::Panic, at, text: "crashed\non request".to_owned() }],
                ..role_manager()
            },
        ));
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
        let items = json!([{"node": "0000000000000000000000001", "name": "n1", "root": root(1, role_manager())},
            {"node": "0000000000000000000000002", "name": "n2", "root": null, "error": {"message": "it is down"}}]);
        let all = Trees::All(serde_json::from_value(json!({"items": items})).unwrap());
        let lines = live(&all, &mut Baseline::default(), (80, 24));
        assert!(lines[1].starts_with("n1 ") && lines.iter().any(|line| line.starts_with("n2 ")), "{lines:#?}");
        assert_eq!(lines.last().map(|line| line.trim()), Some("no answer: it is down"));
    }
}
