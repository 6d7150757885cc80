//! Roots, from feature level 3 on: published, signing, retired, revoked, deleted.
//!
//! Invariants  ROOT-7   a root is deleted only when no certificate of it on record can still be valid.
//!             ROOT-10  a certificate is recorded only while its root signs: after an activation, none of the former root is.
//!             ROOT-11  a root whose key others may have never signs again. A manager that was away would refuse every newer
//!                      certificate of it (ADMIT-9), the leader's too, and so never learn that it signs.

use std::collections::BTreeSet;

use muster_messages::{
    Authority, AuthorityChange, AuthorityOrigin, AuthorityRefusal, AuthorityState, CrossCertificate, Liveness,
    MAX_ROOTS, Member, Principal, RaftId, RequestedAuthority, RootId, Voucher,
};

use super::*;
use crate::bugs::is_injected;

pub(super) fn make(tables: &mut Tables, stamp: &Stamp<'_>, change: &AuthorityChange) -> Result<(), CommandRefusal> {
    certificates::at_identity_level(tables)?;
    match change {
        AuthorityChange::Prepare {
            signer,
            compromised,
            root,
            cert_pem,
            key_pem,
            origin,
            automatic,
            vouchers,
            for_others,
        } => {
            let new = Authority {
                key_pem: Some(key_pem.clone()),
                automatic: *automatic,
                vouchers: vouchers.clone(),
                created_at: stamp.wall,
                ..Authority::new(cert_pem, *origin, AuthorityState::Prepared)
            };
            prepare(tables, stamp, (*signer, *compromised), (*root, new))?;
            vouch(tables, *root, for_others);
            Ok(())
        }
        AuthorityChange::Abort => {
            // Of both, the published root is the one that an answer names: the last.
            withdraw_request(tables, stamp);
            abort(tables, stamp);
            Ok(())
        }
        AuthorityChange::Request { root, key_pem, csr_pem, compromised } => {
            let requested = RequestedAuthority {
                root: *root,
                key_pem: key_pem.clone(),
                csr_pem: csr_pem.clone(),
                compromised: *compromised,
                created_at: stamp.wall,
                revision: stamp.at,
            };
            request(tables, stamp, requested)
        }
        AuthorityChange::Certify { signer, root, cert_pem, upstream, automatic, vouchers, for_others } => {
            let certified = Authority {
                automatic: *automatic,
                vouchers: vouchers.clone(),
                upstream: upstream.clone(),
                created_at: stamp.wall,
                ..Authority::new(cert_pem, AuthorityOrigin::Upstream, AuthorityState::Prepared)
            };
            certify(tables, stamp, *signer, (*root, certified), for_others)
        }
        AuthorityChange::Activate { root, crosses, tokens } => activate(tables, stamp, *root, crosses, tokens),
        AuthorityChange::Retire { root, force } => retire(tables, stamp, *root, *force),
        AuthorityChange::Revoke { root } => revoke(tables, stamp, *root),
        AuthorityChange::Forget { root } => forget(tables, stamp, *root),
        AuthorityChange::Trusted { node, generation } => trusted(tables, *node, *generation),
    }
}

fn prepare(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    (signer, compromised): (RootId, bool),
    (id, new): (RootId, Authority),
) -> Result<(), CommandRefusal> {
    if let Some((active, _)) = tables.authorities.active()
        && active != signer
    {
        return Err(stale(format!("the root {active} signs, not {signer}")));
    }
    if let Some(known) = tables.authorities.roots.get(&id) {
        let same = known.state == AuthorityState::Prepared && known.cert_pem == new.cert_pem;
        return if same { Ok(()) } else { Err(refused(AuthorityRefusal::SameKey(id))) };
    }
    if id == signer {
        return Err(refused(AuthorityRefusal::SameKey(id)));
    }
    // The requested key becomes a root by its answer only.
    let requested = tables.authorities.requested.as_ref().map(|requested| requested.root);
    if requested == Some(signer) || requested == Some(id) && new.origin != AuthorityOrigin::Upstream {
        return Err(refused(AuthorityRefusal::SameKey(requested.unwrap_or(id))));
    }
    let kept = tables.authorities.roots.values().filter(|root| root.state != AuthorityState::Prepared).count();
    if kept.max(1) >= MAX_ROOTS {
        return Err(refused(AuthorityRefusal::TooManyRoots));
    }
    if tables.authorities.roots.is_empty() {
        let cluster = tables.cluster.as_ref().ok_or_else(|| stale("no cluster is founded"))?;
        let founded = Authority {
            key_pem: Some(cluster.root_key_pem.clone()),
            created_at: cluster.founded_at,
            activated_at: Some(cluster.founded_at),
            revision: stamp.at,
            ..Authority::new(&cluster.root_cert_pem, AuthorityOrigin::Founded, AuthorityState::Active)
        };
        tables.authorities.roots.insert(signer, Arc::new(founded));
    }
    abort(tables, stamp);
    if compromised {
        // A copied disk holds the key of every root that has one, and of the one that is requested.
        if tables.authorities.requested.as_ref().is_some_and(|requested| requested.root != id) {
            withdraw_request(tables, stamp);
        }
        let with_key = tables.authorities.roots.iter().filter(|(_, root)| root.key_pem.is_some());
        for id in with_key.map(|(id, _)| *id).collect::<Vec<_>>() {
            let root = root_mut(tables, id);
            (root.compromised, root.revision) = (true, stamp.at);
        }
    }
    tables.authorities.roots.insert(id, Arc::new(Authority { revision: stamp.at, ..new }));
    tables.authorities.generation = stamp.at;
    log(tables, stamp, id, None, Some(AuthorityState::Prepared));
    Ok(())
}

