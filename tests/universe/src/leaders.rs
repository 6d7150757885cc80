//! What runs while a member leads: role manager, certificate authority, dispatcher, the clock of the leases.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_cert_authority::core as authority;
use muster_messages::{
    Change, ClusterRecord, Command, FEATURE_LEVEL, Guard, Incarnation, IssuedCertificate, Name, NodeRecord, Principal,
    Revision, Role, Secret, Token, WaitReason, WallTime,
};
use muster_raft_member::core::Input;
use muster_role_manager::core::{self as roles};
use muster_sessions::core::dispatcher;

use crate::machine::{Asker, Caller, Leader, Place};
use crate::world::{Answered, Event, Universe};

/// How often what waits is counted.
const TALLY: Duration = Duration::from_millis(500);
const TOKENS: [Role; 2] = [Role::Worker, Role::Manager];

/// The secret of the token for a role.
pub(crate) fn token_secret(role: Role) -> Secret {
    Secret::new(format!("secret-of-{role}"))
}

impl Universe {
    /// The member's level has changed: the leader's actors come and go with it, and look at it soon.
    pub(crate) fn published(&mut self, place: Place) {
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let replica = half.core.replica().clone();
        let wanted = replica.raft.leading.then_some(replica.raft.term);
        if half.leader.as_ref().map(|l| l.term) != wanted {
            half.leader = wanted.map(|term| Leader {
                term,
                slot: None,
                roles: None,
                authority: None,
                dispatch: None,
                clock: None,
                shown: Revision(0),
            });
            let number = half.number;
            if let Some(term) = wanted {
                self.start_leader(place, number);
                self.clock_back(place, term, BTreeMap::new());
            }
        }
        if let Some(half) = self.machines[place].half.as_mut().filter(|h| h.leader.is_some() && !h.look_due) {
            half.look_due = true;
            let (half, soon) = (half.number, self.dice.micros(0, 1500));
            self.time.after(soon, Event::Look { place, half });
        }
        self.hosts_look_soon(place);
        self.blocks_look_soon(place);
        self.keep_seat(place, replica.raft.raft_id);
    }

    fn start_leader(&mut self, place: Place, half: u32) {
        let tables = self.machines[place].half.as_ref().map(|h| h.core.tables().clone()).unwrap_or_default();
        if tables.cluster.is_none() {
            let command = self.founding(place);
            self.propose(place, Asker::House, command, Duration::from_secs(5));
        }
        self.roles_back(place, half);
        self.authority_back(place, half);
        self.dispatcher_back(place, half);
        self.time.after(TALLY, Event::Tally { place, half });
    }

    fn founding(&self, place: Place) -> Command {
        let now = self.wall(place);
        let cluster = ClusterRecord {
            id: crate::members::cluster(),
            name: Name::sanitized("universe"),
            incarnation: Incarnation(1),
            feature_level: FEATURE_LEVEL,
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
        let founder = Box::new(self.record(place, now));
        let found = Change::Found { cluster: Box::new(cluster), founder, tokens: TOKENS.map(token).to_vec() };
        let command = Command::idempotent(now, Principal::Operator, "founded").guard(Guard::NotFounded).change(found);
        let Some(first) = &self.machines[place].agent.certificate else { return command };
        let certificate = Box::new(IssuedCertificate {
            serial: first.serial.clone(),
            role: Role::Manager,
            granted: None,
            not_after: first.not_after,
            pin: None,
            issuer: None,
        });
        let node = self.machines[place].id;
        command.change(Change::IssueCertificate { node, certificate, held: None, replaces: None })
    }

    fn record(&self, place: Place, now: WallTime) -> NodeRecord {
        let machine = &self.machines[place];
        NodeRecord {
            addr: machine.addr.clone(),
            release: "0.1.0".to_owned(),
            ..NodeRecord::new(machine.id, machine.name.clone(), Role::Manager, now)
        }
    }

    pub(crate) fn propose(&mut self, place: Place, asker: Asker, command: Command, within: Duration) {
        let deadline = self.clock(place) + within;
        if let Some(ask) = self.park(place, asker) {
            self.hear(place, Input::Propose { ask, command: Box::new(command), deadline });
        }
    }

    /// The leader's actors see the newest level.
    pub(crate) fn look(&mut self, place: Place, half: u32) {
        let Some(h) = self.machines[place].half_mut(half) else { return };
        h.look_due = false;
        let replica = h.core.replica().clone();
        let newest = replica.tables.revision;
        if let Some(leader) = h.leader.as_mut() {
            // Whoever looks at the tables alone sees nothing in the same ones; who starts again is shown them then.
            let fresh = std::mem::replace(&mut leader.shown, newest) != newest;
            self.roles_step(place, roles::Input::Seen(replica.clone()));
            if fresh {
                self.authority_step(place, authority::Input::Copy(replica.tables.clone()));
                self.dispatcher_step(place, dispatcher::Input::Copy(replica.tables.clone()));
            }
            self.clock_step(place, muster_elections::core::keeper::Input::Copy(replica));
        }
    }

    /// How often demotions wait for a quorum.
    pub(crate) fn tally(&mut self, place: Place, half: u32) {
        if self.machines[place].half(half).is_none_or(|h| h.leader.is_none()) {
            return;
        }
        let waits = self
            .roles(place)
            .is_some_and(|r| r.core.queues().iter().any(|(_, p)| p.reason == WaitReason::QuorumAtRisk));
        self.totals.add("waits for quorum", u64::from(waits));
        self.time.after(TALLY, Event::Tally { place, half });
    }

    /// Directly, or through a manager between them.
    pub(crate) fn reaches(&self, from: Place, to: Place) -> bool {
        let between = |via: &Place| {
            let machine = &self.machines[*via];
            machine.runs() && machine.half.is_some() && self.net.both_open(from, *via) && self.net.both_open(*via, to)
        };
        from == to || self.net.both_open(from, to) || (0..self.machines.len()).any(|via| between(&via))
    }

    /// An answer on its way back.
    pub(crate) fn reply(&mut self, from: Place, to: Caller, answer: Answered) {
        let lost = !self.reaches(from, to.place) || self.dice.chance(self.net.weather.loss);
        if !lost {
            let delay = self.net.weather.slow + self.dice.micros(100, 1800);
            self.time.after(delay, Event::Answered { to, answer: Box::new(answer) });
        }
    }
}
