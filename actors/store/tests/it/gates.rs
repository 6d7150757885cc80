//! Release gates: who may serve, who may run, and in which order the log admits them.

use std::collections::BTreeMap;

use muster_messages::*;
use muster_store::invariants::check_step;

use crate::world::*;

mod attacked;
mod by_hand;
mod random;
pub mod records;
pub mod runs;
mod terms;
mod waits;

const NAME: &str = "schema";
const SCOPE: &str = "db";

/// As a record has it: of an earlier build, with a suffix.
fn release(text: &str) -> Release {
    serde_json::from_value(text.into()).unwrap()
}
fn triple(text: &str) -> Triple {
    text.parse().unwrap()
}

/// A definition that applies one object.
fn definition(of: &str, floor: &str) -> Definition {
    let usual = Definition::new(NAME, release(of), SCOPE, triple(floor), Action::Objects(vec![object("t")]));
    Definition { every_ms: None, run_timeout_ms: 60_000, digest: format!("digest-of-{of}-{floor}"), ..usual }
}

fn object(name: &str) -> DesiredObject {
    let key = ManagedKey { kind: "table".to_owned(), namespace: "default".to_owned(), name: name.to_owned() };
    DesiredObject { key, labels: BTreeMap::new(), body: r#"{"rows":1}"#.to_owned(), wave: 0 }
}

fn change(change: ReconcilerChange) -> Command {
    command([Change::Reconciler(change)])
}

fn key(member: &str, incarnation: u128) -> ParticipantKey {
    ParticipantKey { scope: SCOPE.to_owned(), member: member.to_owned(), incarnation: SessionId(incarnation) }
}

/// A world with reconcilers, and the changes that this file proposes.
struct Gated(World);

impl Gated {
    fn new() -> Self {
        let mut world = World::founded();
        world.must(command([Change::SetFeatureLevel(RECONCILERS_LEVEL)]));
        Self(world)
    }
    fn all(&self) -> &Reconcilers {
        &self.0.tables.reconcilers
    }
    fn must(&mut self, what: ReconcilerChange) {
        let before = self.0.tables.clone();
        self.0.must(change(what));
        check_step(&before, &self.0.tables).unwrap();
    }
    fn refused(&mut self, what: ReconcilerChange) -> CommandRefusal {
        self.0.refused(change(what))
    }
    fn define(&mut self, of: &str, floor: &str) -> Definition {
        let definition = definition(of, floor);
        self.must(ReconcilerChange::Define { definition: Box::new(definition.clone()), replace: false });
        definition
    }
    /// Acquires the runner's lease: from now on the term belongs to it.
    fn runs(&mut self, node: &str, session: u128) -> FencingToken {
        self.acquire(&runner_lease(NAME), node, session)
    }
    fn acquire(&mut self, key: &ObjectKey, holder: &str, session: u128) -> FencingToken {
        let (key, holder, session) = (key.clone(), holder.to_owned(), SessionId(session));
        let lease = Change::AcquireLease { key: key.clone(), holder, session, duration_ms: 15_000, uid: Uid(1) };
        self.0.must(command([lease]));
        self.0.tables.objects[&key].lease().unwrap().holding.token
    }
    /// The lease of an ended runner expires.
    fn expires(&mut self, key: ObjectKey) {
        self.0.must(command([Change::ExpireLease(key)]));
    }
    fn step(&self, of: &str, term: FencingToken, step: GateStep) -> ReconcilerChange {
        let (reconciler, epoch) = (NAME.to_owned(), self.all().epoch_of(NAME));
        ReconcilerChange::Step { reconciler, release: triple(of), digest: self.digest(of), term, epoch, step }
    }
    /// Of the definition of this release.
    fn digest(&self, of: &str) -> String {
        let key = DefinitionKey { reconciler: NAME.to_owned(), release: triple(of) };
        self.all().definitions.get(&key).map(|d| d.digest.clone()).unwrap_or_default()
    }
    fn steps(&mut self, of: &str, term: FencingToken, step: GateStep) {
        let step = self.step(of, term, step);
        self.must(step);
    }
    /// Applies a first definition: `(done, of, floor)`.
    fn applied(&mut self, of: &str, floor: &str) -> FencingToken {
        self.define(of, floor);
        let term = self.runs("n1", 1);
        self.steps(of, term, GateStep::Complete);
        term
    }
    fn announce(&mut self, member: &str, incarnation: u128, of: &str, needs: &[(&str, &str)]) -> ParticipantKey {
        let key = key(member, incarnation);
        let token = (incarnation > 0).then(|| self.acquire(&key.lease(), member, incarnation));
        let participant = Participant {
            key: key.clone(),
            node: None,
            release: release(of),
            needs: needs.iter().map(|(name, of)| ((*name).to_owned(), triple(of))).collect(),
            phase: ParticipantPhase::Announced,
            token,
            since: WallTime(0),
            revision: Revision(0),
        };
        self.must(ReconcilerChange::Announce(Box::new(participant)));
        key
    }
    fn serve(&mut self, member: &str, incarnation: u128, of: &str) -> ParticipantKey {
        let key = self.announce(member, incarnation, of, &[]);
        self.must(ReconcilerChange::Admit(key.clone()));
        key
    }
    fn phase(&self, key: &ParticipantKey) -> Option<ParticipantPhase> {
        self.all().participants.get(key).map(|p| p.phase)
    }
    fn gate(&self) -> (GateState, String, String) {
        let now = &self.all().gates[NAME].now;
        (now.state, now.reconciled.to_string(), now.floor.to_string())
    }
    fn way(&self, of: &str) -> Result<GatePath, Hold> {
        let key = DefinitionKey { reconciler: NAME.to_owned(), release: triple(of) };
        self.0.tables.way(&self.all().definitions[&key])
    }
    fn apply(&self, of: &str, term: FencingToken, name: &str, there: bool) -> ReconcilerChange {
        ReconcilerChange::Apply {
            reconciler: NAME.to_owned(),
            release: triple(of),
            digest: self.digest(of),
            term,
            key: object(name).key,
            object: there.then(|| Box::new(object(name))),
        }
    }
}

/// A state with an entry in every table.
pub fn full() -> Tables {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    world.serve("m1", 7, "1.0.0");
    world.announce("m2", 0, "1.1.0-rc.1", &[(NAME, "2.0.0")]);
    let write = world.apply("1.0.0", term, "t", true);
    world.must(write);
    world.define("1.1.0", "1.0.0");
    world.steps("1.1.0", term, GateStep::Work);
    world.must(ReconcilerChange::Pause { reconciler: NAME.to_owned(), paused: true });
    let progress = Progress {
        reconciler: NAME.to_owned(),
        term,
        node: id(1),
        release: release("1.1.0"),
        phase: ReconcilerPhase::Running.into(),
        reason: PhaseReason::Unneeded.into(),
        message: String::new(),
        since: T0,
        attempt: 1,
        consecutive_failures: 0,
        last_error: None,
        next_retry_at: Some(T0),
        wave: Some((1, 2)),
        output: String::new(),
    };
    world.must(ReconcilerChange::Progress(Box::new(progress)));
    world.0.tables
}

/// The nine orderings of a release and of a floor, against a gate of 2.0.0 with floor 2.0.0.
#[test]
fn downgrade_or_higher_floor_requires_restriction() {
    use GatePath::{Open, Reached, Restrict};
    for (of, floor, path, between) in [
        ("3.0.0", "3.0.0", Restrict, ("2.0.0", "3.0.0")),
        ("3.0.0", "2.0.0", Open, ("2.0.0", "2.0.0")),
        ("3.0.0", "1.0.0", Open, ("2.0.0", "2.0.0")),
        ("2.0.0", "3.0.0", Restrict, ("2.0.0", "3.0.0")),
        ("2.0.0", "2.0.0", Reached, ("2.0.0", "2.0.0")),
        ("2.0.0", "1.0.0", Open, ("2.0.0", "2.0.0")),
        ("1.0.0", "3.0.0", Restrict, ("1.0.0", "3.0.0")),
        ("1.0.0", "2.0.0", Restrict, ("1.0.0", "2.0.0")),
        ("1.0.0", "1.0.0", Restrict, ("1.0.0", "2.0.0")),
    ] {
        let mut world = Gated::new();
        world.applied("2.0.0", "2.0.0");
        let gate = world.all().gates[NAME].clone();
        let digest = if (of, floor) == ("2.0.0", "2.0.0") { gate.now.digest.clone() } else { "another".to_owned() };
        let target = GateTarget { release: release(of), digest, floor: triple(floor) };
        assert_eq!(gate.path_to(&target), path, "{of} {floor}");
        let (reconciled, highest) = gate.restricted_to(&target);
        assert_eq!((reconciled.to_string(), highest.to_string()), (between.0.to_owned(), between.1.to_owned()));
    }
}

#[test]
fn participant_waits_for_first_success_release_and_floor() {
    let mut world = Gated::new();
    let waits = world.announce("m", 1, "2.0.0", &[(NAME, "2.0.0")]);
    let no_gate = NotAdmitted::NoGate { reconciler: NAME.to_owned() };
    assert_eq!(world.refused(ReconcilerChange::Admit(waits.clone())), CommandRefusal::NotAdmitted(no_gate));
    let term = world.applied("1.0.0", "1.0.0");
    let refusal = world.refused(ReconcilerChange::Admit(waits.clone()));
    assert!(matches!(refusal, CommandRefusal::NotAdmitted(NotAdmitted::ReconcilerTooOld { .. })), "{refusal:?}");
    world.define("2.0.0", "1.5.0");
    world.steps("2.0.0", term, GateStep::Restrict);
    assert!(
        matches!(world.refused(ReconcilerChange::Admit(waits.clone())), CommandRefusal::NotAdmitted(_)),
        "a working gate admits none"
    );
    world.steps("2.0.0", term, GateStep::Complete);
    world.must(ReconcilerChange::Admit(waits.clone()));
    world.must(ReconcilerChange::Admit(waits));
    let late = world.announce("late", 2, "1.0.0", &[]);
    let refusal = world.refused(ReconcilerChange::Admit(late));
    assert!(matches!(refusal, CommandRefusal::NotAdmitted(NotAdmitted::BelowFloor { .. })), "{refusal:?}");
}

/// The race that reading and then writing cannot win: the second one in the log sees the first.
#[test]
fn admission_and_restriction_exclude_each_other() {
    let mut first = Gated::new();
    let term = first.applied("1.0.0", "1.0.0");
    first.define("2.0.0", "2.0.0");
    let old = first.announce("old", 1, "1.0.0", &[]);
    let mut second = Gated(first.0.clone());

    first.must(ReconcilerChange::Admit(old.clone()));
    let restrict = first.step("2.0.0", term, GateStep::Restrict);
    let CommandRefusal::BlockedByMembers { blockers, .. } = first.refused(restrict) else { panic!("it serves") };
    assert_eq!((blockers.len(), blockers[0].member.as_str()), (1, "old"));
    assert_eq!(first.gate(), (GateState::Done, "1.0.0".to_owned(), "1.0.0".to_owned()));

    second.steps("2.0.0", term, GateStep::Restrict);
    assert_eq!(second.gate(), (GateState::Working, "1.0.0".to_owned(), "2.0.0".to_owned()));
    let refusal = second.refused(ReconcilerChange::Admit(old));
    assert!(matches!(refusal, CommandRefusal::NotAdmitted(NotAdmitted::BelowFloor { .. })), "{refusal:?}");
}

#[test]
fn announced_participant_blocks_nothing_draining_one_does() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    world.define("2.0.0", "2.0.0");
    world.announce("waits", 1, "1.0.0", &[]);
    let drains = world.serve("drains", 2, "1.0.0");
    world.must(ReconcilerChange::Drain(drains.clone()));
    let restrict = world.step("2.0.0", term, GateStep::Restrict);
    assert!(matches!(world.refused(restrict.clone()), CommandRefusal::BlockedByMembers { .. }));
    world.must(ReconcilerChange::Leave(drains));
    world.must(restrict);
}

