//! One small plan per node: from the four facts to the one next step, and a reason for being unsettled.
//!
//! Pure and level-triggered: the same facts give the same plan, whatever led to them. So a flip at any interleaving, a
//! crash or a new leader needs no special code.

use muster_messages::{
    BLOCK_MARGIN, Blocked, Change, Guard, Liveness, Member, MembershipChangeKind, NodeId, NodeRecord, RaftId, Role,
    Tables, WaitReason, WallTime, Wants,
};

use super::observations::{EarlyDial, EarlyDialPhase, Observation};
use super::{Config, Moment, Now};

/// What to do about a node that is not settled.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub wants: Wants,
    pub next: Option<Next>,
    pub wait: Wait,
    /// Whether callers that wait for the node to settle wait for this. False for a node that is down and needs nothing
    /// more from others: certificate and manager runtime follow when it returns.
    pub holds: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// A guarded command. Idempotent: a guard refuses a repetition.
    Write { reason: &'static str, guards: Vec<Guard>, changes: Vec<Change> },
    /// A dial-back before its request, once for this certificate.
    DialBack { addr: String, serial: String },
    /// A change of the Raft configuration.
    Membership(MembershipChangeKind),
}

/// Why a node is not settled yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    pub reason: WaitReason,
    pub message: String,
}

impl Wait {
    pub(crate) fn new(reason: WaitReason, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message }
    }
}

/// The facts that a plan may use.
pub(crate) struct Scene<'a> {
    pub tables: &'a Tables,
    pub commit: u64,
    pub config: &'a Config,
    pub now: Now,
}

/// The plan for `node`; `None` when it is settled.
pub(crate) fn plan(scene: &Scene<'_>, node: NodeId, observation: &Observation) -> Option<Plan> {
    let member = scene.tables.member_of(node);
    let Some(record) = scene.tables.nodes.get(&node) else {
        return member.map(orphan);
    };
    let path = Path { scene, record, member, observation };
    if record.removing.is_some() {
        return Some(path.removal());
    }
    match record.desired_role {
        Role::Manager => path.promotion(),
        Role::Worker => path.demotion(),
    }
}

/// A member without a node. MEMBER-1 forbids it; one that exists nevertheless is removed.
fn orphan(member: &Member) -> Plan {
    let message = "the node has no record; its Raft member is being removed";
    remove_member(Wants::Removed, member, message)
}

fn remove_member(wants: Wants, member: &Member, message: impl Into<String>) -> Plan {
    let raft_id = member.raft_id;
    Plan {
        wants,
        next: Some(Next::Membership(MembershipChangeKind::Remove { raft_id })),
        wait: Wait::new(WaitReason::RemovingMember, message),
        holds: true,
    }
}

struct Path<'a> {
    scene: &'a Scene<'a>,
    record: &'a NodeRecord,
    member: Option<&'a Member>,
    observation: &'a Observation,
}

