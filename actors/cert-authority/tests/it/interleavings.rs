//! The invariants hold for every interleaving of requests, role changes, removals and late proposals.
use std::collections::{BTreeMap, BTreeSet};

use crate::world::*;
use muster_cert_authority::bugs::{self, BugInjection};
use muster_cert_authority::core::*;
use muster_messages::protocol::ProposeError;
use muster_messages::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

#[derive(Clone, Debug)]
enum Op {
    Renew(u128),
    Join { node: u128, manager: bool, rekey: bool },
    RepeatJoin(usize),
    CertificateRequest(u128, Role),
    Grant(u128, Role),
    Remove(u128),
    Hold(bool),
    Blind(bool),
    SettleOne,
    LoseAnswer,
    Later,
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Worker), Just(Role::Manager)]
}

fn op() -> impl Strategy<Value = Op> {
    let node = 2u128..6;
    prop_oneof![
        4 => node.clone().prop_map(Op::Renew),
        3 => (node.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(node, manager, rekey)| Op::Join { node, manager, rekey }),
        2 => (0usize..8).prop_map(Op::RepeatJoin),
        1 => (node.clone(), role()).prop_map(|(n, r)| Op::CertificateRequest(n, r)),
        3 => (node.clone(), role()).prop_map(|(n, r)| Op::Grant(n, r)),
        1 => node.prop_map(Op::Remove),
        2 => any::<bool>().prop_map(Op::Hold),
        2 => any::<bool>().prop_map(Op::Blind),
        4 => Just(Op::SettleOne),
        1 => Just(Op::LoseAnswer),
        1 => Just(Op::Later),
    ]
}

/// The expected history, kept beside the system.
#[derive(Default)]
struct Model {
    granted: BTreeMap<(NodeId, Revision), Role>,
    checked: BTreeSet<AskId>,
    joins: Vec<VerifiedJoin>,
}

impl Model {
    fn check(&mut self, world: &World) {
        for record in world.log.nodes.values() {
            self.granted.insert((record.id, record.granted), record.role);
        }
        for (ask, answer) in &world.answers {
            if !self.checked.insert(*ask) || answer.is_err() {
                continue;
            }
            let identity = certificate(answer);
            let (node, role) = identity.node().unwrap();
            let granted = identity.granted.unwrap();
            assert_eq!(self.granted.get(&(node, granted)), Some(&role), "CERT-1");
            let outlived = match (world.log.nodes.get(&node), world.log.blocklist.get(&node)) {
                (Some(record), _) => record.last_not_after >= identity.not_after,
                (None, Some(block)) => block.expires_at > identity.not_after,
                (None, None) => false,
            };
            assert!(outlived, "CERT-2");
        }
        let names: BTreeSet<_> = world.log.nodes.values().map(|n| &n.name).collect();
        assert_eq!(names.len(), world.log.nodes.len());
    }
}

fn run_op(world: &mut World, model: &mut Model, op: Op) {
    let exists = |world: &World, n| world.log.nodes.contains_key(&id(n));
    match op {
        Op::Renew(n) => {
            let cert_request = world.renewal(n);
            world.ask(cert_request);
        }
        Op::Join { node, manager, rekey } => {
            let secret = if manager { MANAGER } else { WORKER };
            let request = RequestId(100 + model.joins.len() as u128);
            let name = "host".parse().unwrap();
            let serial = world.newest(node).map_or_else(|| "00".to_owned(), |newest| newest.serial.clone());
            let rekey = rekey.then(|| Box::new(presented(node, Role::Worker, &serial)));
            let cert_request = VerifiedJoin { request, name, rekey, ..joiner(node, secret) };
            model.joins.push(cert_request.clone());
            world.ask(CertificateRequest::Join(Box::new(cert_request)));
        }
        Op::RepeatJoin(n) => {
            if let Some(cert_request) = model.joins.get(n).cloned() {
                world.ask(CertificateRequest::Join(Box::new(cert_request)));
            }
        }
        Op::CertificateRequest(n, role) if exists(world, n) => {
            world.change(Change::SetDesiredRole { node: id(n), role })
        }
        Op::Grant(n, role) if exists(world, n) => world.change(Change::GrantRole { node: id(n), role }),
        Op::Remove(n) if exists(world, n) => world.remove(n),
        Op::CertificateRequest(..) | Op::Grant(..) | Op::Remove(_) => {}
        Op::Hold(hold) => world.hold = hold,
        Op::Blind(blind) => {
            world.blind = blind;
            world.show();
        }
        Op::SettleOne => world.settle_one(),
        Op::LoseAnswer => {
            // Applied, but the answer is lost.
            if let Some((step, command)) = world.proposals.pop_front() {
                let at = world.log.revision.next();
                let _refused = muster_store::apply(&mut world.log, at, &command);
                world.input(Input::Proposed(step, Err(ProposeError::UnknownOutcome)));
            }
        }
        Op::Later => {
            world.now = world.alarm.unwrap_or(world.now);
            world.input(Input::Woke);
        }
    }
}

fn run(ops: Vec<Op>) {
    let (mut world, mut model) = (World::new(), Model::default());
    model.check(&world);
    for op in ops {
        run_op(&mut world, &mut model, op);
        model.check(&world);
    }
    // Clear the faults: every request ends.
    (world.hold, world.blind) = (false, false);
    world.show();
    world.settle();
    model.check(&world);
    assert_eq!(world.core.pending().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn invariants_hold_under_any_interleaving(ops in proptest::collection::vec(op(), 1..60)) {
        run(ops);
    }
}

#[test]
fn model_detects_signing_of_desired_roles() {
    let mut runner = TestRunner::deterministic();
    bugs::set(Some(BugInjection::SignDesiredRole));
    let found = runner.run(&proptest::collection::vec(op(), 1..60), |ops| {
        run(ops);
        Ok(())
    });
    bugs::set(None);
    assert!(found.unwrap_err().to_string().contains("CERT-1"));
}