#[test]
fn downgrade_waits_for_participants_that_need_more() {
    let mut world = Gated::new();
    let term = world.applied("2.0.0", "1.0.0");
    let needy = world.announce("needy", 1, "2.0.0", &[(NAME, "2.0.0")]);
    world.must(ReconcilerChange::Admit(needy.clone()));
    world.define("1.0.0", "1.0.0");
    let restrict = world.step("1.0.0", term, GateStep::Restrict);
    let CommandRefusal::BlockedByMembers { blockers, .. } = world.refused(restrict) else { panic!("it needs 2.0.0") };
    assert!(blockers[0].why.contains("needs schema of 2.0.0"), "{blockers:?}");
    world.must(ReconcilerChange::Leave(needy));
    world.steps("1.0.0", term, GateStep::Restrict);
    world.steps("1.0.0", term, GateStep::Complete);
    assert_eq!(world.gate(), (GateState::Done, "1.0.0".to_owned(), "1.0.0".to_owned()));
}

#[test]
fn participant_record_is_deleted_with_its_lease() {
    for how in 0..4 {
        let mut world = Gated::new();
        let key = world.serve("m", 5, "1.0.0");
        let lease = key.lease();
        let token = world.0.tables.objects[&lease].lease().unwrap().holding.token;
        match how {
            0 => world.expires(lease.clone()),
            1 => world.0.must(command([Change::ReleaseLease { key: lease.clone(), session: SessionId(5), token }])),
            2 => world.0.must(command([Change::DeleteObject { key: lease.clone(), force: true }])),
            _ => {
                world.acquire(&lease, "m", 6); // another process under its name
            }
        }
        assert_eq!(world.phase(&key), None, "{how}");
        assert_eq!(world.0.tables.objects.contains_key(&lease), how == 3, "{how}: the lease leaves nothing behind");
        let refusal = world.refused(ReconcilerChange::Admit(key));
        assert!(matches!(refusal, CommandRefusal::NotFound { .. }), "{refusal:?}");
    }
}

