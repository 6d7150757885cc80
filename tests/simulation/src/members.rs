//! Raft members: starting and stopping a manager runtime, steps of its core, its disk, its packets.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use muster_gateway::core::admission::{Admission, LocalFacts, admit};
use muster_messages::protocol::{Service, SnapshotOutcome};
use muster_messages::wire::RaftPacket;
use muster_messages::{ClusterId, Moment, NodeId, ObjectChange, RefusalReason, Revision};
use muster_raft_member::core::{Answer, Batch, Input, Notice, Outbound, RaftCore};
use muster_store::History;

use crate::blocks::Blocks;
use crate::bugs::Bug;
use crate::checks::{PROPOSE_1, violation};
use crate::disk::Progress;
use crate::hosts::Hosts;
use crate::machine::{Asker, Keeper, MachineIdx, ManagerRuntime};
use crate::simulation::{Event, Mail, Simulation};

/// Syncs, per thousand, that fail while faults are injected.
const FAILED_SYNCS_PER_1000: u32 = 3;

/// The id of the simulated cluster.
pub fn cluster() -> ClusterId {
    static ID: LazyLock<ClusterId> = LazyLock::new(|| ClusterId::from_entropy(0xc1));
    *ID
}

impl Simulation {
    // ---- starting and stopping ------------------------------------------------------------------------------------

    pub(crate) fn start_runtime(&mut self, idx: MachineIdx, founding: bool) {
        let (seed, now) = (self.rng.sample(), self.clock(idx));
        let (mut config, logger) = (self.settings.raft.clone(), self.logger.clone());
        let machine = &mut self.machines[idx];
        config.feature_level = machine.build;
        let recovered = machine.disk.recover();
        let is_member = recovered.member_id.is_some();
        let core = if founding && !is_member {
            RaftCore::found(config, machine.id, seed, now, logger)
        } else {
            RaftCore::open(config, machine.id, recovered, seed, now, logger)
        };
        let lost = machine.disk.held.filter(|_| machine.disk.lost.is_some());
        let lost = lost.filter(|_| self.settings.bug != Some(Bug::ReuseLostMemberId));
        let core = match core {
            Ok(core) => core.without(lost),
            Err(fault) => return self.require(Err(violation("FAULT", fault.0))),
        };
        self.runtimes += 1;
        let number = self.runtimes;
        let opened_at = core.tables().revision;
        let mut history = History::default();
        history.begin_at(opened_at);
        let sessions = self.settings.sessions.clone();
        // Larger than any of an earlier process of this host.
        let first_sequence = self.now().0;
        let machine = &mut self.machines[idx];
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
        self.due.push_back(idx);
        let name = self.machines[idx].name.clone();
        self.log(format!(
            "{name} starts its manager runtime {number} ({})",
            if is_member { "with data" } else { "empty" }
        ));
        let phase = self.rng.micros(0, 20_000);
        self.time.after(phase, Event::Tick { idx, runtime: number });
        let first = self.rng.millis(0, 4000);
        self.time.after(first, Event::BlocksTick { idx, runtime: number });
        let soon = self.rng.micros(100, 3000);
        self.time.after(soon, Event::AskMembership { idx, runtime: number, unanswered: None });
        let others: Vec<MachineIdx> = (0..self.machines.len()).filter(|p| *p != idx).collect();
        for peer in others {
            if self.machines[peer].runtime.is_some() && self.net.both_open(idx, peer) {
                self.session(idx, peer, true, Duration::from_millis(8));
            }
        }
    }

    /// Both ends learn of a session within a moment.
    pub(crate) fn session(&mut self, a: MachineIdx, b: MachineIdx, up: bool, within: Duration) {
        for (idx, other) in [(a, b), (b, a)] {
            let peer = self.machines[other].id;
            if let Some(runtime) = self.machines[idx].runtime.as_ref().map(|h| h.number) {
                let delay = self.rng.micros(100, 100 + u64::try_from(within.as_micros()).unwrap_or(0));
                self.time.after(delay, Event::Session { idx, runtime, peer, up });
            }
        }
    }

