//! Two hundred agents with their own sessions, while their managers are restarted one by one, and killed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use muster_agent::{
    AgentConfig, AgentPorts, AgentSetup, JoinArgs, JoinConfig, NodeMemory, SessionStatus, agent_address, agent_spec,
    join,
};
use muster_client::Client;
use muster_gateway::Dialer;
use muster_kernel::{Intensity, Supervisor, Tree};
use muster_messages::wire::{ActorsAsk, Request};
use muster_messages::{ErrorBody, ErrorCode, Liveness, Membership, Name, NodeListView, NodeView, Revision, Role};
use muster_pki::IdentityStore;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::harness::{
    EndedMuster, Follower, ForegroundMuster, WAIT_MS, World, eventually, eventually_so, scenario_pause,
};

const AGENTS: usize = 200;
const MANAGERS: [&str; 3] = ["n1", "n2", "n3"];

/// One agent per node, all in this process. They are real agents, over real connections.
struct Fleet {
    agents: Vec<Agent>,
    /// Declared after the agents, whose tasks run on it.
    runtime: Runtime,
}

struct Agent {
    root: Supervisor,
    ports: AgentPorts,
    /// Each gap without a session.
    gaps: Arc<Mutex<Vec<Duration>>>,
}

impl Fleet {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Self { agents: Vec::new(), runtime: runtime.expect("a runtime") }
    }

    /// Joins all agents, and waits until each has a session.
    fn join(folder: &Path, seeds: &[String], token: &str) -> Self {
        let mut fleet = Self::new();
        fleet.grow((AGENTS, AGENTS), folder, seeds, token);
        fleet
    }

    /// Joins more agents, until there are so many, this many of them at once; waits until each has a session.
    fn grow(&mut self, (to, at_once): (usize, usize), folder: &Path, seeds: &[String], token: &str) {
        while self.agents.len() < to {
            let joining = (self.agents.len()..to).take(at_once).map(|number| {
                let folder = folder.join(format!("agent-{number}"));
                self.runtime.spawn(Agent::join(folder, format!("agent-{number}"), seeds.to_vec(), token.to_owned()))
            });
            let joining: Vec<_> = joining.collect();
            let joined = self.runtime.block_on(join_all(joining));
            self.agents.extend(joined.into_iter().map(|agent| agent.expect("it joins")));
        }
        self.all_have_sessions();
    }

    #[track_caller]
    fn all_have_sessions(&self) {
        eventually_so("every agent has a session", || self.agents.iter().all(|a| a.ports.session().borrow().is_some()));
    }

    /// Since the last call: how many sessions were lost, and the longest gap.
    fn gaps(&self) -> (usize, Duration) {
        let take = |agent: &Agent| std::mem::take(&mut *agent.gaps.lock().unwrap_or_else(PoisonError::into_inner));
        let gaps: Vec<Duration> = self.agents.iter().flat_map(take).collect();
        (gaps.len(), gaps.iter().max().copied().unwrap_or_default())
    }

    /// Ends all sessions.
    fn end(self) {
        self.runtime.block_on(join_all(self.agents.iter().map(|agent| agent.root.shut_down())));
    }
}

impl Agent {
    async fn join(folder: PathBuf, name: String, seeds: Vec<String>, token: String) -> Self {
        let memory = NodeMemory::new(IdentityStore::open(&folder).expect("the world's folder is writable"));
        let (name, advertise, release) = (Name::sanitized(&name), "127.0.0.1:9".to_owned(), "0.1.0".to_owned());
        let args = JoinArgs {
            addrs: seeds.clone(),
            token,
            name: name.clone(),
            advertise: advertise.clone(),
            release: release.clone(),
            labels: BTreeMap::new(),
            rekey: None,
        };
        let joined = join(&memory, args, &JoinConfig::default(), |_| {}).await.expect("it may join");
        let credentials = Arc::new(watch::Sender::new(Arc::new(joined.credentials)));
        let ports = AgentPorts::new(AgentSetup {
            config: AgentConfig::default(),
            memory,
            instance: rand::random(),
            dial: Arc::new(Dialer::new(credentials.subscribe())),
            credentials,
            inspector: Arc::new(|_: ActorsAsk| {
                Box::pin(async { Err(ErrorBody::new(ErrorCode::NotFound, "this node has only an agent")) })
            }),
            name,
            advertise,
            release,
            labels: BTreeMap::new(),
            seeds,
        });
        let root = Supervisor::root("node", Tree::new(), Intensity::default()).await.expect("a supervisor starts");
        root.children().start(agent_spec(agent_address(), ports.clone()));
        let gaps = Arc::default();
        tokio::spawn(measure(ports.session(), Arc::clone(&gaps)));
        Self { root, ports, gaps }
    }
}

