//! The roots as they are shown: which ones there are, who has certificates of which, and how far a rotation is.

use std::cmp::Reverse;

use muster_messages::{
    Authority, AuthorityOrigin, AuthorityState, CertificateState, ClusterRecord, ErrorBody, ErrorCode, Liveness,
    MAX_MISSING, NodeRecord, RequestedRootView, RootId, RootView, RootsMissingView, RootsProgressView, RootsView,
    RootsWaitReason, RotationPhase, Tables, User, UserView, WallTime,
};

/// The roots that issued the certificates of nodes and users.
pub struct Issuers<'a> {
    tables: &'a Tables,
    /// The root that signs.
    active: Option<RootId>,
    /// The first one, if it is still on record: certificates from before feature level 3 are its own.
    founding: Option<RootId>,
}

impl<'a> Issuers<'a> {
    pub fn of(tables: &'a Tables) -> Self {
        let authorities = &tables.authorities;
        if let Some((active, _)) = authorities.active() {
            let founding = authorities.founding().map(|(id, _)| id);
            return Self { tables, active: Some(active), founding };
        }
        let cluster = tables.cluster.as_ref();
        let only = cluster.and_then(|cluster| muster_pki::root_id_of_pem(&cluster.root_cert_pem).ok());
        Self { tables, active: only, founding: only }
    }

    /// The root that issued a node's newest certificate. `None`: it has none, or the root is forgotten.
    pub fn of_node(&self, node: &NodeRecord) -> Option<RootId> {
        node.certificate.as_ref()?;
        self.tables.newest_issuer(node.id).or(self.founding)
    }

    /// The root that issued a user's certificate. `None`: it has none, or the root is forgotten.
    pub fn of_user(&self, user: &User) -> Option<RootId> {
        if user.serial.is_empty() {
            return None;
        }
        let pin = self.tables.user_pins.get(&user.name).filter(|pin| pin.serial == user.serial);
        pin.map(|pin| pin.issuer).or(self.founding)
    }

    pub fn user_view(&self, user: &User) -> UserView {
        UserView::new(user, self.of_user(user), self.is_outdated(user))
    }

    fn is_outdated(&self, user: &User) -> bool {
        !user.serial.is_empty() && self.of_user(user) != self.active
    }
}

/// `muster ca ls`, `muster ca status`.
pub fn roots(tables: &Tables) -> Result<RootsView, ErrorBody> {
    let cluster = tables.cluster.as_ref().ok_or_else(|| {
        ErrorBody::new(ErrorCode::NoQuorum, "the cluster's first entry has not been applied on this node yet")
    })?;
    let issuers = Issuers::of(tables);
    let mut items = match tables.authorities.roots.is_empty() {
        true => vec![founding_root(cluster, issuers.active)?],
        false => {
            let roots = tables.authorities.roots.iter();
            roots.map(|(id, root)| recorded_root(*id, root)).collect::<Result<Vec<_>, _>>()?
        }
    };
    items.sort_by_key(|root| (root.created_at, root.id));
    for root in &mut items {
        let nodes = tables.nodes.values().filter(|node| issuers.of_node(node) == Some(root.id));
        let users = tables.users.values().filter(|user| issuers.of_user(user) == Some(root.id));
        root.issued = nodes.count() + users.count();
        root.outdated = if root.state == AuthorityState::Active { 0 } else { root.issued };
    }
    let phase = phase(tables, &issuers);
    let prepared = tables.authorities.in_state(AuthorityState::Prepared).map(|(id, _)| id);
    Ok(RootsView {
        items,
        active: issuers.active,
        target: prepared.or(issuers.active.filter(|_| phase != RotationPhase::Done)),
        phase,
        acknowledged: acknowledged(tables),
        renewed: renewed(tables, &issuers),
        users_outdated: tables.users.values().filter(|user| issuers.is_outdated(user)).count(),
        last_not_after: last_not_after(tables, &issuers),
        requested: tables.authorities.requested.as_ref().map(|requested| RequestedRootView {
            id: requested.root,
            created_at: requested.created_at,
            compromised: requested.compromised,
        }),
    })
}

fn founding_root(cluster: &ClusterRecord, id: Option<RootId>) -> Result<RootView, ErrorBody> {
    let pem = &cluster.root_cert_pem;
    Ok(RootView {
        id: id.ok_or_else(|| unreadable("it has no public key"))?,
        state: AuthorityState::Active,
        origin: AuthorityOrigin::Founded,
        digest: muster_pki::digest(pem).map_err(unreadable)?,
        not_after: muster_pki::not_after_of_pem(pem).map_err(unreadable)?,
        created_at: cluster.founded_at,
        activated_at: Some(cluster.founded_at),
        automatic: false,
        compromised: false,
        issued: 0,
        outdated: 0,
    })
}

