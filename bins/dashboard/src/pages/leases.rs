//! Leases: who holds what, until when, under which fencing token.

use maud::{Markup, html};
use muster_messages::{EventKind, LeaseView, MEMBERS_NAMESPACE, RUNNERS_NAMESPACE};

use super::{Seen, absent, none_of};
use crate::document::{Part, Row, Table};
use crate::feed::{Answer, Topic};
use crate::html::{Grade, command, filter, graded, link, or_dash, time};

/// Rows of one page.
const MAX_ROWS: usize = 200;

pub fn list(seen: &Seen, wanted: &str) -> Vec<Part> {
    let all = seen.leases();
    let matches = |lease: &&LeaseView| {
        let name = format!("{}/{}", lease.namespace, lease.name);
        let own = [MEMBERS_NAMESPACE, RUNNERS_NAMESPACE].contains(&lease.namespace.as_str());
        let holder = || lease.holder.as_ref().is_some_and(|holder| holder.contains(wanted));
        if wanted.is_empty() { !own } else { name.contains(wanted) || holder() }
    };
    let mut chosen: Vec<&LeaseView> = all.into_iter().flatten().filter(matches).collect();
    chosen.sort_by_key(|lease| (std::cmp::Reverse(state(lease).0), &lease.namespace, &lease.name));
    let (in_all, left_out) = (all.map_or(0, Vec::len), chosen.len().saturating_sub(MAX_ROWS));
    let table = Table {
        id: "leases",
        caption: "Leases".to_owned(),
        headings: &["Lease", "Holder", "State", "Expires in", "Fencing token", "Transitions", "Acquired"],
        rows: chosen.iter().take(MAX_ROWS).map(|lease| row(lease)).collect(),
        empty: none_of("leases", all.is_some()),
    };
    let rest = html! {
        p.note {
            @if all.is_some() { (in_all) " leases in all. " }
            "Those of Muster's own members and elections are shown when the filter asks for them, as "
            code { (MEMBERS_NAMESPACE) } "."
            @if left_out > 0 { " " (left_out) " more match." }
        }
    };
    vec![
        Part::Block("filter", filter("filter", "Namespace, name or holder", wanted)),
        Part::Table(table),
        Part::Block("rest", rest),
        Part::Block("command", command(&["muster", "lease", "ls", "-A"])),
    ]
}

fn state(lease: &LeaseView) -> (Grade, &'static str) {
    match (&lease.holder, lease.expired) {
        (None, _) => (Grade::Plain, "free"),
        (Some(_), true) => (Grade::Warn, "expired"),
        (Some(_), false) => (Grade::Good, "held"),
    }
}

fn expiry(lease: &LeaseView) -> Markup {
    match lease.expires_in_ms {
        Some(ms) => html! { (ms / 1000) " s" },
        None => html! { "-" },
    }
}

fn row(lease: &LeaseView) -> Row {
    let (grade, shown) = state(lease);
    let query = [("namespace", lease.namespace.as_str()), ("name", lease.name.as_str())];
    Row::new(
        format!("{}/{}", lease.namespace, lease.name),
        vec![
            link("/leases", &query, &format!("{}/{}", lease.namespace, lease.name)),
            html! { (or_dash(lease.holder.as_ref())) },
            graded(grade, shown),
            expiry(lease),
            html! { (lease.fencing_token) },
            html! { (lease.transitions) },
            time(lease.acquired_at),
        ],
    )
}

pub fn one(seen: &Seen, namespace: &str, name: &str) -> Vec<Part> {
    let answer = seen.answer(&Topic::Lease(namespace.to_owned(), name.to_owned()));
    let Some(Answer::Leases(leases)) = answer else {
        return vec![Part::Block(
            "lease",
            absent(seen, &Topic::Lease(namespace.to_owned(), name.to_owned()), "this lease"),
        )];
    };
    let facts = html! {
        @for lease in leases {
            @let (grade, shown) = state(lease);
            dl.facts {
                dt { "Holder" } dd { (or_dash(lease.holder.as_ref())) }
                dt { "State" } dd { (graded(grade, shown)) }
                dt { "Expires in" } dd { (expiry(lease)) " of " (or_dash(lease.lease_duration_ms.map(|ms| format!("{} s", ms / 1000)))) }
                dt { "Fencing token" } dd { (lease.fencing_token) }
                dt { "Transitions" } dd { (lease.transitions) }
                dt { "Acquired" } dd { (time(lease.acquired_at)) }
                dt { "Renewed" } dd { (time(lease.renewed_at)) " in the log; native sessions renew without an entry" }
                dt { "Preferred holder" } dd { (or_dash(lease.preferred_holder.as_ref())) ", strategy " (or_dash(lease.strategy.as_ref())) }
                dt { "Revision" } dd { (lease.revision.0) }
            }
        }
    };
    let full = format!("{namespace}/{name}");
    let is_its = |event: &muster_messages::EventView| {
        let about =
            |text: &Option<String>| text.as_ref().is_some_and(|text| text.split(' ').next() == Some(full.as_str()));
        event.kind == EventKind::Lease && (about(&event.after) || about(&event.before))
    };
    vec![
        Part::Block("lease", facts),
        Part::Table(super::events::table(seen, "Its holders, from events", 50, &is_its)),
        Part::Block("command", command(&["muster", "lease", "get", name, "-n", namespace])),
    ]
}
