//! The feature level, and the gate that raises it.

use muster_messages::*;

use crate::world::*;

fn definition(level: u32) -> Definition {
    let release = level_release(level);
    let mut definition = Definition::new(LEVEL_RECONCILER, release.into(), MANAGERS_SCOPE, release, Action::Handler);
    definition.digest = format!("of level {level}");
    definition
}

/// A cluster at level 2, whose managers know how to get to 3.
struct Managers(World);

impl Managers {
    fn new() -> Self {
        let mut world = World::founded();
        world.must(command([Change::SetFeatureLevel(RECONCILERS_LEVEL)]));
        let mut managers = Self(world);
        for level in [2, 3] {
            managers.must(ReconcilerChange::Define { definition: Box::new(definition(level)), replace: false });
        }
        managers
    }
    fn level(&self) -> u32 {
        self.0.tables.cluster.as_ref().unwrap().feature_level
    }
    fn must(&mut self, change: ReconcilerChange) {
        self.0.must(command([Change::Reconciler(change)]));
    }
    fn refused(&mut self, change: ReconcilerChange) -> CommandRefusal {
        self.0.refused(command([Change::Reconciler(change)]))
    }
    fn acquire(&mut self, key: &ObjectKey, holder: &str, session: u128) -> FencingToken {
        let (holder, session) = (holder.to_owned(), SessionId(session));
        let lease = Change::AcquireLease { key: key.clone(), holder, session, duration_ms: 15_000, uid: Uid(1) };
        self.0.must(command([lease]));
        self.0.tables.objects[key].lease().unwrap().holding.token
    }
    fn announce(&mut self, member: &str, incarnation: u128, level: u32) -> ParticipantKey {
        let (scope, incarnation) = (MANAGERS_SCOPE.to_owned(), SessionId(incarnation));
        let key = ParticipantKey { scope, member: member.to_owned(), incarnation };
        let token = Some(self.acquire(&key.lease(), member, incarnation.0));
        self.must(ReconcilerChange::Announce(Box::new(Participant {
            key: key.clone(),
            node: None,
            release: level_release(level).into(),
            needs: Default::default(),
            phase: ParticipantPhase::Announced,
            token,
            since: WallTime(0),
            revision: Revision(0),
        })));
        key
    }
    fn serve(&mut self, member: &str, incarnation: u128, level: u32) -> ParticipantKey {
        let key = self.announce(member, incarnation, level);
        self.must(ReconcilerChange::Admit(key.clone()));
        key
    }
    fn step(&self, level: u32, term: FencingToken, step: GateStep) -> ReconcilerChange {
        let gate = self.0.tables.reconcilers.gates.get(LEVEL_RECONCILER);
        let (reconciler, release) = (LEVEL_RECONCILER.to_owned(), level_release(level));
        let key = DefinitionKey { reconciler: reconciler.clone(), release };
        let digest = self.0.tables.reconcilers.definitions.get(&key).map(|d| d.digest.clone()).unwrap_or_default();
        ReconcilerChange::Step { reconciler, release, digest, term, epoch: gate.map_or(0, |g| g.now.epoch), step }
    }
    /// What a runner of this term proposes.
    fn raise(&self, level: u32, term: FencingToken) -> Command {
        let key = runner_lease(LEVEL_RECONCILER);
        command([Change::SetFeatureLevel(level)]).guard(Guard::LeaseToken { key, token: term })
    }
}

#[test]
fn the_level_rises_once_no_manager_that_takes_part_speaks_less() {
    let mut m = Managers::new();
    let (n1, n2) = (m.serve("n1", 1, 2), m.serve("n2", 2, 2));
    let old = m.acquire(&runner_lease(LEVEL_RECONCILER), "n1", 11);
    let early = m.raise(3, old);
    assert!(matches!(m.0.refused(early), CommandRefusal::Stale { .. }), "no gate, and two are in the way");
    m.must(m.step(2, old, GateStep::Complete));

    m.must(ReconcilerChange::Leave(n1));
    m.serve("n1", 3, 3);
    m.0.must(command([Change::ExpireLease(runner_lease(LEVEL_RECONCILER))]));
    let term = m.acquire(&runner_lease(LEVEL_RECONCILER), "n1", 12);
    let CommandRefusal::InTheWay { blockers, .. } = m.refused(m.step(3, term, GateStep::Restrict)) else { panic!() };
    assert_eq!(blockers.iter().map(|b| b.member.as_str()).collect::<Vec<_>>(), ["n2"]);
    let early = m.raise(3, term);
    assert!(matches!(m.0.refused(early), CommandRefusal::Stale { .. }), "the gate says 2");

    m.must(ReconcilerChange::Leave(n2));
    m.must(m.step(3, term, GateStep::Restrict));
    let late = m.raise(3, old);
    assert!(matches!(m.0.refused(late), CommandRefusal::Stale { .. }), "a runner whose term is over");
    assert_eq!(m.level(), 2);
    m.0.must(m.raise(3, term));
    assert_eq!(m.level(), 3);
    m.must(m.step(3, term, GateStep::Complete));

    let back = m.announce("n2", 4, 2);
    let refusal = m.refused(ReconcilerChange::Admit(back));
    assert!(matches!(refusal, CommandRefusal::NotAdmitted(NotAdmitted::BelowFloor { .. })), "{refusal}");
    let revision = m.0.tables.cluster.as_ref().unwrap().revision;
    m.0.must(m.raise(3, term));
    assert_eq!(m.0.tables.cluster.as_ref().unwrap().revision, revision, "the same again is no news");
}

#[test]
fn the_level_never_falls() {
    let mut m = Managers::new();
    let term = m.acquire(&runner_lease(LEVEL_RECONCILER), "n1", 1);
    m.must(m.step(3, term, GateStep::Complete));
    m.0.must(m.raise(3, term));
    let back = m.raise(2, term);
    m.0.refused(back);
    assert_eq!(m.level(), 3);
    World::empty().refused(command([Change::SetFeatureLevel(2)]));
}