impl Path<'_> {
    fn removal(&self) -> Plan {
        let (id, name) = (self.record.id, &self.record.name);
        if let Some(member) = self.member {
            let message = format!("{name} leaves the Raft configuration before its record is deleted");
            return remove_member(Wants::Removed, member, message);
        }
        let by = self.record.removing.as_ref().map(|r| r.by.clone());
        let now = self.scene.now.wall;
        // The store extends a block that is too short.
        let block = Blocked {
            node: id,
            by: by.unwrap_or(muster_messages::Principal::Cluster),
            blocked_at: now,
            expires_at: now.max(self.record.last_not_after).plus(BLOCK_MARGIN),
        };
        Plan {
            wants: Wants::Removed,
            next: Some(Next::Write {
                reason: "removed",
                guards: vec![Guard::NodeExists(id), Guard::Removing { node: id, removing: true }, Guard::NotMember(id)],
                changes: vec![Change::DeleteNode(id), Change::Block(block)],
            }),
            wait: Wait::new(WaitReason::RemovingMember, format!("the record of {name} is being deleted")),
            holds: true,
        }
    }

    fn promotion(&self) -> Option<Plan> {
        if self.record.role == Role::Worker {
            return Some(self.grant(Role::Manager));
        }
        let Some(member) = self.member else {
            return Some(self.without_membership());
        };
        if let Some((raft_id, loss)) = &self.observation.lost
            && *raft_id == member.raft_id
        {
            let wait = Wait::new(loss_reason(loss), self.loss_message(loss));
            return Some(Plan { wait, ..remove_member(Wants::Manager, member, "") });
        }
        if let Some(proven) = self.observation.proven_at(self.scene.now.at)
            && proven.addr != member.addr
        {
            let (raft_id, addr) = (member.raft_id, proven.addr.clone());
            let message = format!("its address changes from {} to {addr}", member.addr);
            return Some(Plan {
                wants: Wants::Manager,
                next: Some(Next::Membership(MembershipChangeKind::SetAddress { raft_id, addr })),
                wait: Wait::new(WaitReason::WaitingForJoin, message),
                holds: true,
            });
        }
        if member.voter {
            return self.certificate(Wants::Manager).or_else(|| self.absent());
        }
        Some(self.learner(member))
    }

    /// It is a member and takes no part. No step is needed here, and no caller waits for it.
    fn absent(&self) -> Option<Plan> {
        let why = self.observation.too_old.as_ref().or(self.observation.failure.as_ref())?;
        let wait = Wait::new(WaitReason::WaitingForJoin, why.clone());
        Some(Plan { wants: Wants::Manager, next: None, wait, holds: false })
    }

    /// Granted, but not a member: it asks by itself, with a certificate for the role.
    fn without_membership(&self) -> Plan {
        let name = &self.record.name;
        // A dial-back proves that it listens. A runtime that does not run would be one more silent learner.
        let runs = self.observation.failure.is_none();
        if let Some(proven) = self.observation.proven_at(self.scene.now.at).filter(|_| runs) {
            return Plan {
                wants: Wants::Manager,
                next: Some(Next::Membership(MembershipChangeKind::AddLearner {
                    node: self.record.id,
                    raft_id: self.scene.tables.next_raft_id,
                    addr: proven.addr.clone(),
                })),
                wait: Wait::new(WaitReason::WaitingForJoin, format!("{name} is being added to the Raft configuration")),
                holds: true,
            };
        }
        if let Some(plan) = self.certificate(Wants::Manager) {
            return plan;
        }
        let mut next = None;
        let wait = if self.is_down() {
            Wait::new(WaitReason::WaitingForNode, format!("{name} is down; it requests membership when it returns"))
        } else if let Some(why) = self.observation.too_old.as_ref().or(self.observation.failure.as_ref()) {
            Wait::new(WaitReason::WaitingForJoin, why.clone())
        } else if let Some(why) = &self.observation.dial_back {
            Wait::new(WaitReason::DialBackFailed, why.clone())
        } else if let Some((_, loss)) = &self.observation.lost {
            Wait::new(loss_reason(loss), self.loss_message(loss))
        } else {
            next = self.early_dial();
            Wait::new(
                WaitReason::WaitingForJoin,
                format!("{name} has its certificate but has not asked for membership yet"),
            )
        };
        let holds = wait.reason != WaitReason::WaitingForNode;
        Plan { wants: Wants::Manager, next, wait, holds }
    }

    fn early_dial(&self) -> Option<Next> {
        let serial = &self.record.certificate.as_ref()?.serial;
        let is_over = |early: &EarlyDial| early.serial == *serial && !matches!(early.phase, EarlyDialPhase::Due(_));
        let over = self.observation.early_dial.as_ref().is_some_and(is_over);
        (!over).then(|| Next::DialBack { addr: self.record.addr.clone(), serial: serial.clone() })
    }

    fn learner(&self, member: &Member) -> Plan {
        let (node, raft_id, name) = (self.record.id, member.raft_id, &self.record.name);
        let config = self.scene.config;
        let wait = match &self.observation.failure {
            Some(why) => Wait::new(WaitReason::WaitingForJoin, why.clone()),
            None => Wait::new(WaitReason::CatchingUp, format!("{name} is copying the log")),
        };
        let mut plan = Plan { wants: Wants::Manager, next: None, wait, holds: true };
        let Some(learner) = self.observation.learner.as_ref().filter(|l| l.raft_id == raft_id) else {
            return plan;
        };
        if self.scene.now.at.since(learner.last_ack) >= config.learner_silence {
            let quiet = config.learner_silence.as_secs();
            let message = format!("{name} was silent for {quiet} s and is removed as a learner until it asks again");
            plan.next = Some(Next::Membership(MembershipChangeKind::Remove { raft_id }));
            plan.wait = Wait::new(WaitReason::CatchingUp, message);
        } else if learner.caught_up(self.scene.commit, self.scene.now.at, config) {
            plan.next = Some(Next::Membership(MembershipChangeKind::PromoteLearner { node, raft_id }));
            plan.wait = Wait::new(WaitReason::CatchingUp, format!("{name} has caught up and is becoming a voter"));
        }
        plan
    }

    fn demotion(&self) -> Option<Plan> {
        if let Some(member) = self.member {
            let message = format!("{} leaves the Raft configuration before it becomes a worker", self.record.name);
            return Some(remove_member(Wants::Worker, member, message));
        }
        if self.record.role == Role::Manager {
            return Some(self.grant(Role::Worker));
        }
        self.certificate(Wants::Worker)
    }

    /// ROLE-4: guarded by the request and by the last grant, so that no role older than the newest request is ever
    /// written.
    fn grant(&self, role: Role) -> Plan {
        let node = self.record.id;
        let mut guards = vec![
            Guard::NodeExists(node),
            Guard::DesiredRole { node, role },
            Guard::Granted { node, granted: self.record.granted },
            Guard::Removing { node, removing: false },
        ];
        let (reason, wants) = match role {
            Role::Manager => ("promotion", Wants::Manager),
            Role::Worker => ("demotion", Wants::Worker),
        };
        if role == Role::Worker {
            guards.push(Guard::NotMember(node));
        }
        let message = format!("{} is being granted the role {role}", self.record.name);
        Plan {
            wants,
            next: Some(Next::Write { reason, guards, changes: vec![Change::GrantRole { node, role }] }),
            wait: Wait::new(WaitReason::WaitingForCertificate, message),
            holds: true,
        }
    }

    /// Everything else agrees: does the certificate?
    fn certificate(&self, wants: Wants) -> Option<Plan> {
        let record = self.record;
        let agrees =
            record.certificate.as_ref().is_some_and(|c| c.role == record.role && c.granted == Some(record.granted));
        if agrees {
            return None;
        }
        let (name, role) = (&record.name, record.role);
        let (wait, holds) = if self.is_down() {
            let message = format!("{name} is down; it fetches its {role} certificate when it returns");
            (Wait::new(WaitReason::WaitingForNode, message), false)
        } else {
            let message = format!("{name} has not fetched its {role} certificate yet");
            (Wait::new(WaitReason::WaitingForCertificate, message), true)
        };
        Some(Plan { wants, next: None, wait, holds })
    }

    fn is_down(&self) -> bool {
        self.record.liveness == Liveness::Down
    }

    fn loss_message(&self, loss: &muster_messages::wire::DataLoss) -> String {
        let what = if loss.damaged { "are damaged" } else { "are missing" };
        format!(
            "the Raft data of {} {what} ({}); it becomes a new member once the old one is removed",
            self.record.name, loss.file
        )
    }
}