#[test]
fn restarted_member_counts_twice_until_its_first_start_ends() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    world.define("2.0.0", "2.0.0");
    let before = world.serve("m", 1, "1.0.0");
    world.serve("m", 2, "2.0.0");
    let restrict = world.step("2.0.0", term, GateStep::Restrict);
    assert!(
        matches!(world.refused(restrict.clone()), CommandRefusal::BlockedByMembers { .. }),
        "the end of the first one is not confirmed"
    );
    world.expires(before.lease());
    world.must(restrict);
}

#[test]
fn external_participant_blocks_until_its_end_is_confirmed() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    world.define("2.0.0", "2.0.0");
    let external = world.serve("legacy", 0, "1.0.0");
    let restrict = world.step("2.0.0", term, GateStep::Restrict);
    let CommandRefusal::BlockedByMembers { blockers, .. } = world.refused(restrict.clone()) else {
        panic!("it serves")
    };
    assert!(blockers[0].external);
    world.must(ReconcilerChange::Leave(external));
    world.must(restrict);
}

#[test]
fn runner_writes_nothing_after_its_term() {
    let mut world = Gated::new();
    let old = world.applied("1.0.0", "1.0.0");
    world.define("1.1.0", "1.0.0");
    world.steps("1.1.0", old, GateStep::Work);
    world.expires(runner_lease(NAME));
    let new = world.runs("n2", 2);
    let progress = Progress { term: old, ..(*full().reconcilers.progress[NAME]).clone() };
    for late in [
        world.step("1.1.0", old, GateStep::Work),
        world.step("1.1.0", old, GateStep::Complete),
        world.apply("1.1.0", old, "t", true),
        ReconcilerChange::Progress(Box::new(progress)),
    ] {
        assert!(matches!(world.refused(late), CommandRefusal::Stale { .. }));
    }
    // Half-way at the same release: no participant is waited for again.
    assert_eq!(world.way("1.1.0"), Ok(GatePath::Open));
    world.steps("1.1.0", new, GateStep::Work);
    let write = world.apply("1.1.0", new, "t", true);
    world.must(write);
    world.steps("1.1.0", new, GateStep::Complete);
    assert_eq!(world.gate(), (GateState::Done, "1.1.0".to_owned(), "1.0.0".to_owned()));
}