    /// Ends the manager runtime with everything in its memory. `noticed`: its connections break at once.
    pub(crate) fn stop_runtime(&mut self, idx: MachineIdx, noticed: bool) {
        let now = self.now();
        let machine = &mut self.machines[idx];
        let (id, leads) = (machine.id, machine.runtime.as_ref().is_some_and(|h| h.core.leads()));
        if machine.runtime.take().is_none() {
            return;
        }
        machine.silent_since.get_or_insert(now);
        self.level_part_ends(idx);
        self.connections_end(idx, true, noticed);
        if !noticed {
            return;
        }
        for peer in (0..self.machines.len()).filter(|p| *p != idx).collect::<Vec<_>>() {
            let Some(runtime) = self.machines[peer].runtime.as_ref().map(|h| h.number) else { continue };
            if !self.net.both_open(idx, peer) {
                continue;
            }
            let delay = self.rng.micros(200, 20_000);
            self.time.after(delay, Event::Session { idx: peer, runtime, peer: id, up: false });
            if leads && self.rng.chance(700) {
                self.totals.count("fault: leader-loss hint");
                let (delay, input) = (self.rng.micros(300, 30_000), Box::new(Input::LeaderGone { node: id }));
                self.time.after(delay, Event::Local { idx: peer, runtime, input });
            }
        }
    }

    // ---- steps ----------------------------------------------------------------------------------------------------

    pub(crate) fn tick(&mut self, idx: MachineIdx, runtime: u32) {
        if self.machines[idx].runtime(runtime).is_some() {
            self.deliver(idx, Input::Tick);
            let tick = self.settings.raft.tick;
            self.time.after(tick, Event::Tick { idx, runtime });
        }
    }

    pub(crate) fn deliver_if(&mut self, idx: MachineIdx, runtime: u32, input: Input) {
        if self.machines[idx].runtime(runtime).is_some() {
            self.deliver(idx, input);
        }
    }

    /// Passes input to the member and schedules its step.
    pub(crate) fn deliver(&mut self, idx: MachineIdx, input: Input) {
        let now = self.clock(idx);
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        runtime.core.step(now, input);
        if !runtime.step_due {
            runtime.step_due = true;
            self.due.push_back(idx);
        }
    }

    pub(crate) fn run_member(&mut self, idx: MachineIdx) {
        let now = self.clock(idx);
        let Some(runtime) = self.machines[idx].runtime.as_mut().filter(|h| h.step_due) else { return };
        runtime.step_due = false;
        match runtime.core.turn(now) {
            Ok(batch) => self.apply_batch(idx, batch),
            Err(fault) => self.require(Err(violation("FAULT", fault.0))),
        }
    }

    fn apply_batch(&mut self, idx: MachineIdx, batch: Batch) {
        let Batch {
            send,
            send_snapshots,
            make_durable,
            take_snapshot,
            answers,
            publish,
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
            self.require(Err(violation("FAULT", why)));
        }
        let number = self.machines[idx].runtime.as_ref().map_or(0, |h| h.number);
        self.record_history(idx, installed, changes);
        self.send(idx, send);
        if !make_durable.is_empty() {
            self.machines[idx].disk.put(make_durable);
            self.begin_disk(idx);
        }
        self.check_applied(idx);
        for notice in notices {
            self.notice(idx, notice);
        }
        if publish.is_some() {
            self.replica_published(idx);
        }
        for answer in answers {
            self.ended(idx, answer);
        }
        for snapshot in send_snapshots {
            self.send_snapshot(idx, snapshot);
        }
        if let Some(job) = take_snapshot {
            self.totals.count("snapshots taken");
            let head = self.machines[idx].disk.take_snapshot(&job);
            let (delay, input) = (self.rng.micros(500, 20_000), Box::new(Input::SnapshotTaken { head: Some(head) }));
            self.time.after(delay, Event::Local { idx, runtime: number, input });
        }
        if let Some(what) = incompatible {
            self.found_incompatible(idx, what);
        }
        if let Some(at) = wake_at {
            let at = self.moment(idx, at);
            self.time.at(at, Event::Woke { idx, runtime: number });
        }
        if let Some(runtime) = self.machines[idx].runtime.as_mut().filter(|h| again && !h.step_due) {
            runtime.step_due = true;
            self.due.push_back(idx);
        }
    }

    /// The member's history for watchers.
    fn record_history(&mut self, idx: MachineIdx, installed: Option<Revision>, changes: Vec<ObjectChange>) {
        let now = self.clock(idx);
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        if let Some(revision) = installed {
            runtime.history.begin_at(revision);
        }
        runtime.history.record(now, runtime.core.tables().revision, changes);
    }

