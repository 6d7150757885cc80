//! Random histories over few nodes, so that changes interact.

use std::collections::BTreeSet;

use muster_messages::*;
use muster_store::invariants::{check, check_step};
use muster_store::{
    History, LogPosition, apply, apply_empty, apply_membership, apply_watched, check_membership, snapshot,
};
use proptest::prelude::*;

use crate::world::*;

#[derive(Clone, Debug)]
pub enum Entry {
    Nothing,
    Command(Command),
    Membership(MembershipChange),
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Worker), Just(Role::Manager)]
}

/// Mostly 1 to 5, which may exist; 6 never exists.
fn any_id() -> impl Strategy<Value = NodeId> {
    (1..=6u8).prop_map(id)
}

fn wall() -> impl Strategy<Value = WallTime> {
    (0..100 * HOUR).prop_map(|t| WallTime(T0.0 + t))
}

fn change() -> impl Strategy<Value = Change> {
    let liveness = prop_oneof![Just(Liveness::Ready), Just(Liveness::Down)];
    let text = || prop_oneof![Just("a"), Just("b")].prop_map(str::to_owned);
    prop_oneof![
        3 => (1..=5u8, role()).prop_map(|(n, r)| Change::CreateNode(Box::new(node(n, r)))),
        3 => (any_id(), role()).prop_map(|(node, role)| Change::SetDesiredRole { node, role }),
        3 => (any_id(), role()).prop_map(|(node, role)| Change::GrantRole { node, role }),
        1 => (any_id(), any::<bool>(), wall()).prop_map(|(node, forced, at)| {
            let removal = Removal { by: Principal::Operator, forced, at };
            Change::SetRemoving { node, removal }
        }),
        2 => any_id().prop_map(Change::DeleteNode),
        2 => (1..=6u8, wall()).prop_map(|(n, at)| block(n, at)),
        1 => any_id().prop_map(Change::Unblock),
        2 => (any_id(), text(), text()).prop_map(|(node, k, v)| Change::UpdateLabels {
            node,
            add: [(k.clone(), v)].into(),
            remove: vec![k],
        }),
        1 => (any_id(), text(), text()).prop_map(|(node, n, addr)| Change::Report {
            node,
            name: name(&n),
            addr,
            release: "0.1.0".to_owned(),
            labels: [].into(),
        }),
        1 => (any_id(), liveness).prop_map(|(node, liveness)| Change::SetLiveness { node, liveness }),
        2 => (any_id(), role(), proptest::option::of(1..60u64), wall()).prop_map(
            |(node, role, granted, until)| Change::RecordCertificate {
                node,
                certificate: certificate(role, granted.map(Revision), until.0),
            }
        ),
        1 => any_id().prop_map(Change::AskRotate),
        1 => any_id().prop_map(Change::CertificateFailed),
        1 => (text(), role(), proptest::option::of(0..3u32), any::<bool>()).prop_map(
            |(id, role, uses_left, default)| {
                Change::PutToken(Token { uses_left, default, ..token(&id, role) })
            }
        ),
        1 => text().prop_map(Change::UseToken),
        1 => text().prop_map(Change::DeleteToken),
        1 => (text(), text()).prop_map(|(who, serial)| Change::PutUser(user(&who, &serial))),
        1 => text().prop_map(|who| Change::DeleteUser(name(&who))),
        1 => (1..4u32).prop_map(Change::SetFeatureLevel),
        9 => lease_change(),
        3 => authority_change(),
        3 => autolock_change(),
        2 => workload_change(),
    ]
}

fn authority_change() -> impl Strategy<Value = Change> {
    use crate::authorities::{abort, activate, certify, forget, prepare, request, retire, revoke};
    let n = || 7..10u8;
    prop_oneof![
        2 => (n(), n()).prop_map(|(signer, n)| prepare(signer, n)),
        1 => Just(abort()),
        2 => n().prop_map(activate),
        1 => (n(), any::<bool>()).prop_map(|(n, force)| retire(n, force)),
        1 => n().prop_map(revoke),
        1 => n().prop_map(forget),
        1 => (n(), any::<bool>()).prop_map(|(n, compromised)| request(n, compromised)),
        1 => (n(), n()).prop_map(|(signer, n)| certify(signer, n)),
    ]
}

