//! The pages: functions from what the cluster answered to a [`Document`]. None of them asks anything.

mod actors;
mod certificates;
mod events;
mod gates;
mod health;
mod leases;
mod managers;
mod nodes;
mod overview;

use std::collections::{BTreeMap, HashMap, VecDeque};

use maud::{Markup, html};
use muster_messages::{NodeId, NodeListView, StatusView, WallTime, answering};

use crate::document::{Document, Part};
use crate::feed::{Answer, Point, Sample, Topic};
use crate::html::{Grade, graded, text, time};

/// A page, as its address names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    Overview,
    Nodes {
        filter: String,
    },
    Node(String),
    /// The actors of a node, of the `leader`, or of the node that answers (empty).
    Actors(String),
    Actor {
        node: String,
        path: String,
    },
    Leases {
        filter: String,
    },
    Lease {
        namespace: String,
        name: String,
    },
    Gates,
    Gate(String),
    Events {
        kind: String,
        node: String,
    },
    Certificates,
    /// The declared number of managers.
    Managers,
    /// What is wrong, with the instructions for this alert.
    Health {
        alert: String,
    },
}

/// Where the pages are, in the order of the navigation: path, name, and the key that goes there after `g`.
pub const PLACES: [(&str, &str, char); 9] = [
    ("/", "Overview", 'o'),
    ("/health", "Health", 'h'),
    ("/nodes", "Nodes", 'n'),
    ("/managers", "Managers", 'm'),
    ("/actors", "Actors", 'a'),
    ("/leases", "Leases", 'l'),
    ("/gates", "Release gates", 'r'),
    ("/events", "Events", 'e'),
    ("/certificates", "Certificates", 'c'),
];

/// Whether a path is a page's.
pub fn is_page(path: &str) -> bool {
    PLACES.iter().any(|(place, ..)| *place == path)
}

impl Page {
    /// The page at a path with a query.
    pub fn at(path: &str, query: &str) -> Option<Self> {
        let given: HashMap<String, String> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let of = |name: &str| given.get(name).filter(|value| !value.is_empty()).cloned();
        let or_all = |name: &str| of(name).unwrap_or_default();
        Some(match path {
            "/" => Page::Overview,
            "/nodes" => of("node").map_or_else(|| Page::Nodes { filter: or_all("filter") }, Page::Node),
            "/actors" => match of("path") {
                Some(path) => Page::Actor { node: or_all("node"), path },
                None => Page::Actors(or_all("node")),
            },
            "/leases" => match (of("namespace"), of("name")) {
                (Some(namespace), Some(name)) => Page::Lease { namespace, name },
                _ => Page::Leases { filter: or_all("filter") },
            },
            "/gates" => of("name").map_or(Page::Gates, Page::Gate),
            "/events" => Page::Events { kind: or_all("kind"), node: or_all("node") },
            "/certificates" => Page::Certificates,
            "/managers" => Page::Managers,
            "/health" => Page::Health { alert: or_all("alert") },
            _ => return None,
        })
    }

    /// What it shows.
    pub fn topics(&self) -> Vec<Topic> {
        let own = match self {
            Page::Overview => {
                vec![
                    Topic::Raft,
                    Topic::Nodes,
                    Topic::Events,
                    Topic::Reconcilers,
                    Topic::Leases,
                    Topic::Certificates,
                    Topic::Tokens,
                ]
            }
            Page::Nodes { .. } => vec![Topic::Nodes],
            Page::Node(node) => vec![Topic::Node(node.clone()), Topic::Nodes, Topic::Events],
            Page::Actors(node) => vec![Topic::Actors(node.clone()), Topic::Nodes],
            Page::Actor { node, path } => vec![Topic::Actor(node.clone(), path.clone()), Topic::Nodes],
            Page::Leases { .. } => vec![Topic::Leases],
            Page::Lease { namespace, name } => vec![Topic::Lease(namespace.clone(), name.clone()), Topic::Events],
            Page::Gates => vec![Topic::Reconcilers],
            Page::Gate(name) => vec![Topic::Reconciler(name.clone())],
            Page::Events { .. } => vec![Topic::Events, Topic::Nodes],
            Page::Certificates => vec![Topic::Certificates, Topic::Users, Topic::Tokens, Topic::Roots],
            Page::Managers => vec![Topic::Autopilot, Topic::Nodes],
            Page::Health { .. } => health::NEEDED.iter().skip(1).map(|(topic, _)| topic.clone()).collect(),
        };
        [vec![Topic::Status], own].concat()
    }

