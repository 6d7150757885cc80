//! Test 24: a leader on the small side of a partition.

use std::time::Duration;

use muster_autopilot::Config;
use muster_autopilot::core::{Core, Decision, Effect, Input, Wait};
use muster_messages::*;

use crate::world::{MINUTE, World, id, replica_of};

const REPLACE_AFTER: Duration = Duration::from_secs(600);

/// The leader that is cut off, with its replica: it gets no entry any more, and the other side's managers are silent. A real one steps
/// down within an election timeout; this one leads until the test is over.
struct CutOff {
    core: Core,
    tables: Tables,
    side: Vec<NodeId>,
    since: Moment,
    wakes_at: Option<Moment>,
    decided: Vec<String>,
}

impl CutOff {
    fn pass(&mut self, now: Moment) {
        let silent = |node| if self.side.contains(&node) { Duration::ZERO } else { now.since(self.since) };
        let replica = replica_of(&self.tables, self.side[0], silent);
        if self.core.observe(now, &replica) || self.wakes_at.is_some_and(|at| at <= now) {
            let mut effects = Vec::new();
            self.core.step(now, Input::State { replica, doubts: Default::default() }, &mut effects);
            for effect in effects {
                match effect {
                    Effect::WakeAt(at) => self.wakes_at = at,
                    Effect::Decided(message) => self.decided.push(message),
                    writes => panic!("on the small side: {writes:?}"),
                }
            }
        }
    }
}

/// Both sides have something to do: more managers are declared than there are, and its workers become stable after the partition. The
/// small side writes nothing. On the other one a manager of the small side is replaced after the whole time since its leader's election,
/// and the pair that is missing follows when the partition ends.
#[test]
fn leader_on_the_small_side_of_a_partition_writes_nothing() {
    for small in [1, 2] {
        let voters = 2 * small + 1;
        let mut world = World::new(voters, 2);
        world.declare(|policy| {
            (policy.managers, policy.replace_after_ms) =
                (voters + 2, u64::try_from(REPLACE_AFTER.as_millis()).unwrap());
        });
        world.pass(Duration::from_secs(10));
        let side: Vec<NodeId> = (1..=small).map(id).collect();
        let core = std::mem::replace(&mut world.core, Core::new(Config::default(), world.now));
        let (tables, since) = (world.tables.clone(), world.now.at);
        let mut cut_off =
            CutOff { core, tables, side: side.clone(), since, wakes_at: Some(since), decided: Vec::new() };
        // The leader last: what the new one sees is that they do not answer.
        side.iter().rev().for_each(|node| world.kill(*node));
        assert!(!side.contains(&world.leader) && !world.lost_quorum);
        let mut first = None;
        for _ in 0..60 * 60 {
            world.pass(Duration::from_secs(1));
            cut_off.pass(world.now.at);
            first = first.or(world.requests.first().map(|request| (*request, world.now.at.since(since))));
        }
        let (request, after) = first.expect("one of them is replaced");
        assert!(request.1 == Role::Worker && side.contains(&request.0), "{small}: {request:?}");
        assert!(after >= REPLACE_AFTER && after < REPLACE_AFTER + Duration::from_secs(15), "{small}: {after:?}");
        let last = cut_off.decided.last().expect("it decides that it waits");
        assert!(last.contains("no change can be committed"), "{small}: {last}");
        side.iter().for_each(|node| world.revive(*node));
        world.pass(30 * MINUTE);
        assert!(!world.lost_quorum);
        assert_eq!(world.answering(), usize::from(voters) + 2, "{small}: {:?}", world.decided);
        assert_eq!(world.voters().len(), usize::from(voters) + 2);
    }
}

/// Its machine lives while its session does: how long Raft has not heard of it before counts at most as a session's timeout.
#[test]
fn manager_silent_in_raft_alone_counts_from_its_session() {
    let mut world = World::new(3, 2);
    world.declare(|policy| policy.replace_after_ms = u64::try_from(REPLACE_AFTER.as_millis()).unwrap());
    world.pass(Duration::from_secs(10));
    let silent_since = world.now.at;
    let mut see = |at: Moment, liveness| {
        world.liveness(id(3), liveness);
        let silent = |node| if node == id(3) { at.since(silent_since) } else { Duration::ZERO };
        let replica = replica_of(&world.tables, world.leader, silent);
        let mut effects = Vec::new();
        world.core.step(at, Input::State { replica, doubts: Default::default() }, &mut effects);
        assert!(effects.iter().all(|effect| matches!(effect, Effect::WakeAt(_) | Effect::Decided(_))), "{effects:?}");
        match world.core.plan(at, None).1.decision {
            Decision::Wait(Wait { reason: AutopilotReason::NotDeadYet, node, not_before, .. }) => (node, not_before),
            other => panic!("{other:?}"),
        }
    };
    let later = silent_since + 3 * REPLACE_AFTER;
    assert_eq!(see(later, Liveness::Ready), (Some(id(3)), None), "the machine lives");
    let ended = later + MINUTE;
    let due = ended - Config::default().session_timeout + REPLACE_AFTER;
    assert_eq!(see(ended, Liveness::Down), (Some(id(3)), Some(due)));
}
