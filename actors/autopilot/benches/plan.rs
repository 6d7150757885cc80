//! What a decision costs in a cluster of ten thousand nodes: `cargo bench -p muster-autopilot`. The goal is 5 ms.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_autopilot::Config;
use muster_autopilot::core::{Core, Input, Now, plan};
use muster_messages::{
    AUTOPILOT_LEVEL, AutopilotPolicy, ClusterId, ClusterRecord, FIRST_INCARNATION, Liveness, Member, Moment, Name,
    NodeId, NodeRecord, PeerProgress, RaftId, RaftStatus, Replica, Revision, Role, Secret, Tables, WallTime,
};

const NODES: u32 = 10_000;
const MANAGERS: u32 = 5;
const REPEATS: usize = 500;

fn id(n: u32) -> NodeId {
    NodeId::from_entropy(u128::from(n) << 64)
}

/// Managers 1 to 5, and workers in fifty racks. `dead`: manager 5 is down, and silent.
fn replica(now: Now, policy: AutopilotPolicy, dead: bool) -> Replica {
    let cluster = Some(Arc::new(ClusterRecord {
        id: ClusterId::from_entropy(1),
        name: Name::sanitized("c"),
        incarnation: FIRST_INCARNATION,
        feature_level: AUTOPILOT_LEVEL,
        root_cert_pem: String::new(),
        root_key_pem: Secret::new(""),
        founded_at: now.wall,
        revision: Revision(0),
    }));
    let mut tables = Tables { cluster, ..Tables::default() };
    tables.autopilot.policy = Some(Arc::new(policy));
    for n in 1..=NODES {
        let role = if n <= MANAGERS { Role::Manager } else { Role::Worker };
        let liveness = if dead && n == MANAGERS { Liveness::Down } else { Liveness::Ready };
        let labels = [("rack".to_owned(), format!("r{}", n % 50)), ("disk".to_owned(), "ssd".to_owned())].into();
        let node = NodeRecord::new(id(n), Name::sanitized(&format!("n{n}")), role, now.wall);
        let node = NodeRecord { release: "1.0.0".into(), liveness, labels, ..node };
        tables.nodes.insert(id(n), Arc::new(node));
        if role == Role::Manager {
            let raft_id = RaftId(n.into());
            tables.members.insert(raft_id, Member { node: id(n), raft_id, addr: String::new(), voter: true });
        }
    }
    let progress = (2..=MANAGERS).map(|n| PeerProgress {
        raft_id: RaftId(n.into()),
        node: Some(id(n)),
        voter: true,
        matched: 0,
        acked_ago: Some(Duration::ZERO).filter(|_| !dead || n != MANAGERS),
        in_snapshot: false,
        problem: None,
    });
    let raft =
        RaftStatus { raft_id: Some(RaftId(1)), leading: true, progress: progress.collect(), ..RaftStatus::default() };
    Replica { tables, raft }
}

fn median_and_longest(mut measured: impl FnMut() -> Duration) -> (Duration, Duration) {
    let mut all: Vec<Duration> = (0..REPEATS).map(|_| measured()).collect();
    all.sort_unstable();
    (all[REPEATS / 2], all[REPEATS - 1])
}

fn main() {
    let began = Now { at: Moment(1_000_000_000), wall: WallTime(1_800_000_000_000) };
    let spread = AutopilotPolicy { zone_label: Some("rack".into()), ..AutopilotPolicy::new(5) };
    let labelled = |value: &str| [("disk".to_owned(), value.to_owned())].into();
    let cases = [
        ("as many managers as declared", spread.clone(), false),
        ("a dead manager, and every worker a candidate", spread.clone(), true),
        ("the same, with a label that all have", AutopilotPolicy { eligible: labelled("ssd"), ..spread.clone() }, true),
        ("the same, with one that none has", AutopilotPolicy { eligible: labelled("none"), ..spread.clone() }, true),
        ("the same, and none stable", AutopilotPolicy { stabilize_ms: 3_600_000, ..spread }, true),
    ];
    println!("{NODES} nodes, {REPEATS} times each");
    println!("{:44} {:>12} {:>12} {:>12} {:>12}", "", "plan median", "longest", "look median", "longest");
    for (what, policy, dead) in cases {
        let config = Config::default();
        let mut core = Core::new(config.clone(), began);
        let newest = Arc::new(replica(began, policy, dead));
        let show = |core: &mut Core, at: Moment| {
            let replica = Arc::new(Replica::clone(&newest));
            let mut effects = Vec::new();
            core.step(at, Input::State { replica, doubts: Arc::default() }, &mut effects);
            effects
        };
        let _first = show(&mut core, began.at);
        // All that a look does: how long each node was seen, the facts, the plan. So early that nothing begins.
        let look = median_and_longest(|| {
            let start = Instant::now();
            black_box(show(&mut core, began.at + Duration::from_secs(5)));
            start.elapsed()
        });
        // So late that the dead manager is dead.
        let at = began.at + Duration::from_secs(1800);
        let _shown = show(&mut core, at);
        let facts = core.facts(at);
        let planned = median_and_longest(|| {
            let start = Instant::now();
            black_box(plan(&newest.tables.autopilot, black_box(&facts), &config));
            start.elapsed()
        });
        println!("{what:44} {:>12.2?} {:>12.2?} {:>12.2?} {:>12.2?}", planned.0, planned.1, look.0, look.1);
    }
}