fn autolock_change() -> impl Strategy<Value = Change> {
    use crate::autolock::{disable, enable, rotate, sealed};
    prop_oneof![
        2 => "[a-c]".prop_map(|key| enable(&key)),
        3 => "[a-c]".prop_map(|key| rotate(&key)),
        1 => Just(disable()),
        4 => (1..=6u8, 0..80u64).prop_map(|(n, version)| sealed(n, Revision(version))),
    ]
}

fn workload_change() -> impl Strategy<Value = Change> {
    use crate::workloads::{entry, remove, set};
    let name = || "[a-c]".prop_map(|name| format!("a/{name}"));
    prop_oneof![
        3 => (name(), 0..4u32, 200..500u64).prop_map(|(name, uid, secs)| {
            let ttl = std::time::Duration::from_secs(secs);
            set(WorkloadEntry { ttl, ..entry(&name, uid) })
        }),
        1 => name().prop_map(|name| remove(&name)),
    ]
}

fn lease_change() -> impl Strategy<Value = Change> {
    let key = || prop_oneof![Just("l"), Just("m")].prop_map(|name| ObjectKey::lease("default", name));
    let holder = || prop_oneof![Just(""), Just("a"), Just("b")].prop_map(str::to_owned);
    let session = || (1..4u128).prop_map(SessionId);
    let written = (key(), proptest::option::of(holder()), 0..3i64).prop_map(|(key, holder, renewed)| {
        let spec = LeaseSpec { holder, renewed: Some(MicroTime(renewed)), ..LeaseSpec::default() };
        let body = ObjectBody::Lease(Lease { spec, ..Lease::default() });
        Box::new(Object { namespace: key.namespace, name: key.name, meta: ObjectMeta::fresh(Uid(1)), body })
    });
    let write = any::<bool>().prop_map(|blind| ClientWrite { blind, manager: None });
    let mode = prop_oneof![Just(None), Just(Some(GuardMode::Off)), Just(Some(GuardMode::All))];
    prop_oneof![
        1 => written.clone().prop_map(Change::CreateObject),
        3 => (written, write).prop_map(|(object, write)| Change::UpdateObject { object, write }),
        1 => (key(), any::<bool>()).prop_map(|(key, force)| Change::DeleteObject { key, force }),
        3 => (key(), prop_oneof![Just("a"), Just("b")], session()).prop_map(|(key, holder, session)| {
            let holder = holder.to_owned();
            Change::AcquireLease { key, holder, session, duration_ms: 1000, uid: Uid(2) }
        }),
        1 => (key(), session(), (1..80u64).prop_map(FencingToken))
            .prop_map(|(key, session, token)| Change::ReleaseLease { key, session, token }),
        2 => key().prop_map(Change::ExpireLease),
        1 => (key(), mode).prop_map(|(key, mode)| Change::SetGuard {
            scope: GuardScope { namespace: key.namespace, lease: Some(key.name) },
            mode,
        }),
    ]
}

fn guard() -> impl Strategy<Value = Guard> {
    prop_oneof![
        any_id().prop_map(Guard::NodeExists),
        any_id().prop_map(Guard::NotMember),
        any_id().prop_map(Guard::NotBlocked),
        (any_id(), role()).prop_map(|(node, role)| Guard::DesiredRole { node, role }),
        (any_id(), wall()).prop_map(|(node, at)| Guard::BlockExpired { node, at }),
        Just(Guard::TokenUsable("a".to_owned())),
    ]
}

fn membership() -> impl Strategy<Value = MembershipChangeKind> {
    let raft_id = || (1..12u64).prop_map(RaftId);
    prop_oneof![
        4 => (any_id(), raft_id()).prop_map(|(node, raft_id)| MembershipChangeKind::AddLearner {
            node,
            raft_id,
            addr: "a:1".to_owned(),
        }),
        3 => (any_id(), raft_id())
            .prop_map(|(node, raft_id)| MembershipChangeKind::PromoteLearner { node, raft_id }),
        2 => raft_id().prop_map(|raft_id| MembershipChangeKind::Remove { raft_id }),
        1 => raft_id().prop_map(|raft_id| MembershipChangeKind::SetAddress {
            raft_id,
            addr: "b:1".to_owned(),
        }),
    ]
}

/// The feature level of the cluster at the start of the history.
#[derive(Clone, Debug)]
struct Start(u32);

impl Start {
    fn tables(&self) -> Tables {
        World::founded_at(self.0).tables
    }
}