fn loss_reason(loss: &muster_messages::wire::DataLoss) -> WaitReason {
    if loss.damaged { WaitReason::RaftDataDamaged } else { WaitReason::RaftDataMissing }
}

/// Since when a node has been waiting, according to the replicated state. For a leader that did not see it begin.
pub(crate) fn since(tables: &Tables, node: NodeId, plan: &Plan) -> WallTime {
    let Some(record) = tables.nodes.get(&node) else {
        return WallTime::default();
    };
    if plan.wait.reason == WaitReason::WaitingForNode {
        return record.liveness_since;
    }
    if let Some(removal) = &record.removing {
        return removal.at;
    }
    // A member that takes no part: the state does not say since when.
    if plan.wait.reason == WaitReason::WaitingForJoin && tables.member_of(node).is_some() {
        return WallTime(i64::MAX);
    }
    let newest =
        (tables.events.iter().rev()).find(|e| e.node == Some(node) && e.kind == muster_messages::EventKind::Role);
    newest.map_or(record.created_at, |e| e.at)
}

/// The member id that a change concerns, for the log and for messages.
pub(crate) fn member_id_in(kind: &MembershipChangeKind) -> RaftId {
    match kind {
        MembershipChangeKind::AddLearner { raft_id, .. }
        | MembershipChangeKind::PromoteLearner { raft_id, .. }
        | MembershipChangeKind::Remove { raft_id }
        | MembershipChangeKind::SetAddress { raft_id, .. } => *raft_id,
    }
}

/// The plan derived from the replicated state alone, as on a member that does not lead.
pub(crate) fn bare(tables: &Tables, node: NodeId, config: &Config) -> Option<Plan> {
    let now = Now { at: Moment(0), wall: WallTime::default() };
    let scene = Scene { tables, commit: 0, config, now };
    plan(&scene, node, &Observation::default())
}
