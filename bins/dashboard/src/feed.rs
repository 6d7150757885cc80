//! What the cluster answers, asked once for all open pages.
//!
//! Owns        a task and a connection for each question that some open page shows, and the newest answer to it.
//! Invariants  DASH-4  a question is asked only while a page shows it; the status is asked always, seldom while no page is open.
//!             DASH-5  a failure never replaces an answer: the answer stays, with its time, beside the reason. A refusal does.
//!             DASH-6  the longer a list, the less often it is asked: it costs the cluster the same part of the time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use muster_client::{Client, Failure, Outcome, Target, parse};
use muster_kernel::Clock;
use muster_messages::wire::{
    ActorsAsk, ActorsOf, AutopilotRequest, LeaseRef, LeaseRequest, ListOf, ReconcilerRequest, Request,
};
use muster_messages::{
    ActorNode, AutolockView, AutopilotView, ErrorCode, EventView, EventsView, LeaseView, ListView, NodeActorsView,
    NodeCertificateView, NodeCounts, NodeErrorView, NodeId, NodeListView, NodeView, OfNodeView, RaftStatusView,
    ReconcilerStatusView, ReconcilerView, Revision, RootsView, StatusView, TokenView, UserView, WallTime,
};
use tokio::sync::{Notify, watch};

/// A question to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    Status,
    Raft,
    Nodes,
    Node(String),
    /// The actors of a node, of the `leader`, or of the node that answers (empty).
    Actors(String),
    /// One of them.
    Actor(String, String),
    Leases,
    Lease(String, String),
    Reconcilers,
    Reconciler(String),
    Events,
    Certificates,
    Users,
    Tokens,
    Roots,
    Autolock,
    Autopilot,
    /// The trees of the managers, voters and learners.
    ManagerActors,
}

/// The answer to a [`Topic`].
#[derive(Debug)]
pub enum Answer {
    Status(StatusView),
    Raft(RaftStatusView),
    Nodes(NodeListView, BTreeMap<NodeId, String>),
    Node(Box<NodeView>),
    Actors(OfNodeView<ActorNode>),
    Leases(Vec<LeaseView>),
    Reconcilers(Vec<ReconcilerView>),
    Reconciler(Box<ReconcilerStatusView>),
    /// Oldest first.
    Events(VecDeque<EventView>),
    Certificates(Vec<NodeCertificateView>),
    Users(Vec<UserView>),
    Tokens(Vec<TokenView>),
    Roots(RootsView),
    Autolock(AutolockView),
    Autopilot(Box<AutopilotView>),
    ManagerActors(Vec<NodeActorsView>),
}

impl Answer {
    /// The nodes, with their names by id: most pages need them.
    pub fn nodes(nodes: NodeListView) -> Self {
        let names = nodes.items.iter().map(|node| (node.id, node.name.to_string())).collect();
        Self::Nodes(nodes, names)
    }
    /// Rows that its server had to write.
    fn rows(&self) -> u32 {
        let rows = match self {
            Answer::Nodes(nodes, _) => nodes.items.len(),
            Answer::Leases(leases) => leases.len(),
            Answer::Reconcilers(gates) => gates.len(),
            Answer::Certificates(certificates) => certificates.len(),
            Answer::Users(users) => users.len(),
            Answer::Tokens(tokens) => tokens.len(),
            Answer::Autopilot(view) => view.candidates.len(),
            // A manager has a session for each node that is connected to it.
            Answer::ManagerActors(trees) => trees.iter().filter_map(|of| of.root.as_ref()).map(actors_in).sum(),
            _ => 0,
        };
        u32::try_from(rows).unwrap_or(u32::MAX)
    }
}

fn actors_in(tree: &ActorNode) -> usize {
    1 + tree.children.iter().map(actors_in).sum::<usize>()
}

/// The newest answer, and why a newer one is missing.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub answer: Option<Arc<Answer>>,
    /// When it came.
    pub at: Option<WallTime>,
    /// Why the last question was not answered.
    pub failure: Option<String>,
    /// Whether that was an answer, too: what was asked for does not exist, or may not be seen.
    pub refused: bool,
}

