//! Actors that run while a member leads: role manager, certificate authority, dispatcher, lease clock.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_cert_authority::core as authority;
use muster_messages::{
    Change, ClusterRecord, Command, Guard, IDENTITY_LEVEL, Incarnation, IssuedCertificate, Name, NodeRecord, Principal,
    Revision, Role, Secret, Token, WaitReason, WallTime,
};
use muster_raft_member::core::Input;
use muster_role_manager::core::{self as roles};
use muster_sessions::core::dispatcher;

use crate::machine::{Asker, Caller, Leader, MachineIdx};
use crate::simulation::{Answered, Event, Simulation};

/// Interval of the count of waiting changes.
const TALLY_INTERVAL: Duration = Duration::from_millis(500);
const TOKENS: [Role; 2] = [Role::Worker, Role::Manager];

/// The secret of a role's token.
pub(crate) fn token_secret(role: Role) -> Secret {
    Secret::new(format!("secret-of-{role}"))
}

impl Simulation {
    /// The member's replica changed: starts or stops the leader's actors and schedules their observation.
    pub(crate) fn replica_published(&mut self, idx: MachineIdx) {
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        let replica = runtime.core.replica().clone();
        let wanted = replica.raft.leading.then_some(replica.raft.term);
        if runtime.leader.as_ref().map(|l| l.term) != wanted {
            runtime.leader = wanted.map(|term| Leader {
                term,
                slot: None,
                roles: None,
                authority: None,
                dispatch: None,
                clock: None,
                shown: Revision(0),
            });
            let number = runtime.number;
            if let Some(term) = wanted {
                self.start_leader(idx, number);
                self.clock_back(idx, term, BTreeMap::new());
            }
        }
        if let Some(runtime) = self.machines[idx].runtime.as_mut().filter(|h| h.leader.is_some() && !h.observe_due) {
            runtime.observe_due = true;
            let (runtime, soon) = (runtime.number, self.rng.micros(0, 1500));
            self.time.after(soon, Event::Observe { idx, runtime });
        }
        self.schedule_observe_in_hosts(idx);
        self.schedule_observe_in_blocks(idx);
        self.keep_member_id(idx, replica.raft.raft_id);
    }

    fn start_leader(&mut self, idx: MachineIdx, runtime: u32) {
        let tables = self.machines[idx].runtime.as_ref().map(|h| h.core.tables().clone()).unwrap_or_default();
        if tables.cluster.is_none() {
            let command = self.founding(idx);
            self.propose(idx, Asker::Internal, command, Duration::from_secs(5));
        }
        self.roles_back(idx, runtime);
        self.authority_back(idx, runtime);
        self.dispatcher_back(idx, runtime);
        self.time.after(TALLY_INTERVAL, Event::Tally { idx, runtime });
    }

    fn founding(&self, idx: MachineIdx) -> Command {
        let now = self.wall(idx);
        let cluster = ClusterRecord {
            id: crate::members::cluster(),
            name: Name::sanitized("universe"),
            incarnation: Incarnation(1),
            feature_level: self.machines[idx].build,
            root_cert_pem: "root".to_owned(),
            root_key_pem: Secret::new("key"),
            founded_at: now,
            revision: Revision(0),
        };
        let token = |role: Role| Token {
            id: format!("default-{role}"),
            role,
            secret: token_secret(role),
            default: true,
            created_at: now,
            expires_at: None,
            uses_left: None,
            revision: Revision(0),
        };
        let founder = Box::new(self.record(idx, now));
        let found = Change::Found { cluster: Box::new(cluster), founder, tokens: TOKENS.map(token).to_vec() };
        let command = Command::idempotent(now, Principal::Operator, "founded").guard(Guard::NotFounded).change(found);
        let records = self.machines[idx].build >= IDENTITY_LEVEL;
        let Some(first) = self.machines[idx].agent.certificate.as_ref().filter(|_| records) else { return command };
        let certificate = Box::new(IssuedCertificate {
            serial: first.serial.clone(),
            role: Role::Manager,
            granted: None,
            not_after: first.not_after,
            pin: None,
            issuer: None,
        });
        let node = self.machines[idx].id;
        command.change(Change::IssueCertificate { node, certificate, held: None, replaces: None })
    }

    fn record(&self, idx: MachineIdx, now: WallTime) -> NodeRecord {
        let machine = &self.machines[idx];
        NodeRecord {
            addr: machine.addr.clone(),
            release: "0.1.0".to_owned(),
            ..NodeRecord::new(machine.id, machine.name.clone(), Role::Manager, now)
        }
    }

    pub(crate) fn propose(&mut self, idx: MachineIdx, asker: Asker, command: Command, within: Duration) {
        self.check_encoding(idx, &command);
        let deadline = self.clock(idx) + within;
        if let Some(ask) = self.await_answer(idx, asker) {
            self.deliver(idx, Input::Propose { ask, command: Box::new(command), deadline });
        }
    }

    /// The leader's actors observe the newest replica.
    pub(crate) fn observe(&mut self, idx: MachineIdx, runtime: u32) {
        let Some(h) = self.machines[idx].runtime_mut(runtime) else { return };
        h.observe_due = false;
        let replica = h.core.replica().clone();
        let newest = replica.tables.revision;
        if let Some(leader) = h.leader.as_mut() {
            // Actors that read only tables see no change without a new revision; a restarted one is shown them at its start.
            let fresh = std::mem::replace(&mut leader.shown, newest) != newest;
            self.roles_step(idx, roles::Input::Seen(replica.clone()));
            if fresh {
                self.authority_step(idx, authority::Input::Replica(replica.tables.clone()));
                self.dispatcher_step(idx, dispatcher::Input::Replica(replica.tables.clone()));
            }
            self.clock_step(idx, muster_elections::core::keeper::Input::Replica(replica));
        }
    }

    /// Counts demotions that wait for a quorum.
    pub(crate) fn tally(&mut self, idx: MachineIdx, runtime: u32) {
        if self.machines[idx].runtime(runtime).is_none_or(|h| h.leader.is_none()) {
            return;
        }
        let waits =
            self.roles(idx).is_some_and(|r| r.core.queues().iter().any(|(_, p)| p.reason == WaitReason::QuorumAtRisk));
        self.totals.add("waits for quorum", u64::from(waits));
        self.time.after(TALLY_INTERVAL, Event::Tally { idx, runtime });
    }

    /// Directly, or through a manager in between.
    pub(crate) fn reaches(&self, from: MachineIdx, to: MachineIdx) -> bool {
        let between = |via: &MachineIdx| {
            let machine = &self.machines[*via];
            machine.runs()
                && machine.runtime.is_some()
                && self.net.both_open(from, *via)
                && self.net.both_open(*via, to)
        };
        from == to || self.net.both_open(from, to) || (0..self.machines.len()).any(|via| between(&via))
    }

    /// Sends an answer back.
    pub(crate) fn reply(&mut self, from: MachineIdx, to: Caller, answer: Answered) {
        let lost = !self.reaches(from, to.idx) || self.rng.chance(self.net.conditions.loss);
        if !lost {
            let delay = self.net.conditions.slow + self.rng.micros(100, 1800);
            self.time.after(delay, Event::Answered { to, answer: Box::new(answer) });
        }
    }
}
