//! Builders, and a founded cluster for tests.

use muster_messages::*;
use muster_store::{apply, apply_membership};

pub const HOUR: i64 = 3_600_000;
pub const T0: WallTime = WallTime(1_700_000_000_000);

pub fn id(n: u8) -> NodeId {
    NodeId::from_entropy(u128::from(n))
}

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub fn node(n: u8, role: Role) -> NodeRecord {
    NodeRecord {
        addr: format!("10.0.0.{n}:4400"),
        release: "0.1.0".to_owned(),
        last_not_after: WallTime(0),
        ..NodeRecord::new(id(n), name(&format!("n{n}")), role, T0)
    }
}

pub fn cluster() -> ClusterRecord {
    ClusterRecord {
        id: ClusterId::from_entropy(7),
        name: name("default"),
        incarnation: Incarnation(1),
        feature_level: 1,
        root_cert_pem: "root".to_owned(),
        root_key_pem: Secret::new("key"),
        founded_at: T0,
        revision: Revision(0),
    }
}

pub fn token(id: &str, role: Role) -> Token {
    Token {
        id: id.to_owned(),
        role,
        secret: Secret::new("hush"),
        default: false,
        created_at: T0,
        expires_at: None,
        uses_left: None,
        revision: Revision(0),
    }
}

pub fn user(who: &str, serial: &str) -> User {
    User {
        name: name(who),
        kind: UserKind::User,
        namespaces: vec!["default".to_owned()],
        serial: serial.to_owned(),
        created_at: T0,
        not_after: WallTime(T0.0 + HOUR),
        revision: Revision(0),
    }
}

pub fn block(n: u8, expires_at: WallTime) -> Change {
    Change::Block(Blocked { node: id(n), by: Principal::Operator, blocked_at: T0, expires_at })
}

pub fn certificate(role: Role, granted: Option<Revision>, not_after: i64) -> CertificateRecord {
    CertificateRecord {
        role,
        serial: format!("{not_after:x}"),
        granted,
        not_after: WallTime(not_after),
        state: CertificateState::Issued,
    }
}

pub fn command(changes: impl IntoIterator<Item = Change>) -> Command {
    let start = Command::idempotent(T0, Principal::Operator, "a test");
    changes.into_iter().fold(start, Command::change)
}

/// A session takes a lease of the default namespace.
pub fn acquire(lease: &str, holder: &str, session: u128) -> Command {
    command([Change::AcquireLease {
        key: ObjectKey::lease("default", lease),
        holder: holder.to_owned(),
        session: SessionId(session),
        duration_ms: 15_000,
        uid: Uid(1),
    }])
}

/// Tables and the log position.
#[derive(Clone, Debug)]
pub struct World {
    pub tables: Tables,
}

impl World {
    pub fn empty() -> Self {
        Self { tables: Tables::default() }
    }

    /// Node 1 founded it and is member 1.
    pub fn founded() -> Self {
        Self::founded_at(1)
    }

    /// The same at this feature level.
    pub fn founded_at(feature_level: u32) -> Self {
        let mut world = Self::empty();
        let cluster = Box::new(ClusterRecord { feature_level, ..cluster() });
        let found = Change::Found { cluster, founder: Box::new(node(1, Role::Manager)), tokens: vec![] };
        world.must(command([found]));
        world
    }

    /// With further nodes, none of them Raft members.
    pub fn with(mut self, nodes: impl IntoIterator<Item = (u8, Role)>) -> Self {
        for (n, role) in nodes {
            self.must(command([Change::CreateNode(Box::new(node(n, role)))]));
        }
        self
    }

    pub fn next(&self) -> Revision {
        self.tables.revision.next()
    }

    pub fn apply(&mut self, command: Command) -> Result<(), CommandRefusal> {
        let at = self.next();
        apply(&mut self.tables, at, &command)
    }

    /// Applies a command that must be accepted.
    pub fn must(&mut self, command: Command) {
        self.apply(command).unwrap();
        muster_store::invariants::check(&self.tables).unwrap();
    }

    /// Applies a command that must be refused, and checks that it left no trace.
    pub fn refused(&mut self, command: Command) -> CommandRefusal {
        let before = self.tables.clone();
        let refusal = self.apply(command).unwrap_err();
        let expected = Tables {
            revision: before.revision.next(),
            outcomes: self.tables.outcomes.clone(),
            outcome_order: self.tables.outcome_order.clone(),
            requests: self.tables.requests.clone(),
            ..before
        };
        assert_eq!(self.tables, expected);
        refusal
    }

    pub fn change_membership(&mut self, kind: MembershipChangeKind) -> Result<(), CommandRefusal> {
        let change = MembershipChange { at: T0, by: Principal::Operator, kind };
        let at = self.next();
        apply_membership(&mut self.tables, at, &change)
    }

    pub fn learner(&mut self, n: u8, raft_id: u64) -> Result<(), CommandRefusal> {
        self.change_membership(MembershipChangeKind::AddLearner {
            node: id(n),
            raft_id: RaftId(raft_id),
            addr: format!("10.0.0.{n}:4400"),
        })
    }

    pub fn promote(&mut self, n: u8, raft_id: u64) -> Result<(), CommandRefusal> {
        self.change_membership(MembershipChangeKind::PromoteLearner { node: id(n), raft_id: RaftId(raft_id) })
    }

    pub fn remove_member(&mut self, raft_id: u64) -> Result<(), CommandRefusal> {
        self.change_membership(MembershipChangeKind::Remove { raft_id: RaftId(raft_id) })
    }

    pub fn record(&self, n: u8) -> &NodeRecord {
        &self.tables.nodes[&id(n)]
    }
}