#[test]
fn repeated_or_outdated_steps_change_nothing() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    world.define("1.1.0", "1.0.0");
    let begin = world.step("1.1.0", term, GateStep::Work);
    world.must(begin.clone());
    let gate = world.all().gates[NAME].clone();
    world.must(begin);
    assert_eq!(world.all().gates[NAME], gate, "the answer was lost, but the step was applied");
    world.must(ReconcilerChange::ForceFloor { reconciler: NAME.to_owned(), floor: triple("1.0.0") });
    let ReconcilerChange::Step { reconciler, release, digest, term, step, .. } =
        world.step("1.1.0", term, GateStep::Complete)
    else {
        unreachable!()
    };
    let late = ReconcilerChange::Step { reconciler, release, digest, term, epoch: gate.now.epoch, step };
    assert!(matches!(world.refused(late), CommandRefusal::Stale { .. }), "the gate has moved since it was read");
}

#[test]
fn first_gate_waits_for_participants_below_the_floor() {
    let mut world = Gated::new();
    world.define("1.0.0", "1.0.0");
    let old = world.serve("old", 1, "0.9.0");
    let term = world.runs("n1", 9);
    let write = world.apply("1.0.0", term, "t", true);
    assert!(matches!(world.refused(write.clone()), CommandRefusal::Stale { .. }));
    let complete = world.step("1.0.0", term, GateStep::Complete);
    assert!(matches!(world.refused(complete.clone()), CommandRefusal::BlockedByMembers { .. }));
    assert!(world.all().gates.is_empty());
    world.must(ReconcilerChange::Leave(old));
    world.must(write);
    assert!(world.all().gates.is_empty());
    world.must(complete);
    assert_eq!(world.gate(), (GateState::Done, "1.0.0".to_owned(), "1.0.0".to_owned()));
}

