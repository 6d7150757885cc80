//! Random interleavings of everything that may happen during rotations. `World::apply` checks the invariants of the store at each
//! revision, and ROOT-2.

use std::sync::LazyLock;
use std::time::Duration;

use muster_messages::protocol::{ProposeError, RootsChange};
use muster_messages::*;
use muster_root_rotation::core::Input;
use muster_testkit::company::Company;
use proptest::prelude::*;

use crate::world::*;

static COMPANY: LazyLock<Company> = LazyLock::new(Company::root);

#[derive(Clone, Debug)]
enum Event {
    Rotate {
        automatic: bool,
        compromised: bool,
    },
    Request {
        compromised: bool,
    },
    /// The authority above answers, if it was asked.
    Issued {
        automatic: bool,
    },
    Abort,
    /// The root at this place in the table.
    Activate(usize),
    Retire(usize, bool),
    Revoke(usize),
    NodesAct,
    Acknowledge(usize),
    Renew(usize),
    Down(usize),
    Back(usize),
    Join,
    Restart,
    /// Of proposals; `true`: they are applied all the same.
    Lose(bool),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (any::<bool>(), any::<bool>()).prop_map(|(automatic, compromised)| Event::Rotate { automatic, compromised }),
        1 => any::<bool>().prop_map(|compromised| Event::Request { compromised }),
        2 => any::<bool>().prop_map(|automatic| Event::Issued { automatic }),
        1 => Just(Event::Abort),
        1 => (0..8usize).prop_map(Event::Activate),
        1 => (0..8usize, any::<bool>()).prop_map(|(at, force)| Event::Retire(at, force)),
        1 => (0..8usize).prop_map(Event::Revoke),
        6 => Just(Event::NodesAct),
        3 => (0..8usize).prop_map(Event::Acknowledge),
        3 => (0..8usize).prop_map(Event::Renew),
        2 => (0..8usize).prop_map(Event::Down),
        2 => (0..8usize).prop_map(Event::Back),
        1 => Just(Event::Join),
        2 => Just(Event::Restart),
        2 => any::<bool>().prop_map(Event::Lose),
        4 => (1..7_200_000u64).prop_map(Event::Pass),
    ]
}

fn node_at(world: &World, at: usize) -> NodeId {
    let nodes: Vec<NodeId> = world.log.nodes.keys().copied().collect();
    nodes[at % nodes.len()]
}

fn step(world: &mut World, event: Event, joined: &mut u128) {
    let root = |world: &World, at: usize| {
        let roots: Vec<RootId> = world.log.authorities.roots.keys().copied().collect();
        if roots.is_empty() { RootId([0; 8]) } else { roots[at % roots.len()] }
    };
    let change = match event {
        Event::Rotate { automatic, compromised } => RootsChange::Rotate { automatic, compromised },
        Event::Request { compromised } => RootsChange::Request { compromised },
        Event::Issued { automatic } => {
            let requested = world.log.authorities.requested.clone();
            let answer = requested.map(|requested| COMPANY.sign(&requested.csr_pem)).unwrap_or_default();
            RootsChange::Issued { automatic, answer }
        }
        Event::Abort => RootsChange::Abort,
        Event::Activate(at) => RootsChange::Activate(root(world, at)),
        Event::Retire(at, force) => RootsChange::Retire { root: root(world, at), force },
        Event::Revoke(at) => RootsChange::Revoke(root(world, at)),
        Event::NodesAct => return world.nodes_act(),
        Event::Acknowledge(at) => {
            world.acknowledge(node_at(world, at));
            return;
        }
        Event::Renew(at) => {
            let node = node_at(world, at);
            world.renew(node);
            return world.show();
        }
        Event::Down(at) | Event::Back(at) => {
            let liveness = if matches!(event, Event::Down(_)) { Liveness::Down } else { Liveness::Ready };
            let node = node_at(world, at);
            let n = (1..1_000).find(|n| id(*n) == node).unwrap();
            world.ready(n, liveness);
            return world.show();
        }
        Event::Join => {
            *joined += 1;
            return world.add(200 + *joined, Role::Worker);
        }
        Event::Restart => return world.restart(),
        Event::Lose(applied) => {
            world.hold = true;
            world.pass(Duration::from_millis(200));
            world.show();
            while let Some((step, command)) = world.proposals.pop_front() {
                if applied {
                    let _refused = world.apply(&command);
                }
                world.input(Input::Proposed(step, Err(ProposeError::UnknownOutcome)));
            }
            world.hold = false;
            return;
        }
        Event::Pass(ms) => return world.pass(Duration::from_millis(ms)),
    };
    let asked = world.operator(change);
    // Whatever is refused, the state stays sound.
    drop(asked);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn rotations_come_to_rest_with_all_nodes_on_the_active_root(
        events in proptest::collection::vec(event(), 1..40)
    ) {
        let mut world = World::new(3, 3);
        let mut joined = 0;
        for event in events {
            step(&mut world, event, &mut joined);
        }
        // Everything returns.
        for n in (1..=3).chain(101..=103).chain(201..=200 + joined) {
            world.ready(n, Liveness::Ready);
        }
        world.run();
        world.pass(HOUR);
        world.run();
        prop_assert_eq!(world.behind(), vec![]);
        let roots: Vec<&std::sync::Arc<Authority>> = world.log.authorities.roots.values().collect();
        prop_assert!(roots.iter().all(|root| root.state != AuthorityState::Retiring));
        let waits = |root: &std::sync::Arc<Authority>| root.state == AuthorityState::Prepared && root.automatic;
        prop_assert!(!roots.iter().any(|root| waits(root)));
    }
}