fn start() -> impl Strategy<Value = Start> {
    prop_oneof![Just(Start(1)), Just(Start(IDENTITY_LEVEL))]
}

pub fn entry() -> impl Strategy<Value = Entry> {
    let by = prop_oneof![Just(Principal::Operator), Just(Principal::User(name("ann")))];
    let asked = proptest::option::of((0..2u64).prop_map(|digest| Guard::Request { digest }));
    let guards = (asked, prop::collection::vec(guard(), 0..2));
    let command = (0..20u128, by, guards, prop::collection::vec(change(), 0..4)).prop_map(
        |(request, by, (asked, guards), changes)| {
            let guards = asked.into_iter().chain(guards).collect();
            Command { request: RequestId(request), by, guards, ..command(changes) }
        },
    );
    let membership = membership().prop_map(|kind| MembershipChange { at: T0, by: Principal::Operator, kind });
    prop_oneof![
        1 => Just(Entry::Nothing),
        12 => command.prop_map(Entry::Command),
        6 => membership.prop_map(Entry::Membership),
    ]
}

/// Half of the membership changes use the counter's next id and a node that is the member: otherwise few would be
/// accepted.
pub fn aimed(tables: &Tables, change: &MembershipChange) -> MembershipChange {
    let mut change = change.clone();
    match &mut change.kind {
        MembershipChangeKind::AddLearner { raft_id, .. } if raft_id.0 > 3 => {
            *raft_id = tables.next_raft_id;
        }
        MembershipChangeKind::PromoteLearner { node, raft_id } => {
            if let Some(membership) = tables.members.values().find(|m| !m.voter) {
                (*node, *raft_id) = (membership.node, membership.raft_id);
            }
        }
        _ => {}
    }
    change
}

fn step(tables: &mut Tables, entry: &Entry) -> Result<(), CommandRefusal> {
    let at = tables.revision.next();
    match entry {
        Entry::Nothing => {
            apply_empty(tables, at);
            Ok(())
        }
        Entry::Command(command) => apply(tables, at, command),
        Entry::Membership(change) => {
            let change = aimed(tables, change);
            let checked = check_membership(tables, &change);
            let applied = apply_membership(tables, at, &change);
            assert_eq!(checked, applied, "the check and the application differ");
            applied
        }
    }
}

