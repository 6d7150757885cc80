//! The overview: the questions of an operator on call, answered in this order by a word and a number.

use std::collections::VecDeque;

use maud::{Markup, html};
use muster_messages::{CertificateState, Liveness, WallTime, word};

use super::{Seen, margin, name_of, none_of};
use crate::actions::Action;
use crate::document::{Part, Row, Table};
use crate::feed::{Point, Topic};
use crate::html::{Grade, action, command, graded, link, node_link, or_dash, text, time};

/// How soon a certificate must have been renewed to be nothing that runs out: nodes renew between 50 % and 80 % of its lifetime.
const SOON_MS: i64 = 24 * 3600 * 1000;
/// Things of one kind that a card names.
const NAMED: usize = 5;
/// Events on this page.
const LAST_EVENTS: usize = 10;

pub fn page(seen: &Seen) -> Vec<Part> {
    let cards = html! { div.cards { (quorum(seen)) (leader(seen)) (waiting(seen)) (unwell(seen)) (runs_out(seen)) (blocked(seen)) } };
    vec![
        Part::Block("cards", cards),
        Part::Table(members(seen)),
        Part::Block("course", course(&seen.points)),
        Part::Table(super::events::table(seen, "Last events", LAST_EVENTS, &|_| true)),
        Part::Block("command", command(&["muster", "status"])),
    ]
}

fn card(question: &str, answer: Markup, more: &[Markup]) -> Markup {
    html! {
        div.card {
            h2 { (question) }
            p.answer { (answer) }
            @for line in more.iter().take(NAMED) { p { (line) } }
            @if more.len() > NAMED { p { (more.len() - NAMED) " more" } }
        }
    }
}

/// That nothing is wrong: only as good as the answer that says so. A replica without a quorum, or an old answer, does not know.
fn well(seen: &Seen, shown: &str) -> Markup {
    if seen.is_current() { seen.good(shown) } else { seen.good(&format!("{shown}, when last known")) }
}

fn waiting_for(question: &str) -> Markup {
    card(question, html! { "…" }, &[])
}

const QUORUM: &str = "May a manager be lost?";

fn quorum(seen: &Seen) -> Markup {
    let Some(status) = seen.status() else { return waiting_for(QUORUM) };
    let missing = status.quorum.missing.iter().map(|name| html! { "missing: " (node_link(name.as_str())) });
    let two =
        (status.raft.voters.len() == 2).then(|| html! { "two voters tolerate no failure: run one manager, or three" });
    card(QUORUM, margin(seen, status), &missing.chain(two).collect::<Vec<_>>())
}

const LEADER: &str = "Who leads?";

fn leader(seen: &Seen) -> Markup {
    let Some(status) = seen.status() else { return waiting_for(LEADER) };
    let names = seen.names();
    let answer = match status.raft.leader {
        Some(leader) => html! { (node_link(&name_of(leader, names))) ", term " (status.raft.term.0) },
        None => graded(Grade::Bad, "no manager"),
    };
    let terms: Vec<u64> = seen.points.iter().filter_map(|point| point.term).collect();
    let changes = terms.windows(2).filter(|pair| pair[0] != pair[1]).count();
    let explained = "The most up-to-date voter leads next; writes wait for a moment.";
    let transfer = action(&Action::TransferLeadership {}, "transfer leadership", explained, None);
    let transfer = (seen.actions && seen.is_current() && status.raft.leader.is_some()).then_some(transfer);
    let since = seen.points.front().map(|point| html! { (changes) " changes of term since " (time(point.at)) });
    card(LEADER, answer, &since.into_iter().chain(transfer).collect::<Vec<_>>())
}

const WAITING: &str = "What waits?";

fn waiting(seen: &Seen) -> Markup {
    let Some(status) = seen.status() else { return waiting_for(WAITING) };
    let answer = match status.pending.len() {
        0 => well(seen, "nothing"),
        1 => graded(Grade::Warn, "1 change"),
        n => graded(Grade::Warn, &format!("{n} changes")),
    };
    let pending = status.pending.iter().map(|p| {
        html! {
            (node_link(p.name.as_str())) " wants " (word(p.wants)) ": " (word(p.reason)) " since " (time(p.since))
            @if let Some(retry) = p.retry_at { ", next try " (time(retry)) }
        }
    });
    card(WAITING, answer, &pending.collect::<Vec<_>>())
}

