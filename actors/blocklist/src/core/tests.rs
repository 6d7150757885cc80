//! Scenarios of the blocklist, on states made by the store.

use muster_messages::*;
use muster_store::{apply, apply_membership};

use super::*;

const T0: WallTime = WallTime(1_700_000_000_000);
const DAY: i64 = 24 * 3_600_000;

fn id(n: u8) -> NodeId {
    NodeId::from_entropy(n.into())
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn node(n: u8, role: Role) -> NodeRecord {
    NodeRecord {
        addr: format!("10.0.0.{n}:4400"),
        release: "0.1.0".to_owned(),
        liveness: Liveness::Ready,
        ..NodeRecord::new(id(n), name(&format!("n{n}")), role, T0)
    }
}

fn user(who: &str, serial: &str, kind: UserKind) -> Change {
    Change::PutUser(User {
        name: name(who),
        kind,
        namespaces: vec![],
        serial: serial.to_owned(),
        created_at: T0,
        not_after: T0,
        revision: Revision(0),
    })
}

fn remove(n: u8) -> [Change; 2] {
    let block = Blocked { node: id(n), by: Principal::Operator, blocked_at: T0, expires_at: T0 };
    [Change::DeleteNode(id(n)), Change::Block(block)]
}

fn everything(principal: Principal, reason: RefusalReason) -> Cut {
    Cut { principal, services: vec![], reason }
}

fn blocked(n: u8) -> Cut {
    everything(Principal::Node(id(n)), RefusalReason::Blocked)
}

fn demoted(n: u8) -> Cut {
    Cut { principal: Principal::Node(id(n)), services: vec![Service::Mesh], reason: RefusalReason::Demoted }
}

/// A manager: its replica, its blocklist, its gateway, and its proposals.
struct World {
    replica: Replica,
    blocklist: Blocklist,
    gateway_up: bool,
    wall: WallTime,
    retry: bool,
    sweeps: Vec<Command>,
}

impl World {
    /// n1 and n2 are managers, n3 is a worker, ann a user, bob an operator. Nothing is processed yet.
    fn new() -> Self {
        let mut world = Self {
            replica: Replica::default(),
            blocklist: Blocklist::resume(Memory::default()),
            gateway_up: true,
            wall: T0,
            retry: false,
            sweeps: vec![],
        };
        world.apply([
            Change::CreateNode(Box::new(node(1, Role::Manager))),
            Change::CreateNode(Box::new(node(2, Role::Manager))),
            Change::CreateNode(Box::new(node(3, Role::Worker))),
            user("ann", "a1", UserKind::User),
            user("bob", "b1", UserKind::Operator),
        ]);
        world
    }

    /// The same, processed.
    fn settled() -> Self {
        let mut world = Self::new();
        assert_eq!(world.observe(), [demoted(3)]);
        world
    }

    fn apply(&mut self, changes: impl IntoIterator<Item = Change>) {
        let start = Command::idempotent(self.wall, Principal::Operator, "test");
        let command = changes.into_iter().fold(start, Command::change);
        let at = self.replica.tables.revision.next();
        apply(&mut self.replica.tables, at, &command).unwrap();
    }

    fn grant(&mut self, n: u8, role: Role) {
        self.apply([Change::GrantRole { node: id(n), role }]);
    }

    /// Returns the disconnects that the gateway accepted.
    fn step(&mut self, input: Input<'_>) -> Vec<Cut> {
        let mut accepted = vec![];
        let mut effects = vec![];
        self.blocklist.step(Moment(0), self.wall, input, &mut effects);
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::Cut(cut) if self.gateway_up => {
                    let principal = cut.principal.clone();
                    accepted.push(cut);
                    self.blocklist.step(Moment(0), self.wall, Input::Told(principal), &mut effects);
                }
                Effect::Cut(_) => self.blocklist.step(Moment(0), self.wall, Input::NotTold, &mut effects),
                Effect::RetryAt(_) => {
                    assert!(!self.retry, "one timer at a time");
                    self.retry = true;
                }
                Effect::Sweep(command) => self.sweeps.push(*command),
            }
        }
        accepted.sort_by(|a, b| a.principal.cmp(&b.principal));
        accepted
    }

    fn observe(&mut self) -> Vec<Cut> {
        let replica = self.replica.clone();
        self.step(Input::NewReplica(&replica))
    }

    fn retry(&mut self) -> Vec<Cut> {
        assert!(std::mem::take(&mut self.retry), "a retry was requested");
        self.step(Input::Retry)
    }

    fn crash(&mut self) {
        self.blocklist = Blocklist::resume(self.blocklist.memory());
    }

    /// Applies the sweep in progress, as the Raft member would.
    fn applied(&mut self) -> usize {
        let sweep = self.sweeps.pop().unwrap();
        let at = self.replica.tables.revision.next();
        apply(&mut self.replica.tables, at, &sweep).unwrap();
        self.step(Input::Swept(Some(at)));
        sweep.changes.len()
    }
}

