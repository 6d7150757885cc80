//! What is wrong, the worst first: each finding with its reason, since when, what to do, and the alert of `packaging/prometheus` that it
//! fires, whose instructions are a part of this page.

mod actors;
mod checks;

use std::collections::BTreeMap;

use maud::{Markup, html};
use muster_messages::{SealState, WallTime, word};

use super::{Seen, margin};
use crate::document::{Part, Row, Table};
use crate::feed::Topic;
use crate::html::{Grade, command, graded, line, link, node_link, text, time};

/// Rows of one page.
const MAX_ROWS: usize = 200;
/// The instructions for each alert.
const INSTRUCTIONS: &str = include_str!("../../../../docs/alerts.md");

/// Alerts that need a history, or the processes' own figures: only Prometheus can tell.
const OF_PROMETHEUS: [&str; 7] = [
    "MusterNotScraped",
    "MusterDiskSlow",
    "MusterMailboxFull",
    "MusterActorRestarts",
    "MusterLeaseClockPaused",
    "MusterRequestsRejected",
    "MusterVersionsMixed",
];

/// One thing that is wrong, or that will be.
struct Finding {
    grade: Grade,
    /// Unique, beside the alert.
    key: String,
    /// The alert that it fires once it lasts.
    alert: Option<&'static str>,
    what: Markup,
    since: Option<WallTime>,
    /// A command, or a sentence.
    then: Markup,
}

impl Finding {
    fn new(grade: Grade, key: impl Into<String>, what: Markup) -> Self {
        Self { grade, key: key.into(), alert: None, what, since: None, then: html! { "-" } }
    }
    fn alert(self, alert: &'static str) -> Self {
        Self { alert: Some(alert), ..self }
    }
    fn since(self, since: impl Into<Option<WallTime>>) -> Self {
        Self { since: since.into(), ..self }
    }
    fn then(self, then: Markup) -> Self {
        Self { then, ..self }
    }
}

/// A command inside a sentence.
fn code(args: &[&str]) -> Markup {
    html! { code { (line(args)) } }
}

pub fn page(seen: &Seen, alert: &str) -> Vec<Part> {
    let mut found = checks::all(seen);
    found.extend(actors::all(seen));
    found.sort_by_key(|finding| (std::cmp::Reverse(finding.grade), finding.since));
    let left_out = found.len().saturating_sub(MAX_ROWS);
    let rest = html! { @if left_out > 0 { p.note { (left_out) " more, none of them worse" } } };
    vec![
        Part::Block("summary", summary(seen, &found)),
        Part::Block("runbook", runbook(alert)),
        Part::Table(table(seen, &found)),
        Part::Block("rest", rest),
        Part::Block("facts", facts(seen)),
        Part::Block("unchecked", unchecked()),
        Part::Block(
            "command",
            html! { (command(&["muster", "status"])) (command(&["muster", "actors", "--node", "leader"])) },
        ),
    ]
}

/// The questions whose answers it needs.
pub const NEEDED: [(Topic, &str); 8] = [
    (Topic::Status, "the cluster"),
    (Topic::Raft, "the Raft members"),
    (Topic::Nodes, "the nodes"),
    (Topic::Certificates, "certificates"),
    (Topic::Roots, "the roots"),
    (Topic::Autolock, "autolock"),
    (Topic::Reconcilers, "the release gates"),
    (Topic::ManagerActors, "the managers' actors"),
];

/// Topics without a current answer: their checks found nothing because nothing was checked.
fn unknown(seen: &Seen) -> Vec<&'static str> {
    let is_unknown = |topic: &Topic| {
        seen.samples.get(topic).is_none_or(|sample| sample.answer.is_none() || sample.failure.is_some())
    };
    NEEDED.iter().filter(|(topic, _)| is_unknown(topic)).map(|(_, name)| *name).collect()
}

fn summary(seen: &Seen, found: &[Finding]) -> Markup {
    let count = |grade: Grade| found.iter().filter(|finding| finding.grade == grade).count();
    let (bad, warn) = (count(Grade::Bad), count(Grade::Warn));
    let missing = unknown(seen);
    html! {
        p.answer {
            @if bad > 0 { (graded(Grade::Bad, &format!("{bad} to act on now"))) " " }
            @if warn > 0 { (graded(Grade::Warn, &format!("{warn} to watch"))) " " }
            @if bad + warn == 0 && missing.is_empty() { (seen.good("nothing is wrong, as far as this page can tell")) }
            @if bad + warn == 0 && !missing.is_empty() { (graded(Grade::Plain, "nothing found so far")) }
        }
        @if !missing.is_empty() { p.warn { span aria-hidden="true" { "▲ " } "Not known now: " (missing.join(", ")) "." } }
    }
}

