//! The live actor tree of one node, and one actor of it.

use std::collections::BTreeMap;

use maud::{Markup, html};
use muster_messages::{ActorNode, ActorState, HANDLER_BOUNDS_MS, NodeId, OfNodeView, word};

use super::{Seen, absent};
use crate::actions::Action;
use crate::document::{Part, Row, Table};
use crate::feed::{Answer, Topic};
use crate::html::{Grade, action, command, graded, link, or_dash, text, time};

/// Characters of an actor's state.
const MAX_VIEW: usize = 20_000;
/// A handler that runs longer is shown as one to look at.
const LONG_MS: u64 = 1_000;

pub fn tree(seen: &Seen, node: &str) -> Vec<Part> {
    let answer = seen.answer(&Topic::Actors(node.to_owned()));
    let choice = Part::Block("choice", choice(seen, node));
    let Some(Answer::Actors(of)) = answer else {
        return vec![choice, Part::Block("tree", absent(seen, &Topic::Actors(node.to_owned()), "the actors"))];
    };
    let names = seen.names();
    let mut counts = Counts::default();
    count(&of.answer, &mut counts);
    let summary = html! {
        p {
            (of_node(of)) ": " (counts.all) " actors, "
            @if counts.bad == 0 { (graded(Grade::Good, "all well")) } @else { (graded(Grade::Bad, &format!("{} not well", counts.bad))) }
            ", " (counts.restarts) " restarts, " (counts.waiting) " messages waiting"
        }
    };
    let tree = html! { ul.tree { (branch(&of.answer, node, names)) } };
    vec![
        choice,
        Part::Block("summary", summary),
        Part::Block("tree", tree),
        Part::Block("command", command_line(&["muster", "actors"], node)),
    ]
}

fn command_line(args: &[&str], node: &str) -> Markup {
    if node.is_empty() { command(args) } else { command(&[args, &["--node", node]].concat()) }
}

fn of_node(of: &OfNodeView<ActorNode>) -> Markup {
    html! { strong { (of.node_name.as_ref().map_or_else(|| "the node that answers".to_owned(), |name| text(name.as_str()))) } }
}

/// Managers, whose trees people look at; others are reached from their node's page.
fn choice(seen: &Seen, node: &str) -> Markup {
    let managers = seen.nodes().into_iter().flat_map(|nodes| &nodes.items).filter(|node| node.manager.is_some());
    let mut names: Vec<String> = managers.map(|node| node.name.to_string()).collect();
    names.sort();
    if !["", "leader"].contains(&node) && !names.iter().any(|name| name == node) {
        names.push(node.to_owned());
    }
    let fixed = [("".to_owned(), "the node that answers"), ("leader".to_owned(), "the leader")];
    let current = |value: &str| (value == node).then_some("true");
    html! {
        nav aria-label="Node" {
            ul.choices {
                @for (value, shown) in &fixed { li { (entry(value, shown, current(value))) } }
                @for name in &names { li { (entry(name, name, current(name))) } }
            }
        }
    }
}

fn entry(value: &str, shown: &str, current: Option<&str>) -> Markup {
    let query: &[(&str, &str)] = if value.is_empty() { &[] } else { &[("node", value)] };
    html! { a href=(crate::html::address("/actors", query)) aria-current=[current] { (text(shown)) } }
}

#[derive(Default)]
struct Counts {
    all: u64,
    bad: u64,
    restarts: u64,
    waiting: u64,
}

fn count(actor: &ActorNode, counts: &mut Counts) {
    counts.all += 1 + actor.more_children.values().sum::<u64>();
    counts.bad += u64::from(grade(actor) == Grade::Bad);
    counts.restarts += actor.restarts;
    counts.waiting += actor.mailbox;
    actor.children.iter().for_each(|child| count(child, counts));
}

fn grade(actor: &ActorNode) -> Grade {
    match actor.state {
        ActorState::Healthy => Grade::Good,
        ActorState::Done => Grade::Plain,
        ActorState::Starting | ActorState::Stopping => Grade::Warn,
        ActorState::BackingOff | ActorState::Stuck | ActorState::Dead | ActorState::Escalated => Grade::Bad,
    }
}

/// Whether what is below is shown without being unfolded.
fn is_interesting(actor: &ActorNode) -> bool {
    let busy = actor.handling.as_ref().is_some_and(|handling| handling.for_ms >= LONG_MS);
    let full = actor.mailbox_limit.is_some_and(|limit| actor.mailbox * 2 > limit);
    grade(actor) == Grade::Bad || busy || full || actor.children.iter().any(is_interesting)
}

fn branch(actor: &ActorNode, node: &str, names: &BTreeMap<NodeId, String>) -> Markup {
    let more = actor.more_children.iter();
    // The first two levels are what a person looks for first.
    let open = actor.path.matches('/').count() < 2 || is_interesting(actor);
    let below = format!("below-{}", crate::document::id_of(&actor.path));
    html! {
        li {
            @if actor.children.is_empty() && actor.more_children.is_empty() {
                div.leaf { (line(actor, node, names)) }
            } @else {
                button.fold type="button" data-fold=(below) aria-expanded=(open.to_string()) aria-label={ "below " (text(&actor.path)) } {}
                " " (line(actor, node, names))
                ul id=(below) hidden[!open] {
                    @for child in &actor.children { (branch(child, node, names)) }
                    @for (kind, count) in more { li { div.leaf { (count) " more " (text(kind)) } } }
                }
            }
        }
    }
}