/// One at most: it is kept until its answer comes, which may take weeks, or until it is aborted.
fn request(tables: &mut Tables, stamp: &Stamp<'_>, requested: RequestedAuthority) -> Result<(), CommandRefusal> {
    if tables.cluster.is_none() {
        return Err(stale("no cluster is founded"));
    }
    if let Some(pending) = &tables.authorities.requested {
        if pending.compromised || !requested.compromised {
            return Ok(());
        }
        withdraw_request(tables, stamp);
    }
    let root = requested.root;
    if tables.authorities.roots.contains_key(&root) {
        return Err(refused(AuthorityRefusal::SameKey(root)));
    }
    tables.authorities.requested = Some(Arc::new(requested));
    log_text(tables, stamp, None, Some(request_text(root)));
    Ok(())
}

/// UP-2. The key is the one that was asked for, and never leaves the state.
fn certify(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    signer: RootId,
    (id, certified): (RootId, Authority),
    for_others: &[(RootId, Voucher)],
) -> Result<(), CommandRefusal> {
    let requested = tables.authorities.requested.clone().filter(|requested| requested.root == id);
    let Some(requested) = requested else { return published_again(tables, stamp, id, &certified) };
    let certified = Authority { key_pem: Some(requested.key_pem.clone()), ..certified };
    prepare(tables, stamp, (signer, requested.compromised), (id, certified))?;
    tables.authorities.requested = None;
    vouch(tables, id, for_others);
    Ok(())
}

/// The same answer. An operator's request decides anew whether the root signs by itself; the leader's own, which may have been on its
/// way meanwhile, does not.
fn published_again(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: RootId,
    certified: &Authority,
) -> Result<(), CommandRefusal> {
    let Some(known) = tables.authorities.roots.get(&id) else {
        return Err(refused(AuthorityRefusal::NotRequested(id)));
    };
    if known.state != AuthorityState::Prepared || known.cert_pem != certified.cert_pem {
        return Err(refused(AuthorityRefusal::SameKey(id)));
    }
    if known.automatic != certified.automatic && *stamp.by != Principal::Cluster {
        let text = |automatic| {
            format!("{ROOT}{id} {}, {}", known.state, if automatic { "activated by itself" } else { "to be activated" })
        };
        let (before, after) = (text(known.automatic), text(certified.automatic));
        let root = root_mut(tables, id);
        (root.automatic, root.revision) = (certified.automatic, stamp.at);
        log_text(tables, stamp, Some(before), Some(after));
    }
    Ok(())
}

/// Its key has certified nothing.
fn withdraw_request(tables: &mut Tables, stamp: &Stamp<'_>) {
    if let Some(requested) = tables.authorities.requested.take() {
        log_text(tables, stamp, Some(request_text(requested.root)), None);
    }
}

fn request_text(id: RootId) -> String {
    format!("{ROOT}{id} requested")
}

/// The new root vouches for others, except those whose key others may have. Vouchers of roots that are not on record prove nothing any more.
fn vouch(tables: &mut Tables, by: RootId, for_others: &[(RootId, Voucher)]) {
    let known: Vec<RootId> = tables.authorities.roots.keys().copied().collect();
    for (id, voucher) in for_others.iter().filter(|(_, voucher)| voucher.by == by) {
        if tables.authorities.roots.get(id).is_none_or(|root| root.compromised) {
            continue;
        }
        let root = root_mut(tables, *id);
        root.vouchers.retain(|old| old.by != by && known.contains(&old.by));
        root.vouchers.push(voucher.clone());
    }
}

