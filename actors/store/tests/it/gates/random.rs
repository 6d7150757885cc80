//! Random histories of runners and participants with arbitrary proposals.

use muster_messages::*;
use muster_store::apply;
use muster_store::invariants::{check, check_step};
use proptest::prelude::*;

use super::records::{chain, run};
use super::{Gated, NAME, definition, key, object, release, triple};
use crate::world::*;

fn any_change() -> impl Strategy<Value = ReconcilerChange> {
    use ReconcilerChange as R;
    let of = || prop_oneof![Just("1.0.0"), Just("2.0.0"), Just("3.0.0")];
    let member = || (prop_oneof![Just("a"), Just("b")], 1..4u128).prop_map(|(member, n)| key(member, n));
    let term = || (1..60u64).prop_map(FencingToken);
    let step = prop_oneof![Just(GateStep::Work), Just(GateStep::Restrict), Just(GateStep::Complete)];
    let name = || NAME.to_owned();
    prop_oneof![
        3 => (of(), of(), any::<bool>()).prop_map(|(of, floor, replace)| {
            let lower = if triple(floor) > triple(of) { of } else { floor };
            R::Define { definition: Box::new(definition(of, lower)), replace }
        }),
        // From `DEFINITIONS_LEVEL` on; refused below.
        2 => (of(), 0..4usize, any::<bool>(), proptest::bool::weighted(0.1)).prop_map(|(of, steps, or_later, other)| {
            let all = if other { ["a", "b=other", "c"] } else { ["a", "b", "c"] };
            let mut definition = chain(of, &all[..steps.min(3)]);
            if or_later {
                definition.options.applies = Applies::OrLater;
                definition.digest += "-or-later";
            }
            R::Define { definition: Box::new(definition), replace: true }
        }),
        6 => (of(), term(), prop_oneof![Just("a"), Just("b"), Just("c")]).prop_map(move |(of, term, step)| R::StepDone {
            reconciler: name(), release: triple(of), digest: String::new(), defined: Revision(0), term, step: step.to_owned()
        }),
        1 => (term(), 0..9u64).prop_map(|(term, of_term)| R::RecordRun(Box::new(run(term, of_term, "out")))),
        6 => (member(), of(), proptest::option::of(of()), term()).prop_map(|(key, of, needs, token)| {
            let needs = needs.map(|of| (NAME.to_owned(), triple(of))).into_iter().collect();
            let (phase, since, revision) = (ParticipantPhase::Serving, WallTime(0), Revision(0));
            let token = Some(token);
            R::Announce(Box::new(Participant { key, node: None, release: release(of), needs, phase, token, since, revision }))
        }),
        6 => member().prop_map(R::Admit),
        1 => member().prop_map(R::Drain),
        1 => member().prop_map(R::Leave),
        9 => (of(), term(), 0..9u64, step).prop_map(move |(of, term, epoch, step)| R::Step {
            reconciler: name(), release: triple(of), digest: String::new(), term, epoch, step
        }),
        2 => (of(), term(), any::<bool>()).prop_map(move |(of, term, there)| R::Apply {
            reconciler: name(), release: triple(of), digest: String::new(), term, key: object("t").key, object: there.then(|| Box::new(object("t"))),
        }),
        1 => of().prop_map(move |of| R::ForceFloor { reconciler: name(), floor: triple(of) }),
        1 => (1..9u64).prop_map(move |epoch| R::Repair { reconciler: name(), epoch }),
        1 => Just(R::DeleteGate { reconciler: name() }),
        1 => Just(R::Forget { reconciler: name() }),
    ]
}

/// Objects in two waves, the second one after a condition; runners that name any wave, and others who write and delete objects.
fn any_change_of_waves() -> impl Strategy<Value = ReconcilerChange> {
    use ReconcilerChange as R;
    let of = || prop_oneof![Just("1.0.0"), Just("2.0.0")];
    let named = || prop_oneof![Just("t"), Just("u"), Just("unlisted")];
    prop_oneof![
        2 => (of(), 0..2u32, any::<bool>()).prop_map(|(of, wave, downgrade)| {
            let definition = Definition { downgrade, ..waves(of, wave) };
            R::Define { definition: Box::new(definition), replace: true }
        }),
        6 => (of(), (1..60u64).prop_map(FencingToken), named(), 0..4u32, any::<bool>()).prop_map(|(of, term, named, wave, there)| {
            let object = DesiredObject { wave, ..object(named) };
            let (key, object) = (object.key.clone(), there.then(|| Box::new(object)));
            R::Apply { reconciler: NAME.to_owned(), release: triple(of), digest: String::new(), term, key, object }
        }),
        3 => any::<bool>().prop_map(|ready| {
            R::PutObject(Box::new(DesiredObject { body: format!("{{\"ready\":{ready}}}"), ..object("condition") }))
        }),
        1 => prop_oneof![Just("condition"), Just("u")].prop_map(|name| R::DeleteObject(object(name).key)),
    ]
}

/// `t` in wave 0, `u` in wave 1, and a condition after this wave.
fn waves(of: &str, wave: u32) -> Definition {
    let (path, equals) = ("/ready".to_owned(), "true".to_owned());
    let wave_conditions = vec![WaveCondition { wave, key: object("condition").key, path, equals }];
    let action = Action::Objects(vec![object("t"), DesiredObject { wave: 1, ..object("u") }]);
    let options = DefinitionOptions { wave_conditions, ..DefinitionOptions::default() };
    Definition { action, options, digest: format!("waves-of-{of}-{wave}"), ..definition(of, "1.0.0") }
}

#[derive(Clone, Debug)]
enum Proposal {
    Reconciler(ReconcilerChange),
    Lease(Change),
}