fn line(actor: &ActorNode, node: &str, names: &BTreeMap<NodeId, String>) -> Markup {
    let own = actor.path.rsplit('/').next().unwrap_or(&actor.path);
    let shown = match own.split_once('-').and_then(|(kind, id)| Some((kind, names.get(&id.parse().ok()?)?))) {
        Some((kind, name)) => format!("{kind}-{name}"),
        None => own.to_owned(),
    };
    let mut query = vec![("path", actor.path.as_str())];
    if !node.is_empty() {
        query.insert(0, ("node", node));
    }
    html! {
        (link("/actors", &query, &shown)) " "
        (graded(grade(actor), &word(actor.state)))
        @if actor.restarts > 0 { " · " (actor.restarts) " restarts" }
        @if actor.mailbox > 0 { " · " (actor.mailbox) @if let Some(limit) = actor.mailbox_limit { " of " (limit) } " waiting" }
        @if let Some(handling) = &actor.handling { " · " (text(&handling.message)) " for " (handling.for_ms) " ms" }
        @if let (Some(exit), true) = (actor.last_exits.last(), actor.state != ActorState::Healthy) {
            " · " (word(exit.kind)) ": " (text(&exit.text))
        }
    }
}

pub fn one(seen: &Seen, node: &str, path: &str) -> Vec<Part> {
    let Some(Answer::Actors(of)) = seen.answer(&Topic::Actor(node.to_owned(), path.to_owned())) else {
        return vec![Part::Block("actor", absent(seen, &Topic::Actor(node.to_owned(), path.to_owned()), "this actor"))];
    };
    let actor = &of.answer;
    let handling = actor.handling.as_ref().map(|handling| format!("{} for {} ms", handling.message, handling.for_ms));
    let facts = html! {
        dl.facts {
            dt { "Node" } dd { (of_node(of)) }
            dt { "Kind" } dd { (text(&actor.kind)) }
            dt { "State" } dd { (graded(grade(actor), &word(actor.state))) " since " (time(actor.since)) }
            dt { "Incarnation" } dd { (actor.incarnation) ", " (actor.restarts) " restarts" }
            dt { "Mailbox" } dd { (actor.mailbox) @if let Some(limit) = actor.mailbox_limit { " of " (limit) } ", " (actor.refused) " refused, " (actor.stale) " stale" }
            dt { "Handled" } dd { (actor.handled) ", now: " (or_dash(handling)) }
        }
    };
    let bounds = HANDLER_BOUNDS_MS.iter().map(|ms| format!("up to {ms} ms")).chain(["longer".to_owned()]);
    let times = actor.handler_times.counts.iter().zip(bounds).filter(|(count, _)| **count > 0);
    let times = Table {
        id: "times",
        caption: "How long its handlers took".to_owned(),
        headings: &["Time", "Messages"],
        rows: times.map(|(count, bound)| Row::new(bound.clone(), vec![html! { (bound) }, html! { (count) }])).collect(),
        empty: "it has handled no message".to_owned(),
    };
    let exits = actor.last_exits.iter().rev().enumerate();
    let exits = Table {
        id: "exits",
        caption: "Its last exits".to_owned(),
        headings: &["Time", "Kind", "Text"],
        rows: exits
            .map(|(index, exit)| {
                Row::new(
                    format!("{}/{index}", exit.at.0),
                    vec![time(exit.at), html! { (word(exit.kind)) }, html! { (text(&exit.text)) }],
                )
            })
            .collect(),
        empty: "it has never ended".to_owned(),
    };
    let view: String = serde_json::to_string_pretty(&actor.view).unwrap_or_default();
    let state = html! {
        h2 { "What it knows" }
        @if let Some(age) = actor.view_age_ms.filter(|age| *age > 1_000) { p.warn { (age) " ms old: the actor is busy" } }
        pre tabindex="0" { (shown(&view)) }
    };
    let restart = Action::RestartActor { node: node.to_owned(), path: path.to_owned() };
    let explained = format!("{path} is stopped, and its supervisor starts it again with its pending work.");
    let restart = html! { @if seen.actions { p { (action(&restart, "restart it", &explained, None)) } } };
    let children = html! {
        @if !actor.children.is_empty() { h2 { "Below it" } ul.tree { @for child in &actor.children { (branch(child, node, seen.names())) } } }
    };
    vec![
        Part::Block("actor", facts),
        Part::Block("actions", restart),
        Part::Table(times),
        Part::Table(exits),
        Part::Block("children", children),
        Part::Block("state", state),
        Part::Block("command", command_line(&["muster", "actors", "inspect", path], node)),
    ]
}

/// A long text, line by line.
fn shown(view: &str) -> String {
    let lines = muster_messages::in_short(view, MAX_VIEW);
    lines.lines().map(text).collect::<Vec<_>>().join("\n")
}