    /// The page of these answers.
    pub fn render(&self, seen: &Seen) -> Document {
        let (title, parts) = match self {
            Page::Overview => ("Overview".to_owned(), overview::page(seen)),
            Page::Nodes { filter } => ("Nodes".to_owned(), nodes::list(seen, filter)),
            Page::Node(node) => (format!("Node {node}"), nodes::one(seen, node)),
            Page::Actors(node) => ("Actors".to_owned(), actors::tree(seen, node)),
            Page::Actor { node, path } => (format!("Actor {path}"), actors::one(seen, node, path)),
            Page::Leases { filter } => ("Leases".to_owned(), leases::list(seen, filter)),
            Page::Lease { namespace, name } => {
                (format!("Lease {namespace}/{name}"), leases::one(seen, namespace, name))
            }
            Page::Gates => ("Release gates".to_owned(), gates::list(seen)),
            Page::Gate(name) => (format!("Release gate {name}"), gates::one(seen, name)),
            Page::Events { kind, node } => ("Events".to_owned(), events::page(seen, kind, node)),
            Page::Certificates => ("Certificates".to_owned(), certificates::page(seen)),
            Page::Managers => ("Managers".to_owned(), managers::page(seen)),
            Page::Health { alert } => ("Health".to_owned(), health::page(seen, alert)),
        };
        let title = text(&title);
        let heading = Part::Block("heading", html! { h1 tabindex="-1" { (title) } });
        let currency = [Part::Block("currency", currency(seen)), heading];
        let parts = currency.into_iter().chain(parts).chain([Part::Block("silence", self.silence(seen))]).collect();
        let cluster = seen.status().map_or_else(|| "Muster".to_owned(), |status| text(&status.cluster.name));
        Document { title: format!("{title} – {cluster}"), parts }
    }

    /// Which of its questions are not answered, and why. Without a quorum one reason is that of them all.
    fn silence(&self, seen: &Seen) -> Markup {
        let mut failed: Vec<(&str, Vec<Markup>)> = Vec::new();
        for topic in self.topics() {
            let Some(sample) = seen.samples.get(&topic).filter(|sample| !sample.refused) else { continue };
            let Some(why) = sample.failure.as_deref() else { continue };
            let what = html! { (subject(&topic)) @if sample.at.is_some() { ", shown as of " (time(sample.at)) } };
            match failed.iter_mut().find(|(known, _)| *known == why) {
                Some((_, of_it)) => of_it.push(what),
                None => failed.push((why, vec![what])),
            }
        }
        html! {
            @for (why, of_it) in &failed {
                p.warn {
                    span aria-hidden="true" { "▲ " } "No newer answer about "
                    @for (index, what) in of_it.iter().enumerate() {
                        @if index > 0 { "; " }
                        (what)
                    }
                    ": " (text(why)) "."
                }
            }
        }
    }
}

fn subject(topic: &Topic) -> &'static str {
    match topic {
        Topic::Status => "the cluster",
        Topic::Raft => "the Raft members",
        Topic::Nodes => "the nodes",
        Topic::Node(_) => "this node",
        Topic::Actors(_) => "the actors",
        Topic::Actor(..) => "this actor",
        Topic::Leases => "the leases",
        Topic::Lease(..) => "this lease",
        Topic::Reconcilers => "the release gates",
        Topic::Reconciler(_) => "this release gate",
        Topic::Events => "events",
        Topic::Certificates => "certificates",
        Topic::Users => "users",
        Topic::Tokens => "join tokens",
        Topic::Roots => "the roots",
        Topic::Autolock => "autolock",
        Topic::Autopilot => "the declared number of managers",
        Topic::ManagerActors => "the managers' actors",
    }
}

/// What the cluster answered.
#[derive(Default)]
pub struct Seen {
    pub samples: HashMap<Topic, Sample>,
    /// Of the status, oldest first.
    pub points: VecDeque<Point>,
    pub now: WallTime,
    /// Whether actions are offered.
    pub actions: bool,
}

static NO_NAMES: BTreeMap<NodeId, String> = BTreeMap::new();

macro_rules! answers {
    ($($name:ident: $topic:ident => $view:ty;)*) => { $(
        fn $name(&self) -> Option<&$view> {
            match self.answer(&Topic::$topic)? { Answer::$topic(view) => Some(view), _ => None }
        }
    )* };
}

