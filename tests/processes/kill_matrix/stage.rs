//! A cluster whose actors fail, some at a time, and what becomes of it each time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use muster_messages::{CrashHow, Role};

use super::kinds::{LEADER, MANAGER, above, comes_and_goes, kind_of, may_cost_leadership, specified, within, words};
use super::look::{Tree, came_by_itself, is_new, missing, tops, tree_of};
use super::work::{Furniture, Work};
use crate::harness::{PATIENCE, World, between_looks};

pub const MANAGERS: [&str; 3] = ["n1", "n2", "n3"];

/// What has become of each kind, by the way it failed.
pub type Outcomes = BTreeMap<(String, &'static str), String>;

pub struct Stage {
    pub world: World,
    pub outcomes: Outcomes,
    work: Option<Work>,
    furniture: Furniture,
    /// At the end of the last wave.
    rested: Picture,
    /// Those that there are.
    kinds: Vec<String>,
    /// Where somebody else led afterwards although nothing that leading takes was concerned: this machine is busy.
    usurped: BTreeMap<String, usize>,
    /// Failures of the root's own children that were asked for: it bears ten within a minute.
    borne: Vec<(&'static str, Instant)>,
}

/// All managers at one time.
#[derive(Clone)]
struct Picture {
    trees: BTreeMap<&'static str, Tree>,
    term: u64,
    leader: &'static str,
}

impl Picture {
    /// Every kind of actor that there is, those above before those below.
    fn kinds(&self) -> Vec<String> {
        let all = self.trees.values().flatten();
        let mut kinds: Vec<String> =
            all.filter(|(path, seen)| *path != "node" && !seen.is_thread).map(|(path, _)| kind_of(path)).collect();
        kinds.sort_by_key(|kind| (kind.matches('/').count(), kind.clone()));
        kinds.dedup();
        kinds
    }
}

/// One failure that is asked for.
#[derive(Clone, Debug)]
struct Hit {
    node: &'static str,
    path: String,
    /// What must follow. Nothing: its process ends.
    tops: Option<Vec<String>>,
}

/// Looks until something is so; what was not is told when it takes too long.
#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        match look() {
            Ok(seen) => return seen,
            Err(why) => assert!(Instant::now() < end, "not so within {PATIENCE:?}: {what}: {why}"),
        }
        between_looks();
    }
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
        let furniture = Furniture::move_in(&world);
        let work = at_work.then(|| Work::begin(&mut world));
        let nothing = Picture { trees: BTreeMap::new(), term: 0, leader: "" };
        let mut stage = Self {
            world,
            outcomes: Outcomes::new(),
            work,
            furniture,
            rested: nothing,
            kinds: Vec::new(),
            usurped: BTreeMap::new(),
            borne: Vec::new(),
        };
        stage.rested = until("there is one of every kind", || stage.at_rest());
        stage.kinds = stage.rested.kinds();
        stage
    }

    /// Everybody as they are now, if all are well and somebody leads. Two looks agree: for a few milliseconds after a group was killed and started again, the tree shows children of the old
    /// one below the new one.
    fn at_rest(&self) -> Result<Picture, String> {
        let first = self.look()?;
        std::thread::park_timeout(BETWEEN_TWO_LOOKS);
        let second = self.look()?;
        let lives = |picture: &Picture, node: &str| -> Vec<(String, (u64, String))> {
            picture.trees[node].iter().map(|(path, seen)| (path.clone(), seen.life.clone())).collect()
        };
        match MANAGERS.into_iter().find(|node| lives(&first, node) != lives(&second, node)) {
            Some(node) => Err(format!("actors of {node} come and go")),
            None => Ok(second),
        }
    }

    fn look(&self) -> Result<Picture, String> {
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
        let mut wanted = self.kinds.iter().map(String::as_str).chain(LATE);
        match wanted.find(|kind| !kinds.iter().any(|there| there == kind)) {
            Some(kind) => Err(format!("there is no {kind}")),
            None => Ok(now),
        }
    }

    /// Makes an actor of each kind fail in this way, one after the other. Where a failure takes its time several do so at a time, as
    /// long as what follows from one can be told from what follows from the others: no path is concerned by two.
    pub fn column(&mut self, name: &'static str, how: CrashHow) {
        let begun = Instant::now();
        if how != CrashHow::Hang {
            self.forget();
        }
        let mut open = self.kinds.clone();
        while !open.is_empty() {
            let mut wave: Vec<Hit> = Vec::new();
            let mut later = Vec::new();
            for kind in std::mem::take(&mut open) {
                let hit = self.aim(&kind, how);
                let slow = matches!(how, CrashHow::Hang | CrashHow::Start { .. });
                let fits = wave.is_empty() || slow && wave.iter().all(|other| apart(&hit, other, how));
                if fits { wave.push(hit) } else { later.push(kind) }
            }
            open = later;
            // What could not be seen is tried again.
            open.extend(self.wave(name, how, wave));
        }
        until(&format!("everybody takes part again after {name}"), || self.furniture.all_take_part(&self.world));
        println!("{name}: {:?}", begun.elapsed());
    }

    /// Supervisors bear ten failures within a minute: those below the root are started anew, and have borne none. Of the root's
    /// own children each column fails each once, where that has happened the least.
    fn forget(&mut self) {
        for node in MANAGERS {
            let tops = [MANAGER, "node/reconcilers"];
            for path in tops {
                let restart = ActorsAsk::Restart { path: path.to_owned() };
                self.world.answer(node, Request::Actors { node: ActorsOf::Here, ask: restart });
            }
            let before = &self.rested.trees[node];
            self.rested = until(&format!("supervisors of {node} are new"), || {
                let now = self.at_rest()?;
                let left = missing(before, &now.trees[node]).is_some();
                let new = !left && tops.iter().all(|path| is_new(before, &now.trees[node], path));
                if new { Ok(now) } else { Err("they are not".to_owned()) }
            });
        }
    }

    /// Where an actor of this kind is: with the leader if there is one; of the root's children, where it has failed the least.
    fn aim(&self, kind: &str, how: CrashHow) -> Hit {
        let of = |node: &&'static str| self.rested.trees[node].keys().find(|path| kind_of(path) == kind).cloned();
        let recent = |node: &str| self.borne.iter().filter(|(n, at)| *n == node && at.elapsed() < MINUTE).count();
        let mut nodes = MANAGERS;
        let is_roots = above(kind) == "node" && kind != MANAGER;
        nodes.sort_by_key(|node| if is_roots { recent(node) } else { usize::from(*node != self.rested.leader) });
        let (node, path) =
            nodes.iter().find_map(|node| Some((*node, of(node)?))).unwrap_or_else(|| panic!("no {kind} any more"));
        let tops = specified(&path, how);
        Hit { node, path, tops }
    }

    /// The kinds of which not all was seen: somebody else leads by now, and the leader's actors are another's.
    fn wave(&mut self, name: &'static str, how: CrashHow, wave: Vec<Hit>) -> Vec<String> {
        let mark = self.work.as_ref().map(Work::mark);
        // Whoever is asked for the others last.
        let (api, others): (Vec<&Hit>, Vec<&Hit>) = wave.iter().partition(|hit| hit.path == "node/api");
        for hit in others.into_iter().chain(api) {
            self.strike(hit, how);
        }
        for hit in wave.iter().filter(|hit| hit.tops.is_none()) {
            let node = self.world.node(hit.node);
            assert_eq!(node.exit(), Some(1), "{} of {} fails too often", hit.path, hit.node);
            node.start(&[]).ready();
        }
        let what = format!("all is well after {name} of {wave:#?}");
        let now = until(&what, || self.healed(&wave, how));
        if let (Some(work), Some(mark)) = (&self.work, mark) {
            let repairs = wave.iter().any(|hit| within(&hit.path, "node/reconcilers"));
            until(&format!("work goes on after {name} of {wave:?}"), || work.goes_on(&self.world, mark, repairs));
        }
        until(&format!("the lease is kept after {name} of {wave:?}"), || self.furniture.is_kept(&self.world));
        let usurped = now.term != self.rested.term && !wave.iter().any(|hit| may_cost_leadership(&hit.path, how));
        let mut unseen = Vec::new();
        for hit in &wave {
            let kind = kind_of(&hit.path);
            if usurped {
                let times = self.usurped.entry(kind.clone()).or_default();
                *times += 1;
                assert!(*times < 3, "somebody else leads each time that {kind} fails");
            }
            match self.outcome(hit, how, &now) {
                Some(outcome) => drop(self.outcomes.insert((kind, name), outcome)),
                None => unseen.push(kind),
            }
        }
        assert!(usurped || unseen.is_empty(), "not all was seen of {unseen:?}, and nobody else leads");
        self.rested = now;
        unseen
    }

    /// Whoever cannot answer itself is asked through another.
    fn strike(&mut self, hit: &Hit, how: CrashHow) {
        let other = MANAGERS.into_iter().find(|name| *name != hit.node).expect("there are three");
        let by = if hit.path == "node/api" { other } else { hit.node };
        let node = if by == hit.node { ActorsOf::Here } else { ActorsOf::Node(hit.node.to_owned()) };
        let ask = |ask: ActorsAsk| self.world.ask(by, Request::Actors { node: node.clone(), ask });
        let path = || hit.path.clone();
        let life = |tree: &Tree| tree.get(&hit.path).map(|seen| (seen.restarts, seen.life.clone()));
        let before = life(&self.rested.trees[hit.node]);
        until(&format!("{} of {} is told to fail", hit.path, hit.node), || {
            let Err(error) = ask(ActorsAsk::Crash { path: path(), how }) else { return Ok(()) };
            // What was asked for may have been done although its answer is lost: once is enough.
            match tree_of(&self.world, hit.node, by).as_ref().and_then(life) {
                Some(now) if Some(&now) != before.as_ref() => Ok(()),
                _ => Err(error.message),
            }
        });
        if how == CrashHow::Hang {
            until(&format!("{} of {} hangs", hit.path, hit.node), || {
                let tree = tree_of(&self.world, hit.node, by).ok_or("no answer")?;
                let handling = tree.get(&hit.path).and_then(|seen| seen.handling.clone());
                if handling.as_deref() == Some("crash") { Ok(()) } else { Err(format!("it is at {handling:?}")) }
            });
            until(&format!("{} of {} is told to restart", hit.path, hit.node), || {
                ask(ActorsAsk::Restart { path: path() }).map_err(|e| e.message)
            });
        } else if above(&hit.path) == "node" {
            self.borne.push((hit.node, Instant::now()));
        }
    }

    /// The cluster as it is, once all is well and all that is specified has followed; nothing else may have.
    fn healed(&self, wave: &[Hit], how: CrashHow) -> Result<Picture, String> {
        self.hurry(wave, how);
        let now = self.at_rest()?;
        for (node, before) in &self.rested.trees {
            let ended = wave.iter().any(|hit| hit.node == *node && hit.tops.is_none());
            let tree = &now.trees[node];
            if let Some(path) = missing(before, tree) {
                return Err(format!("{path} of {node} is not there"));
            }
            if ended {
                continue;
            }
            let seen = tops(before, tree);
            let hits = || wave.iter().filter(|hit| hit.node == *node);
            let wanted: Vec<&String> = hits().flat_map(|hit| hit.tops.iter().flatten()).collect();
            let led = now.term == self.rested.term;
            if let Some(path) = wanted.iter().find(|path| !is_new(before, tree, path) && (led || !within(path, LEADER)))
            {
                return Err(format!("{path} of {node} is the one that was"));
            }
            for top in seen.iter().filter(|top| !wanted.contains(top)) {
                let explained = within(top, LEADER) && !led;
                assert!(
                    explained || came_by_itself(tree, top),
                    "{top} of {node} has started again, and was not to, after {how:?} of {wave:#?}: {:?}, before {:?}",
                    tree[top],
                    before.get(top)
                );
            }
        }
        Ok(now)
    }

    /// Whoever is never given up waits ever longer between its starts: it is told not to.
    fn hurry(&self, wave: &[Hit], how: CrashHow) {
        if !matches!(how, CrashHow::Start { .. }) {
            return;
        }
        for hit in wave {
            let Some(tree) = tree_of(&self.world, hit.node, hit.node) else { continue };
            for top in
                hit.tops.iter().flatten().filter(|top| tree.get(*top).is_some_and(|seen| seen.state == "backing_off"))
            {
                let restart = ActorsAsk::Restart { path: top.clone() };
                let _again = self.world.ask(hit.node, Request::Actors { node: ActorsOf::Here, ask: restart });
            }
        }
    }

    /// What was seen to follow, in words. Nothing: not all that was to follow was seen.
    fn outcome(&self, hit: &Hit, how: CrashHow, now: &Picture) -> Option<String> {
        let Some(wanted) = &hit.tops else { return Some(words(&hit.path, None, false)) };
        let (before, tree) = (&self.rested.trees[hit.node], &now.trees[hit.node]);
        let followed: Vec<String> = wanted.iter().filter(|top| is_new(before, tree, top)).cloned().collect();
        for top in &followed {
            let (was, is) = (before.get(top).map_or(0, |seen| seen.restarts), &tree[top]);
            let (times, exit) = match how {
                _ if comes_and_goes(top) || *top != hit.path => continue,
                CrashHow::Panic => (1, "panic: panicked: crashed on request"),
                CrashHow::Error => (1, "error: failed on request"),
                CrashHow::Kill | CrashHow::Hang => (1, "killed: killed"),
                CrashHow::Start { times } => {
                    let restarts = is.restarts - was;
                    assert!(restarts > u64::from(times), "{hit:?}: {is:?}, after {was} restarts before");
                    continue;
                }
            };
            assert!(is.restarts == was + times && is.last_exit == exit, "{hit:?} {how:?}: {is:?} after {was} restarts");
        }
        // By its kind: now and then a member has just lost its lease.
        let kind = kind_of(&hit.path);
        let takes_children = self.kinds.iter().any(|below| *below != kind && within(below, &kind));
        (followed.len() == wanted.len()).then(|| words(&hit.path, Some(&followed), takes_children))
    }

    /// Everything that was under way comes to its end.
    pub fn end(mut self) -> Outcomes {
        if let Some(work) = self.work.take() {
            work.end(&mut self.world);
        }
        self.world.all_settled();
        self.outcomes
    }
}

