//! Raft members: starting and stopping a manager runtime, steps of its core, its disk, its packets.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use muster_gateway::core::admission::{Admission, admit};
use muster_messages::protocol::{Service, SnapshotOutcome};
use muster_messages::{ClusterId, ErrorBody, ObjectChange, RefusalReason, Revision};
use muster_raft_member::core::{Answer, Batch, Bundle, Input, Notice, Outbound, RaftCore, bundles};
use muster_store::History;

use crate::blocks::Blocks;
use crate::bugs::Bug;
use crate::candidates::Candidates;
use crate::checks::{PROPOSE_1, violation};
use crate::clients::Clients;
use crate::connections::AgentConnections;
use crate::disk::Progress;
use crate::events::{Answered, Event, Mail};
use crate::fleet::{Fleet, PendingRequest};
use crate::hosts::Hosts;
use crate::keyrings::Keyring;
use crate::lease_clock::Clock;
use crate::machine::{
    Asker, Authority, Autopilot, Dispatch, Keeper, Leader, MachineIdx, ManagerRuntime, Roles, Rotation,
};
use crate::registers::Registers;
use crate::roots;
use crate::rotations::Rotations;
use crate::snapshots::Snapshots;
use crate::upgrades::Levels;
use crate::world::World;

/// Syncs, per thousand, that fail while faults are injected.
const FAILED_SYNCS_PER_1000: u32 = 3;

/// The id of the simulated cluster.
pub fn cluster() -> ClusterId {
    static ID: LazyLock<ClusterId> = LazyLock::new(|| ClusterId::from_entropy(0xc1));
    *ID
}

impl ManagerRuntime {
    // ---- starting and stopping ------------------------------------------------------------------------------------

    pub(crate) fn start(world: &mut World, idx: MachineIdx, founding: bool) {
        let (seed, now) = (world.rng.sample(), world.clock(idx));
        let (mut config, logger) = (world.settings.raft.clone(), world.logger.clone());
        let machine = &mut world.machines[idx];
        config.feature_level = machine.build;
        let recovered = machine.disk.recover();
        let is_member = recovered.member_id.is_some();
        let core = RaftCore::start(config, machine.id, recovered, founding, seed, now, logger);
        let lost = machine.disk.held.filter(|_| machine.disk.lost.is_some());
        let lost = lost.filter(|_| world.settings.bug != Some(Bug::ReuseLostMemberId));
        let core = match core {
            Ok(core) => core.without(lost),
            Err(fault) => return world.require(Err(violation("FAULT", fault.0))),
        };
        world.runtimes += 1;
        let number = world.runtimes;
        let opened_at = core.tables().revision;
        let mut history = History::default();
        history.begin_at(opened_at);
        let sessions = world.settings.sessions.clone();
        // Larger than any of an earlier process of this host.
        let first_sequence = world.now().0;
        let machine = &mut world.machines[idx];
        machine.runtime = Some(ManagerRuntime {
            number,
            core,
            asks: BTreeMap::new(),
            keeper: Keeper { pause: Duration::from_millis(25), ..Keeper::default() },
            leader: None,
            hosts: Hosts::new(sessions, now, first_sequence),
            blocks: Blocks::new(),
            observe_due: false,
            step_due: true,
            opened_at,
            checked: Revision(0),
            leaderless_since: None,
            history,
        });
        if is_member || founding {
            machine.silent_since = None;
        }
        world.due.push_back(idx);
        let name = world.machines[idx].name.clone();
        world.log(format!(
            "{name} starts its manager runtime {number} ({})",
            if is_member { "with data" } else { "empty" }
        ));
        let phase = world.rng.micros(0, 20_000);
        world.time.after(phase, Event::Tick { idx, runtime: number });
        let first = world.rng.millis(0, 4000);
        world.time.after(first, Event::BlocksTick { idx, runtime: number });
        let soon = world.rng.micros(100, 3000);
        world.time.after(soon, Event::AskMembership { idx, runtime: number, unanswered: None });
        let others: Vec<MachineIdx> = (0..world.machines.len()).filter(|p| *p != idx).collect();
        for peer in others {
            if world.machines[peer].runtime.is_some() && world.net.both_open(idx, peer) {
                world.session(idx, peer, true, Duration::from_millis(8));
            }
        }
    }