fn proposal(change: impl Strategy<Value = ReconcilerChange>) -> impl Strategy<Value = Proposal> {
    let lease = prop_oneof![
        Just(runner_lease(NAME)),
        (prop_oneof![Just("a"), Just("b")], 1..4u128).prop_map(|(member, n)| key(member, n).lease()),
    ];
    let acquired = (lease.clone(), 1..4u128).prop_map(|(key, n)| {
        // A member's lease is mostly acquired by its own session.
        let own = key.name.rsplit_once('.').and_then(|(_, hex)| u128::from_str_radix(hex, 16).ok()).unwrap_or(n);
        let holder = format!("h{own}");
        Change::AcquireLease { key, holder, session: SessionId(own), duration_ms: 1000, uid: Uid(2) }
    });
    prop_oneof![
        3 => change.prop_map(Proposal::Reconciler),
        1 => acquired.prop_map(Proposal::Lease),
        1 => lease.prop_map(|key| Proposal::Lease(Change::ExpireLease(key))),
    ]
}

/// Properties at every revision of a history of arbitrary proposals by runners and participants; to make progress, the
/// terms, tokens and epochs that they name are mostly the current ones.
fn holds_throughout(level: u32, history: Vec<(Proposal, bool)>) -> Result<(), TestCaseError> {
    let mut world = Gated(World::founded_at(level));
    let mut newest_writer = FencingToken(0);
    for (proposal, true_to_life) in history {
        let tables = &world.0.tables;
        let token = |key: &ObjectKey| tables.objects.get(key).and_then(|o| o.lease()).map(|l| l.holding.token);
        let proposal = match proposal {
            Proposal::Lease(change) => change,
            Proposal::Reconciler(mut change) => {
                let epoch_now = tables.reconcilers.epoch_of(NAME);
                let digest_of = |release: &Triple| {
                    let key = DefinitionKey { reconciler: NAME.to_owned(), release: *release };
                    tables.reconcilers.definitions.get(&key).map(|d| d.digest.clone()).unwrap_or_default()
                };
                match &mut change {
                    ReconcilerChange::Announce(p) if true_to_life => p.token = token(&p.key.lease()).or(p.token),
                    ReconcilerChange::Step { release, digest, term, epoch, .. } if true_to_life => {
                        (*term, *epoch) = (token(&runner_lease(NAME)).unwrap_or(*term), epoch_now);
                        *digest = digest_of(release);
                    }
                    ReconcilerChange::RecordRun(run) if true_to_life => {
                        run.term = token(&runner_lease(NAME)).unwrap_or(run.term);
                    }
                    ReconcilerChange::StepDone { release, digest, defined, term, .. } if true_to_life => {
                        (*term, *digest) = (token(&runner_lease(NAME)).unwrap_or(*term), digest_of(release));
                        let key = DefinitionKey { reconciler: NAME.to_owned(), release: *release };
                        *defined = tables.reconcilers.definitions.get(&key).map(|d| d.revision).unwrap_or_default();
                    }
                    ReconcilerChange::Apply { release, digest, term, .. } if true_to_life => {
                        (*term, *digest) = (token(&runner_lease(NAME)).unwrap_or(*term), digest_of(release));
                    }
                    _ => {}
                }
                Change::Reconciler(change)
            }
        };
        let before = world.0.tables.clone();
        let at = world.0.next();
        let applied = apply(&mut world.0.tables, at, &command([proposal.clone()])).is_ok();
        if let (true, Change::Reconciler(ReconcilerChange::Apply { term, .. })) = (applied, &proposal) {
            prop_assert!(*term >= newest_writer, "a term that was superseded wrote an object");
            newest_writer = *term;
        }
        if let (true, Change::Reconciler(ReconcilerChange::Apply { release, key, object: None, .. })) =
            (applied, &proposal)
            && before.reconcilers.objects.contains_key(key)
            && !world.all().objects.contains_key(key)
        {
            let definition = DefinitionKey { reconciler: NAME.to_owned(), release: *release };
            let unmet = before.reconcilers.definitions[&definition].unmet_before(u32::MAX, &before.reconcilers.objects);
            prop_assert_eq!(unmet, None, "an object was deleted before the last wave was done");
        }
        let gates = |tables: &Tables| tables.reconcilers.gates.get(NAME).cloned();
        if let (None, Some(gate)) = (gates(&before), gates(&world.0.tables)) {
            prop_assert_eq!(gate.now.state, GateState::Done, "a gate begins with a success");
        }
        if let Some(record) = world.0.tables.records.chains.get(NAME) {
            let names: std::collections::BTreeSet<&str> = record.steps.iter().map(|step| step.name.as_str()).collect();
            prop_assert_eq!(names.len(), record.steps.len(), "a step was recorded twice");
        }
        prop_assert_eq!(check(&world.0.tables), Ok(()));
        prop_assert_eq!(check_step(&before, &world.0.tables), Ok(()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn gate_invariants_hold_for_arbitrary_proposals(
        history in proptest::collection::vec((proposal(any_change()), proptest::bool::weighted(0.9)), 1..80)
    ) {
        holds_throughout(RECONCILERS_LEVEL, history)?;
    }

    #[test]
    fn chains_keep_the_invariants_for_arbitrary_proposals(
        history in proptest::collection::vec((proposal(any_change()), proptest::bool::weighted(0.9)), 1..80)
    ) {
        holds_throughout(DEFINITIONS_LEVEL, history)?;
    }

    #[test]
    fn wave_conditions_hold_for_arbitrary_proposals(
        history in proptest::collection::vec(
            (proposal(prop_oneof![any_change(), any_change_of_waves()]), proptest::bool::weighted(0.9)), 1..80
        )
    ) {
        holds_throughout(DEFINITIONS_LEVEL, history)?;
    }
}