#[test]
fn only_objects_that_the_gate_leads_to_are_written() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    world.define("2.0.0", "2.0.0");
    let early = world.apply("2.0.0", term, "t", true);
    assert!(matches!(world.refused(early.clone()), CommandRefusal::Stale { .. }), "nothing is restricted yet");
    world.steps("2.0.0", term, GateStep::Restrict);
    world.must(early);
    let old = world.apply("1.0.0", term, "t", false);
    assert!(matches!(world.refused(old), CommandRefusal::Stale { .. }), "the gate leads elsewhere");
}

#[test]
fn object_keeps_its_owner_until_the_reconciler_is_forgotten() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    world.must(ReconcilerChange::PutObject(Box::new(object("by-hand"))));
    let taken = world.apply("1.0.0", term, "by-hand", true);
    assert!(matches!(world.refused(taken), CommandRefusal::Exists { .. }));
    let write = world.apply("1.0.0", term, "t", true);
    world.must(write.clone());
    let made = world.all().objects[&object("t").key].clone();
    assert_eq!((made.owner.as_deref(), made.labels[RECONCILER_LABEL].as_str(), made.term), (Some(NAME), NAME, term));
    world.must(write.clone());
    assert_eq!(world.all().objects[&object("t").key], made, "nothing changed");
    let drifted = DesiredObject { body: "{}".to_owned(), ..object("t") };
    world.must(ReconcilerChange::PutObject(Box::new(drifted)));
    assert_eq!(world.all().objects[&object("t").key].owner.as_deref(), Some(NAME));
    world.must(write);
    assert_eq!(world.all().objects[&object("t").key].body, made.body);
    world.must(ReconcilerChange::Forget { reconciler: NAME.to_owned() });
    let orphan = &world.all().objects[&object("t").key];
    assert_eq!((orphan.owner.as_deref(), orphan.labels.len()), (None, 0));
}