#[test]
fn removed_node_is_disconnected_everywhere() {
    let mut world = World::settled();
    world.apply(remove(3));
    assert_eq!(world.observe(), [blocked(3)]);
    assert_eq!(world.observe(), [], "once");
}

#[test]
fn demoted_manager_loses_only_the_mesh() {
    let mut world = World::settled();
    world.grant(2, Role::Worker);
    assert_eq!(world.observe(), [demoted(2)]);
    world.grant(2, Role::Manager);
    assert_eq!(world.observe(), []);
    world.grant(2, Role::Worker);
    assert_eq!(world.observe(), [demoted(2)], "again, because it may have reconnected meanwhile");
}

#[test]
fn demotion_and_removal_seen_at_once_count_as_removal() {
    let mut world = World::settled();
    world.grant(2, Role::Worker);
    world.apply(remove(2));
    assert_eq!(world.observe(), [blocked(2)]);
}

#[test]
fn node_without_record_is_disconnected_as_removed() {
    let mut world = World::settled();
    world.apply([Change::DeleteNode(id(3))]);
    assert_eq!(world.observe(), [everything(Principal::Node(id(3)), RefusalReason::Removed)]);
}

#[test]
fn changes_that_revoke_no_right_disconnect_no_principal() {
    let mut world = World::settled();
    let add_learner = MembershipChangeKind::AddLearner { node: id(2), raft_id: RaftId(0), addr: "a:1".to_owned() };
    let at = world.replica.tables.revision.next();
    let change = MembershipChange { at: T0, by: Principal::Operator, kind: add_learner };
    apply_membership(&mut world.replica.tables, at, &change).unwrap();
    world.apply([
        Change::SetLiveness { node: id(3), liveness: Liveness::Down },
        Change::SetDesiredRole { node: id(2), role: Role::Worker },
        user("eve", "e1", UserKind::User),
    ]);
    assert_eq!(world.observe(), []);
}

/// Its connections may have been accepted by its certificate, when this replica did not know it.
#[test]
fn worker_new_to_the_replica_is_kept_out_of_the_mesh() {
    let mut world = World::settled();
    world.apply([Change::CreateNode(Box::new(node(4, Role::Worker)))]);
    world.apply([Change::CreateNode(Box::new(node(5, Role::Manager)))]);
    assert_eq!(world.observe(), [demoted(4)]);
}

#[test]
fn revoked_and_replaced_credentials_are_disconnected() {
    let mut world = World::settled();
    world.apply([Change::DeleteUser(name("ann")), user("bob", "b2", UserKind::Operator)]);
    let (ann, bob) = (Principal::User(name("ann")), Principal::Admin(name("bob")));
    let out = RefusalReason::Unauthenticated;
    assert_eq!(world.observe(), [everything(ann, out), everything(bob, out)]);
    assert_eq!(world.observe(), []);
}

#[test]
fn full_comparison_finds_all_due_disconnects() {
    let mut world = World::new();
    world.grant(2, Role::Worker);
    world.apply(remove(3));
    assert_eq!(world.observe(), [demoted(2), blocked(3)]);
    let found: Vec<_> = due(&world.replica.tables).collect();
    assert_eq!(found, [blocked(3), demoted(2)]);
}

#[test]
fn new_incarnation_processes_the_whole_state() {
    let mut world = World::settled();
    world.apply(remove(2));
    world.observe();
    world.crash();
    assert_eq!(world.observe(), [blocked(2), demoted(3)]);
}