impl Seen {
    fn answer(&self, topic: &Topic) -> Option<&Answer> {
        self.samples.get(topic)?.answer.as_deref()
    }
    answers! {
        status: Status => StatusView;
        raft: Raft => muster_messages::RaftStatusView;
        leases: Leases => Vec<muster_messages::LeaseView>;
        reconcilers: Reconcilers => Vec<muster_messages::ReconcilerView>;
        events: Events => VecDeque<muster_messages::EventView>;
        certificates: Certificates => Vec<muster_messages::NodeCertificateView>;
        users: Users => Vec<muster_messages::UserView>;
        tokens: Tokens => Vec<muster_messages::TokenView>;
        roots: Roots => muster_messages::RootsView;
        autolock: Autolock => muster_messages::AutolockView;
        autopilot: Autopilot => muster_messages::AutopilotView;
        manager_actors: ManagerActors => Vec<muster_messages::NodeActorsView>;
    }
    fn nodes(&self) -> Option<&NodeListView> {
        match self.answer(&Topic::Nodes)? {
            Answer::Nodes(nodes, _) => Some(nodes),
            _ => None,
        }
    }
    /// The nodes' names, by id.
    fn names(&self) -> &BTreeMap<NodeId, String> {
        match self.answer(&Topic::Nodes) {
            Some(Answer::Nodes(_, names)) => names,
            _ => &NO_NAMES,
        }
    }
    /// Whether the cluster answers with a quorum: only then may an answer be good news, and an action be offered.
    fn is_current(&self) -> bool {
        let failed = self.samples.get(&Topic::Status).is_some_and(|sample| sample.failure.is_some());
        self.status().is_some_and(|status| !status.stale) && !failed
    }
    /// Something good, if it is current.
    fn good(&self, shown: &str) -> Markup {
        graded(if self.is_current() { Grade::Good } else { Grade::Plain }, shown)
    }
}

/// A node's name; its id, shortened, if the name is not known.
fn name_of(id: NodeId, names: &BTreeMap<NodeId, String>) -> String {
    names.get(&id).cloned().unwrap_or_else(|| id.as_str().chars().take(8).collect())
}

/// How current the page is: the first line of every page, read aloud when it changes.
fn currency(seen: &Seen) -> Markup {
    let sample = seen.samples.get(&Topic::Status);
    let Some(status) = seen.status() else {
        let why = sample.and_then(|sample| sample.failure.as_ref());
        return html! {
            p.banner.bad[why.is_some()] data-say {
                @match why {
                    Some(why) => { (graded(Grade::Bad, "no answer")) ": " (text(why)) }
                    None => "asking the cluster …"
                }
            }
        };
    };
    let answered = sample.and_then(|sample| sample.at);
    let failure = sample.and_then(|sample| sample.failure.as_ref());
    let (needed, reachable) = (status.quorum.needed, status.quorum.reachable);
    let missing: Vec<String> = status.quorum.missing.iter().map(ToString::to_string).collect();
    html! {
        @if let Some(why) = failure {
            p.banner.bad data-say { (graded(Grade::Bad, "no answer")) " since " (time(answered)) ": " (text(why)) }
        } @else if status.stale {
            p.banner.bad data-say {
                (graded(Grade::Bad, "no quorum")) ": " (answering(reachable, status.raft.voters.len())) ", " (needed) " needed"
                @if !missing.is_empty() { "; missing: " (text(&missing.join(", "))) }
                ". Shown is the replica of " (text(status.this.name.as_str()))
                @if let Some(as_of) = status.as_of { " as of " (time(as_of)) }
                "."
            }
        } @else {
            p.banner {
                span data-say { (margin(seen, status)) }
                span.asof {
                    "answered by " (text(status.this.name.as_str())) " at " (time(answered)) ", revision " (status.raft.applied.0)
                }
            }
        }
    }
}

/// How many more managers may fail.
fn margin(seen: &Seen, status: &StatusView) -> Markup {
    let (needed, reachable, voters) = (status.quorum.needed, status.quorum.reachable, status.raft.voters.len());
    let answering = answering(reachable, voters);
    let (grade, spare) = match reachable.checked_sub(needed) {
        None => (Grade::Bad, format!("quorum lost: {answering}, {needed} needed")),
        Some(0) => (Grade::Warn, format!("{answering}, none may be lost")),
        Some(spare) => (Grade::Good, format!("{answering}, {spare} may be lost")),
    };
    if grade == Grade::Good { seen.good(&spare) } else { graded(grade, &spare) }
}

/// In place of something that is not shown: it is waited for, or there is none.
fn absent(seen: &Seen, topic: &Topic, what: &str) -> Markup {
    match seen.samples.get(topic).and_then(|sample| sample.failure.as_ref().filter(|_| sample.refused)) {
        Some(why) => html! { p { (graded(Grade::Bad, why)) } },
        None => html! { p { (none_of(what, false)) } },
    }
}

/// A list that is still waited for, or empty for a reason.
fn none_of(what: &str, answered: bool) -> String {
    if answered { format!("no {what}") } else { format!("waiting for an answer about {what} …") }
}

#[cfg(test)]
mod tests;
