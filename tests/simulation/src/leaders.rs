//! Actors that run while a member leads: role manager, certificate authority, root rotation, autopilot, dispatcher, lease clock.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_cert_authority::core as authority;
use muster_messages::{
    Change, ClusterRecord, Command, Guard, IDENTITY_LEVEL, Incarnation, IssuedCertificate, Name, NodeRecord, Principal,
    Revision, Role, Secret, Token, WaitReason, WallTime,
};
use muster_role_manager::core::{self as roles};
use muster_sessions::core::dispatcher;

use crate::blocks::Blocks;
use crate::events::Event;
use crate::hosts::Hosts;
use crate::keyrings::Keyring;
use crate::lease_clock::Clock;
use crate::machine::{Asker, Authority, Autopilot, Dispatch, Keeper, Leader, MachineIdx, Roles, Rotation};
use crate::world::World;

/// Interval of the count of waiting changes.
const TALLY_INTERVAL: Duration = Duration::from_millis(500);
const TOKENS: [Role; 2] = [Role::Worker, Role::Manager];

/// The secret of a role's token.
pub(crate) fn token_secret(role: Role) -> Secret {
    Secret::new(format!("secret-of-{role}"))
}

impl Leader {
    /// The member's replica changed: starts or stops the leader's actors and schedules their observation.
    pub(crate) fn replica_published(world: &mut World, idx: MachineIdx) {
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let replica = runtime.core.cluster_replica().clone();
        let wanted = replica.raft.leading.then_some(replica.raft.term);
        if runtime.leader.as_ref().map(|l| l.term) != wanted {
            let since = Autopilot::term_begins(world, idx);
            let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
            runtime.leader = wanted.map(|term| Leader {
                term,
                slot: None,
                roles: None,
                authority: None,
                rotation: None,
                dispatch: None,
                clock: None,
                autopilot: None,
                doubts: Default::default(),
                since,
                shown: Default::default(),
            });
            let number = runtime.number;
            if let Some(term) = wanted {
                Self::start(world, idx, number);
                Clock::restart(world, idx, term, BTreeMap::new());
            }
        }
        if let Some(runtime) = world.machines[idx].runtime.as_mut().filter(|h| h.leader.is_some() && !h.observe_due) {
            runtime.observe_due = true;
            let (runtime, soon) = (runtime.number, world.rng.micros(0, 1500));
            world.time.after(soon, Event::Observe { idx, runtime });
        }
        Hosts::schedule_observe(world, idx);
        Keyring::observe(world, idx);
        Blocks::schedule_observe(world, idx);
        Keeper::keep(world, idx, replica.raft.raft_id);
    }

    fn start(world: &mut World, idx: MachineIdx, runtime: u32) {
        let tables = world.machines[idx].runtime.as_ref().map(|h| h.core.tables().clone()).unwrap_or_default();
        if tables.cluster.is_none() {
            let command = Self::founding(world, idx);
            world.propose(idx, Asker::Internal, command, Duration::from_secs(5));
        }
        Roles::restart(world, idx, runtime);
        Authority::restart(world, idx, runtime);
        Rotation::restart(world, idx, runtime);
        Autopilot::restart(world, idx, runtime);
        Dispatch::restart(world, idx, runtime);
        world.time.after(TALLY_INTERVAL, Event::Tally { idx, runtime });
    }

    fn founding(world: &World, idx: MachineIdx) -> Command {
        let now = world.wall(idx);
        let cluster = ClusterRecord {
            id: crate::members::cluster(),
            name: Name::sanitized("universe"),
            incarnation: Incarnation(1),
            feature_level: world.machines[idx].build,
            root_cert_pem: crate::roots::text_of(crate::roots::FOUNDING),
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
        let founder = Box::new(Self::record(world, idx, now));
        let found = Change::Found { cluster: Box::new(cluster), founder, tokens: TOKENS.map(token).to_vec() };
        let command = Command::idempotent(now, Principal::Operator, "founded").guard(Guard::NotFounded).change(found);
        let records = world.machines[idx].build >= IDENTITY_LEVEL;
        let Some(first) = world.machines[idx].agent.certificate.as_ref().filter(|_| records) else { return command };
        let certificate = Box::new(IssuedCertificate {
            serial: first.serial.clone(),
            role: Role::Manager,
            granted: None,
            not_after: first.not_after,
            pin: None,
            issuer: None,
        });
        let node = world.machines[idx].id;
        command.change(Change::IssueCertificate { node, certificate, held: None, replaces: None })
    }

    fn record(world: &World, idx: MachineIdx, now: WallTime) -> NodeRecord {
        let machine = &world.machines[idx];
        NodeRecord {
            addr: machine.addr.clone(),
            release: "0.1.0".to_owned(),
            ..NodeRecord::new(machine.id, machine.name.clone(), Role::Manager, now)
        }
    }

    /// The leader's actors observe the newest replica.
    pub(crate) fn observe(world: &mut World, idx: MachineIdx, runtime: u32) {
        let Some(h) = world.machines[idx].runtime_mut(runtime) else { return };
        h.observe_due = false;
        let replica = h.core.replica().clone();
        let cluster = h.core.cluster_replica().clone();
        let newest = (replica.tables.revision, cluster.tables.revision);
        if let Some(leader) = h.leader.as_mut() {
            // Actors that read only tables see no change without a new revision; a restarted one is shown them at its start.
            let (shown, shown_of_cluster) = std::mem::replace(&mut leader.shown, newest);
            Roles::step(world, idx, roles::Input::Seen(cluster.clone()));
            if shown != newest.0 {
                Authority::step(world, idx, authority::Input::Replica(replica.tables.clone()));
            }
            if shown_of_cluster != newest.1 {
                Rotation::observe(world, idx);
                Dispatch::step(world, idx, dispatcher::Input::Replica(cluster.tables.clone()));
            }
            Autopilot::observe(world, idx);
            Clock::step(world, idx, muster_elections::core::keeper::Input::Replica(replica));
        }
    }

    /// Counts demotions that wait for a quorum.
    pub(crate) fn tally(world: &mut World, idx: MachineIdx, runtime: u32) {
        if world.machines[idx].runtime(runtime).is_none_or(|h| h.leader.is_none()) {
            return;
        }
        let waits = Roles::at(world, idx)
            .is_some_and(|r| r.core.queues().iter().any(|(_, p)| p.reason == WaitReason::QuorumAtRisk));
        world.totals.add("waits for quorum", u64::from(waits));
        world.time.after(TALLY_INTERVAL, Event::Tally { idx, runtime });
    }
}