/// Gaps from the end of a session to the first view of the next.
async fn measure(mut session: watch::Receiver<Option<SessionStatus>>, gaps: Arc<Mutex<Vec<Duration>>>) {
    while session.wait_for(Option::is_some).await.is_ok() && session.wait_for(Option::is_none).await.is_ok() {
        let lost = Instant::now();
        if session.wait_for(Option::is_some).await.is_ok() {
            gaps.lock().unwrap_or_else(PoisonError::into_inner).push(lost.elapsed());
        }
    }
}

/// A thread that reads the nodes from every manager, with or without a quorum.
struct Observer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(usize, BTreeSet<String>)>,
}

impl Observer {
    fn start(sockets: Vec<PathBuf>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let (mut snapshots, mut down) = (0, BTreeSet::new());
            for socket in sockets.iter().cycle() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let mut client = Client::to_socket(socket, Duration::from_secs(2));
                let seen = runtime.block_on(client.ask::<NodeListView>(Request::NodeList { fresh: false }));
                if let Ok(list) = seen {
                    snapshots += 1;
                    let shown = list.items.into_iter().filter(|node| node.state == Liveness::Down);
                    down.extend(shown.map(|node| node.name.to_string()));
                }
                scenario_pause("the interval of looks", Duration::from_millis(50));
            }
            (snapshots, down)
        });
        Self { stop, thread }
    }

    /// How often it saw all nodes, and which of them it ever saw down.
    fn stop(self) -> (usize, BTreeSet<String>) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the observer does not panic")
    }
}

