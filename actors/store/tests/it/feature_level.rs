//! The feature level, and the gate that raises it.

use muster_messages::*;

use crate::world::*;

fn definition(level: u32) -> Definition {
    let release = level_release(level);
    let mut definition = Definition::new(LEVEL_RECONCILER, release.into(), MANAGERS_SCOPE, release, Action::Handler);
    definition.digest = format!("of level {level}");
    definition
}

/// Raft members at level 2 that can all support level 3.
struct Managers(World);

impl Managers {
    fn new(managers: u8) -> Self {
        let mut world = World::founded().with((2..=managers).map(|n| (n, Role::Manager)));
        for n in 2..=managers {
            world.learner(n, n.into()).unwrap();
            world.promote(n, n.into()).unwrap();
        }
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
    fn announce(&mut self, n: u8, incarnation: u128, level: u32) -> ParticipantKey {
        let (scope, incarnation) = (MANAGERS_SCOPE.to_owned(), SessionId(incarnation));
        let member = format!("n{n}");
        let key = ParticipantKey { scope, member: member.clone(), incarnation };
        let token = Some(self.acquire(&key.lease(), &member, incarnation.0));
        self.must(ReconcilerChange::Announce(Box::new(Participant {
            key: key.clone(),
            node: Some(id(n)),
            release: level_release(level).into(),
            needs: Default::default(),
            phase: ParticipantPhase::Announced,
            token,
            since: WallTime(0),
            revision: Revision(0),
        })));
        key
    }
    fn serve(&mut self, n: u8, incarnation: u128, level: u32) -> ParticipantKey {
        let key = self.announce(n, incarnation, level);
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
    /// The proposal of a runner of this term.
    fn raise(&self, level: u32, term: FencingToken) -> Command {
        let key = runner_lease(LEVEL_RECONCILER);
        command([Change::SetFeatureLevel(level)]).guard(Guard::LeaseToken { key, token: term })
    }
}

#[test]
fn level_rises_once_all_participants_support_it() {
    let mut m = Managers::new(2);
    let (n1, n2) = (m.serve(1, 1, 2), m.serve(2, 2, 2));
    let old = m.acquire(&runner_lease(LEVEL_RECONCILER), "n1", 11);
    let early = m.raise(3, old);
    assert!(matches!(m.0.refused(early), CommandRefusal::Stale { .. }), "no gate, and two blockers");
    m.must(m.step(2, old, GateStep::Complete));

    m.must(ReconcilerChange::Leave(n1));
    m.serve(1, 3, 3);
    m.0.must(command([Change::ExpireLease(runner_lease(LEVEL_RECONCILER))]));
    let term = m.acquire(&runner_lease(LEVEL_RECONCILER), "n1", 12);
    let CommandRefusal::BlockedByMembers { blockers, .. } = m.refused(m.step(3, term, GateStep::Restrict)) else {
        panic!()
    };
    assert_eq!(blockers.iter().map(|b| b.member.as_str()).collect::<Vec<_>>(), ["n2"]);
    let early = m.raise(3, term);
    assert!(matches!(m.0.refused(early), CommandRefusal::Stale { .. }), "the gate says 2");

    m.must(ReconcilerChange::Leave(n2));
    m.must(m.step(3, term, GateStep::Restrict));
    let late = m.raise(3, old);
    assert!(matches!(m.0.refused(late), CommandRefusal::Stale { .. }), "a runner whose term has ended");
    m.serve(2, 4, 3);
    assert_eq!(m.level(), 2);
    m.0.must(m.raise(3, term));
    assert_eq!(m.level(), 3);
    m.must(m.step(3, term, GateStep::Complete));

    let back = m.announce(2, 5, 2);
    let refusal = m.refused(ReconcilerChange::Admit(back));
    assert!(matches!(refusal, CommandRefusal::NotAdmitted(NotAdmitted::BelowFloor { .. })), "{refusal}");
    let revision = m.0.tables.cluster.as_ref().unwrap().revision;
    m.0.must(m.raise(3, term));
    assert_eq!(m.0.tables.cluster.as_ref().unwrap().revision, revision, "repeating it changes nothing");
}

/// All others support 3, their gate is restricted, and `away` was down meanwhile.
fn restricted(managers: u8, away: u8) -> (Managers, FencingToken) {
    let mut m = Managers::new(managers);
    let n1 = m.serve(1, 1, 2);
    let first = m.acquire(&runner_lease(LEVEL_RECONCILER), "n1", 11);
    m.must(m.step(2, first, GateStep::Complete));
    m.must(ReconcilerChange::Leave(n1));
    for n in (1..=managers).filter(|n| *n != away) {
        m.serve(n, 20 + u128::from(n), 3);
    }
    m.must(m.step(3, first, GateStep::Restrict));
    (m, first)
}

fn why(refusal: CommandRefusal) -> String {
    assert!(matches!(refusal, CommandRefusal::Stale { .. }), "{refusal:?}");
    refusal.to_string()
}

/// LEVEL-3. It was stopped for a moment while the gate was restricted, and now votes again: one of two.
#[test]
fn level_raise_waits_for_a_returned_older_manager() {
    for managers in [2, 3] {
        let (mut m, term) = restricted(managers, 2);
        let raise = m.raise(3, term);
        assert!(why(m.0.refused(raise.clone())).contains("n2 is a Raft member"), "it has not announced its level");
        let back = m.announce(2, 40, 2);
        assert!(matches!(m.refused(ReconcilerChange::Admit(back.clone())), CommandRefusal::NotAdmitted(_)));
        assert!(why(m.0.refused(raise.clone())).contains("n2 supports less than feature level 3"));
        m.must(ReconcilerChange::Leave(back));
        m.announce(2, 41, 3);
        m.0.must(raise);
        assert_eq!(m.level(), 3);
    }
}

/// LEVEL-3. The level does not wait for managers that are down, as long as the others are a majority.
#[test]
fn level_raise_needs_a_majority_of_participating_voters() {
    for (managers, rises) in [(2, false), (3, true)] {
        let (mut m, term) = restricted(managers, 2);
        let down = Change::SetLiveness { node: id(2), liveness: Liveness::Down };
        m.0.must(command([down]));
        let raise = m.raise(3, term);
        if rises {
            m.0.must(raise);
        } else {
            assert!(why(m.0.refused(raise)).contains("1 of 2 voters"));
        }
    }
}

#[test]
fn pause_stops_a_level_raise_half_way() {
    let (mut m, term) = restricted(1, 0);
    let pause = |paused| ReconcilerChange::Pause { reconciler: LEVEL_RECONCILER.to_owned(), paused };
    m.must(pause(true));
    let raise = m.raise(3, term);
    assert!(matches!(m.0.refused(raise.clone()), CommandRefusal::Held(Hold::Paused { .. })));
    m.must(pause(false));
    m.0.must(raise);
}

#[test]
fn the_level_never_falls() {
    let mut m = Managers::new(1);
    m.serve(1, 1, 3);
    let term = m.acquire(&runner_lease(LEVEL_RECONCILER), "n1", 1);
    m.must(m.step(3, term, GateStep::Complete));
    m.0.must(m.raise(3, term));
    let back = m.raise(2, term);
    m.0.refused(back);
    assert_eq!(m.level(), 3);
    World::empty().refused(command([Change::SetFeatureLevel(2)]));
}