    /// Ends the manager runtime with everything in its memory. `noticed`: its connections break at once.
    pub(crate) fn stop(world: &mut World, idx: MachineIdx, noticed: bool) {
        let now = world.now();
        let machine = &mut world.machines[idx];
        let (id, leads) = (machine.id, machine.runtime.as_ref().is_some_and(|h| h.core.leads()));
        if machine.runtime.take().is_none() {
            return;
        }
        machine.silent_since.get_or_insert(now);
        Keyring::runtime_ends(world, idx);
        Fleet::level_part_ends(world, idx);
        AgentConnections::process_ends(world, idx, true, noticed);
        if !noticed {
            return;
        }
        for peer in (0..world.machines.len()).filter(|p| *p != idx).collect::<Vec<_>>() {
            let Some(runtime) = world.machines[peer].runtime.as_ref().map(|h| h.number) else { continue };
            if !world.net.both_open(idx, peer) {
                continue;
            }
            let delay = world.rng.micros(200, 20_000);
            world.time.after(delay, Event::Session { idx: peer, runtime, peer: id, up: false });
            if leads && world.rng.chance(700) {
                world.totals.count("fault: leader-loss hint");
                let (delay, input) = (world.rng.micros(300, 30_000), Box::new(Input::LeaderGone { node: id }));
                world.time.after(delay, Event::Local { idx: peer, runtime, input });
            }
        }
    }

    // ---- steps ----------------------------------------------------------------------------------------------------

    pub(crate) fn tick(world: &mut World, idx: MachineIdx, runtime: u32) {
        if world.machines[idx].runtime(runtime).is_some() {
            world.deliver(idx, Input::Tick);
            let tick = world.settings.raft.tick;
            world.time.after(tick, Event::Tick { idx, runtime });
        }
    }

    pub(crate) fn turn(world: &mut World, idx: MachineIdx) {
        let now = world.clock(idx);
        let Some(runtime) = world.machines[idx].runtime.as_mut().filter(|h| h.step_due) else { return };
        runtime.step_due = false;
        match runtime.core.turn(now) {
            Ok(batch) => Self::apply_batch(world, idx, batch),
            Err(fault) => world.require(Err(violation("FAULT", fault.0))),
        }
    }

    fn apply_batch(world: &mut World, idx: MachineIdx, batch: Batch) {
        let Batch {
            send,
            send_snapshots,
            make_durable,
            take_snapshot,
            answers,
            publish,
            publish_cluster,
            wake_at,
            again,
            notices,
            lost,
            changes,
            installed,
            incompatible,
            ..
        } = batch;
        if let Some(why) = lost {
            // Simulated disks lose nothing that was synced.
            world.require(Err(violation("FAULT", why)));
        }
        let number = world.machines[idx].runtime.as_ref().map_or(0, |h| h.number);
        Self::record_history(world, idx, installed, changes);
        Self::send(world, idx, send);
        if !make_durable.is_empty() {
            world.machines[idx].disk.put(make_durable);
            Self::begin_disk(world, idx);
        }
        Self::check_applied(world, idx);
        for notice in notices {
            Self::notice(world, idx, notice);
        }
        if publish.is_some() || publish_cluster.is_some() {
            Leader::replica_published(world, idx);
        }
        for answer in answers {
            Self::ended(world, idx, answer);
        }
        for snapshot in send_snapshots {
            Snapshots::send(world, idx, snapshot);
        }
        if let Some(job) = take_snapshot {
            world.totals.count("snapshots taken");
            let head = world.machines[idx].disk.take_snapshot(&job);
            let (delay, input) = (world.rng.micros(500, 20_000), Box::new(Input::SnapshotTaken { head: Some(head) }));
            world.time.after(delay, Event::Local { idx, runtime: number, input });
        }
        if let Some(what) = incompatible {
            Levels::found_incompatible(world, idx, what);
        }
        if let Some(at) = wake_at {
            let at = world.moment(idx, at);
            world.time.at(at, Event::Woke { idx, runtime: number });
        }
        if let Some(runtime) = world.machines[idx].runtime.as_mut().filter(|h| again && !h.step_due) {
            runtime.step_due = true;
            world.due.push_back(idx);
        }
    }

    /// The member's history for watchers.
    fn record_history(world: &mut World, idx: MachineIdx, installed: Option<Revision>, changes: Vec<ObjectChange>) {
        let now = world.clock(idx);
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        if let Some(revision) = installed {
            runtime.history.begin_at(revision);
        }
        runtime.history.record(now, runtime.core.tables().revision, changes);
    }