    fn check_applied(&mut self, idx: MachineIdx) {
        let today = self.today();
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        let tables = runtime.core.tables();
        if tables.revision == runtime.checked || tables.cluster.is_none() {
            return;
        }
        runtime.checked = tables.revision;
        self.trace.mix([idx as u64, tables.revision.0, tables.members.len() as u64, 2]);
        let outcome = self.checks.applied(tables, &self.model, today);
        let outcome = outcome.and_then(|()| match tables.revision.0.is_multiple_of(4) {
            true => self.checks.configured(tables, runtime.core.configuration()),
            false => Ok(()),
        });
        self.require(outcome);
        self.check_level(idx);
        self.check_serving();
        for change in std::mem::take(&mut self.checks.changes) {
            self.membership_changed(change);
        }
    }

    fn notice(&mut self, idx: MachineIdx, notice: Notice) {
        match &notice {
            Notice::Leads { term } => {
                self.totals.count("elections");
                let runtime = self.machines[idx].runtime.as_ref().map_or(0, |h| h.number);
                let outcome = self.checks.leads(term.0, idx, runtime);
                self.require(outcome);
            }
            Notice::Installed { .. } => self.totals.count("snapshots installed"),
            Notice::DiskTooSlow { .. } => self.totals.count("leaders that stepped down on a slow disk"),
            Notice::MembershipRefused { .. } => self.totals.count("membership changes refused on apply"),
            _ => {}
        }
        let name = self.machines[idx].name.clone();
        self.log(format!("{name}: {notice:?}"));
    }

    fn ended(&mut self, idx: MachineIdx, answer: Answer) {
        let ask = match &answer {
            Answer::Proposed(ask, _)
            | Answer::Read(ask, _)
            | Answer::Transferred(ask, _)
            | Answer::Reachable(ask, _) => *ask,
        };
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        let Some(asker) = runtime.asks.remove(&ask.0) else {
            let detail = format!("n{}: {answer:?} was not requested, or is answered twice", idx + 1);
            return self.require(Err(violation(PROPOSE_1, detail)));
        };
        match (asker, answer) {
            (Asker::Writer(attempt), Answer::Proposed(_, result)) => self.write_ended(idx, attempt, result),
            (Asker::Reader(floor), Answer::Read(_, result)) => self.read_ended(idx, &floor, result),
            (Asker::RoleStep { incarnation, step }, Answer::Proposed(_, result)) => {
                self.role_step_ended(idx, incarnation, step, result);
            }
            (Asker::Transfer { incarnation, step }, Answer::Transferred(_, result)) => {
                self.transfer_ended(idx, incarnation, step, result.is_ok());
            }
            (Asker::Reachability { incarnation, step }, Answer::Reachable(_, result)) => {
                self.reachability_checked(idx, incarnation, step, result.ok());
            }
            (Asker::Authority { incarnation, step }, Answer::Proposed(_, result)) => {
                self.authority_step_ended(idx, incarnation, step, result);
            }
            (Asker::Candidate(pending), Answer::Proposed(_, result)) => self.candidate_ended(idx, pending, result),
            (Asker::Register(pending), Answer::Proposed(_, result)) => self.register_ended(pending, result),
            (Asker::Register(pending), Answer::Read(_, result)) => self.register_read(pending, result),
            (Asker::Sweep { incarnation }, Answer::Proposed(_, result)) => self.sweep_ended(idx, incarnation, result),
            (Asker::Fleet(pending), Answer::Proposed(_, result)) => self.fleet_ended(idx, *pending, result),
            (Asker::FleetWrite { wave }, Answer::Proposed(_, result)) => self.fleet_wrote(wave, result),
            (Asker::Dispatch { incarnation, batch }, Answer::Proposed(_, result)) => {
                self.dispatch_ended(idx, incarnation, batch, result);
            }
            (Asker::ClockRead { incarnation, read }, Answer::Read(_, result)) => {
                self.clock_read_ended(idx, incarnation, read, result);
            }
            (Asker::Expiry { incarnation, request }, Answer::Proposed(_, result)) => {
                self.expiry_ended(idx, incarnation, request, result);
            }
            (Asker::Late, Answer::Proposed(_, result)) => self.late_write_ended(result),
            (Asker::Internal, _) => {}
            (_, answer) => self.require(Err(violation(PROPOSE_1, format!("an answer of the wrong kind: {answer:?}")))),
        }
    }