#[test]
fn rights_lost_while_it_was_down_are_noticed() {
    let mut world = World::settled();
    world.crash();
    world.apply([Change::DeleteUser(name("ann"))]);
    let ann = everything(Principal::User(name("ann")), RefusalReason::Unauthenticated);
    assert_eq!(world.observe(), [demoted(3), ann]);
}

#[test]
fn undelivered_disconnect_is_repeated_until_accepted() {
    let mut world = World::settled();
    world.gateway_up = false;
    world.apply(remove(3));
    world.apply([Change::DeleteUser(name("ann"))]);
    assert_eq!(world.observe(), []);
    assert_eq!(world.blocklist.view().pending_disconnects, 2);
    assert_eq!(world.retry(), []);
    world.crash();
    world.retry = false;
    world.gateway_up = true;
    let ann = everything(Principal::User(name("ann")), RefusalReason::Unauthenticated);
    assert_eq!(world.observe(), [blocked(3), ann]);
    assert_eq!(world.blocklist.view().pending_disconnects, 0);
}

#[test]
fn pending_disconnect_lapses_with_its_reason() {
    let mut world = World::settled();
    world.gateway_up = false;
    world.grant(2, Role::Worker);
    world.observe();
    world.grant(2, Role::Manager);
    world.observe();
    world.gateway_up = true;
    assert_eq!(world.retry(), [], "it is a manager again: its new sessions stay");
    assert_eq!(world.blocklist.view().pending_disconnects, 0);
}

/// A manager whose Raft data was lost starts from an empty state in the same process.
#[test]
fn emptier_replica_disconnects_no_principal() {
    let mut world = World::settled();
    world.replica = Replica::default();
    assert_eq!(world.observe(), []);
    world.apply([Change::CreateNode(Box::new(node(1, Role::Manager)))]);
    assert_eq!(world.observe(), []);
}

/// E34: an otherwise idle cluster deletes expired blocks too.
#[test]
fn only_the_leader_sweeps_and_only_expired_blocks() {
    let mut world = World::settled();
    world.apply(remove(3));
    world.observe();
    world.wall = WallTime(T0.0 + DAY);
    world.step(Input::Ticked);
    assert_eq!(world.sweeps, [], "it does not lead");
    world.replica.raft.leading = true;
    world.wall = T0;
    world.observe();
    world.step(Input::Ticked);
    assert_eq!(world.sweeps, [], "it has not expired");
    world.wall = WallTime(T0.0 + DAY);
    world.step(Input::Ticked);
    world.step(Input::Ticked);
    assert_eq!(world.sweeps.len(), 1, "one at a time");
    assert_eq!(world.applied(), 1);
    world.observe();
    let view = world.blocklist.view();
    assert_eq!((view.entries, view.sweeps), (0, 1));
}

#[test]
fn a_new_leader_sweeps_at_once() {
    let mut world = World::settled();
    world.apply(remove(3));
    world.wall = WallTime(T0.0 + DAY);
    world.replica.raft.leading = true;
    world.observe();
    assert_eq!(world.sweeps.len(), 1);
}

#[test]
fn failed_sweep_is_retried_at_the_next_tick() {
    let mut world = World::settled();
    world.apply(remove(3));
    world.wall = WallTime(T0.0 + DAY);
    world.replica.raft.leading = true;
    world.observe();
    world.step(Input::Swept(None));
    assert_eq!(world.sweeps.len(), 1);
    world.step(Input::Ticked);
    assert_eq!(world.sweeps.len(), 2);
}

#[test]
fn many_blocks_are_swept_in_consecutive_batches() {
    let mut world = World::settled();
    let many = (0..MAX_SWEEP_ENTRIES as u128 + 10).map(|n| {
        let node = NodeId::from_entropy(1000 + n);
        Change::Block(Blocked { node, by: Principal::Operator, blocked_at: T0, expires_at: T0 })
    });
    world.apply(many);
    world.wall = WallTime(T0.0 + DAY);
    world.replica.raft.leading = true;
    world.observe();
    assert_eq!(world.applied(), MAX_SWEEP_ENTRIES);
    assert_eq!(world.sweeps, [], "not before the replica shows it");
    world.observe();
    assert_eq!(world.applied(), 10);
    world.observe();
    assert_eq!(world.sweeps, []);
    assert_eq!(world.blocklist.view().entries, 0);
}