/// Measurements are printed (docs/performance.md). The checks use the cluster's own answers.
#[test]
#[ignore = "full tier"]
fn no_node_is_down_while_managers_restart_under_200_agents() {
    let mut world = World::new();
    // Shipped timing, for the measured session gaps.
    world.settings = "[gateway]\njoins_per_second = 1000\n".to_owned();
    world.node("n1").start(&["--init"]).ready();
    world.join_more(2, Role::Manager);
    world.all_settled();
    let seeds = MANAGERS.map(|name| world.node(name).address().to_string());
    let fleet = Fleet::join(world.folder(), &seeds, &world.token(Role::Worker));
    eventually_so("all nodes are ready", || {
        let nodes = world.nodes_seen_by("n1");
        nodes.len() == AGENTS + MANAGERS.len() && nodes.iter().all(|node| node.state == Liveness::Ready)
    });
    let (_, _) = fleet.gaps();
    let sockets = MANAGERS.map(|name| world.socket(name)).to_vec();
    let events = Follower::start(sockets.clone(), |since| Request::Events { since, wait_ms: WAIT_MS });
    let observer = Observer::start(sockets);

    let restarted = |world: &mut World, fleet: &Fleet, name: &str, how: &str| {
        fleet.all_have_sessions();
        world.node(name).start(&[]).ready();
        eventually_so("it is a voter again", || {
            let by = world.other_than(&[name]);
            let seen = world.seen(&by, name).expect("it is a node");
            seen.membership == Membership::Voter && seen.manager.is_some_and(|manager| manager.reachable)
        });
        let (lost, longest) = fleet.gaps();
        println!("{name} {how}: {lost} sessions moved, the longest gap was {longest:?}");
    };
    for name in MANAGERS {
        let leads = world.leader_seen_by(name) == name;
        world.node(name).stop();
        restarted(&mut world, &fleet, name, if leads { "restarted, it led" } else { "restarted" });
    }
    let leader = world.leader_seen_by("n1");
    world.node(&leader).kill();
    restarted(&mut world, &fleet, &leader, "killed, it led");

    let (snapshots, mut down) = observer.stop();
    // A stopped manager announces it, and is down until it is back.
    down.retain(|name| !MANAGERS.contains(&name.as_str()));
    assert!(down.is_empty() && snapshots > MANAGERS.len(), "{down:?} were shown down in {snapshots} reads");
    let upto = world.answer("n1", Request::Events { since: Revision(0), wait_ms: 0 });
    let received = events.answers_until(upto["revision"].as_u64().expect("an answer says of which revision it is"));
    let items = |answer: &Value| answer["items"].as_array().cloned().unwrap_or_default();
    let managers = MANAGERS.map(|name| world.seen("n1", name).expect("it is a node").id.to_string());
    let of_agent = |event: &Value| event["node"].as_str().is_some_and(|node| managers.iter().all(|id| id != node));
    let liveness = |event: &Value| event["kind"] == "liveness" && of_agent(event);
    let ready_events: Vec<Value> = received.iter().flat_map(items).filter(liveness).collect();
    assert!(!ready_events.is_empty(), "events report that nodes became ready");
    assert!(ready_events.iter().all(|event| event["after"] == "ready"), "{ready_events:#?}");
    let now = world.nodes_seen_by("n1");
    let is_manager = |node: &NodeView| MANAGERS.contains(&node.name.as_str());
    let agents_ready = now.iter().filter(|node| !is_manager(node)).all(|node| node.state == Liveness::Ready);
    assert!(agents_ready, "{now:#?}");
    // A restarted manager votes before its agent has a session again.
    for name in MANAGERS {
        world.is_recorded_as_ready("n1", name);
    }
    fleet.end();
}

/// Budgets are measured by hand (docs/performance.md); here the steps only run, with agents that are few.
#[test]
#[ignore = "full tier"]
fn short_fleet_bench_reports_every_step() {
    let world = World::new();
    let args = ["bench", "fleet", "--agents", "20", "--idle", "2s", "--changes", "2", "-o", "json"];
    let seen = EndedMuster::new(world.folder(), &args).ended(0).json();
    assert_eq!(seen["agents"], 20, "{seen}");
    let numbers = |part: &Value, keys: &[&str]| {
        for key in keys {
            assert!(part[key].is_number(), "no number {key:?} in {part}");
        }
    };
    numbers(
        &seen["join"],
        &["seconds", "in_session_seconds", "ready_seconds", "p50_ms", "p99_ms", "memory_per_agent_kb"],
    );
    numbers(&seen, &["shown_down"]);
    numbers(&seen["idle"], &["seconds", "bytes_per_agent_per_s", "messages_per_agent_per_s", "agents_cores"]);
    let idle = seen["idle"]["managers"].as_array().expect("the managers");
    assert_eq!(idle.iter().filter(|manager| manager["leader"] == true).count(), 1, "{seen}");
    assert_eq!(idle.iter().filter_map(|manager| manager["sessions"].as_u64()).sum::<u64>(), 20, "{seen}");
    idle.iter().for_each(|manager| numbers(manager, &["cores", "rss_mb"]));
    let views = seen["view"].as_array().expect("two changes of the managers");
    assert_eq!(
        views.iter().map(|view| view["change"].as_str()).collect::<Vec<_>>(),
        [Some("promotion"), Some("demotion")]
    );
    views.iter().for_each(|view| numbers(view, &["all_ms", "first_to_all_ms", "settled_ms", "bytes_per_agent"]));
    let rolled = seen["rolling_restart"].as_array().expect("three restarts");
    assert_eq!(rolled.iter().map(|one| one["node"].as_str()).collect::<Vec<_>>(), MANAGERS.map(Some), "{seen}");
    let ended = ["sessions", "gaps", "all_ms", "gap_p50_ms", "gap_p99_ms", "gap_max_ms", "shown_down"];
    let steps: Vec<&Value> = rolled.iter().chain([&seen["kill_manager"], &seen["kill_leader"]]).collect();
    steps.iter().for_each(|step| numbers(step, &ended));
    let sum = |key: &str| steps.iter().filter_map(|step| step[key].as_u64()).sum::<u64>();
    assert!(sum("sessions") > 0 && sum("gaps") > 0, "agents lost their manager, and that was seen: {seen}");
    assert_eq!(seen["roles"]["changes"], 2, "{seen}");
    numbers(&seen["roles"], &["seconds", "p50_ms", "p99_ms", "max_ms"]);
}