fn table(seen: &Seen, found: &[Finding]) -> Table {
    let row = |finding: &Finding| {
        let shown = match finding.grade {
            Grade::Bad => "act",
            Grade::Warn => "watch",
            Grade::Good | Grade::Plain => "note",
        };
        Row::new(
            format!("{}/{}", finding.alert.unwrap_or_default(), finding.key),
            vec![
                graded(finding.grade, shown),
                finding.what.clone(),
                time(finding.since),
                finding.then.clone(),
                match finding.alert {
                    Some(alert) => link("/health", &[("alert", alert)], alert),
                    None => html! { "-" },
                },
            ],
        )
    };
    let none = if unknown(seen).is_empty() { "nothing is wrong" } else { "nothing is known to be wrong" };
    Table {
        id: "findings",
        caption: "What is wrong, the worst first".to_owned(),
        headings: &["Urgency", "What", "Since", "What to do", "Instructions"],
        rows: found.iter().take(MAX_ROWS).map(row).collect(),
        empty: none.to_owned(),
    }
}

/// What an operator compares first, also where nothing is wrong.
fn facts(seen: &Seen) -> Markup {
    let waiting = || html! { "…" };
    let next =
        seen.certificates().map(|all| all.iter().filter_map(|it| Some((it.not_after?, it))).min_by_key(|it| it.0));
    html! {
        h2 { "State" }
        dl.facts {
            dt { "Quorum" } dd { @match seen.status() { Some(status) => (margin(seen, status)), None => (waiting()) } }
            dt { "Nodes" } dd {
                @match seen.status() {
                    Some(status) => { (status.nodes.ready) " of " (status.nodes.total) " ready, " (status.nodes.down) " down" },
                    None => (waiting()),
                }
            }
            dt { "Releases" } dd { (releases(seen)) }
            dt { "Next certificate to expire" } dd {
                @match next {
                    Some(Some((until, it))) => {
                        (node_link(&it.name.as_ref().map_or_else(|| it.node.to_string(), ToString::to_string))) " " (time(until))
                    },
                    Some(None) => "none",
                    None => (waiting()),
                }
            }
            dt { "Autolock" } dd {
                @match seen.autolock() {
                    Some(autolock) if autolock.enabled => {
                        "on, " (autolock.managers.iter().filter(|it| it.state == SealState::Sealed).count()) " of "
                        (autolock.managers.len()) " managers sealed"
                    },
                    Some(_) => "off",
                    None => (waiting()),
                }
            }
            dt { "Audit log" } dd { (actors::audit(seen)) }
            dt { "Disks" } dd { (actors::disks(seen)) }
        }
    }
}

fn releases(seen: &Seen) -> Markup {
    let Some(nodes) = seen.nodes() else { return html! { "…" } };
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for node in &nodes.items {
        *counts.entry(&node.release).or_default() += 1;
    }
    let mut all: Vec<(&str, usize)> = counts.into_iter().collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    html! {
        @for (at, (release, count)) in all.iter().take(5).enumerate() { @if at > 0 { ", " } (text(release)) " on " (count) }
        @if all.len() > 5 { ", and " (all.len() - 5) " others" }
    }
}

fn unchecked() -> Markup {
    html! {
        p.note {
            "Alerts that need a history, which only Prometheus has: "
            @for (at, alert) in OF_PROMETHEUS.iter().enumerate() {
                @if at > 0 { ", " }
                (link("/health", &[("alert", alert)], alert))
            }
            "."
        }
    }
}

/// The instructions for an alert, as `docs/alerts.md` has them.
fn runbook(alert: &str) -> Markup {
    if alert.is_empty() {
        return html! {};
    }
    let found =
        INSTRUCTIONS.split("\n## ").skip(1).find_map(|section| section.split_once('\n').filter(|it| it.0 == alert));
    html! {
        @match found {
            Some((name, instructions)) => {
                h2 { (name) }
                @for paragraph in instructions.trim().split("\n\n") { p { (sentences(paragraph)) } }
            },
            None => p { (graded(Grade::Plain, &format!("there is no alert {alert}"))) },
        }
    }
}

/// Code and links of Markdown; a link's address is a file of the repository, and only its words are shown.
fn sentences(paragraph: &str) -> Markup {
    let parts: Vec<String> = paragraph.split('`').map(str::to_owned).collect();
    html! {
        @for (at, part) in parts.iter().enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (without_links(part)) }
        }
    }
}

fn without_links(part: &str) -> String {
    let mut shown = String::new();
    let mut rest = part;
    while let Some((before, words, after)) = next_link(rest) {
        shown.push_str(before);
        shown.push_str(words);
        rest = after;
    }
    shown + rest
}

/// What is before a link, its words, and what follows it.
fn next_link(part: &str) -> Option<(&str, &str, &str)> {
    let (before, from) = part.split_once('[')?;
    let (words, to) = from.split_once("](")?;
    let (_address, after) = to.split_once(')')?;
    Some((before, words, after))
}

/// A word of the contract as a person reads it.
fn plain(value: impl serde::Serialize) -> String {
    word(value).replace('_', " ")
}

#[cfg(test)]
mod tests;