    fn check_applied(world: &mut World, idx: MachineIdx) {
        let today = world.today();
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let tables = runtime.core.tables();
        if tables.revision == runtime.checked || tables.cluster.is_none() {
            return;
        }
        runtime.checked = tables.revision;
        world.trace.mix([idx as u64, tables.revision.0, tables.members.len() as u64, 2]);
        let outcome = world.checks.applied(tables, &world.model, today);
        let outcome = outcome.and_then(|()| match tables.revision.0.is_multiple_of(4) {
            true => world.checks.configured(tables, runtime.core.configuration()),
            false => Ok(()),
        });
        let tables = (world.rotations.active || world.unlocking.active).then(|| tables.clone());
        world.require(outcome);
        match tables {
            Some(tables) if world.rotations.active => Rotations::check(world, &tables),
            Some(tables) => Keyring::check(world, &tables),
            None => {}
        }
        Levels::check(world, idx);
        Fleet::check_serving(world);
        for change in std::mem::take(&mut world.checks.changes) {
            Roles::membership_changed(world, change);
        }
    }

    fn notice(world: &mut World, idx: MachineIdx, notice: Notice) {
        match &notice {
            Notice::Leads { term } => {
                world.totals.count("elections");
                let runtime = world.machines[idx].runtime.as_ref().map_or(0, |h| h.number);
                let outcome = world.checks.leads(term.0, idx, runtime);
                world.require(outcome);
            }
            Notice::Installed { .. } => world.totals.count("snapshots installed"),
            Notice::DiskTooSlow { stepped_down: true, .. } => {
                world.totals.count("leaders that stepped down on a slow disk")
            }
            Notice::MembershipProposed { kind, since } => Roles::check_membership_change(world, idx, kind, *since),
            Notice::MembershipRefused { .. } => world.totals.count("membership changes refused on apply"),
            _ => {}
        }
        let name = world.machines[idx].name.clone();
        world.log(format!("{name}: {notice:?}"));
    }

    fn ended(world: &mut World, idx: MachineIdx, answer: Answer) {
        let ask = match &answer {
            Answer::Proposed(ask, _)
            | Answer::Read(ask, _)
            | Answer::Transferred(ask, _)
            | Answer::Reachable(ask, _) => *ask,
        };
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let Some(asker) = runtime.asks.remove(&ask.0) else {
            let detail = format!("n{}: {answer:?} was not requested, or is answered twice", idx + 1);
            return world.require(Err(violation(PROPOSE_1, detail)));
        };
        match (asker, answer) {
            (Asker::Writer(attempt, key, value), Answer::Proposed(_, result)) => {
                Clients::write_ended(world, attempt, (key, value), result);
            }
            (Asker::Reader(floor), Answer::Read(_, result)) => Clients::read_ended(world, idx, &floor, result),
            (Asker::RoleStep { incarnation, step }, Answer::Proposed(_, result)) => {
                Roles::step_ended(world, idx, incarnation, step, result);
            }
            (Asker::Transfer { incarnation, step }, Answer::Transferred(_, result)) => {
                Roles::transfer_ended(world, idx, incarnation, step, result.is_ok());
            }
            (Asker::Reachability { incarnation, step }, Answer::Reachable(_, result)) => {
                Roles::reachability_checked(world, idx, incarnation, step, result.ok());
            }
            (Asker::RevocationCheck { incarnation, step }, Answer::Reachable(_, result)) => {
                Rotation::voters_asked(world, idx, incarnation, step, result.ok());
            }
            (Asker::Authority { incarnation, step }, Answer::Proposed(_, result)) => {
                Authority::step_ended(world, idx, incarnation, step, result);
            }
            (Asker::Rotation { incarnation, step }, Answer::Proposed(_, result)) => {
                Rotation::step_ended(world, idx, incarnation, step, result);
            }
            (Asker::Autopilot { incarnation }, Answer::Proposed(_, result)) => {
                Autopilot::answered(world, idx, incarnation, muster_autopilot::core::Input::Proposed(result.is_ok()));
            }
            // Another leader ends it.
            (Asker::AutopilotTransfer { incarnation }, Answer::Transferred(..)) => {
                Autopilot::answered(world, idx, incarnation, muster_autopilot::core::Input::NotHandedOver);
            }
            (Asker::Candidate(pending), Answer::Proposed(_, result)) => Candidates::ended(world, idx, pending, result),
            (Asker::Register(pending), Answer::Proposed(_, result)) => Registers::ended(world, pending, result),
            (Asker::Register(pending), Answer::Read(_, result)) => Registers::read_ended(world, pending, result),
            (Asker::Sweep { incarnation }, Answer::Proposed(_, result)) => {
                Blocks::sweep_ended(world, idx, incarnation, result)
            }
            (Asker::Fleet(pending), Answer::Proposed(_, result)) => PendingRequest::ended(world, idx, *pending, result),
            (Asker::FleetWrite { wave }, Answer::Proposed(_, result)) => PendingRequest::wrote(world, wave, result),
            (Asker::Dispatch { incarnation, batch }, Answer::Proposed(_, result)) => {
                Dispatch::step_ended(world, idx, incarnation, batch, result);
            }
            (Asker::ClockRead { incarnation, read }, Answer::Read(_, result)) => {
                Clock::read_ended(world, idx, incarnation, read, result);
            }
            (Asker::Expiry { incarnation, request }, Answer::Proposed(_, result)) => {
                Clock::expiry_ended(world, idx, incarnation, request, result);
            }
            (Asker::Late, Answer::Proposed(_, result)) => Clients::late_write_ended(world, result),
            (Asker::Seal(caller), Answer::Proposed(_, result)) => {
                world.reply(idx, caller, Answered::Seal(result.map(|_| ()).map_err(ErrorBody::from)));
            }
            (Asker::Internal, _) => {}
            (_, answer) => world.require(Err(violation(PROPOSE_1, format!("an answer of the wrong kind: {answer:?}")))),
        }
    }

