//! Events: what changed, by whom, and why.

use std::collections::HashMap;

use maud::{Markup, html};
use muster_messages::{EventKind, EventView, Word, Words};

use super::{Seen, name_of, none_of};
use crate::document::{Part, Row, Table};
use crate::feed::MAX_EVENTS;
use crate::html::{address, command, filter, node_link, or_dash, text, time};

/// Events on their page; older ones are the terminal's.
const MAX_ROWS: usize = 300;

pub fn page(seen: &Seen, kind: &str, node: &str) -> Vec<Part> {
    let names = seen.names();
    // The address may name a kind of a newer release.
    let chosen: Option<Word<EventKind>> = (!kind.is_empty()).then(|| kind.into());
    let is_chosen = |event: &EventView| {
        let name = event.node.map(|id| name_of(id, names));
        let of_node = || name.as_deref() == Some(node) || event.node.is_some_and(|id| id.as_str().starts_with(node));
        chosen.as_ref().is_none_or(|kind| event.kind == *kind) && (node.is_empty() || of_node())
    };
    let kinds = html! {
        nav aria-label="Kinds of events" {
            ul.choices {
                li { (choice("", "all", kind, node)) }
                @for value in EventKind::ALL { li { (choice(value.text(), value.text(), kind, node)) } }
            }
        }
    };
    let rest = html! { p.note { "The newest " (MAX_ROWS) ", without the bookkeeping of Muster's own leases. All of them: " code { "muster events --all --last 1000" } } };
    let mut shown_by = vec!["muster", "events"];
    shown_by.extend(
        [("--kind", kind), ("--node", node)]
            .into_iter()
            .filter(|(_, it)| !it.is_empty())
            .flat_map(|(flag, it)| [flag, it]),
    );
    vec![
        Part::Block("kinds", kinds),
        Part::Block("filter", filter("node", "Node", node)),
        Part::Table(table(seen, "Events", MAX_ROWS, &is_chosen)),
        Part::Block("rest", rest),
        Part::Block("command", command(&shown_by)),
    ]
}

/// The same page for events of a kind.
fn choice(value: &str, shown: &str, chosen: &str, node: &str) -> Markup {
    let query = [("kind", value), ("node", node)];
    let query: Vec<_> = query.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    html! { a href=(address("/events", &query)) aria-current=[(value == chosen).then_some("true")] { (shown) } }
}

/// The newest events, newest first.
pub(super) fn table(seen: &Seen, caption: &str, limit: usize, is_chosen: &dyn Fn(&EventView) -> bool) -> Table {
    let names = seen.names();
    let all = seen.events();
    let newest =
        all.into_iter().flatten().rev().filter(|event| !event.is_of_own_lease() && is_chosen(event)).take(limit);
    let mut of_revision = HashMap::new();
    let row = |event: &EventView| {
        // A revision may have several events.
        let number: &mut u32 = of_revision.entry(event.revision).or_default();
        *number += 1;
        let change = match (&event.before, &event.after) {
            (None, None) => html! { "-" },
            (before, after) => html! { (or_dash(before.as_ref())) " → " (or_dash(after.as_ref())) },
        };
        let node = event.node.map(|id| match names.get(&id) {
            Some(name) => node_link(name),
            None => html! { (name_of(id, names)) },
        });
        let by =
            event.by.id.as_deref().map(|id| id.parse().ok().map_or_else(|| id.to_owned(), |id| name_of(id, names)));
        Row::new(
            format!("{}/{number}", event.revision.0),
            vec![
                time(event.at),
                html! { (text(event.kind.text())) },
                node.unwrap_or_else(|| html! { "-" }),
                change,
                html! { (text(&event.reason)) },
                html! { (text(event.by.kind.text())) @if let Some(by) = by { " " (text(&by)) } },
                html! { (event.revision.0) },
            ],
        )
    };
    Table {
        id: "events",
        caption: caption.to_owned(),
        headings: &["Time", "Kind", "Node", "Change", "Reason", "By", "Revision"],
        rows: newest.map(row).collect(),
        empty: match all {
            // Older ones may exist.
            Some(all) if all.len() >= MAX_EVENTS => format!("none among the newest {MAX_EVENTS} events"),
            _ => none_of("events", all.is_some()),
        },
    }
}