/// A prepared root never signed, and no cross certificate of it exists: deleting it leaves nothing behind.
fn abort(tables: &mut Tables, stamp: &Stamp<'_>) {
    let Some((id, _)) = tables.authorities.in_state(AuthorityState::Prepared) else { return };
    tables.authorities.roots.remove(&id);
    let vouched: Vec<RootId> = tables.authorities.roots.keys().copied().collect();
    for other in vouched {
        if known(tables, other).is_ok_and(|root| root.vouchers.iter().any(|voucher| voucher.by == id)) {
            root_mut(tables, other).vouchers.retain(|voucher| voucher.by != id);
        }
    }
    tables.authorities.generation = stamp.at;
    log(tables, stamp, id, Some(AuthorityState::Prepared), None);
}

fn activate(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: RootId,
    crosses: &[CrossCertificate],
    tokens: &[Token],
) -> Result<(), CommandRefusal> {
    let was = known(tables, id)?;
    if was.state == AuthorityState::Active {
        return Ok(());
    }
    if !was.state.trusted() {
        return Err(refused(AuthorityRefusal::HasNoKey { root: id, state: was.state }));
    }
    if was.compromised && !is_injected(BugInjection::ActivateCompromised) {
        return Err(refused(AuthorityRefusal::KnownToOthers(id)));
    }
    let (cert_pem, key) = (was.cert_pem.clone(), was.key_pem.clone());
    let key = key.ok_or_else(|| stale(format!("the root {id} has no key")))?;
    if was.state == AuthorityState::Prepared {
        acknowledged_by_members(tables, id)?;
    }
    if let Some((former, root)) = tables.authorities.active() {
        if root.compromised {
            // From now on a certificate of it opens only what its digest on record opens (ADMIT-9).
            keeps_majority(tables, former, |node| !tables.has_digest(node))?;
            replace_default_tokens(tables, stamp, tokens);
        }
        if !is_injected(BugInjection::KeepFormerActive) {
            set_state(tables, stamp, former, AuthorityState::Retiring);
        }
    }
    set_state(tables, stamp, id, AuthorityState::Active);
    let root = root_mut(tables, id);
    root.activated_at = Some(stamp.wall);
    root.crosses.retain(|old| crosses.iter().all(|new| new.by != old.by));
    if !is_injected(BugInjection::DropCrosses) {
        root.crosses.extend_from_slice(crosses);
    }
    if let Some(cluster) = &mut tables.cluster {
        let cluster = Arc::make_mut(cluster);
        (cluster.root_cert_pem, cluster.root_key_pem, cluster.revision) = (cert_pem, key, stamp.at);
    }
    Ok(())
}

/// A copy of a manager's state holds the tokens beside the key. A role whose default token an operator has revoked gets none.
fn replace_default_tokens(tables: &mut Tables, stamp: &Stamp<'_>, tokens: &[Token]) {
    for token in tokens {
        if let Some(old) = tables.default_token(token.role).map(|old| old.id.clone()) {
            cluster::delete_token(tables, stamp, &old);
            cluster::put_token(tables, stamp, token);
        }
    }
}

/// ROOT-2.
fn acknowledged_by_members(tables: &Tables, root: RootId) -> Result<(), CommandRefusal> {
    match tables.members_without_roots().first() {
        Some(node) => Err(stale(format!("manager {node} does not trust the root {root} yet"))),
        None => Ok(()),
    }
}

/// ROOT-3. Whether the voters that are up and hold certificates of other roots for certain are a majority: the others cannot take
/// part once this one is revoked, until they have renewed. A newer certificate may be on record and its answer lost.
///
/// # Errors
/// They are not.
pub fn may_be_revoked(tables: &Tables, id: RootId) -> Result<(), CommandRefusal> {
    keeps_majority(tables, id, |node| tables.may_hold_of(id, node))
}

/// The same, where only these voters answer: the record does not know yet of one that has just failed.
pub fn may_be_revoked_by(tables: &Tables, id: RootId, answering: &BTreeSet<RaftId>) -> Result<(), CommandRefusal> {
    let remaining = voters_without(tables, id);
    refuse_minority(tables, id, remaining.intersection(answering).count(), |node| tables.may_hold_of(id, node))
}

