//! Raft members: starting and stopping a manager half, turns of its core, its disk, its packets.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use muster_gateway::core::admission::{Admission, HereIs, admit};
use muster_messages::protocol::{Service, SnapshotOutcome};
use muster_messages::wire::RaftPacket;
use muster_messages::{ClusterId, Moment, NodeId, ObjectChange, RefusalReason, Revision};
use muster_raft_member::core::{Answer, Batch, Input, Notice, Outbound, RaftCore};
use muster_store::History;

use crate::blocks::Blocks;
use crate::breaks::Break;
use crate::checks::{PROPOSE_1, broken};
use crate::disk::Progress;
use crate::hosts::Hosts;
use crate::machine::{Asker, Half, Keeper, Place};
use crate::world::{Event, Mail, Universe};

/// Of a thousand syncs, while faults are injected.
const SYNCS_FAIL: u32 = 3;

/// The one cluster of a universe.
pub fn cluster() -> ClusterId {
    static ID: LazyLock<ClusterId> = LazyLock::new(|| ClusterId::from_entropy(0xc1));
    *ID
}

impl Universe {
    // ---- starting and stopping ------------------------------------------------------------------------------------

    pub(crate) fn start_half(&mut self, place: Place, founding: bool) {
        let (seed, now) = (self.dice.roll(), self.clock(place));
        let (config, logger) = (self.settings.raft.clone(), self.logger.clone());
        let machine = &mut self.machines[place];
        let recovered = machine.disk.recover();
        let seated = recovered.seat.is_some();
        let core = if founding && !seated {
            RaftCore::found(config, machine.id, seed, now, logger)
        } else {
            RaftCore::open(config, machine.id, recovered, seed, now, logger)
        };
        let lost = machine.disk.held.filter(|_| machine.disk.lost.is_some());
        let lost = lost.filter(|_| self.settings.broken != Some(Break::TakeLostSeat));
        let core = match core {
            Ok(core) => core.without(lost),
            Err(fault) => return self.hold_to(Err(broken("FAULT", fault.0))),
        };
        self.halves += 1;
        let number = self.halves;
        let mut history = History::default();
        history.begin_at(core.tables().revision);
        let sessions = self.settings.sessions.clone();
        // Larger than any of an earlier life of this host.
        let first_sequence = self.now().0;
        let machine = &mut self.machines[place];
        machine.half = Some(Half {
            number,
            core,
            asks: BTreeMap::new(),
            keeper: Keeper { pause: Duration::from_millis(25), ..Keeper::default() },
            leader: None,
            hosts: Hosts::new(sessions, now, first_sequence),
            blocks: Blocks::new(),
            look_due: false,
            turn_due: true,
            checked: Revision(0),
            alone_since: None,
            history,
        });
        if seated || founding {
            machine.silent_since = None;
        }
        self.due.push_back(place);
        let name = self.machines[place].name.clone();
        self.say(format!(
            "{name} starts its manager half {number} ({})",
            if seated { "with its data" } else { "empty" }
        ));
        let phase = self.dice.micros(0, 20_000);
        self.time.after(phase, Event::Tick { place, half: number });
        let first = self.dice.millis(0, 4000);
        self.time.after(first, Event::BlocksTick { place, half: number });
        let soon = self.dice.micros(100, 3000);
        self.time.after(soon, Event::AskSeat { place, half: number, unanswered: None });
        let everybody: Vec<Place> = (0..self.machines.len()).filter(|p| *p != place).collect();
        for peer in everybody {
            if self.machines[peer].half.is_some() && self.net.both_open(place, peer) {
                self.session(place, peer, true, Duration::from_millis(8));
            }
        }
    }

    /// Both sides hear of a session, within a moment.
    pub(crate) fn session(&mut self, a: Place, b: Place, up: bool, within: Duration) {
        for (place, other) in [(a, b), (b, a)] {
            let peer = self.machines[other].id;
            if let Some(half) = self.machines[place].half.as_ref().map(|h| h.number) {
                let delay = self.dice.micros(100, 100 + u64::try_from(within.as_micros()).unwrap_or(0));
                self.time.after(delay, Event::Session { place, half, peer, up });
            }
        }
    }