    // ---- disk -----------------------------------------------------------------------------------------------------

    pub(crate) fn begin_disk(world: &mut World, idx: MachineIdx) {
        let machine = &mut world.machines[idx];
        let Some(runtime) = machine.runtime.as_ref().map(|h| h.number) else { return };
        match machine.disk.begin(&mut world.rng) {
            Some(Progress::Syncing(number, takes)) => world.time.after(takes, Event::Synced { idx, runtime, number }),
            Some(Progress::Written(number)) => {
                let (delay, input) = (world.rng.micros(5, 60), Box::new(Input::Persisted { number }));
                world.time.after(delay, Event::Local { idx, runtime, input });
            }
            None => {}
        }
    }

    pub(crate) fn synced(world: &mut World, idx: MachineIdx, runtime: u32, number: u64) {
        if world.machines[idx].runtime(runtime).is_some() {
            if world.faults_active && world.rng.chance(FAILED_SYNCS_PER_1000) && Self::sync_failed(world, idx, number) {
                return;
            }
            world.machines[idx].disk.synced(number);
            world.deliver(idx, Input::Persisted { number });
            Self::begin_disk(world, idx);
        }
    }

    /// As the member's shell: files of a failed sync cannot be trusted, and everything is still in memory.
    fn sync_failed(world: &mut World, idx: MachineIdx, number: u64) -> bool {
        let machine = &mut world.machines[idx];
        if world.settings.bug == Some(Bug::TrustFailedSyncs) {
            machine.disk.trust(number);
            world.deliver(idx, Input::Persisted { number });
            Self::begin_disk(world, idx);
            return true;
        }
        let Some((job, write)) = machine.runtime.as_mut().and_then(|h| h.core.everything()) else { return false };
        let number = write.number;
        machine.disk.renew(&job, write);
        world.totals.count("fault: sync failed");
        world.log(format!("sync failed: n{} rewrites its log", idx + 1));
        world.deliver(idx, Input::Persisted { number });
        true
    }

    /// The gateway of `idx` decides about a peer by its own replica.
    fn check_peer(world: &World, idx: MachineIdx, peer: MachineIdx) -> Result<(), RefusalReason> {
        let (machine, other) = (&world.machines[idx], &world.machines[peer]);
        let Some(runtime) = &machine.runtime else { return Err(RefusalReason::NotAManager) };
        let Some(certificate) = roots::presented(world, idx, peer) else { return Err(RefusalReason::Unauthenticated) };
        let here = world.here(idx);
        let replica = runtime.core.replica();
        if world.settings.bug == Some(Bug::RefuseOnStaleReplica) {
            let known = replica.tables.nodes.contains_key(&other.id) || replica.tables.cluster.is_none();
            return if known { Ok(()) } else { Err(RefusalReason::Removed) };
        }
        if world.lets_stay(replica, other.id) {
            return Ok(());
        }
        match admit(Some(&certificate), Service::Mesh, Some(replica), &here, world.wall(idx)) {
            Admission::Refuse(reason, _) => Err(reason),
            _ => Ok(()),
        }
    }