/// The voters that can take part once a root is revoked, by the record.
pub fn voters_without(tables: &Tables, root: RootId) -> BTreeSet<RaftId> {
    remaining(tables, |node| tables.may_hold_of(root, node))
}

/// Whether a majority of the voters can take part without these.
fn keeps_majority(tables: &Tables, root: RootId, loses: impl Fn(NodeId) -> bool) -> Result<(), CommandRefusal> {
    refuse_minority(tables, root, remaining(tables, &loses).len(), loses)
}

/// The voters without these, without those that may hold a certificate of a root that was revoked before, and without those that are
/// down: one whose disk is lost never returns, and the others cannot renew without a leader.
fn remaining(tables: &Tables, loses: impl Fn(NodeId) -> bool) -> BTreeSet<RaftId> {
    let roots = tables.authorities.roots.iter();
    let revoked: Vec<RootId> =
        roots.filter(|(_, root)| root.state == AuthorityState::Revoked).map(|(id, _)| *id).collect();
    let is_down = |node: NodeId| tables.nodes.get(&node).is_none_or(|node| node.liveness == Liveness::Down);
    let takes_part =
        |node: NodeId| !loses(node) && !is_down(node) && !revoked.iter().any(|root| tables.may_hold_of(*root, node));
    voters(tables).filter(|voter| takes_part(voter.node)).map(|voter| voter.raft_id).collect()
}

fn voters(tables: &Tables) -> impl Iterator<Item = &Member> {
    tables.members.values().filter(|member| member.voter)
}

/// Refuses to shut these voters out if there are any, and `remaining` others are no majority.
fn refuse_minority(
    tables: &Tables,
    root: RootId,
    remaining: usize,
    loses: impl Fn(NodeId) -> bool,
) -> Result<(), CommandRefusal> {
    let shut_out: Vec<NodeId> = voters(tables).map(|voter| voter.node).filter(|node| loses(*node)).collect();
    match shut_out.first() {
        Some(node) if 2 * remaining <= voters(tables).count() => {
            let (node, in_all) = (*node, shut_out.len());
            Err(refused(AuthorityRefusal::NoMajority { root, node, in_all }))
        }
        _ => Ok(()),
    }
}

fn retire(tables: &mut Tables, stamp: &Stamp<'_>, id: RootId, force: bool) -> Result<(), CommandRefusal> {
    match known(tables, id)?.state {
        AuthorityState::Retired => return Ok(()),
        AuthorityState::Retiring => {}
        state => return Err(refused(AuthorityRefusal::NotFormer { root: id, state })),
    }
    let using: Vec<NodeId> = tables
        .members
        .values()
        .map(|member| member.node)
        .filter(|node| tables.newest_issuer(*node) == Some(id))
        .collect();
    if let (Some(node), false) = (using.first(), force) {
        return Err(in_use(id, *node, using.len()));
    }
    if !force {
        workloads::may_retire(tables, stamp, id)?;
    }
    withdraw(tables, stamp, id, AuthorityState::Retired);
    Ok(())
}

fn revoke(tables: &mut Tables, stamp: &Stamp<'_>, id: RootId) -> Result<(), CommandRefusal> {
    match known(tables, id)?.state {
        AuthorityState::Revoked => return Ok(()),
        AuthorityState::Retiring | AuthorityState::Retired => {}
        state => return Err(refused(AuthorityRefusal::NotFormer { root: id, state })),
    }
    may_be_revoked(tables, id)?;
    withdraw(tables, stamp, id, AuthorityState::Revoked);
    Ok(())
}

fn forget(tables: &mut Tables, stamp: &Stamp<'_>, id: RootId) -> Result<(), CommandRefusal> {
    let Some(root) = tables.authorities.roots.get(&id) else { return Ok(()) };
    if !matches!(root.state, AuthorityState::Retired | AuthorityState::Revoked) {
        return Err(stale(format!("the root {id} is {}, not retired", root.state)));
    }
    if let Some(until) = forgettable_at(tables, id).filter(|until| stamp.wall < *until) {
        return Err(refused(AuthorityRefusal::MayBeValid { root: id, until }));
    }
    let was = root.state;
    tables.authorities.roots.remove(&id);
    log(tables, stamp, id, Some(was), None);
    Ok(())
}

fn trusted(tables: &mut Tables, node: NodeId, generation: Revision) -> Result<(), CommandRefusal> {
    super::node(tables, node)?;
    if tables.authorities.roots.is_empty() || generation > tables.authorities.generation {
        return Err(stale(format!("the roots are of generation {}, not {generation}", tables.authorities.generation)));
    }
    let known = tables.authorities.trusted_by.entry(node).or_default();
    *known = generation.max(*known);
    Ok(())
}