    /// The manager half is gone, and with it everything it had in memory. `noticed`: its connections break at once.
    pub(crate) fn drop_half(&mut self, place: Place, noticed: bool) {
        let now = self.now();
        let machine = &mut self.machines[place];
        let (id, leads) = (machine.id, machine.half.as_ref().is_some_and(|h| h.core.leads()));
        if machine.half.take().is_none() {
            return;
        }
        machine.silent_since.get_or_insert(now);
        self.lines_end(place, true, noticed);
        if !noticed {
            return;
        }
        for peer in (0..self.machines.len()).filter(|p| *p != place).collect::<Vec<_>>() {
            let Some(half) = self.machines[peer].half.as_ref().map(|h| h.number) else { continue };
            if !self.net.both_open(place, peer) {
                continue;
            }
            let delay = self.dice.micros(200, 20_000);
            self.time.after(delay, Event::Session { place: peer, half, peer: id, up: false });
            if leads && self.dice.chance(700) {
                self.totals.count("fault: leader-loss hint");
                let (delay, input) = (self.dice.micros(300, 30_000), Box::new(Input::LeaderGone { node: id }));
                self.time.after(delay, Event::Local { place: peer, half, input });
            }
        }
    }

    // ---- turns ----------------------------------------------------------------------------------------------------

    pub(crate) fn tick(&mut self, place: Place, half: u32) {
        if self.machines[place].half(half).is_some() {
            self.hear(place, Input::Tick);
            let tick = self.settings.raft.tick;
            self.time.after(tick, Event::Tick { place, half });
        }
    }

    pub(crate) fn hear_if(&mut self, place: Place, half: u32, input: Input) {
        if self.machines[place].half(half).is_some() {
            self.hear(place, input);
        }
    }

    /// The member absorbs it; its turn is due.
    pub(crate) fn hear(&mut self, place: Place, input: Input) {
        let now = self.clock(place);
        let Some(half) = self.machines[place].half.as_mut() else { return };
        half.core.step(now, input);
        if !half.turn_due {
            half.turn_due = true;
            self.due.push_back(place);
        }
    }

    pub(crate) fn turn(&mut self, place: Place) {
        let now = self.clock(place);
        let Some(half) = self.machines[place].half.as_mut().filter(|h| h.turn_due) else { return };
        half.turn_due = false;
        match half.core.turn(now) {
            Ok(batch) => self.perform(place, batch),
            Err(fault) => self.hold_to(Err(broken("FAULT", fault.0))),
        }
    }