impl Sample {
    /// What is known after another question was answered, or was not. A refusal is an answer: what was shown before does not exist, or
    /// may not be seen, any more.
    fn take(&mut self, answer: Outcome<Answer>, now: WallTime) {
        let is_refusal = |failure: &Failure| {
            [ErrorCode::NotFound, ErrorCode::Forbidden, ErrorCode::Invalid].iter().any(|code| failure.is(*code))
        };
        match answer {
            Ok(answer) => *self = Self { answer: Some(Arc::new(answer)), at: Some(now), ..Self::default() },
            Err(failure) if is_refusal(&failure) => {
                *self = Self { failure: Some(failure.message), refused: true, ..Self::default() };
            }
            Err(failure) => self.failure = Some(failure.message),
        }
    }
}

/// What the overview draws of the last 15 minutes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub at: WallTime,
    /// Reachable voters above the quorum; negative without one. `None`: without an answer.
    pub margin: Option<i64>,
    pub term: Option<u64>,
    pub pending: Option<usize>,
}

/// Points that are kept: 15 minutes of seconds.
pub const MAX_POINTS: usize = 900;
/// Events that are kept.
pub const MAX_EVENTS: usize = 1_000;
/// The pause for each row of a list: ten thousand rows, which cost their server about a tenth of a second, are asked about once a minute.
const PAUSE_PER_ROW: Duration = Duration::from_millis(5);
/// The same for the nodes, while the status has other numbers of them than at the last question.
const PAUSE_PER_CHANGED_ROW: Duration = Duration::from_millis(1);
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long events may be waited for.
const EVENTS_WAIT: Duration = Duration::from_secs(25);
/// How often the status is asked while no page is open.
const IDLE_PAUSE: Duration = Duration::from_secs(10);
/// How long a question is still asked after its last page is gone: pages are left and come back.
const LINGER: Duration = Duration::from_secs(5);

impl Topic {
    /// The pause before the next question. `idle`: no page shows it. `changed`: other answers say that this one has changed.
    fn pause(&self, idle: bool, changed: bool, newest: &Sample) -> Duration {
        let rows = newest.answer.as_deref().map_or(0, Answer::rows);
        let pause = match self {
            Topic::Status if idle => IDLE_PAUSE,
            Topic::Status | Topic::Raft | Topic::Nodes | Topic::Node(_) | Topic::Actors(_) | Topic::Actor(..) => {
                Duration::from_secs(1)
            }
            Topic::Leases | Topic::Lease(..) | Topic::Reconcilers | Topic::Reconciler(_) | Topic::Autopilot => {
                Duration::from_secs(2)
            }
            Topic::Events => Duration::from_millis(250), // its answers are waited for
            Topic::Certificates
            | Topic::Users
            | Topic::Tokens
            | Topic::Roots
            | Topic::Autolock
            | Topic::ManagerActors => Duration::from_secs(5),
        };
        pause + rows * if changed { PAUSE_PER_CHANGED_ROW } else { PAUSE_PER_ROW }
    }

    async fn ask(&self, client: &mut Client, former: &Sample) -> Outcome<Answer> {
        Ok(match self {
            Topic::Status => Answer::Status(client.ask(Request::Status { fresh: false }).await?),
            Topic::Raft => Answer::Raft(client.ask(Request::RaftStatus { fresh: false }).await?),
            Topic::Nodes => Answer::nodes(parse(&client.list(ListOf::Nodes, false).await?)?),
            Topic::Node(node) => {
                let request = Request::NodeInspect { node: node.clone(), fresh: false };
                Answer::Node(Box::new(client.ask(request).await?))
            }
            Topic::Actors(node) => {
                Answer::Actors(client.ask(Request::Actors { node: actors_of(node), ask: ActorsAsk::Tree }).await?)
            }
            Topic::Actor(node, path) => {
                let ask = ActorsAsk::Inspect { path: path.clone() };
                Answer::Actors(client.ask(Request::Actors { node: actors_of(node), ask }).await?)
            }
            Topic::Leases => {
                let request = Request::Lease(LeaseRequest::List { namespace: None });
                Answer::Leases(client.ask::<ListView<LeaseView>>(request).await?.items)
            }
            Topic::Lease(namespace, name) => {
                let lease = LeaseRef { namespace: namespace.clone(), name: name.clone() };
                Answer::Leases(vec![client.ask(Request::Lease(LeaseRequest::Get { lease })).await?])
            }
            Topic::Reconcilers => {
                let request = Request::Reconciler(ReconcilerRequest::List);
                Answer::Reconcilers(client.ask::<ListView<ReconcilerView>>(request).await?.items)
            }
            Topic::Reconciler(name) => {
                let request = ReconcilerRequest::Status { name: name.clone(), seen: Revision(0), wait_ms: 0 };
                Answer::Reconciler(Box::new(client.ask(Request::Reconciler(request)).await?))
            }
            Topic::Events => {
                // After a failure the answer is wanted at once: it is the end of the failure.
                let wait = if former.failure.is_some() { Duration::ZERO } else { EVENTS_WAIT };
                Answer::Events(events(client, former.answer.as_deref(), wait).await?)
            }
            Topic::Certificates => {
                Answer::Certificates(parse::<ListView<_>>(&client.list(ListOf::Certificates, false).await?)?.items)
            }
            Topic::Users => Answer::Users(parse::<ListView<_>>(&client.list(ListOf::Users, false).await?)?.items),
            Topic::Tokens => Answer::Tokens(parse::<ListView<_>>(&client.list(ListOf::Tokens, false).await?)?.items),
            Topic::Roots => Answer::Roots(client.ask(Request::RootList).await?),
            Topic::Autopilot => {
                Answer::Autopilot(Box::new(client.ask(Request::Autopilot(AutopilotRequest::State)).await?))
            }
            Topic::Autolock => Answer::Autolock(client.ask(Request::AutolockStatus).await?),
            Topic::ManagerActors => Answer::ManagerActors(manager_actors(client).await?),
        })
    }
}