const UNWELL: &str = "Which nodes are in trouble?";

fn unwell(seen: &Seen) -> Markup {
    let Some(status) = seen.status() else { return waiting_for(UNWELL) };
    let n = &status.nodes;
    let unknown = n.total.saturating_sub(n.ready + n.down);
    let trouble = n.down + unknown + status.duplicates.len();
    let answer = match trouble {
        0 => well(seen, &format!("none of {}", n.total)),
        _ if n.down > 0 => graded(Grade::Bad, &format!("{} of {} down", n.down, n.total)),
        _ if unknown > 0 => graded(Grade::Warn, &format!("{unknown} of {} unknown", n.total)),
        _ => graded(Grade::Bad, &format!("{} run twice", status.duplicates.len())),
    };
    let duplicates =
        status.duplicates.iter().map(|d| html! { (node_link(d.name.as_str())) " runs twice since " (time(d.since)) });
    let nodes = seen.nodes().into_iter().flat_map(|nodes| &nodes.items).filter(|node| node.state != Liveness::Ready);
    let nodes = nodes.map(
        |node| html! { (node_link(node.name.as_str())) " " (word(node.state)) " since " (time(node.state_since)) },
    );
    card(UNWELL, answer, &duplicates.chain(nodes).collect::<Vec<_>>())
}

const RUNS_OUT: &str = "What runs out next?";

fn runs_out(seen: &Seen) -> Markup {
    let Some(status) = seen.status() else { return waiting_for(RUNS_OUT) };
    let mut due: Vec<(WallTime, Markup)> = Vec::new();
    for certificate in seen.certificates().into_iter().flatten() {
        let name = certificate.name.as_ref().map_or_else(|| certificate.node.to_string(), ToString::to_string);
        if let Some(until) = certificate.not_after {
            let failed = if certificate.state == CertificateState::Failed { " (renewal failed)" } else { "" };
            due.push((until, html! { "certificate of " (node_link(&name)) (failed) }));
        }
    }
    // One that admits no more nodes is of no use before its end, either.
    for token in seen.tokens().into_iter().flatten().filter(|token| token.uses_left != Some(0)) {
        if let Some(until) = token.expires_at.filter(|until| *until > seen.now) {
            due.push((until, html! { "join token " (text(&token.id)) }));
        }
    }
    due.sort_by_key(|(until, _)| *until);
    let soon = |until: WallTime| until.0 - seen.now.0 < SOON_MS;
    let root = status
        .root_expires
        .as_ref()
        .map(|root| html! { "root " (text(&root.root.to_string())) " expires " (time(root.not_after)) });
    let answer = match due.first() {
        _ if root.is_some() => graded(Grade::Bad, "the root"),
        Some((until, what)) => html! { span.warn[soon(*until)] { (what) " " (time(*until)) } },
        None if seen.certificates().is_some() => well(seen, "nothing"),
        None => html! { "…" },
    };
    let next = due.into_iter().skip(1).take(3).map(|(until, what)| html! { (what) " " (time(until)) });
    card(RUNS_OUT, answer, &root.into_iter().chain(next).collect::<Vec<_>>())
}

const BLOCKED: &str = "What is blocked?";