/// Deletes the key of a root that nodes are not to trust any more.
fn withdraw(tables: &mut Tables, stamp: &Stamp<'_>, id: RootId, state: AuthorityState) {
    if known(tables, id).is_ok_and(|root| root.state.trusted()) {
        tables.authorities.generation = stamp.at;
    }
    set_state(tables, stamp, id, state);
    let root = root_mut(tables, id);
    if !is_injected(BugInjection::KeepRetiredKey) {
        root.key_pem = None;
    }
    root.retired_at = root.retired_at.or(Some(stamp.wall));
}

fn set_state(tables: &mut Tables, stamp: &Stamp<'_>, id: RootId, state: AuthorityState) {
    let root = root_mut(tables, id);
    let was = std::mem::replace(&mut root.state, state);
    root.revision = stamp.at;
    log(tables, stamp, id, Some(was), Some(state));
}

/// Roots belong to the cluster's history: certificates, which nodes can request often, never push them out.
fn log(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: RootId,
    before: Option<AuthorityState>,
    after: Option<AuthorityState>,
) {
    let text = |state: AuthorityState| format!("{ROOT}{id} {state}");
    log_text(tables, stamp, before.map(text), after.map(text));
}

fn log_text(tables: &mut Tables, stamp: &Stamp<'_>, before: Option<String>, after: Option<String>) {
    stamp.log(tables, EventKind::Cluster, None, before, after);
}

/// What an id follows in the event of a root.
const ROOT: &str = "root ";

/// The root that the entry at this revision was about: the last one of which it logged an event. `None`: it changed no root, or its
/// event was evicted.
pub fn root_changed_at(tables: &Tables, revision: Revision) -> Option<RootId> {
    let events = tables.events.iter().rev().take_while(|event| event.revision >= revision);
    let mut of_entry = events.filter(|event| event.revision == revision && event.kind == EventKind::Cluster);
    of_entry.find_map(|event| {
        let text = event.after.as_ref().or(event.before.as_ref())?.strip_prefix(ROOT)?;
        text.split(' ').next()?.parse().ok()
    })
}

fn known(tables: &Tables, id: RootId) -> Result<&Authority, CommandRefusal> {
    tables.authorities.roots.get(&id).map(|root| &**root).ok_or_else(|| crate::guards::not_found("root", id))
}

fn root_mut(tables: &mut Tables, id: RootId) -> &mut Authority {
    Arc::make_mut(tables.authorities.roots.get_mut(&id).expect("the caller has found it"))
}

fn in_use(root: RootId, node: NodeId, in_all: usize) -> CommandRefusal {
    refused(AuthorityRefusal::RootInUse { root, node, in_all })
}

fn refused(why: AuthorityRefusal) -> CommandRefusal {
    CommandRefusal::Authority(why)
}

/// Whether `issuer`, as recorded, is this root. Not recorded: before feature level 3, by the founding root.
fn is(tables: &Tables, id: RootId, issuer: Option<RootId>) -> bool {
    issuer.or_else(|| tables.authorities.founding().map(|(founding, _)| founding)) == Some(id)
}

/// ROOT-7. From when on a root may be forgotten: an hour after the last of its certificates on record has expired. `None`: none is.
pub fn forgettable_at(tables: &Tables, id: RootId) -> Option<WallTime> {
    if is_injected(BugInjection::ForgetEarly) {
        return None;
    }
    last_certificate_expires_at(tables, id).map(|not_after| not_after.plus(BLOCK_MARGIN))
}

/// When the last certificate of this root on record expires.
pub fn last_certificate_expires_at(tables: &Tables, id: RootId) -> Option<WallTime> {
    let rows = tables.certificates.iter().flat_map(|(node, row)| {
        let issued = row.current.iter().chain(row.older());
        let recorded = issued.filter(|issued| is(tables, id, issued.issuer)).map(|issued| issued.not_after);
        // It may hold one that is not on record: at the latest, the last one that it was ever issued.
        let unknown = tables.nodes.get(node).filter(|_| row.incomplete && is(tables, id, None));
        recorded.chain(unknown.map(|record| record.last_not_after)).collect::<Vec<_>>()
    });
    let users = tables.users.values().filter(|user| {
        let pin = tables.user_pins.get(&user.name).filter(|pin| pin.serial == user.serial);
        is(tables, id, pin.map(|pin| pin.issuer))
    });
    rows.chain(users.map(|user| user.not_after)).max()
}