    /// Registers the requester; the core knows only the number.
    pub(crate) fn await_answer(&mut self, idx: MachineIdx, asker: Asker) -> Option<muster_raft_member::core::AskId> {
        let ask = self.number();
        self.machines[idx].runtime.as_mut()?.asks.insert(ask, asker);
        Some(muster_raft_member::core::AskId(ask))
    }

    // ---- disk -----------------------------------------------------------------------------------------------------

    pub(crate) fn begin_disk(&mut self, idx: MachineIdx) {
        let machine = &mut self.machines[idx];
        let Some(runtime) = machine.runtime.as_ref().map(|h| h.number) else { return };
        match machine.disk.begin(&mut self.rng) {
            Some(Progress::Syncing(number, takes)) => self.time.after(takes, Event::Synced { idx, runtime, number }),
            Some(Progress::Written(number)) => {
                let (delay, input) = (self.rng.micros(5, 60), Box::new(Input::Persisted { number }));
                self.time.after(delay, Event::Local { idx, runtime, input });
            }
            None => {}
        }
    }

    pub(crate) fn synced(&mut self, idx: MachineIdx, runtime: u32, number: u64) {
        if self.machines[idx].runtime(runtime).is_some() {
            if self.faults.active && self.rng.chance(FAILED_SYNCS_PER_1000) && self.sync_failed(idx, number) {
                return;
            }
            self.machines[idx].disk.synced(number);
            self.deliver(idx, Input::Persisted { number });
            self.begin_disk(idx);
        }
    }

    /// As the member's shell: files of a failed sync cannot be trusted, and everything is still in memory.
    fn sync_failed(&mut self, idx: MachineIdx, number: u64) -> bool {
        let machine = &mut self.machines[idx];
        if self.settings.bug == Some(Bug::TrustFailedSyncs) {
            machine.disk.trust(number);
            self.deliver(idx, Input::Persisted { number });
            self.begin_disk(idx);
            return true;
        }
        let Some((job, write)) = machine.runtime.as_mut().and_then(|h| h.core.everything()) else { return false };
        let number = write.number;
        machine.disk.renew(&job, write);
        self.totals.count("fault: sync failed");
        self.log(format!("sync failed: n{} rewrites its log", idx + 1));
        self.deliver(idx, Input::Persisted { number });
        true
    }

    // ---- packets --------------------------------------------------------------------------------------------------

    /// A gateway's facts about its own machine.
    pub(crate) fn here(&self, idx: MachineIdx) -> LocalFacts {
        let machine = &self.machines[idx];
        LocalFacts {
            cluster: cluster(),
            incarnation: self.incarnation(idx),
            manager: machine.runtime.is_some(),
            closed_to_others: self.is_closed(idx),
            me: Some(machine.id),
        }
    }

    /// The gateway of `idx` decides about a peer by its own replica.
    fn check_peer(&self, idx: MachineIdx, peer: MachineIdx) -> Result<(), RefusalReason> {
        let (machine, other) = (&self.machines[idx], &self.machines[peer]);
        let Some(runtime) = &machine.runtime else { return Err(RefusalReason::NotAManager) };
        let Some(certificate) = &other.agent.certificate else { return Err(RefusalReason::Unauthenticated) };
        let here = self.here(idx);
        let replica = runtime.core.replica();
        if self.settings.bug == Some(Bug::RefuseOnStaleReplica) {
            let known = replica.tables.nodes.contains_key(&other.id) || replica.tables.cluster.is_none();
            return if known { Ok(()) } else { Err(RefusalReason::Removed) };
        }
        if self.lets_stay(replica, other.id) {
            return Ok(());
        }
        match admit(Some(certificate), Service::Mesh, Some(replica), &here, self.wall(idx)) {
            Admission::Refuse(reason, _) => Err(reason),
            _ => Ok(()),
        }
    }

    /// A session needs both ends' consent. A refused peer learns the reason.
    /// Packets of a process that has ended are checked by the receiver alone.
    fn in_session(&mut self, from: MachineIdx, to: MachineIdx, sender: u32) -> bool {
        let lives = self.machines[from].runtime(sender).is_some();
        [(from, to), (to, from)]
            .into_iter()
            .skip(usize::from(!lives))
            .all(|(acceptor, peer)| self.accepts_peer(acceptor, peer))
    }