/// What there is a while after the rest.
const LATE: [&str; 4] = [
    "node/manager/sessions/session-*",
    "node/manager/leader/elections/election-*",
    "node/manager/feature-level/reconcilers/*/elect",
    "node/reconcilers/*/elect",
];
/// Many times as long as it takes from the end of a group to the start of its next children.
const BETWEEN_TWO_LOOKS: Duration = Duration::from_millis(100);
const MINUTE: Duration = Duration::from_secs(60);

fn has_agent(tops: &[String]) -> bool {
    tops.iter().any(|top| within(top, "node/agent"))
}

/// Whether nothing is concerned by both. Who leads is one question for all nodes, and for the leader's subtree.
fn apart(a: &Hit, b: &Hit, how: CrashHow) -> bool {
    let root = [String::from("node")];
    let tops = |hit: &Hit| hit.tops.as_deref().unwrap_or(&root).to_vec();
    let (of_a, of_b) = (tops(a), tops(b));
    let led = |tops: &[String]| tops.iter().any(|top| within(top, LEADER));
    let (a_costs, b_costs) = (may_cost_leadership(&a.path, how), may_cost_leadership(&b.path, how));
    if a.node != b.node {
        // A session or a lease here may be that node's: without its process or its agent, the actor for it goes away.
        let takes = |x: &Hit, y: &Hit| comes_and_goes(&y.path) && x.tops.as_ref().is_none_or(|tops| has_agent(tops));
        return !((a_costs || led(&of_a)) && (b_costs || led(&of_b)) || takes(a, b) || takes(b, a));
    }
    let meet = of_a.iter().any(|x| of_b.iter().any(|y| within(x, y) || within(y, x)));
    !(meet || a_costs && led(&of_b) || b_costs && led(&of_a))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that ends takes its session's actor at another node along: the two do not fail at the same time.
    #[test]
    fn node_that_ends_is_apart_from_no_session() {
        let start = CrashHow::Start { times: CrashHow::STARTS };
        let hit = |node, path: &str, how| Hit { node, path: path.to_owned(), tops: specified(path, how) };
        let session = "node/manager/sessions/session-8z1axfpqk4oa7o6gld04o0h86";
        for how in [start, CrashHow::Hang] {
            assert!(!apart(&hit("n1", "node/agent", how), &hit("n2", session, how), how));
            assert!(!apart(&hit("n2", session, how), &hit("n1", "node/agent", how), how));
        }
        assert!(apart(&hit("n1", "node/manager/mesh/door", start), &hit("n2", session, start), start));
    }
}
