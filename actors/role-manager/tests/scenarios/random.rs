//! Random requests, outages, crashes and elections: inject faults, check; clear them, check that the cluster
//! converges to the last requests.

use std::collections::BTreeMap;

use muster_messages::*;
use muster_role_manager::core::RequestedChange;
use proptest::prelude::*;

use crate::world::*;

#[derive(Clone, Debug)]
enum Action {
    Promote(u64),
    Demote(u64),
    Remove(u64, bool),
    Stop(u64),
    StopUnnoticed(u64),
    Start(u64),
    Firewall(u64, bool),
    Certificates(u64, bool),
    LoseData(u64),
    Crash,
    CrashBeforeEffects,
    Elect(u64),
    HoldMembershipChanges(bool),
    HoldCommits(bool),
    RunSteps(u8),
    Pass(u8),
}

fn action(nodes: u64) -> impl Strategy<Value = Action> {
    let n = 1..=nodes;
    prop_oneof![
        4 => n.clone().prop_map(Action::Promote),
        4 => n.clone().prop_map(Action::Demote),
        1 => (n.clone(), any::<bool>()).prop_map(|(n, f)| Action::Remove(n, f)),
        1 => n.clone().prop_map(Action::Stop),
        1 => n.clone().prop_map(Action::StopUnnoticed),
        3 => n.clone().prop_map(Action::Start),
        1 => (n.clone(), any::<bool>()).prop_map(|(n, f)| Action::Firewall(n, f)),
        1 => (n.clone(), any::<bool>()).prop_map(|(n, f)| Action::Certificates(n, f)),
        1 => n.clone().prop_map(Action::LoseData),
        1 => Just(Action::Crash),
        1 => Just(Action::CrashBeforeEffects),
        1 => n.prop_map(Action::Elect),
        1 => any::<bool>().prop_map(Action::HoldMembershipChanges),
        1 => any::<bool>().prop_map(Action::HoldCommits),
        6 => (1u8..20).prop_map(Action::RunSteps),
        4 => (1u8..40).prop_map(Action::Pass),
    ]
}

fn scenario() -> impl Strategy<Value = (u64, u64, Vec<Action>)> {
    (1u64..=4, 1u64..=3).prop_flat_map(|(m, w)| (Just(m), Just(w), proptest::collection::vec(action(m + w), 5..60)))
}

fn perform_action(world: &mut World, action: &Action) {
    let exists = |world: &World, n: u64| world.tables.nodes.contains_key(&id(n));
    match *action {
        Action::Promote(n) => drop(world.promote(n)),
        Action::Demote(n) => drop(world.demote(n)),
        Action::Remove(n, force) => drop(world.remove(n, force)),
        Action::Stop(n) => world.stop(n),
        Action::StopUnnoticed(n) => world.stop_unnoticed(n),
        Action::Start(n) => world.start(n),
        Action::Firewall(n, on) => world.machine(n).firewalled = on,
        Action::Certificates(n, on) => world.machine(n).no_certificates = !on,
        Action::LoseData(n) => {
            let leads = world.leader == Some(id(n));
            let keeps = |m: &&Member| m.voter && m.node != id(n) && world.machines[&m.node].held == Some(m.raft_id);
            let left = world.tables.members.values().filter(keeps).count();
            if left <= world.voters() / 2 || world.changes_in_flight() > 0 {
                return; // a cluster whose majority lost its data is lost
            }
            let long_ago = world.now.at - secs(1);
            let machine = world.machine(n);
            // A machine loses its disk only while it is off, and does not vote with it within an election timeout.
            if !machine.up && machine.last_ack.is_none_or(|at| at < long_ago) && !leads && machine.held.take().is_some()
            {
                let file = "raft".to_owned();
                machine.data_lost = Some(muster_messages::wire::DataLoss { damaged: false, file });
            }
        }
        Action::Crash => world.crash(),
        Action::CrashBeforeEffects => world.crash_before_effects = true,
        Action::Elect(n) => {
            let voter = exists(world, n) && world.membership(n) == Membership::Voter;
            if voter && world.machines[&id(n)].up && world.has_quorum() {
                world.elect(id(n));
            }
        }
        Action::HoldMembershipChanges(on) => world.hold_membership_changes = on,
        Action::HoldCommits(on) => world.hold_commits = on,
        Action::RunSteps(n) => (0..n).for_each(|_| world.run_step()),
        Action::Pass(n) => world.run_for(TICK * u32::from(n)),
    }
}

fn clear_faults(world: &mut World) {
    world.hold_membership_changes = false;
    world.hold_commits = false;
    world.hold_probes = false;
    world.crash_before_effects = false;
    let nodes: Vec<NodeId> = world.machines.keys().copied().collect();
    for node in nodes {
        let machine = world.machines.get_mut(&node).unwrap();
        machine.up = true;
        machine.firewalled = false;
        machine.no_certificates = false;
        machine.no_membership_requests = false;
        if world.tables.nodes.contains_key(&node) {
            world.apply_directly(Change::SetLiveness { node, liveness: Liveness::Ready });
        }
    }
}

/// The last request for each node, according to the replicated state.
fn last_requests(world: &World) -> BTreeMap<NodeId, (Role, bool)> {
    world.tables.nodes.values().map(|r| (r.id, (r.desired_role, r.removing.is_some()))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::default())] // PROPTEST_CASES=20000 for a long run

    #[test]
    fn random_faults_converge_to_the_last_requests((managers, workers, actions) in scenario()) {
        let mut world = World::new(managers, workers);
        for action in &actions {
            world.log.push(format!("--- {action:?}"));
            perform_action(&mut world, action);
            world.check();
        }
        world.log.push("--- faults cleared".to_owned());
        clear_faults(&mut world);
        world.run_for(secs(2));
        prop_assert!(world.core.is_some(), "a manager leads again: {:#?}", world.log);
        let wanted = last_requests(&world);
        world.settle();
        world.run_for(secs(1));
        for (node, (role, removing)) in wanted {
            let record = world.tables.nodes.get(&node);
            prop_assert_eq!(record.is_none(), removing, "{:?}", node);
            let Some(record) = record else { continue };
            prop_assert_eq!((record.desired_role, record.role), (role, role));
            let membership = world.tables.membership_of(node);
            let expected = if role == Role::Manager { Membership::Voter } else { Membership::None };
            prop_assert_eq!(membership, expected, "{}", world.name(node));
        }
    }

    #[test]
    fn random_faults_expose_a_disabled_quorum_check(seed in 0u64..8) {
        let mut world = World::new(3 + seed % 3, 0);
        world.config.bugs.skip_quorum_gate = true;
        world.elect(id(1));
        world.run_for(secs(1));
        let n = 3 + seed % 3;
        for silent in 2..2 + (n - 1) / 2 {
            world.stop_unnoticed(silent);
        }
        world.run_for(secs(1));
        world.change(n, RequestedChange::Role(Role::Worker));
        world.run_for(secs(2));
        prop_assert_eq!(world.violation.is_some(), n % 2 == 1, "{:#?}", world.log);
    }
}