    fn perform(&mut self, place: Place, batch: Batch) {
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
            ..
        } = batch;
        if let Some(why) = lost {
            // Disks lose nothing here that was synced.
            self.hold_to(Err(broken("FAULT", why)));
        }
        let number = self.machines[place].half.as_ref().map_or(0, |h| h.number);
        self.record_history(place, installed, changes);
        self.send(place, send);
        if !make_durable.is_empty() {
            self.machines[place].disk.put(make_durable);
            self.begin_disk(place);
        }
        self.check_applied(place);
        for notice in notices {
            self.notice(place, notice);
        }
        if publish.is_some() {
            self.published(place);
        }
        for answer in answers {
            self.ended(place, answer);
        }
        for snapshot in send_snapshots {
            self.send_snapshot(place, snapshot);
        }
        if let Some(job) = take_snapshot {
            self.totals.count("snapshots taken");
            let head = self.machines[place].disk.take_snapshot(&job);
            let (delay, input) = (self.dice.micros(500, 20_000), Box::new(Input::SnapshotTaken { head: Some(head) }));
            self.time.after(delay, Event::Local { place, half: number, input });
        }
        if let Some(at) = wake_at {
            let at = self.moment(place, at);
            self.time.at(at, Event::Woke { place, half: number });
        }
        if let Some(half) = self.machines[place].half.as_mut().filter(|h| again && !h.turn_due) {
            half.turn_due = true;
            self.due.push_back(place);
        }
    }

    /// What the member's feed remembers for watchers.
    fn record_history(&mut self, place: Place, installed: Option<Revision>, changes: Vec<ObjectChange>) {
        let now = self.clock(place);
        let Some(half) = self.machines[place].half.as_mut() else { return };
        if let Some(revision) = installed {
            half.history.begin_at(revision);
        }
        half.history.record(now, half.core.tables().revision, changes);
    }

    fn check_applied(&mut self, place: Place) {
        let today = self.today();
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let tables = half.core.tables();
        if tables.revision == half.checked || tables.cluster.is_none() {
            return;
        }
        half.checked = tables.revision;
        self.trace.mix([place as u64, tables.revision.0, tables.members.len() as u64, 2]);
        let verdict = self.checks.applied(tables, &self.model, today);
        let verdict = verdict.and_then(|()| match tables.revision.0.is_multiple_of(4) {
            true => self.checks.configured(tables, half.core.configuration()),
            false => Ok(()),
        });
        self.hold_to(verdict);
        self.serve_rightly();
        for change in std::mem::take(&mut self.checks.changes) {
            self.membership_changed(change);
        }
    }

    fn notice(&mut self, place: Place, notice: Notice) {
        match &notice {
            Notice::Leads { term } => {
                self.totals.count("elections");
                let half = self.machines[place].half.as_ref().map_or(0, |h| h.number);
                let verdict = self.checks.leads(term.0, place, half);
                self.hold_to(verdict);
            }
            Notice::Installed { .. } => self.totals.count("snapshots installed"),
            Notice::DiskTooSlow { .. } => self.totals.count("leaders that gave up on a slow disk"),
            Notice::SeatRefused { .. } => self.totals.count("seat changes refused when applied"),
            _ => {}
        }
        let name = self.machines[place].name.clone();
        self.say(format!("{name}: {notice:?}"));
    }

    fn ended(&mut self, place: Place, answer: Answer) {
        let ask = match &answer {
            Answer::Proposed(ask, _)
            | Answer::Read(ask, _)
            | Answer::Transferred(ask, _)
            | Answer::Reachable(ask, _) => *ask,
        };
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let Some(asker) = half.asks.remove(&ask.0) else {
            let detail = format!("n{}: {answer:?} was never asked, or is answered twice", place + 1);
            return self.hold_to(Err(broken(PROPOSE_1, detail)));
        };
        match (asker, answer) {
            (Asker::Writer(attempt), Answer::Proposed(_, result)) => self.write_ended(place, attempt, result),
            (Asker::Reader(floor), Answer::Read(_, result)) => self.read_ended(place, &floor, result),
            (Asker::RoleStep { incarnation, step }, Answer::Proposed(_, result)) => {
                self.role_step_ended(place, incarnation, step, result);
            }
            (Asker::Transfer { incarnation, step }, Answer::Transferred(_, result)) => {
                self.transfer_ended(place, incarnation, step, result.is_ok());
            }
            (Asker::Reachability { incarnation, step }, Answer::Reachable(_, result)) => {
                self.reachability_checked(place, incarnation, step, result.ok());
            }
            (Asker::Authority { incarnation, step }, Answer::Proposed(_, result)) => {
                self.authority_step_ended(place, incarnation, step, result);
            }
            (Asker::Candidate(asked), Answer::Proposed(_, result)) => self.candidate_ended(place, asked, result),
            (Asker::Register(asked), Answer::Proposed(_, result)) => self.register_ended(asked, result),
            (Asker::Register(asked), Answer::Read(_, result)) => self.register_read(asked, result),
            (Asker::Sweep { incarnation }, Answer::Proposed(_, result)) => self.sweep_ended(place, incarnation, result),
            (Asker::Fleet(asked), Answer::Proposed(_, result)) => self.fleet_ended(place, *asked, result),
            (Asker::FleetWrite { wave }, Answer::Proposed(_, result)) => self.fleet_wrote(wave, result),
            (Asker::Dispatch { incarnation, batch }, Answer::Proposed(_, result)) => {
                self.dispatch_ended(place, incarnation, batch, result);
            }
            (Asker::ClockRead { incarnation, read }, Answer::Read(_, result)) => {
                self.clock_read_ended(place, incarnation, read, result);
            }
            (Asker::Expiry { incarnation, request }, Answer::Proposed(_, result)) => {
                self.expiry_ended(place, incarnation, request, result);
            }
            (Asker::Late, Answer::Proposed(_, result)) => self.late_write_ended(result),
            (Asker::House, _) => {}
            (_, answer) => self.hold_to(Err(broken(PROPOSE_1, format!("an answer of another kind: {answer:?}")))),
        }
    }

    /// Registers who waits; the core knows only the number.
    pub(crate) fn park(&mut self, place: Place, asker: Asker) -> Option<muster_raft_member::core::AskId> {
        let ask = self.number();
        self.machines[place].half.as_mut()?.asks.insert(ask, asker);
        Some(muster_raft_member::core::AskId(ask))
    }

    // ---- disk -----------------------------------------------------------------------------------------------------

    pub(crate) fn begin_disk(&mut self, place: Place) {
        let machine = &mut self.machines[place];
        let Some(half) = machine.half.as_ref().map(|h| h.number) else { return };
        match machine.disk.begin(&mut self.dice) {
            Some(Progress::Syncing(number, takes)) => self.time.after(takes, Event::Synced { place, half, number }),
            Some(Progress::Written(number)) => {
                let (delay, input) = (self.dice.micros(5, 60), Box::new(Input::Persisted { number }));
                self.time.after(delay, Event::Local { place, half, input });
            }
            None => {}
        }
    }

    pub(crate) fn synced(&mut self, place: Place, half: u32, number: u64) {
        if self.machines[place].half(half).is_some() {
            if self.faults.active && self.dice.chance(SYNCS_FAIL) && self.sync_failed(place, number) {
                return;
            }
            self.machines[place].disk.synced(number);
            self.hear(place, Input::Persisted { number });
            self.begin_disk(place);
        }
    }

    /// As the member's shell does: nothing that was written to those files can be trusted, and everything is still in memory.
    fn sync_failed(&mut self, place: Place, number: u64) -> bool {
        let machine = &mut self.machines[place];
        if self.settings.broken == Some(Break::TrustFailedSyncs) {
            machine.disk.trust(number);
            self.hear(place, Input::Persisted { number });
            self.begin_disk(place);
            return true;
        }
        let Some((job, write)) = machine.half.as_mut().and_then(|h| h.core.everything()) else { return false };
        let number = write.number;
        machine.disk.renew(&job, write);
        self.totals.count("fault: sync failed");
        self.say(format!("a sync fails: n{} writes its log anew", place + 1));
        self.hear(place, Input::Persisted { number });
        true
    }

    // ---- packets --------------------------------------------------------------------------------------------------

    /// What a gateway knows of its own machine.
    pub(crate) fn here(&self, place: Place) -> HereIs {
        let machine = &self.machines[place];
        HereIs {
            cluster: cluster(),
            incarnation: self.incarnation(place),
            manager: machine.half.is_some(),
            closed_to_others: self.is_closed(place),
            me: Some(machine.id),
        }
    }

    /// As the gateway of `place` decides about a peer, on its own copy.
    fn judge_peer(&self, place: Place, peer: Place) -> Result<(), RefusalReason> {
        let (machine, other) = (&self.machines[place], &self.machines[peer]);
        let Some(half) = &machine.half else { return Err(RefusalReason::NotAManager) };
        let Some(certificate) = &other.agent.certificate else { return Err(RefusalReason::Unauthenticated) };
        let here = self.here(place);
        let replica = half.core.replica();
        if self.settings.broken == Some(Break::JudgeOnOldCopies) {
            let known = replica.tables.nodes.contains_key(&other.id) || replica.tables.cluster.is_none();
            return if known { Ok(()) } else { Err(RefusalReason::Removed) };
        }
        if self.lets_stay(replica, other.id) {
            return Ok(());
        }
        match admit(Some(certificate), Service::Mesh, Some(replica), &here, self.wall(place)) {
            Admission::Refuse(reason, _) => Err(reason),
            _ => Ok(()),
        }
    }

    /// A session needs the consent of both ends. Who is refused learns why.
    /// What a process sent before it ended is judged by its receiver alone.
    fn in_session(&mut self, from: Place, to: Place, sender: u32) -> bool {
        let lives = self.machines[from].half(sender).is_some();
        [(from, to), (to, from)]
            .into_iter()
            .skip(usize::from(!lives))
            .all(|(judge, judged)| self.consents(judge, judged))
    }

    pub(crate) fn consents(&mut self, judge: Place, judged: Place) -> bool {
        let Err(reason) = self.judge_peer(judge, judged) else { return true };
        let told = matches!(reason, RefusalReason::Demoted | RefusalReason::Removed | RefusalReason::Blocked);
        if let Some(certificate) = self.machines[judged].agent.certificate.as_ref().filter(|_| told) {
            let (serial, life) = (certificate.serial.clone(), self.machines[judged].life);
            let delay = self.dice.micros(200, 2000);
            self.time.after(delay, Event::Told { place: judged, life, serial, reason });
        }
        false
    }

    /// A mesh that lost a session dials, and hears how it is with it. A gateway ends the sessions of a peer that its copy does
    /// not admit any more: nobody has to have something to say.
    pub(crate) fn look_at_a_peer(&mut self, place: Place) {
        if self.machines[place].half.is_none() {
            return;
        }
        let runs = |p: &Place| self.machines[*p].runs() && self.machines[*p].half.is_some();
        let peers: Vec<Place> = (0..self.machines.len()).filter(|p| *p != place && runs(p)).collect();
        if let Some(peer) = self.dice.pick(&peers).filter(|peer| self.net.both_open(place, *peer)) {
            let _stays = self.consents(peer, place);
        }
    }

    fn send(&mut self, from: Place, outbound: Vec<Outbound>) {
        let mut by_node: BTreeMap<NodeId, Vec<RaftPacket>> = BTreeMap::new();
        for out in outbound {
            by_node.entry(out.node).or_default().push(out.packet);
        }
        let sender = self.machines[from].half.as_ref().map_or(0, |h| h.number);
        for (node, packets) in by_node {
            let Some(to) = self.place_of(node) else { continue };
            let fate = self.net.send(self.time.now(), from, to, &mut self.dice);
            self.totals.add("fault: packet out of order", u64::from(fate.overtaken));
            if let Some(at) = fate.second {
                self.totals.count("fault: packet duplicated");
                let packets = packets.clone();
                self.time.at(at, Event::Mail(Box::new(Mail { from, to, packets, snapshot: None, sender })));
            }
            match fate.first {
                Some(at) => self.time.at(at, Event::Mail(Box::new(Mail { from, to, packets, snapshot: None, sender }))),
                None => self.totals.count("fault: packet lost"),
            }
        }
    }

    pub(crate) fn arrive(&mut self, mail: Mail) {
        let Mail { from, to, packets, snapshot, sender } = mail;
        let (node, seat, addressee) = (self.machines[from].id, packets[0].from, packets[0].to);
        let reaches = self.net.open(from, to) && self.machines[to].half.is_some() && self.in_session(from, to, sender);
        if let Some((head, _)) = &snapshot {
            let after = if reaches { self.dice.micros(200, 1000) } else { Duration::from_millis(500) };
            let lost = || SnapshotOutcome::Lost("the link was cut".to_owned());
            let outcome = if reaches { SnapshotOutcome::Delivered } else { lost() };
            self.snapshot_ended(from, sender, (addressee, head.index), outcome, after);
        }
        if !reaches {
            return;
        }
        self.judge_heard(to, node);
        for p in &packets {
            self.trace.mix([((from as u64) << 8) | to as u64, p.term, p.index, p.kind as u64]);
        }
        match snapshot {
            None => self.hear(to, Input::Packets { node, peer_seat: Some(seat), packets }),
            Some((_, data)) => {
                let packet = Box::new(packets.into_iter().next().expect("a snapshot comes with its packet"));
                self.hear(to, Input::SnapshotReceived { node, peer_seat: Some(seat), packet, data });
            }
        }
    }

    /// Whether the member behind a seat can be heard by `leader`, or could be until a moment ago.
    pub(crate) fn recently_heard(&self, leader: Place, seat: muster_messages::RaftId, ago: Duration) -> bool {
        let Some(place) = self.holder(seat) else { return false };
        if place == leader {
            return true;
        }
        let machine = &self.machines[place];
        let recent = |since: Option<Moment>| since.is_none_or(|at| self.now().since(at) <= ago);
        let seated = machine.half.is_none() || machine.seat() == Some(seat) || machine.silent_since.is_some();
        let cut = [self.net.cut_since(leader, place), self.net.cut_since(place, leader)];
        seated && recent(machine.silent_since) && cut.into_iter().all(recent)
    }
}
