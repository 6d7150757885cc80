//! A request on its way to a certificate.

use muster_messages::{CertIdentity, Moment, Name, NodeId, Revision, Role, WallTime};
use muster_pki::Signed;

use super::values::{JoinWish, NodeWish, StepId, UserWish};

/// What was asked.
#[derive(Clone, Debug)]
pub enum Wish {
    Node(NodeWish),
    Join(Box<JoinWish>),
    User(UserWish),
}

impl Wish {
    pub(super) fn is_join(&self) -> bool {
        matches!(self, Wish::Join(_))
    }
    /// The node it is about.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Wish::Node(wish) => wish.identity.node().map(|(node, _)| node),
            Wish::Join(wish) => Some(wish.node),
            Wish::User(_) => None,
        }
    }
    /// The certificate that the node showed, if it has one.
    pub fn shown(&self) -> Option<&CertIdentity> {
        match self {
            Wish::Node(wish) => Some(&wish.identity),
            Wish::Join(wish) => wish.rekey.as_deref(),
            Wish::User(_) => None,
        }
    }
    /// Who it is for, for people.
    pub fn who(&self) -> String {
        match (self.node(), self) {
            (Some(node), _) => node.to_string(),
            (None, Wish::User(wish)) => wish.name.to_string(),
            (None, _) => String::new(),
        }
    }
    /// The kind of request, one word.
    pub fn kind(&self) -> &'static str {
        match self {
            Wish::Node(_) => "renew",
            Wish::Join(wish) if wish.rekey.is_some() => "rekey",
            Wish::Join(_) => "join",
            Wish::User(_) => "user",
        }
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Pending {
    pub wish: Wish,
    pub(super) phase: Phase,
    pub since: WallTime,
    pub(super) until: Moment,
    /// Rounds lost to somebody else's change.
    pub(super) tries: u32,
    /// A join whose node is written down.
    pub(super) admitted: bool,
}

impl Pending {
    /// Where it stands, one word.
    pub fn phase(&self) -> &'static str {
        self.phase.word()
    }
}

/// Where a request stands. `seen` is the revision of the copy that the step was decided on.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// Waits for a copy that has applied this.
    CatchingUp(Revision),
    /// The entry that lets it in is proposed. A new node's name counts as taken from here on.
    Admitting { step: StepId, seen: Revision, name: Option<Name> },
    /// A node's certificate is for a grant; a user's is for none.
    Signing { step: StepId, seen: Revision, grant: Option<(Role, Revision)> },
    /// The certificate exists; nobody has seen it yet.
    Recording { step: StepId, seen: Revision, signed: Signed },
}

impl Phase {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Phase::CatchingUp(_) => "catching_up",
            Phase::Admitting { .. } => "admitting",
            Phase::Signing { .. } => "signing",
            Phase::Recording { .. } => "recording",
        }
    }
    pub(super) fn step(&self) -> Option<StepId> {
        match self {
            Phase::CatchingUp(_) => None,
            Phase::Admitting { step, .. } | Phase::Signing { step, .. } | Phase::Recording { step, .. } => Some(*step),
        }
    }
}