fn recorded_root(id: RootId, root: &Authority) -> Result<RootView, ErrorBody> {
    Ok(RootView {
        id,
        state: root.state,
        origin: root.origin,
        digest: muster_pki::digest(&root.cert_pem).map_err(unreadable)?,
        not_after: muster_pki::not_after_of_pem(&root.cert_pem).map_err(unreadable)?,
        created_at: root.created_at,
        activated_at: root.activated_at,
        automatic: root.automatic && root.state == AuthorityState::Prepared,
        compromised: root.compromised,
        issued: 0,
        outdated: 0,
    })
}

fn unreadable(why: impl std::fmt::Display) -> ErrorBody {
    ErrorBody::new(ErrorCode::Internal, format!("unreadable root certificate: {why}"))
}

/// Users renew by themselves, whenever they like: no rotation waits for them.
fn phase(tables: &Tables, issuers: &Issuers<'_>) -> RotationPhase {
    let is = |state| tables.authorities.in_state(state).is_some();
    let former = |node: &NodeRecord| node.liveness == Liveness::Ready && issuers.of_node(node) != issuers.active;
    if is(AuthorityState::Prepared) {
        RotationPhase::Publishing
    } else if !tables.authorities.roots.is_empty() && tables.nodes.values().any(|node| former(node)) {
        RotationPhase::Signing
    } else if is(AuthorityState::Retiring) {
        RotationPhase::Retiring
    } else {
        RotationPhase::Done
    }
}

/// Before the first rotation there is nothing to acknowledge: a node trusts the root that it joined with.
fn acknowledged(tables: &Tables) -> RootsProgressView {
    let authorities = &tables.authorities;
    let done = |node: &NodeRecord| authorities.roots.is_empty() || authorities.is_trusted_by(node.id);
    progress(tables, done, |_| RootsWaitReason::WaitingForAnswer)
}

/// While a root is published because others may have the active one's key, the nodes whose certificates have no digest on record
/// renew first: afterwards, only the digest admits them.
fn renewed(tables: &Tables, issuers: &Issuers<'_>) -> RootsProgressView {
    let authorities = &tables.authorities;
    let leaked = authorities.active().is_some_and(|(_, active)| active.compromised);
    let needs_digests = leaked && authorities.in_state(AuthorityState::Prepared).is_some();
    let done = |node: &NodeRecord| {
        authorities.roots.is_empty()
            || issuers.of_node(node) == issuers.active && (!needs_digests || tables.has_digest(node.id))
    };
    progress(tables, done, |node| match node.certificate_state() {
        CertificateState::Failed => RootsWaitReason::Failed,
        CertificateState::Rotate | CertificateState::Pending => RootsWaitReason::Renewing,
        CertificateState::Issued => RootsWaitReason::Queued,
    })
}

/// `reason`: why a node that is ready has not done it.
fn progress(
    tables: &Tables,
    done: impl Fn(&NodeRecord) -> bool,
    reason: impl Fn(&NodeRecord) -> RootsWaitReason,
) -> RootsProgressView {
    let mut missing: Vec<&NodeRecord> = tables.nodes.values().map(|node| &**node).filter(|node| !done(node)).collect();
    let (of, n) = (tables.nodes.len(), tables.nodes.len() - missing.len());
    missing.sort_by_key(|node| (Reverse(node.liveness == Liveness::Ready), node.name.clone(), node.id));
    let view = |node: &NodeRecord| {
        let (reason, since) = match node.liveness {
            Liveness::Ready => (reason(node), None),
            Liveness::Unknown | Liveness::Down => (RootsWaitReason::WaitingForNode, Some(node.liveness_since)),
        };
        RootsMissingView { node: node.id, name: node.name.clone(), reason, since }
    };
    RootsProgressView { of, n, missing: missing.into_iter().take(MAX_MISSING).map(view).collect() }
}

/// When the last certificate of another root than the active one expires, as far as it is on record.
fn last_not_after(tables: &Tables, issuers: &Issuers<'_>) -> Option<WallTime> {
    let others = tables.authorities.roots.keys().filter(|id| Some(**id) != issuers.active);
    others.filter_map(|id| muster_store::last_certificate_expires_at(tables, *id)).max()
}

#[cfg(test)]
#[path = "roots_tests.rs"]
mod tests;