#[test]
fn holds_name_the_required_operator_action() {
    let mut world = Gated::new();
    let term = world.applied("2.0.0", "1.0.0");
    let put = |world: &mut Gated, of: &str, edit: &dyn Fn(&mut Definition)| {
        let mut definition = definition(of, "1.0.0");
        edit(&mut definition);
        world.must(ReconcilerChange::Define { definition: Box::new(definition), replace: true });
    };
    put(&mut world, "1.0.0", &|d| d.downgrade = false);
    assert!(matches!(world.way("1.0.0"), Err(Hold::DowngradeDenied { .. })));
    put(&mut world, "4.0.0", &|d| d.from_at_least = Some(triple("3.0.0")));
    assert!(matches!(world.way("4.0.0"), Err(Hold::SkipsReleases { .. })));
    put(&mut world, "3.0.0", &|d| d.depends_on = vec!["base".to_owned()]);
    assert!(matches!(world.way("3.0.0"), Err(Hold::Dependency { .. })));
    put(&mut world, "2.0.0", &|d| d.digest = "another build".to_owned());
    assert!(matches!(world.way("2.0.0"), Err(Hold::DigestMismatch { .. })));
    let retry = |digest: &str| ReconcilerChange::Retry { reconciler: NAME.to_owned(), digest: Some(digest.to_owned()) };
    world.must(retry("another build"));
    assert_eq!(world.way("2.0.0"), Ok(GatePath::Open));
    let manual = |d: &mut Definition| {
        (d.finalize, d.floor, d.digest) = (Finalize::Manual, triple("2.5.0"), "manual".to_owned());
    };
    put(&mut world, "2.5.0", &manual);
    assert!(matches!(world.way("2.5.0"), Err(Hold::ReadyToFinalize { .. })));
    let restrict = world.step("2.5.0", term, GateStep::Restrict);
    assert!(matches!(world.refused(restrict.clone()), CommandRefusal::Held(Hold::ReadyToFinalize { .. })));
    world.must(ReconcilerChange::Finalize { reconciler: NAME.to_owned(), digest: "manual".to_owned() });
    world.must(ReconcilerChange::Pause { reconciler: NAME.to_owned(), paused: true });
    assert!(matches!(world.refused(restrict.clone()), CommandRefusal::Held(Hold::Paused { .. })));
    world.must(ReconcilerChange::Pause { reconciler: NAME.to_owned(), paused: false });
    world.must(restrict);
}

#[test]
fn changed_definition_is_refused_without_replace() {
    let mut world = Gated::new();
    world.define("1.0.0", "1.0.0");
    let other = Definition { digest: "other".to_owned(), ..definition("1.0.0+b", "1.0.0") };
    let define = |replace| ReconcilerChange::Define { definition: Box::new(other.clone()), replace };
    assert!(matches!(world.refused(define(false)), CommandRefusal::Exists { .. }));
    world.must(define(true));
    let elsewhere = Definition { scope: "elsewhere".to_owned(), ..definition("2.0.0", "1.0.0") };
    let define = ReconcilerChange::Define { definition: Box::new(elsewhere), replace: true };
    assert!(matches!(world.refused(define), CommandRefusal::Stale { .. }), "a gate belongs to one scope");
}