/// A step that cannot end says what is missing.
#[test]
#[ignore = "full tier"]
fn fleet_bench_ends_a_step_that_takes_too_long() {
    let world = World::new();
    let args = ["bench", "fleet", "--agents", "20", "--limit", "1ms", "-o", "json"];
    let late = EndedMuster::new(world.folder(), &args);
    assert_eq!(late.error_code(), ErrorCode::TimedOut.to_string(), "{}", late.stderr);
    assert!(late.stderr.contains("after 1ms"), "{}", late.stderr);
}

/// Folders that a benchmark with this pid created and did not remove, its agents' in memory included.
fn folders_of(pid: i32) -> BTreeSet<PathBuf> {
    let bases = [std::env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from("/dev/shm")];
    let entries = bases.iter().filter_map(|base| std::fs::read_dir(base).ok()).flatten().flatten();
    let of_it = |entry: &std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        ["bench", "fleet"].iter().any(|purpose| name.starts_with(&format!("muster-{purpose}-{pid}-")))
    };
    entries.filter(of_it).map(|entry| entry.path()).collect()
}

/// While agents join, and while they are idle for an hour, which is longer than any wait here.
#[test]
#[ignore = "full tier"]
fn interrupted_fleet_bench_leaves_nothing() {
    let world = World::new();
    for moment in ["a worker are ready", "all are in session"] {
        let args = ["bench", "fleet", "--agents", "20", "--idle", "1h"];
        let mut bench = ForegroundMuster::start(world.folder(), &args);
        bench.wait_for_line(moment);
        let (daemons, pid) = (bench.descendants(), bench.id.pid);
        assert!(daemons.len() >= 4 && folders_of(pid).len() == 2, "{} daemons, {:?}", daemons.len(), folders_of(pid));
        bench.signal(Signal::INT);
        assert_eq!(bench.exit(), Some(1), "it ends by itself, and not by the signal: {moment}");
        assert!(daemons.iter().all(|daemon| !daemon.is_alive()), "no process is left: {moment}");
        assert_eq!(folders_of(pid), BTreeSet::new(), "{moment}");
    }
}

/// A12. A thing that there may be thousands of shares its series with the others of its kind.
#[test]
#[ignore = "full tier"]
fn thousand_sessions_have_the_series_of_five() {
    // Each agent has a connection.
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("the soft limit may rise to the hard one");
    let mut world = World::new();
    world.settings = "[gateway]\njoins_per_second = 10000\n".to_owned();
    world.node("n1").start(&["--init"]).ready();
    let seeds = [world.node("n1").address().to_string()];
    let token = world.token(Role::Worker);
    let mut fleet = Fleet::new();
    let [few, many] = [5, 1_000].map(|sessions| {
        // More that join at once would delay each other's handshakes.
        fleet.grow((sessions, 50), world.folder(), &seeds, &token);
        // The manager's own agent has a session, too.
        let counted = format!("\nmuster_actor_alive{{path=\"node/manager/sessions/session-*\"}} {}\n", sessions + 1);
        let metrics = eventually(&format!("{sessions} sessions are counted"), || {
            Some(world.metrics("n1")).filter(|metrics| metrics.contains(&counted))
        });
        metrics.lines().filter(|line| !line.starts_with('#')).count()
    });
    println!("{few} series with 5 sessions, {many} with 1,000");
    assert!(few > 100 && many.abs_diff(few) * 20 < few, "{few} series with 5 sessions, {many} with 1,000");
    fleet.end();
}