/// The state of a watch that applies these changes.
fn followed(mut seen: Tables, history: &History) -> Tables {
    for change in history.since(seen.revision, usize::MAX).expect("the history is complete") {
        assert!(change.revision >= seen.revision);
        assert_eq!(
            seen.objects.get(&change.key),
            change.before.as_ref(),
            "told in the order of the log, nothing left out"
        );
        seen.revision = change.revision;
        match &change.after {
            Some(object) => drop(seen.objects.insert(change.key.clone(), object.clone())),
            None => drop(seen.objects.remove(&change.key)),
        }
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// MEMBER-1, RAFTID-1, BLOCK-1, CERT-1 and the rest, over whole histories.
    #[test]
    fn invariants_hold_after_every_entry(start in start(), entries in prop::collection::vec(entry(), 1..120)) {
        let mut tables = start.tables();
        let mut handed_out = BTreeSet::from([RaftId(1)]);
        for entry in &entries {
            let before = tables.clone();
            let _ = step(&mut tables, entry);
            prop_assert_eq!(check(&tables), Ok(()));
            prop_assert_eq!(check_step(&before, &tables), Ok(()));
            for id in tables.members.keys().filter(|id| !before.members.contains_key(id)) {
                prop_assert!(handed_out.insert(*id), "member id {} handed out twice", id);
            }
        }
    }

    /// APPLY-1, also across a snapshot taken anywhere.
    #[test]
    fn two_members_that_apply_the_same_log_are_equal(
        start in start(),
        entries in prop::collection::vec(entry(), 1..80),
        split in any::<prop::sample::Index>(),
    ) {
        let mut one = start.tables();
        let mut other = one.clone();
        let split = split.index(entries.len());
        for (n, entry) in entries.iter().enumerate() {
            if n == split {
                other = snapshot::decode(&snapshot::encode(&one)).unwrap();
            }
            prop_assert_eq!(step(&mut one, entry), step(&mut other, entry));
        }
        prop_assert_eq!(&one, &other);
        prop_assert_eq!(snapshot::encode(&one), snapshot::encode(&other));
    }

    /// APPLY-2.
    #[test]
    fn a_refusal_leaves_a_revision_and_an_outcome(start in start(), entries in prop::collection::vec(entry(), 1..80)) {
        let mut tables = start.tables();
        for entry in &entries {
            let before = tables.clone();
            let result = step(&mut tables, entry);
            prop_assert_eq!(tables.revision, before.revision.next());
            if result.is_err() {
                let same = Tables {
                    revision: tables.revision,
                    outcomes: tables.outcomes.clone(),
                    outcome_order: tables.outcome_order.clone(),
                    requests: tables.requests.clone(),
                    ..before
                };
                prop_assert_eq!(&tables, &same);
            }
        }
    }

    /// APPLY-3: the log as it is, and with every command proposed twice, lead to the same state.
    #[test]
    fn a_retried_request_counts_once(start in start(), entries in prop::collection::vec(entry(), 1..60)) {
        let mut tables = start.tables();
        for entry in &entries {
            let first = step(&mut tables, entry);
            if let Entry::Command(command) = entry && command.request != RequestId(0) {
                let before = tables.clone();
                prop_assert_eq!(step(&mut tables, entry), first);
                prop_assert_eq!(&tables, &Tables { revision: tables.revision, ..before });
            }
        }
    }

    /// E32, for any order of certificates: a block outlives the longest one by an hour.
    #[test]
    fn a_block_outlives_every_certificate(until in prop::collection::vec(wall(), 1..6), asked in wall()) {
        let mut world = World::founded().with([(2, Role::Worker)]);
        let granted = Some(world.record(2).granted);
        for until in &until {
            world.must(command([Change::RecordCertificate {
                node: id(2),
                certificate: certificate(Role::Worker, granted, until.0),
            }]));
        }
        let Change::Block(mut entry) = block(2, asked) else { unreachable!() };
        entry.blocked_at = asked;
        world.must(command([Change::DeleteNode(id(2)), Change::Block(entry)]));
        let longest = until.iter().max().unwrap();
        prop_assert!(world.tables.blocklist[&id(2)].expires_at.0 >= longest.0 + HOUR);
    }

    /// FENCE-1 and HELD-1, over whole histories: deleted leases are remembered here, not in the tables.
    #[test]
    fn tokens_grow_and_sessions_keep_what_they_hold(start in start(), entries in prop::collection::vec(entry(), 1..160)) {
        let mut tables = start.tables();
        let mut newest = std::collections::BTreeMap::new();
        for entry in &entries {
            let before = tables.clone();
            let _ = step(&mut tables, entry);
            let several = matches!(entry, Entry::Command(command) if command.changes.len() > 1);
            for (key, object) in &tables.objects {
                let lease = object.lease().unwrap();
                let was = before.objects.get(key).and_then(|object| object.lease());
                let holder = |lease: &Lease| lease.spec.held_by().map(str::to_owned);
                if holder(lease).is_some() && was.and_then(holder) != holder(lease) {
                    let last = newest.insert(key.clone(), lease.holding.token);
                    prop_assert!(last.is_none_or(|last| last < lease.holding.token), "{last:?} {lease:?}");
                    let taken = was.is_some_and(|was| was.is_live() && was.holding.session.is_some());
                    prop_assert!(!taken || several, "taken from a live session: {was:?} {lease:?}");
                }
            }
        }
    }

    /// WATCH-1 and WATCH-2, from any revision.
    #[test]
    fn a_watcher_ends_with_the_newest_state(
        start in start(),
        entries in prop::collection::vec(entry(), 1..80),
        from in any::<prop::sample::Index>(),
    ) {
        let mut tables = start.tables();
        let mut history = History::default();
        history.begin_at(tables.revision);
        let mut states = vec![tables.clone()];
        for entry in &entries {
            let at = LogPosition { revision: tables.revision.next(), term: Term(1) };
            let mut seen = Vec::new();
            match entry {
                Entry::Command(command) => drop(apply_watched(&mut tables, at, command, &mut seen)),
                other => drop(step(&mut tables, other)),
            }
            history.record(Moment(0), at.revision, seen);
            states.push(tables.clone());
        }
        let seen = states[from.index(states.len())].clone();
        prop_assert_eq!(followed(seen, &history).objects, tables.objects);
    }
}