    pub(crate) fn accepts_peer(&mut self, acceptor: MachineIdx, peer: MachineIdx) -> bool {
        let Err(reason) = self.check_peer(acceptor, peer) else { return true };
        let notifies = matches!(reason, RefusalReason::Demoted | RefusalReason::Removed | RefusalReason::Blocked);
        if let Some(certificate) = self.machines[peer].agent.certificate.as_ref().filter(|_| notifies) {
            let (serial, life) = (certificate.serial.clone(), self.machines[peer].life);
            let delay = self.rng.micros(200, 2000);
            self.time.after(delay, Event::RefusedByPeer { idx: peer, life, serial, reason });
        }
        false
    }

    /// A mesh without a session dials and learns whether it is accepted. A gateway ends sessions of peers that its replica no
    /// longer admits, without any traffic.
    pub(crate) fn contact_some_peer(&mut self, idx: MachineIdx) {
        if self.machines[idx].runtime.is_none() {
            return;
        }
        let runs = |p: &MachineIdx| self.machines[*p].runs() && self.machines[*p].runtime.is_some();
        let peers: Vec<MachineIdx> = (0..self.machines.len()).filter(|p| *p != idx && runs(p)).collect();
        if let Some(peer) = self.rng.pick(&peers).filter(|peer| self.net.both_open(idx, *peer)) {
            let _stays = self.accepts_peer(peer, idx);
        }
    }

    fn send(&mut self, from: MachineIdx, outbound: Vec<Outbound>) {
        let mut by_node: BTreeMap<NodeId, Vec<RaftPacket>> = BTreeMap::new();
        for out in outbound {
            by_node.entry(out.node).or_default().push(out.packet);
        }
        let sender = self.machines[from].runtime.as_ref().map_or(0, |h| h.number);
        for (node, packets) in by_node {
            let Some(to) = self.idx_of(node) else { continue };
            let delivery = self.net.send(self.time.now(), from, to, &mut self.rng);
            self.totals.add("fault: packet out of order", u64::from(delivery.reordered));
            if let Some(at) = delivery.second {
                self.totals.count("fault: packet duplicated");
                let packets = packets.clone();
                self.time.at(at, Event::Mail(Box::new(Mail { from, to, packets, snapshot: None, sender })));
            }
            match delivery.first {
                Some(at) => self.time.at(at, Event::Mail(Box::new(Mail { from, to, packets, snapshot: None, sender }))),
                None => self.totals.count("fault: packet lost"),
            }
        }
    }

    pub(crate) fn arrive(&mut self, mail: Mail) {
        let Mail { from, to, packets, snapshot, sender } = mail;
        let (node, member_id, addressee) = (self.machines[from].id, packets[0].from, packets[0].to);
        let reaches =
            self.net.open(from, to) && self.machines[to].runtime.is_some() && self.in_session(from, to, sender);
        if let Some((head, _)) = &snapshot {
            let after = if reaches { self.rng.micros(200, 1000) } else { Duration::from_millis(500) };
            let lost = || SnapshotOutcome::Lost("the link is down".to_owned());
            let outcome = if reaches { SnapshotOutcome::Delivered } else { lost() };
            self.snapshot_ended(from, sender, (addressee, head.index), outcome, after);
        }
        if !reaches {
            return;
        }
        self.check_blocked_packets(to, node);
        for p in &packets {
            self.trace.mix([((from as u64) << 8) | to as u64, p.term, p.index, p.kind as u64]);
        }
        match snapshot {
            None => self.deliver(to, Input::Packets { node, peer_member: Some(member_id), packets }),
            Some((_, data)) => {
                let data = self.as_read_by(to, data);
                let packet = Box::new(packets.into_iter().next().expect("a snapshot comes with its packet"));
                self.deliver(to, Input::SnapshotReceived { node, peer_member: Some(member_id), packet, data });
            }
        }
    }

    /// Whether `leader` can reach the member with this id, or could until a moment ago.
    pub(crate) fn recently_reachable(
        &self,
        leader: MachineIdx,
        member_id: muster_messages::RaftId,
        ago: Duration,
    ) -> bool {
        let Some(idx) = self.holder(member_id) else { return false };
        if idx == leader {
            return true;
        }
        let machine = &self.machines[idx];
        let recent = |since: Option<Moment>| since.is_none_or(|at| self.now().since(at) <= ago);
        let is_member =
            machine.runtime.is_none() || machine.member_id() == Some(member_id) || machine.silent_since.is_some();
        let links_down_since = [self.net.disconnected_since(leader, idx), self.net.disconnected_since(idx, leader)];
        is_member && recent(machine.silent_since) && links_down_since.into_iter().all(recent)
    }
}