    /// A session needs both ends' consent, and one of them must have dialled the other. A refused peer learns the reason.
    /// Packets of a process that has ended are checked by the receiver alone.
    fn in_session(world: &mut World, from: MachineIdx, to: MachineIdx, sender: u32) -> bool {
        let lives = world.machines[from].runtime(sender).is_some();
        let dialled = !lives || roots::verifies(world, from, to) || roots::verifies(world, to, from);
        dialled
            && [(from, to), (to, from)]
                .into_iter()
                .skip(usize::from(!lives))
                .all(|(acceptor, peer)| Self::accepts_peer(world, acceptor, peer))
    }

    pub(crate) fn accepts_peer(world: &mut World, acceptor: MachineIdx, peer: MachineIdx) -> bool {
        let Err(reason) = Self::check_peer(world, acceptor, peer) else { return true };
        let notifies = matches!(reason, RefusalReason::Demoted | RefusalReason::Removed | RefusalReason::Blocked);
        if let Some(certificate) = world.machines[peer].agent.certificate.as_ref().filter(|_| notifies) {
            let (serial, life) = (certificate.serial.clone(), world.machines[peer].life);
            let delay = world.rng.micros(200, 2000);
            world.time.after(delay, Event::RefusedByPeer { idx: peer, life, serial, reason });
        }
        false
    }

    /// A mesh without a session dials and learns whether it is accepted. A gateway ends sessions of peers that its replica no
    /// longer admits, without any traffic.
    pub(crate) fn contact_some_peer(world: &mut World, idx: MachineIdx) {
        if world.machines[idx].runtime.is_none() {
            return;
        }
        let runs = |p: &MachineIdx| world.machines[*p].runs() && world.machines[*p].runtime.is_some();
        let peers: Vec<MachineIdx> = (0..world.machines.len()).filter(|p| *p != idx && runs(p)).collect();
        if let Some(peer) = world.rng.pick(&peers).filter(|peer| world.net.both_open(idx, *peer)) {
            let _stays = Self::accepts_peer(world, peer, idx);
        }
    }

    fn send(world: &mut World, from: MachineIdx, outbound: Vec<Outbound>) {
        let sender = world.machines[from].runtime.as_ref().map_or(0, |h| h.number);
        for Bundle { node, packets, .. } in bundles(outbound) {
            let Some(to) = world.idx_of(node) else { continue };
            let delivery = world.net.send(world.time.now(), from, to, &mut world.rng);
            world.totals.add("fault: packet out of order", u64::from(delivery.reordered));
            if let Some(at) = delivery.second {
                world.totals.count("fault: packet duplicated");
                let packets = packets.clone();
                world.time.at(at, Event::Mail(Box::new(Mail { from, to, packets, snapshot: None, sender })));
            }
            match delivery.first {
                Some(at) => {
                    world.time.at(at, Event::Mail(Box::new(Mail { from, to, packets, snapshot: None, sender })))
                }
                None => world.totals.count("fault: packet lost"),
            }
        }
    }

    pub(crate) fn arrive(world: &mut World, mail: Mail) {
        let Mail { from, to, packets, snapshot, sender } = mail;
        let (node, member_id, addressee) = (world.machines[from].id, packets[0].from, packets[0].to);
        let reaches = world.net.open(from, to)
            && world.machines[to].runtime.is_some()
            && Self::in_session(world, from, to, sender);
        if let Some((head, _)) = &snapshot {
            let after = if reaches { world.rng.micros(200, 1000) } else { Duration::from_millis(500) };
            let lost = || SnapshotOutcome::Lost("the link is down".to_owned());
            let outcome = if reaches { SnapshotOutcome::Delivered } else { lost() };
            Snapshots::ended(world, from, sender, (addressee, head.index), outcome, after);
        }
        if !reaches {
            return;
        }
        Blocks::check_packets(world, to, node);
        for p in &packets {
            world.trace.mix([((from as u64) << 8) | to as u64, p.term, p.index, p.kind as u64]);
        }
        match snapshot {
            None => world.deliver(to, Input::Packets { node, peer_member: Some(member_id), packets }),
            Some((_, data)) => {
                let data = Levels::as_read_by(world, to, data);
                let packet = Box::new(packets.into_iter().next().expect("a snapshot comes with its packet"));
                world.deliver(to, Input::SnapshotReceived { node, peer_member: Some(member_id), packet, data });
            }
        }
    }
}