#[test]
fn unreadable_gate_admits_and_runs_nothing_until_repaired() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    world.define("1.1.0", "1.0.0");
    world.steps("1.1.0", term, GateStep::Work);
    let waits = world.announce("m", 1, "1.1.0", &[]);
    let mut gate = (*world.all().gates[NAME]).clone();
    gate.format = GATE_FORMAT + 1;
    world.0.tables.reconcilers.gates.insert(NAME.to_owned(), gate.into());
    let refusal = world.refused(ReconcilerChange::Admit(waits.clone()));
    assert!(matches!(refusal, CommandRefusal::NotAdmitted(NotAdmitted::GateUnreadable { .. })));
    assert!(matches!(world.way("1.1.0"), Err(Hold::GateUnreadable { .. })));
    for what in [world.step("1.1.0", term, GateStep::Work), world.apply("1.1.0", term, "t", true)] {
        world.refused(what);
    }
    world.must(ReconcilerChange::Repair { reconciler: NAME.to_owned(), epoch: 1 });
    assert_eq!(world.gate(), (GateState::Done, "1.0.0".to_owned(), "1.0.0".to_owned()));
    assert_eq!(world.all().gates[NAME].now.epoch, 3);
    world.must(ReconcilerChange::Admit(waits));
}

#[test]
fn forced_floor_drains_participants_below_it() {
    let mut world = Gated::new();
    world.applied("1.0.0", "1.0.0");
    let (old, new) = (world.serve("old", 1, "1.0.0"), world.serve("new", 2, "1.2.0"));
    world.must(ReconcilerChange::ForceFloor { reconciler: NAME.to_owned(), floor: triple("1.1.0") });
    assert_eq!(world.phase(&old), Some(ParticipantPhase::Draining));
    assert_eq!(world.phase(&new), Some(ParticipantPhase::Serving));
    let refusal = world.refused(ReconcilerChange::Admit(old));
    assert!(matches!(refusal, CommandRefusal::Stale { .. }), "a draining participant is not admitted again");
}

#[test]
fn deleted_gate_keeps_serving_participants_and_its_epoch() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    let serves = world.serve("m", 1, "1.0.0");
    world.must(ReconcilerChange::DeleteGate { reconciler: NAME.to_owned() });
    assert_eq!(world.phase(&serves), Some(ParticipantPhase::Serving));
    let waits = world.announce("late", 2, "1.0.0", &[(NAME, "1.0.0")]);
    assert!(matches!(world.refused(ReconcilerChange::Admit(waits)), CommandRefusal::NotAdmitted(_)));
    assert_eq!(world.way("1.0.0"), Ok(GatePath::First));
    world.steps("1.0.0", term, GateStep::Complete);
    assert_eq!(world.all().gates[NAME].now.epoch, 2);
}

#[test]
fn a_gates_history_is_kept_and_bounded() {
    let mut world = Gated::new();
    world.applied("1.0.0", "1.0.0");
    for _ in 0..40 {
        world.must(ReconcilerChange::ForceFloor { reconciler: NAME.to_owned(), floor: triple("1.0.0") });
    }
    let gate = &world.all().gates[NAME];
    let epochs: Vec<u64> = gate.history.iter().map(|entry| entry.epoch).collect();
    assert_eq!(epochs, (41 - GATE_HISTORY as u64..41).collect::<Vec<_>>());
}

#[test]
fn reconcilers_are_refused_below_their_feature_level() {
    let mut world = World::founded();
    let define = ReconcilerChange::Define { definition: Box::new(definition("1.0.0", "1.0.0")), replace: false };
    let refusal = world.refused(change(define));
    assert_eq!(refusal, CommandRefusal::FeatureLevel { needs: RECONCILERS_LEVEL, level: 1 });
}