/// As a page's address names the node; empty: the node that answers.
pub fn actors_of(node: &str) -> ActorsOf {
    ActorsOf::asked(Some(node.to_owned()).filter(|node| !node.is_empty()), false)
}

/// The trees of the managers, one after the other: asked for all nodes, a manager would ask every worker, too.
async fn manager_actors(client: &mut Client) -> Outcome<Vec<NodeActorsView>> {
    let status: StatusView = client.ask(Request::Status { fresh: false }).await?;
    let mut all = Vec::new();
    for node in status.raft.voters.into_iter().chain(status.raft.learners) {
        let request = Request::Actors { node: ActorsOf::Id(node), ask: ActorsAsk::Tree };
        let answer: Outcome<OfNodeView<ActorNode>> = client.ask(request).await;
        all.push(match answer {
            Ok(of) => NodeActorsView { node, name: of.node_name, root: Some(of.answer), error: None },
            Err(failure) => {
                let error = Some(NodeErrorView { message: failure.message });
                NodeActorsView { node, name: None, root: None, error }
            }
        });
    }
    Ok(all)
}

/// The events of before and those since, which are waited for.
async fn events(client: &mut Client, former: Option<&Answer>, wait: Duration) -> Outcome<VecDeque<EventView>> {
    let mut kept = match former {
        Some(Answer::Events(kept)) => kept.clone(),
        _ => VecDeque::new(),
    };
    let mut since = kept.back().map_or(Revision(0), |event| event.revision);
    let mut wait = if kept.is_empty() { Duration::ZERO } else { wait };
    loop {
        let wait_ms = muster_messages::millis(wait);
        let request = Request::Events { since, wait_ms };
        let page: EventsView<EventView> = parse(&client.call_within(request, wait + TIMEOUT).await?)?;
        kept.extend(page.items);
        kept.drain(..kept.len().saturating_sub(MAX_EVENTS));
        if !page.more || page.revision <= since {
            return Ok(kept);
        }
        (since, wait) = (page.revision, Duration::ZERO);
    }
}

struct Asked {
    newest: watch::Sender<Sample>,
    /// A page wants it that is asked seldom: ask now.
    wanted: Arc<Notify>,
}

/// All questions that are asked.
pub struct Feed {
    target: Target,
    asked: Mutex<HashMap<Topic, Asked>>,
    points: Mutex<VecDeque<Point>>,
    /// Which cluster answers, and its incarnation: a restored one has other events under the same revisions.
    cluster: watch::Sender<(String, u64)>,
    /// How many nodes there are in which state, by the newest status.
    counts: watch::Sender<Option<NodeCounts>>,
}

impl Feed {
    /// Asks these servers.
    pub fn new(target: Target) -> Arc<Self> {
        let cluster = watch::Sender::new((String::new(), 0));
        let counts = watch::Sender::new(None);
        Arc::new(Self { target, asked: Mutex::default(), points: Mutex::default(), cluster, counts })
    }

