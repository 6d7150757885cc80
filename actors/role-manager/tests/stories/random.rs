//! Random wishes, outages, crashes and elections: hurt, check; heal, check that it converges to the last wishes.

use std::collections::BTreeMap;

use muster_messages::*;
use muster_role_manager::core::Wish;
use proptest::prelude::*;

use crate::world::*;

#[derive(Clone, Debug)]
enum Deed {
    Promote(u64),
    Demote(u64),
    Remove(u64, bool),
    Stop(u64),
    Cut(u64),
    Start(u64),
    Firewall(u64, bool),
    Certificates(u64, bool),
    LoseData(u64),
    Crash,
    CrashBeforeEffects,
    Elect(u64),
    HoldSeats(bool),
    HoldCommits(bool),
    Pump(u8),
    Pass(u8),
}

fn deed(nodes: u64) -> impl Strategy<Value = Deed> {
    let n = 1..=nodes;
    prop_oneof![
        4 => n.clone().prop_map(Deed::Promote),
        4 => n.clone().prop_map(Deed::Demote),
        1 => (n.clone(), any::<bool>()).prop_map(|(n, f)| Deed::Remove(n, f)),
        1 => n.clone().prop_map(Deed::Stop),
        1 => n.clone().prop_map(Deed::Cut),
        3 => n.clone().prop_map(Deed::Start),
        1 => (n.clone(), any::<bool>()).prop_map(|(n, f)| Deed::Firewall(n, f)),
        1 => (n.clone(), any::<bool>()).prop_map(|(n, f)| Deed::Certificates(n, f)),
        1 => n.clone().prop_map(Deed::LoseData),
        1 => Just(Deed::Crash),
        1 => Just(Deed::CrashBeforeEffects),
        1 => n.prop_map(Deed::Elect),
        1 => any::<bool>().prop_map(Deed::HoldSeats),
        1 => any::<bool>().prop_map(Deed::HoldCommits),
        6 => (1u8..20).prop_map(Deed::Pump),
        4 => (1u8..40).prop_map(Deed::Pass),
    ]
}

fn story() -> impl Strategy<Value = (u64, u64, Vec<Deed>)> {
    (1u64..=4, 1u64..=3).prop_flat_map(|(m, w)| (Just(m), Just(w), proptest::collection::vec(deed(m + w), 5..60)))
}

fn play(world: &mut World, deed: &Deed) {
    let exists = |world: &World, n: u64| world.tables.nodes.contains_key(&id(n));
    match *deed {
        Deed::Promote(n) => drop(world.promote(n)),
        Deed::Demote(n) => drop(world.demote(n)),
        Deed::Remove(n, force) => drop(world.remove(n, force)),
        Deed::Stop(n) => world.stop(n),
        Deed::Cut(n) => world.cut(n),
        Deed::Start(n) => world.start(n),
        Deed::Firewall(n, on) => world.machine(n).firewalled = on,
        Deed::Certificates(n, on) => world.machine(n).no_certificates = !on,
        Deed::LoseData(n) => {
            let leads = world.leader == Some(id(n));
            let keeps = |m: &&Member| m.voter && m.node != id(n) && world.machines[&m.node].held == Some(m.raft_id);
            let left = world.tables.members.values().filter(keeps).count();
            if left <= world.voters() / 2 || world.seats_in_flight() > 0 {
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
        Deed::Crash => world.crash(),
        Deed::CrashBeforeEffects => world.crash_before_effects = true,
        Deed::Elect(n) => {
            let voter = exists(world, n) && world.membership(n) == Membership::Voter;
            if voter && world.machines[&id(n)].up && world.has_quorum() {
                world.elect(id(n));
            }
        }
        Deed::HoldSeats(on) => world.hold_seats = on,
        Deed::HoldCommits(on) => world.hold_commits = on,
        Deed::Pump(n) => (0..n).for_each(|_| world.pump_once()),
        Deed::Pass(n) => world.run_for(TICK * u32::from(n)),
    }
}

fn heal(world: &mut World) {
    world.hold_seats = false;
    world.hold_commits = false;
    world.hold_probes = false;
    world.crash_before_effects = false;
    let nodes: Vec<NodeId> = world.machines.keys().copied().collect();
    for node in nodes {
        let machine = world.machines.get_mut(&node).unwrap();
        machine.up = true;
        machine.firewalled = false;
        machine.no_certificates = false;
        machine.no_knocks = false;
        if world.tables.nodes.contains_key(&node) {
            world.apply_directly(Change::SetLiveness { node, liveness: Liveness::Ready });
        }
    }
}

/// What the replicated state holds as everybody's last wish.
fn wishes(world: &World) -> BTreeMap<NodeId, (Role, bool)> {
    world.tables.nodes.values().map(|r| (r.id, (r.desired_role, r.removing.is_some()))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::default())] // PROPTEST_CASES=20000 for a long run

    #[test]
    fn whatever_happens_it_ends_in_the_last_wishes((managers, workers, deeds) in story()) {
        let mut world = World::new(managers, workers);
        for deed in &deeds {
            world.log.push(format!("--- {deed:?}"));
            play(&mut world, deed);
            world.check();
        }
        world.log.push("--- heal".to_owned());
        heal(&mut world);
        world.run_for(secs(2));
        prop_assert!(world.core.is_some(), "somebody leads again: {:#?}", world.log);
        let wanted = wishes(&world);
        world.settle();
        world.run_for(secs(1));
        for (node, (role, removing)) in wanted {
            let record = world.tables.nodes.get(&node);
            prop_assert_eq!(record.is_none(), removing, "{:?}", node);
            let Some(record) = record else { continue };
            prop_assert_eq!((record.desired_role, record.role), (role, role));
            let seat = world.tables.membership_of(node);
            let expected = if role == Role::Manager { Membership::Voter } else { Membership::None };
            prop_assert_eq!(seat, expected, "{}", world.name(node));
        }
    }

    #[test]
    fn a_broken_gate_is_found(seed in 0u64..8) {
        let mut world = World::new(3 + seed % 3, 0);
        world.config.sabotage.skip_quorum_gate = true;
        world.elect(id(1));
        world.run_for(secs(1));
        let n = 3 + seed % 3;
        for silent in 2..2 + (n - 1) / 2 {
            world.cut(silent);
        }
        world.run_for(secs(1));
        world.wish(n, Wish::Role(Role::Worker));
        world.run_for(secs(2));
        prop_assert_eq!(world.broken.is_some(), n % 2 == 1, "{:#?}", world.log);
    }
}
