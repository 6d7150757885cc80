//! A cluster in which actors fail, some at a time, and the observed outcomes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use muster_messages::{CrashHow, Role};

use super::kinds::{
    LEADER, MANAGER, describe, is_transient, kind_of, may_cost_leadership, parent_path, specified, within,
};
use super::snapshot::{Tree, is_new, missing, started_by_actor, tops, tree_of};
use super::work::{Fixtures, Work};
use crate::harness::{WAIT_LIMIT, World, between_checks, scenario_pause};

pub const MANAGERS: [&str; 3] = ["n1", "n2", "n3"];

/// The outcome per kind and failure mode.
pub type Outcomes = BTreeMap<(String, &'static str), String>;

pub struct Stage {
    pub world: World,
    pub outcomes: Outcomes,
    work: Option<Work>,
    fixtures: Fixtures,
    /// The picture at the end of the last wave.
    rested: Picture,
    /// The kinds that exist.
    kinds: Vec<String>,
    /// Changes of leader without a failure that concerns leadership: this machine is busy.
    leader_changes: BTreeMap<String, usize>,
    /// Requested failures of the root's children, which tolerates ten within a minute.
    root_failures: Vec<(&'static str, Instant)>,
}

/// All managers at one time.
#[derive(Clone)]
struct Picture {
    trees: BTreeMap<&'static str, Tree>,
    term: u64,
    leader: &'static str,
}

impl Picture {
    /// Every existing kind of actor, parents first.
    fn kinds(&self) -> Vec<String> {
        let all = self.trees.values().flatten();
        let mut kinds: Vec<String> =
            all.filter(|(path, seen)| *path != "node" && !seen.is_thread).map(|(path, _)| kind_of(path)).collect();
        kinds.sort_by_key(|kind| (kind.matches('/').count(), kind.clone()));
        kinds.dedup();
        kinds
    }
}

/// One requested failure.
#[derive(Clone, Debug)]
struct Failure {
    node: &'static str,
    path: String,
    /// The specified outcome. `None`: its process ends.
    tops: Option<Vec<String>>,
}

/// Polls until it succeeds; a timeout shows the last obstacle.
#[track_caller]
fn until<T>(what: &str, mut snapshot: impl FnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + WAIT_LIMIT;
    loop {
        match snapshot() {
            Ok(seen) => return seen,
            Err(why) => assert!(Instant::now() < end, "not within {WAIT_LIMIT:?}: {what}: {why}"),
        }
        between_checks();
    }
}

/// Starts a manager that serves workloads.
fn start(world: &mut World, name: &str) {
    let socket = world.folder().join(format!("{name}.w"));
    world.node(name).start(&["--workload-socket", socket.to_str().expect("the folder's path is text")]).ready();
}

impl Stage {
    /// Three managers and a worker.
    pub fn set(at_work: bool) -> Self {
        let mut world = World::new();
        world.settings += "[supervision]\nbackoff_first = \"100ms\"\nbackoff_cap = \"1s\"\n";
        world.node("n1").start(&["--init"]).ready();
        for (count, role) in [(2, Role::Manager), (1, Role::Worker)] {
            world.join_more(count, role);
        }
        world.all_settled();
        for name in MANAGERS {
            world.node(name).stop();
            start(&mut world, name);
        }
        world.all_settled();
        let fixtures = Fixtures::move_in(&world);
        let work = at_work.then(|| Work::begin(&mut world));
        let nothing = Picture { trees: BTreeMap::new(), term: 0, leader: "" };
        let mut stage = Self {
            world,
            outcomes: Outcomes::new(),
            work,
            fixtures,
            rested: nothing,
            kinds: Vec::new(),
            leader_changes: BTreeMap::new(),
            root_failures: Vec::new(),
        };
        stage.rested = until("every kind exists", || stage.settled_picture());
        stage.kinds = stage.rested.kinds();
        stage
    }

    /// The picture of all nodes, if all are healthy and one leads. Two snapshots must agree: for a few milliseconds after a group was
    /// killed and restarted, the tree shows old children below the new group.
    fn settled_picture(&self) -> Result<Picture, String> {
        let first = self.snapshot()?;
        scenario_pause("two pictures must agree", PICTURE_INTERVAL);
        let second = self.snapshot()?;
        let lives = |picture: &Picture, node: &str| -> Vec<(String, (u64, String))> {
            picture.trees[node].iter().map(|(path, seen)| (path.clone(), seen.life.clone())).collect()
        };
        match MANAGERS.into_iter().find(|node| lives(&first, node) != lives(&second, node)) {
            Some(node) => Err(format!("actors of {node} come and go")),
            None => Ok(second),
        }
    }

    fn snapshot(&self) -> Result<Picture, String> {
        let status = self.world.ask("n1", Request::RaftStatus { fresh: true }).map_err(|e| e.message)?;
        let mut trees = BTreeMap::new();
        for name in MANAGERS {
            let tree = tree_of(&self.world, name, name).ok_or_else(|| format!("{name} does not answer"))?;
            let peers = tree.keys().filter(|path| kind_of(path) == "node/manager/mesh/peer-*").count();
            if peers != MANAGERS.len() - 1 {
                return Err(format!("{name} has {peers} peers"));
            }
            if let Some((path, seen)) = tree.iter().find(|(_, seen)| !seen.is_well()) {
                return Err(format!("{path} of {name} is {}: {}", seen.state, seen.last_exit));
            }
            trees.insert(name, tree);
        }
        let leading: Vec<&str> = MANAGERS.into_iter().filter(|name| trees[name].contains_key(LEADER)).collect();
        let [leader] = leading[..] else { return Err(format!("{leading:?} lead")) };
        let now = Picture { trees, term: status["term"].as_u64().unwrap_or_default(), leader };
        let kinds = now.kinds();
        let mut wanted = self.kinds.iter().map(String::as_str).chain(LATE_KINDS);
        match wanted.find(|kind| !kinds.iter().any(|there| there == kind)) {
            Some(kind) => Err(format!("there is no {kind}")),
            None => Ok(now),
        }
    }

    /// Makes an actor of each kind fail in this way, one after the other. Slow failures run in parallel if
    /// their outcomes can be told apart: no path is concerned by two.
    pub fn column(&mut self, name: &'static str, how: CrashHow) {
        let begun = Instant::now();
        if how != CrashHow::Hang {
            self.forget();
        }
        let mut open = self.kinds.clone();
        while !open.is_empty() {
            let mut wave: Vec<Failure> = Vec::new();
            let mut later = Vec::new();
            for kind in std::mem::take(&mut open) {
                let failure = self.choose_failure(&kind, how);
                let slow = matches!(how, CrashHow::Hang | CrashHow::Start { .. });
                let fits = wave.is_empty() || slow && wave.iter().all(|other| are_independent(&failure, other, how));
                if fits { wave.push(failure) } else { later.push(kind) }
            }
            open = later;
            // Unobserved outcomes are tried again.
            open.extend(self.wave(name, how, wave));
        }
        until(&format!("all participate again after {name}"), || self.fixtures.all_participate(&self.world));
        println!("{name}: {:?}", begun.elapsed());
    }

    /// Supervisors tolerate ten failures within a minute. Those below the root are restarted first, with no failures counted. Of the
    /// root's own children each column fails each once, on the node with the fewest.
    fn forget(&mut self) {
        for node in MANAGERS {
            let tops = [MANAGER, "node/reconcilers"];
            for path in tops {
                let restart = ActorsAsk::Restart { path: path.to_owned() };
                self.world.answer(node, Request::Actors { node: ActorsOf::Here, ask: restart });
            }
            let before = &self.rested.trees[node];
            self.rested = until(&format!("supervisors of {node} are new"), || {
                let now = self.settled_picture()?;
                let left = missing(before, &now.trees[node]).is_some();
                let new = !left && tops.iter().all(|path| is_new(before, &now.trees[node], path));
                if new { Ok(now) } else { Err("they are not".to_owned()) }
            });
        }
    }

    /// The node for an actor of this kind: the leader if possible; for the root's children, the node with the fewest failures.
    fn choose_failure(&self, kind: &str, how: CrashHow) -> Failure {
        let of = |node: &&'static str| self.rested.trees[node].keys().find(|path| kind_of(path) == kind).cloned();
        let recent =
            |node: &str| self.root_failures.iter().filter(|(n, at)| *n == node && at.elapsed() < MINUTE).count();
        let mut nodes = MANAGERS;
        let is_roots = parent_path(kind) == "node" && kind != MANAGER;
        nodes.sort_by_key(|node| if is_roots { recent(node) } else { usize::from(*node != self.rested.leader) });
        let (node, path) =
            nodes.iter().find_map(|node| Some((*node, of(node)?))).unwrap_or_else(|| panic!("{kind} no longer exists"));
        let tops = specified(&path, how);
        Failure { node, path, tops }
    }

    /// The kinds without a full observation: leadership moved, and with it the leader's actors.
    fn wave(&mut self, name: &'static str, how: CrashHow, wave: Vec<Failure>) -> Vec<String> {
        let mark = self.work.as_ref().map(Work::mark);
        // The node that answers for others comes last.
        let (api, others): (Vec<&Failure>, Vec<&Failure>) = wave.iter().partition(|failure| failure.path == "node/api");
        for failure in others.into_iter().chain(api) {
            self.inject(failure, how);
        }
        for failure in wave.iter().filter(|failure| failure.tops.is_none()) {
            let exit = self.world.node(failure.node).exit();
            assert_eq!(exit, Some(1), "{} of {} fails too often", failure.path, failure.node);
            start(&mut self.world, failure.node);
        }
        let what = format!("all nodes are healthy after {name} of {wave:#?}");
        let now = until(&what, || self.restored(&wave, how));
        if let (Some(work), Some(mark)) = (&self.work, mark) {
            let repairs = wave.iter().any(|failure| within(&failure.path, "node/reconcilers"));
            until(&format!("work continues after {name} of {wave:?}"), || {
                work.makes_progress(&self.world, mark, repairs)
            });
        }
        until(&format!("the lease is kept after {name} of {wave:?}"), || self.fixtures.is_kept(&self.world));
        let leader_changes =
            now.term != self.rested.term && !wave.iter().any(|failure| may_cost_leadership(&failure.path, how));
        let mut unseen = Vec::new();
        for failure in &wave {
            let kind = kind_of(&failure.path);
            if leader_changes {
                let times = self.leader_changes.entry(kind.clone()).or_default();
                *times += 1;
                assert!(*times < 3, "leadership moves each time that {kind} fails");
            }
            match self.outcome(failure, how, &now) {
                Some(outcome) => drop(self.outcomes.insert((kind, name), outcome)),
                None => unseen.push(kind),
            }
        }
        assert!(leader_changes || unseen.is_empty(), "outcomes of {unseen:?} not observed, without a change of leader");
        self.rested = now;
        unseen
    }

    /// A node that cannot answer itself is asked through another.
    fn inject(&mut self, failure: &Failure, how: CrashHow) {
        let other = MANAGERS.into_iter().find(|name| *name != failure.node).expect("three managers exist");
        let by = if failure.path == "node/api" { other } else { failure.node };
        let node = if by == failure.node { ActorsOf::Here } else { ActorsOf::Node(failure.node.to_owned()) };
        let ask = |ask: ActorsAsk| self.world.ask(by, Request::Actors { node: node.clone(), ask });
        let path = || failure.path.clone();
        let life = |tree: &Tree| tree.get(&failure.path).map(|seen| (seen.restarts, seen.life.clone()));
        let before = life(&self.rested.trees[failure.node]);
        until(&format!("{} of {} is told to fail", failure.path, failure.node), || {
            let Err(error) = ask(ActorsAsk::Crash { path: path(), how }) else { return Ok(()) };
            // A request with a lost answer may have been carried out: once is enough.
            match tree_of(&self.world, failure.node, by).as_ref().and_then(life) {
                Some(now) if Some(&now) != before.as_ref() => Ok(()),
                _ => Err(error.message),
            }
        });
        if how == CrashHow::Hang {
            until(&format!("{} of {} hangs", failure.path, failure.node), || {
                let tree = tree_of(&self.world, failure.node, by).ok_or("no answer")?;
                let handling = tree.get(&failure.path).and_then(|seen| seen.handling.clone());
                if handling.as_deref() == Some("crash") { Ok(()) } else { Err(format!("it is at {handling:?}")) }
            });
            until(&format!("{} of {} is told to restart", failure.path, failure.node), || {
                ask(ActorsAsk::Restart { path: path() }).map_err(|e| e.message)
            });
        } else if parent_path(&failure.path) == "node" {
            self.root_failures.push((failure.node, Instant::now()));
        }
    }

    /// The picture once all nodes are healthy and every specified restart has happened; no other restart may have.
    fn restored(&self, wave: &[Failure], how: CrashHow) -> Result<Picture, String> {
        self.request_restarts(wave, how);
        let now = self.settled_picture()?;
        for (node, before) in &self.rested.trees {
            let ended = wave.iter().any(|failure| failure.node == *node && failure.tops.is_none());
            let tree = &now.trees[node];
            if let Some(path) = missing(before, tree) {
                return Err(format!("{path} of {node} does not exist"));
            }
            if ended {
                continue;
            }
            let seen = tops(before, tree);
            let failed = || wave.iter().filter(|failure| failure.node == *node);
            let wanted: Vec<&String> = failed().flat_map(|failure| failure.tops.iter().flatten()).collect();
            let led = now.term == self.rested.term;
            if let Some(path) = wanted.iter().find(|path| !is_new(before, tree, path) && (led || !within(path, LEADER)))
            {
                return Err(format!("{path} of {node} has not restarted"));
            }
            for top in seen.iter().filter(|top| !wanted.contains(top)) {
                let explained = within(top, LEADER) && !led;
                assert!(
                    explained || started_by_actor(tree, top),
                    "{top} of {node} restarted unexpectedly after {how:?} of {wave:#?}: {:?}, before {:?}",
                    tree[top],
                    before.get(top)
                );
            }
        }
        Ok(now)
    }

    /// A contained actor waits ever longer between its starts: it is restarted by request.
    fn request_restarts(&self, wave: &[Failure], how: CrashHow) {
        if !matches!(how, CrashHow::Start { .. }) {
            return;
        }
        for failure in wave {
            let Some(tree) = tree_of(&self.world, failure.node, failure.node) else { continue };
            for top in failure
                .tops
                .iter()
                .flatten()
                .filter(|top| tree.get(*top).is_some_and(|seen| seen.state == "backing_off"))
            {
                let restart = ActorsAsk::Restart { path: top.clone() };
                let _again = self.world.ask(failure.node, Request::Actors { node: ActorsOf::Here, ask: restart });
            }
        }
    }

    /// The observed outcome as text. `None`: not every specified restart was observed.
    fn outcome(&self, failure: &Failure, how: CrashHow, now: &Picture) -> Option<String> {
        let Some(wanted) = &failure.tops else { return Some(describe(&failure.path, None, false)) };
        let (before, tree) = (&self.rested.trees[failure.node], &now.trees[failure.node]);
        let followed: Vec<String> = wanted.iter().filter(|top| is_new(before, tree, top)).cloned().collect();
        for top in &followed {
            let (was, is) = (before.get(top).map_or(0, |seen| seen.restarts), &tree[top]);
            let (times, exit) = match how {
                _ if is_transient(top) || *top != failure.path => continue,
                CrashHow::Panic => (1, "panic: panicked: crashed on request"),
                CrashHow::Error => (1, "error: failed on request"),
                CrashHow::Kill | CrashHow::Hang => (1, "killed: killed"),
                CrashHow::Start { times } => {
                    let restarts = is.restarts - was;
                    assert!(restarts > u64::from(times), "{failure:?}: {is:?}, after {was} restarts before");
                    continue;
                }
            };
            assert!(
                is.restarts == was + times && is.last_exit == exit,
                "{failure:?} {how:?}: {is:?} after {was} restarts"
            );
        }
        // By its kind: a member may just have lost its lease.
        let kind = kind_of(&failure.path);
        let takes_children = self.kinds.iter().any(|below| *below != kind && within(below, &kind));
        (followed.len() == wanted.len()).then(|| describe(&failure.path, Some(&followed), takes_children))
    }

    /// All work in progress completes.
    pub fn end(mut self) -> Outcomes {
        if let Some(work) = self.work.take() {
            work.end(&mut self.world);
        }
        self.world.all_settled();
        self.outcomes
    }
}

/// Kinds that appear a while after the others.
const LATE_KINDS: [&str; 4] = [
    "node/manager/sessions/session-*",
    "node/manager/leader/elections/election-*",
    "node/manager/feature-level/reconcilers/*/elect",
    "node/reconcilers/*/elect",
];
/// Many times the time from the end of a group to the start of its new children.
const PICTURE_INTERVAL: Duration = Duration::from_millis(100);
const MINUTE: Duration = Duration::from_secs(60);

fn has_agent(tops: &[String]) -> bool {
    tops.iter().any(|top| within(top, "node/agent"))
}

/// Whether two failures concern no common path. Leadership is common to all nodes and the leader's subtree.
fn are_independent(a: &Failure, b: &Failure, how: CrashHow) -> bool {
    let root = [String::from("node")];
    let tops = |failure: &Failure| failure.tops.as_deref().unwrap_or(&root).to_vec();
    let (of_a, of_b) = (tops(a), tops(b));
    let led = |tops: &[String]| tops.iter().any(|top| within(top, LEADER));
    let (a_costs, b_costs) = (may_cost_leadership(&a.path, how), may_cost_leadership(&b.path, how));
    if a.node != b.node {
        // A session or a lease here may belong to that node: without its process or agent, the actor for it ends.
        let takes =
            |x: &Failure, y: &Failure| is_transient(&y.path) && x.tops.as_ref().is_none_or(|tops| has_agent(tops));
        return !((a_costs || led(&of_a)) && (b_costs || led(&of_b)) || takes(a, b) || takes(b, a));
    }
    let meet = of_a.iter().any(|x| of_b.iter().any(|y| within(x, y) || within(y, x)));
    !(meet || a_costs && led(&of_b) || b_costs && led(&of_a))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that ends also ends its session's actor on another node, so the two must not fail at the same time.
    #[test]
    fn ending_node_conflicts_with_every_session() {
        let start = CrashHow::Start { times: CrashHow::STARTS };
        let failure = |node, path: &str, how| Failure { node, path: path.to_owned(), tops: specified(path, how) };
        let session = "node/manager/sessions/session-8z1axfpqk4oa7o6gld04o0h86";
        for how in [start, CrashHow::Hang] {
            assert!(!are_independent(&failure("n1", "node/agent", how), &failure("n2", session, how), how));
            assert!(!are_independent(&failure("n2", session, how), &failure("n1", "node/agent", how), how));
        }
        assert!(are_independent(
            &failure("n1", "node/manager/mesh/endpoint", start),
            &failure("n2", session, start),
            start
        ));
    }
}