    /// The answers to a question from now on.
    pub fn follow(self: &Arc<Self>, topic: &Topic) -> watch::Receiver<Sample> {
        let mut all = self.asked();
        if let Some(asked) = all.get(topic) {
            asked.wanted.notify_one();
            return asked.newest.subscribe();
        }
        let (newest, receiver) = watch::channel(Sample::default());
        let wanted = Arc::new(Notify::new());
        all.insert(topic.clone(), Asked { newest: newest.clone(), wanted: wanted.clone() });
        tokio::spawn(self.clone().keep_asking(topic.clone(), newest, wanted));
        receiver
    }

    /// The last 15 minutes, as far as this process has seen them.
    pub fn points(&self) -> VecDeque<Point> {
        self.points.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<Topic, Asked>> {
        self.asked.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn keep_asking(self: Arc<Self>, topic: Topic, newest: watch::Sender<Sample>, wanted: Arc<Notify>) {
        let mut client = Client::to(self.target.clone(), TIMEOUT);
        let mut cluster = self.cluster.subscribe();
        let mut counts = self.counts.subscribe();
        let mut left: Option<Instant> = None;
        loop {
            let former = newest.borrow().clone();
            counts.mark_unchanged();
            let answer = tokio::select! {
                answer = topic.ask(&mut client, &former) => Some(answer),
                // A long poll is not held for a page that is gone, nor for revisions that another cluster may never reach.
                () = newest.closed(), if topic == Topic::Events => None,
                _ = cluster.changed(), if topic == Topic::Events => {
                    newest.send_replace(Sample::default());
                    None
                }
            };
            match answer {
                Some(answer) => {
                    if topic == Topic::Status {
                        self.note(answer.as_ref().ok());
                    }
                    newest.send_modify(|sample| sample.take(answer, Clock.wall()));
                }
                // Its connection still expects the answer.
                None => client = Client::to(self.target.clone(), TIMEOUT),
            }
            let idle = newest.receiver_count() <= usize::from(topic == Topic::Status);
            if !idle {
                left = None;
            } else if topic != Topic::Status && left.get_or_insert_with(Instant::now).elapsed() >= LINGER {
                let mut all = self.asked();
                // A page that follows it takes this lock first.
                if newest.receiver_count() == 0 {
                    all.remove(&topic);
                    return;
                }
            }
            let pause = |changed: bool| topic.pause(idle, changed, &newest.borrow());
            if idle && topic == Topic::Status {
                let _either = tokio::time::timeout(pause(false), wanted.notified()).await;
            } else if topic == Topic::Nodes {
                let (least, most) = (pause(true), pause(false));
                tokio::time::sleep(least).await;
                let _either = tokio::time::timeout(most.saturating_sub(least), counts.changed()).await;
            } else {
                tokio::time::sleep(pause(false)).await;
            }
        }
    }

    /// Adds a point.
    fn note(&self, answer: Option<&Answer>) {
        let status = match answer {
            Some(Answer::Status(status)) => Some(status),
            _ => None,
        };
        if let Some(status) = status {
            let counts = Some(status.nodes.clone());
            self.counts.send_if_modified(|known| {
                let differs = *known != counts;
                *known = counts;
                differs
            });
            let (id, incarnation) = (status.cluster.id.clone(), status.cluster.incarnation);
            self.cluster.send_if_modified(|known| {
                let first = known.0.is_empty();
                let differs = known.0 != id || known.1 != incarnation;
                *known = (id, incarnation);
                differs && !first
            });
        }
        let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let point = Point {
            at: Clock.wall(),
            margin: status.map(|s| signed(s.quorum.reachable) - signed(s.quorum.needed)),
            term: status.map(|s| s.raft.term.0),
            pending: status.map(|s| s.pending.len()),
        };
        let mut points = self.points.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        points.push_back(point);
        while points.len() > MAX_POINTS {
            points.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list of so many rows.
    fn tokens(rows: u32) -> Answer {
        let token = |_| serde_json::from_value(serde_json::json!({"id": "a", "role": "worker"})).unwrap();
        Answer::Tokens((0..rows).map(token).collect())
    }

    #[test]
    fn failures_keep_the_answer_and_refusals_replace_it() {
        let mut sample = Sample::default();
        sample.take(Ok(tokens(0)), WallTime(5));
        for code in
            [ErrorCode::NoQuorum, ErrorCode::Unreachable, ErrorCode::TimedOut, ErrorCode::TooLarge, ErrorCode::Internal]
        {
            sample.take(Err(Failure::new(code, "why")), WallTime(9));
            assert_eq!(
                (sample.answer.is_some(), sample.at, sample.refused),
                (true, Some(WallTime(5)), false),
                "{code}"
            );
            assert_eq!(sample.failure.as_deref(), Some("why"));
        }
        for code in [ErrorCode::NotFound, ErrorCode::Forbidden, ErrorCode::Invalid] {
            let mut sample = sample.clone();
            sample.take(Err(Failure::new(code, "gone")), WallTime(9));
            assert_eq!((sample.answer.is_none(), sample.at, sample.refused), (true, None, true), "{code}");
        }
        sample.take(Ok(tokens(0)), WallTime(12));
        assert_eq!((sample.at, sample.failure), (Some(WallTime(12)), None));
    }

    #[test]
    fn long_lists_are_asked_less_often() {
        let pause_after = |topic: Topic, idle: bool, answer: Answer| {
            let mut sample = Sample::default();
            sample.take(Ok(answer), WallTime(0));
            let pauses = [true, false].map(|changed| topic.pause(idle, changed, &sample));
            (pauses[0].as_secs(), pauses[1].as_secs())
        };
        let pause = |topic: Topic, idle: bool, rows: u32| pause_after(topic, idle, tokens(rows));
        assert_eq!(pause(Topic::Nodes, false, 0), (1, 1));
        assert_eq!(pause(Topic::Nodes, false, 10_000), (11, 51));
        assert_eq!(pause(Topic::Certificates, false, 10_000).1, 55);
        let sessions = vec![ActorNode::unknown("node/manager/sessions/session"); 10_000];
        let root = Some(ActorNode { children: sessions, ..ActorNode::unknown("node") });
        let node = NodeId::from_entropy(1);
        let trees = vec![
            NodeActorsView { node, name: None, root, error: None },
            NodeActorsView { node, name: None, root: None, error: None },
        ];
        assert_eq!(pause_after(Topic::ManagerActors, false, Answer::ManagerActors(trees)).1, 55);
        assert_eq!((pause(Topic::Status, false, 0).1, pause(Topic::Status, true, 0).1), (1, IDLE_PAUSE.as_secs()));
    }

    #[tokio::test]
    async fn another_cluster_at_the_same_address_is_noticed() {
        let status = |id: &str, incarnation: u64| {
            let document = serde_json::json!({"cluster": {"id": id, "name": "c", "incarnation": incarnation, "feature_level": 3},
                "stale": false, "self": {"id": "0000000000000000000000001", "name": "n1", "role": "manager"},
                "raft": {"term": 1, "leader": null, "commit": 1, "applied": 1, "voters": [], "learners": []},
                "quorum": {"needed": 1, "reachable": 1, "missing": []},
                "nodes": {"total": 1, "managers": 1, "workers": 0, "ready": 1, "down": 0}, "pending": []});
            Answer::Status(serde_json::from_value(document).unwrap())
        };
        let feed = Feed::new(Target::Socket("/nonexistent/muster.sock".into()));
        let mut cluster = feed.cluster.subscribe();
        let mut counts = feed.counts.subscribe();
        for (answer, changed) in [
            (status("a", 1), false),
            (status("a", 1), false),
            (status("a", 2), true),
            (status("b", 2), true),
            (status("b", 2), false),
        ] {
            feed.note(Some(&answer));
            assert_eq!(cluster.has_changed().unwrap(), changed);
            cluster.mark_unchanged();
        }
        assert!(counts.has_changed().unwrap());
        counts.mark_unchanged();
        feed.note(Some(&status("b", 2)));
        assert!(!counts.has_changed().unwrap(), "the same numbers");
        let Answer::Status(mut fewer) = status("b", 2) else { unreachable!() };
        fewer.nodes.down = 1;
        feed.note(Some(&Answer::Status(fewer)));
        assert!(counts.has_changed().unwrap());
        feed.note(None);
        let points = feed.points();
        assert_eq!((points.len(), points[0].margin, points[7].margin), (8, Some(0), None));
    }
}