fn blocked(seen: &Seen) -> Markup {
    let mut lines = Vec::new();
    for gate in seen.reconcilers().into_iter().flatten() {
        if gate.blockers_in_all > 0 || gate.consecutive_failures > 0 {
            let name = link("/gates", &[("name", &gate.name)], &gate.name);
            lines.push(html! { "release gate " (name) ": " (text(&gate.message)) });
        }
    }
    for lease in seen.leases().into_iter().flatten().filter(|lease| lease.expired && lease.holder.is_some()) {
        let at = [("namespace", lease.namespace.as_str()), ("name", lease.name.as_str())];
        let name = link("/leases", &at, &format!("{}/{}", lease.namespace, lease.name));
        lines.push(html! { "lease " (name) " has lost its holder" });
    }
    let answer = match lines.len() {
        0 if seen.reconcilers().is_none() || seen.leases().is_none() => {
            let failed = |topic| seen.samples.get(topic).is_some_and(|sample| sample.failure.is_some());
            if failed(&Topic::Leases) || failed(&Topic::Reconcilers) {
                graded(Grade::Warn, "not known")
            } else {
                html! { "…" }
            }
        }
        0 => well(seen, "nothing"),
        n => graded(Grade::Warn, &n.to_string()),
    };
    card(BLOCKED, answer, &lines)
}

fn members(seen: &Seen) -> Table {
    let names = seen.names();
    let raft = seen.raft();
    let commit = raft.map_or(0, |raft| raft.commit.0);
    let row = |member: &muster_messages::RaftMemberView| {
        let leads = raft.is_some_and(|raft| raft.leader == Some(member.node));
        // Only a leader knows it of others.
        let index = Some(member.matched).filter(|index| *index > 0);
        let reachable = if member.reachable { graded(Grade::Good, "yes") } else { graded(Grade::Bad, "no") };
        Row::new(
            member.node.as_str(),
            vec![
                node_link(&name_of(member.node, names)),
                html! { (word(member.role)) @if leads { ", leader" } },
                html! { (text(&member.addr)) },
                html! { (or_dash(index)) },
                html! { (or_dash(index.map(|index| commit.saturating_sub(index)))) },
                reachable,
            ],
        )
    };
    Table {
        id: "members",
        caption: "Raft members".to_owned(),
        headings: &["Node", "Role", "Address", "Match", "Behind", "Reachable"],
        rows: raft.map(|raft| raft.members.iter().map(row).collect()).unwrap_or_default(),
        empty: none_of("Raft members", raft.is_some()),
    }
}

/// The last 15 minutes as three lines. They begin with this process, and end with it.
fn course(points: &VecDeque<Point>) -> Markup {
    let Some((first, last)) = points.front().zip(points.back()) else { return html! {} };
    let margins: Vec<Option<f64>> = points.iter().map(|p| p.margin.map(|margin| margin as f64)).collect();
    let terms: Vec<Option<f64>> = points.iter().map(|p| p.term.map(|term| term as f64)).collect();
    let pending: Vec<Option<f64>> = points.iter().map(|p| p.pending.map(|n| n as f64)).collect();
    html! {
        h2 { "Since " (time(first.at)) }
        div.courses {
            (line("Managers that may be lost", &margins, last.margin.map(|n| n.to_string())))
            (line("Term", &terms, last.term.map(|n| n.to_string())))
            (line("Changes that wait", &pending, last.pending.map(|n| n.to_string())))
        }
        p.note { "Kept by this dashboard for 15 minutes, and gone when it ends. The long history is Prometheus' work." }
    }
}

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 40.0;

/// One line, with gaps where answers are missing.
fn line(name: &str, values: &[Option<f64>], last: Option<String>) -> Markup {
    let known = || values.iter().flatten().copied();
    let (low, high) = known().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let span = if high > low { high - low } else { 1.0 };
    let step = WIDTH / (values.len().max(2) - 1) as f64;
    let mut path = String::new();
    let mut pen_is_down = false;
    for (index, value) in values.iter().enumerate() {
        let Some(value) = value else {
            pen_is_down = false;
            continue;
        };
        let (x, y) = (index as f64 * step, HEIGHT - 4.0 - (value - low) / span * (HEIGHT - 8.0));
        path += &format!("{}{x:.1} {y:.1}", if pen_is_down { "L" } else { "M" });
        pen_is_down = true;
    }
    let range = if known().next().is_none() { String::new() } else { format!(", {low} to {high}") };
    let shown = last.unwrap_or_else(|| "no answer".to_owned());
    html! {
        figure {
            figcaption { (name) ": " strong { (shown) } (range) }
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" aria-hidden="true" { path d=(path); }
        }
    }
}
