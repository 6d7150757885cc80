//! The actor around the core: ports, timers, the disk thread, the network.
//!
//! Batching is natural: inputs are only absorbed. The first one sends this actor a `Turn`, which is queued behind everything that
//! waits in the mailbox. The higher the load, the more one write and one packet carry.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Address, Alarm, Clock, Cx, Fault, Parked, Shell};
use muster_messages::protocol::{
    Applied, Named, ProposeError, RaftMemberMsg, RaftTransport, ReadError, Reply, SnapshotOutcome,
};
use muster_messages::wire::{MAX_FRAME, RaftPacket, SnapshotHead};
use muster_messages::{Moment, NodeId, RaftId, RaftStatus, Replica, millis};
use raft_engine::env::DefaultFileSystem;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::core::{
    Answer, Batch, DigestJob, Incompatible, Input, Notice, Outbound, OutboundSnapshot, RaftConfig, RaftCore,
    SnapshotJob,
};
use crate::disk::{self, DiskThread, FaultKind, LogFault, Report, SnapshotFiles};
use crate::drain::logger;
use crate::feed::ObjectFeed;

/// Packets handed to the mesh at once: below the frame limit with room for the envelope. A single larger packet is sent alone.
const MAX_PACKETS_BYTES: usize = MAX_FRAME * 3 / 4;

/// How often one incarnation of the actor rewrites its log after failed syncs. A disk that fails more often is left to the
/// supervisor, which waits longer each time.
const MAX_RENEWALS: u32 = 8;

/// The arguments of a raft member.
#[derive(Clone)]
pub struct RaftArgs {
    /// The member's own directory; created if missing.
    pub data_dir: PathBuf,
    pub node: NodeId,
    pub config: RaftConfig,
    pub transport: Arc<dyn RaftTransport>,
    /// The replica for all readers.
    pub publish: Arc<watch::Sender<Arc<Replica>>>,
    /// The changes of objects, for watches.
    pub feed: ObjectFeed,
    /// Set once this build does not support the cluster's feature level, or seems not to. The reader stops this member.
    pub incompatible: Arc<watch::Sender<Option<Incompatible>>>,
    /// Founds a cluster if the directory never belonged to a Raft member. Otherwise an empty directory waits for a leader.
    pub founding: bool,
    /// The member id whose data this node has lost, if any: neither it nor an older one is used again.
    pub lost: Option<RaftId>,
    /// For tests: the disk hangs while this file exists.
    pub disk_hangs_while: Option<PathBuf>,
}

/// The actor. See the module.
pub struct RaftMember {
    core: RaftCore,
    data_dir: PathBuf,
    file_system: Arc<DefaultFileSystem>,
    disk: DiskThread,
    /// How often this incarnation of the actor rewrote the log.
    renewals: u32,
    snapshots: SnapshotFiles,
    transport: Arc<dyn RaftTransport>,
    publish: Arc<watch::Sender<Arc<Replica>>>,
    feed: ObjectFeed,
    incompatible: Arc<watch::Sender<Option<Incompatible>>>,
    tick: Duration,
    asks: Parked<Port>,
    turn_due: bool,
    alarm: Alarm,
    persisted: u64,
    snapshots_taken: u64,
    snapshots_sent: u64,
}

enum Port {
    Propose(Reply<Result<Applied, ProposeError>>),
    Read(Reply<Result<Arc<Replica>, ReadError>>),
    Transfer(Reply<Result<NodeId, ProposeError>>),
    Reachable(Reply<Result<BTreeSet<RaftId>, ProposeError>>),
}

/// Messages of the actor. Other actors send [`RaftMemberMsg`]; the rest is internal.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(RaftMemberMsg),
    Turn,
    Tick,
    Wake,
    Disk(DiskNews),
    SnapshotTaken(Option<SnapshotHead>),
    StateDigested {
        index: u64,
        digest: Option<[u8; 32]>,
    },
    SnapshotLost {
        to: muster_messages::RaftId,
        index: u64,
    },
}

/// A report of the disk thread, and the number of renewals before that thread.
pub struct DiskNews(Report, u32);

impl From<RaftMemberMsg> for Msg {
    fn from(msg: RaftMemberMsg) -> Self {
        Self::Protocol(msg)
    }
}

impl RaftMember {
    /// Opens the disk and resumes, founds, or waits for a member id. Blocks: call it in a `Spec`'s factory. It waits for the disk
    /// thread of an earlier incarnation; if that hangs, this fails and the supervisor tries again.
    pub fn open(args: RaftArgs) -> Result<Self, Fault> {
        let RaftArgs {
            data_dir,
            node,
            config,
            transport,
            publish,
            feed,
            incompatible,
            founding,
            lost,
            disk_hangs_while,
        } = args;
        let (disk, recovered) = DiskThread::open(&data_dir)?;
        if let Some(file) = disk_hangs_while {
            disk.hang_while(file);
        }
        let (tick, seed, now) = (config.tick, rand::random(), Clock.now());
        let core = if founding && recovered.member_id.is_none() {
            RaftCore::found(config, node, seed, now, logger())?
        } else {
            RaftCore::open(config, node, recovered, seed, now, logger())?
        };
        feed.begin_at(core.tables().revision);
        Ok(Self {
            core: core.without(lost).at_wall_time(now, Clock.wall()),
            data_dir: data_dir.clone(),
            file_system: Arc::new(DefaultFileSystem),
            disk,
            renewals: 0,
            snapshots: SnapshotFiles::in_dir(&data_dir),
            transport,
            publish,
            feed,
            incompatible,
            tick,
            asks: Parked::default(),
            turn_due: false,
            alarm: Alarm::default(),
            persisted: 0,
            snapshots_taken: 0,
            snapshots_sent: 0,
        })
    }

    fn input(&mut self, now: Moment, msg: RaftMemberMsg) -> Input {
        let by = |ms: u64| now + Duration::from_millis(ms);
        match msg {
            RaftMemberMsg::Propose { command, deadline_ms, reply } => {
                Input::Propose { ask: self.asks.park(Port::Propose(reply)), command, deadline: by(deadline_ms) }
            }
            RaftMemberMsg::ProposeMembership { change, reply } => {
                Input::ProposeMembership { ask: self.asks.park(Port::Propose(reply)), change }
            }
            RaftMemberMsg::Read { deadline_ms, reply } => {
                Input::Read { ask: self.asks.park(Port::Read(reply)), deadline: by(deadline_ms) }
            }
            RaftMemberMsg::CheckReachable { members, needed, deadline_ms, reply } => {
                let ask = self.asks.park(Port::Reachable(reply));
                Input::CheckReachable { ask, members, needed, deadline: by(deadline_ms) }
            }
            RaftMemberMsg::FromPeer { node, peer_member, packets } => Input::Packets { node, peer_member, packets },
            RaftMemberMsg::SnapshotReceived { node, peer_member, packet, data } => {
                Input::SnapshotReceived { node, peer_member, packet, data }
            }
            RaftMemberMsg::SnapshotSent { to, index, outcome } => Input::SnapshotSent { to, index, outcome },
            RaftMemberMsg::SnapshotProgress { to, index } => Input::SnapshotProgress { to, index },
            RaftMemberMsg::PeerSession { node, up } => Input::PeerSession { node, up },
            RaftMemberMsg::Unreachable { to } => Input::Unreachable { to },
            RaftMemberMsg::LeaderGone { node } => Input::LeaderGone { node },
            RaftMemberMsg::TransferLeadership { to, reply } => {
                Input::TransferLeadership { ask: self.asks.park(Port::Transfer(reply)), to }
            }
        }
    }

    fn turn(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.turn_due = false;
        let now = cx.now();
        // The report is only a hint, so that a full mailbox loses nothing.
        let persisted = self.disk.persisted();
        if persisted > self.persisted {
            self.persisted = persisted;
            self.core.step(now, Input::Persisted { number: persisted });
        }
        let batch = self.core.turn(now)?;
        self.apply_batch(cx, now, batch)
    }

    fn apply_batch(&mut self, cx: &Cx<Msg>, now: Moment, batch: Batch) -> Result<(), Fault> {
        self.send(batch.send);
        if let Some(why) = batch.lost {
            tracing::error!(%why, "this manager's Raft data cannot be trusted and will not be used again");
            disk::mark_lost(&self.data_dir, &why)?;
            return Err(Fault::new(why));
        }
        if !batch.make_durable.is_empty()
            && let Err(fault) = self.disk.write(batch.make_durable)
        {
            self.renew_disk(cx, fault)?;
        }
        if let Some(revision) = batch.installed {
            self.feed.begin_at(revision);
        }
        if !batch.changes.is_empty() || batch.publish.is_some() {
            self.feed.record(now, self.core.tables().revision, batch.changes);
        }
        if let Some(replica) = batch.publish {
            self.publish.send_replace(replica);
        }
        if batch.incompatible.is_some() {
            // Of several snapshots the first is enough.
            self.incompatible
                .send_if_modified(|said| std::mem::replace(said, batch.incompatible) != batch.incompatible);
        }
        if let Some((members, own_member)) = batch.members {
            self.transport.members(members, own_member);
        }
        for answer in batch.answers {
            self.answer(answer);
        }
        for stopped in batch.stop_snapshots {
            self.transport.stop_snapshot(stopped.node, stopped.index);
        }
        for snapshot in batch.send_snapshots {
            self.send_snapshot(cx, snapshot);
        }
        if let Some(job) = batch.digest_state {
            self.digest_state(cx, job);
        }
        if let Some(job) = batch.take_snapshot {
            self.take_snapshot(cx, job);
        }
        for notice in &batch.notices {
            log_notice(notice);
        }
        self.alarm.set(cx, batch.wake_at, Msg::Wake);
        if batch.again {
            self.schedule_turn(cx);
        }
        Ok(())
    }

    /// A sync failed: nothing written to those files can be trusted, but everything is still in memory. Any other failure ends
    /// this actor.
    fn renew_disk(&mut self, cx: &Cx<Msg>, fault: LogFault) -> Result<(), Fault> {
        let everything = (fault.kind == FaultKind::Unsynced).then(|| self.core.everything()).flatten();
        let (Some((job, write)), true) = (everything, self.renewals < MAX_RENEWALS) else { return Err(fault.into()) };
        tracing::error!(%fault, "a sync failed; rewriting the Raft log into new files");
        self.renewals += 1;
        self.disk = DiskThread::renew(&self.data_dir, &self.file_system, job, write)?;
        self.watch_disk(cx);
        Ok(())
    }

    fn watch_disk(&self, cx: &Cx<Msg>) {
        self.disk.show(cx.beside("disk", "Disk"));
        let (me, thread) = (cx.me().clone(), self.renewals);
        self.disk.listen(Box::new(move |report| {
            // A hint. The next tick makes up for one that a full mailbox refuses, and for the failure that follows it.
            let _full = me.tell(Msg::Disk(DiskNews(report, thread)));
        }));
    }

    /// Sends a `Turn` behind everything that waits. If a full mailbox refuses it, the next tick causes one.
    fn schedule_turn(&mut self, cx: &Cx<Msg>) {
        self.turn_due = self.turn_due || cx.me().tell(Msg::Turn).is_ok();
    }

    fn send(&self, outbound: Vec<Outbound>) {
        let mut by_node: BTreeMap<NodeId, (String, Vec<RaftPacket>, usize)> = BTreeMap::new();
        for out in outbound {
            let size = out.packet.entries.iter().map(|e| e.data.len() + e.context.len() + 32).sum::<usize>() + 256;
            let (addr, packets, bytes) = by_node.entry(out.node).or_default();
            if *bytes + size > MAX_PACKETS_BYTES && !packets.is_empty() {
                self.transport.send(out.node, addr, std::mem::take(packets));
                *bytes = 0;
            }
            *bytes += size;
            *addr = out.addr;
            packets.push(out.packet);
        }
        for (node, (addr, packets, _)) in by_node {
            self.transport.send(node, &addr, packets);
        }
    }

    fn answer(&mut self, answer: Answer) {
        // The caller may have given up and closed its port.
        match answer {
            Answer::Proposed(ask, result) => {
                if let Some(Port::Propose(port)) = self.asks.take(ask) {
                    let _gave_up = port.send(result);
                }
            }
            Answer::Read(ask, result) => {
                if let Some(Port::Read(port)) = self.asks.take(ask) {
                    let _gave_up = port.send(result);
                }
            }
            Answer::Reachable(ask, result) => {
                if let Some(Port::Reachable(port)) = self.asks.take(ask) {
                    let _gave_up = port.send(result);
                }
            }
            Answer::Transferred(ask, result) => {
                if let Some(Port::Transfer(port)) = self.asks.take(ask) {
                    let _gave_up = port.send(result);
                }
            }
        }
    }

    /// Encoding takes milliseconds to tens of them: not on this thread.
    fn send_snapshot(&mut self, cx: &Cx<Msg>, snapshot: OutboundSnapshot) {
        self.snapshots_sent += 1;
        let (transport, me) = (Arc::clone(&self.transport), cx.me().clone());
        cx.spawn(async move {
            let OutboundSnapshot { node, addr, mut packet, job } = snapshot;
            let index = job.index;
            match tokio::task::spawn_blocking(move || job.run_shared()).await {
                Ok((head, data)) => {
                    packet.snapshot = Some(head.clone());
                    transport.send_snapshot(node, &addr, head, data, packet);
                }
                // If the mailbox refuses this, the core gives the snapshot up after a while.
                Err(_) => drop(me.tell(Msg::SnapshotLost { to: packet.to, index })),
            }
        });
    }

    fn digest_state(&self, cx: &Cx<Msg>, job: DigestJob) {
        let me = cx.me().clone();
        cx.spawn(async move {
            let index = job.index;
            let digest = tokio::task::spawn_blocking(move || job.run()).await.ok();
            send_until_accepted(&me, || Msg::StateDigested { index, digest }).await;
        });
    }

    fn take_snapshot(&mut self, cx: &Cx<Msg>, job: SnapshotJob) {
        self.snapshots_taken += 1;
        let (files, me) = (self.snapshots.clone(), cx.me().clone());
        cx.spawn(async move {
            let work = move || {
                let (head, data) = job.run();
                files.store(&head, &data).map(|()| head)
            };
            let head = match tokio::task::spawn_blocking(work).await {
                Ok(Ok(head)) => Some(head),
                Ok(Err(fault)) => {
                    tracing::warn!(%fault, "cannot write a snapshot");
                    None
                }
                Err(_) => None,
            };
            send_until_accepted(&me, || Msg::SnapshotTaken(head.clone())).await;
        });
    }
}

/// The core waits for this message before it asks for another, so it is retried while the mailbox is full.
async fn send_until_accepted(me: &Address<Msg>, msg: impl Fn() -> Msg) {
    while let Err(muster_kernel::Undeliverable::Full) = me.tell(msg()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn log_notice(notice: &Notice) {
    match notice {
        Notice::DiskTooSlow { .. } => tracing::warn!(?notice, "disk write too slow; gave up Raft leadership"),
        Notice::SnapshotUnreadable { .. } => tracing::warn!(?notice, "cannot read a received snapshot"),
        Notice::StateDiverged { member, node, index } => {
            tracing::error!(
                raft_id = member.0,
                ?node,
                index,
                "a manager's state differs from the leader's at the same revision"
            );
        }
        Notice::SnapshotNotTaken { to, why } => {
            tracing::warn!(raft_id = to.0, %why, "a manager needs a snapshot of the state and did not install it; \
                see `muster node inspect` of that node");
        }
        Notice::Leads { .. } | Notice::Follows { .. } | Notice::LostLeader { .. } => {
            tracing::info!(?notice, "Raft leader changed")
        }
        Notice::BecameMember { .. } => tracing::info!(?notice, "this node became a Raft member"),
        Notice::MemberRemoved { .. } => tracing::info!(?notice, "this node was removed from the Raft configuration"),
        Notice::Installed { .. } => tracing::info!(?notice, "installed a snapshot"),
        Notice::Sending { .. } => tracing::info!(?notice, "sending a snapshot to a Raft member"),
        Notice::MembershipRefused { .. } => tracing::debug!(?notice, "membership change refused when applied"),
    }
}

impl Shell for RaftMember {
    type Msg = Msg;
    const KIND: &'static str = "RaftMember";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.watch_disk(cx);
        let (me, every) = (cx.me().clone(), self.tick);
        cx.spawn(async move {
            let mut ticks = tokio::time::interval(every);
            // After a pause (SIGSTOP, a suspended machine) missed ticks must not run an election timer down.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let _full = me.tell(Msg::Tick);
            }
        });
        self.turn(cx)
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        let now = cx.now();
        match msg {
            Msg::Protocol(msg) => {
                let input = self.input(now, msg);
                self.core.step(now, input);
            }
            Msg::Tick => {
                self.core.step(now, Input::Tick);
                self.turn_due = false; // in case its message was lost
            }
            Msg::Wake => {
                self.alarm.fired();
                self.core.step(now, Input::Woke);
            }
            Msg::Disk(DiskNews(Report::Failed(fault), thread)) if thread == self.renewals => {
                self.renew_disk(cx, fault)?
            }
            Msg::Disk(DiskNews(..)) => {}
            Msg::SnapshotTaken(head) => self.core.step(now, Input::SnapshotTaken { head }),
            Msg::StateDigested { index, digest } => self.core.step(now, Input::StateDigested { index, digest }),
            Msg::SnapshotLost { to, index } => {
                let outcome = SnapshotOutcome::Lost("it could not be encoded".to_owned());
                self.core.step(now, Input::SnapshotSent { to, index, outcome });
            }
            Msg::Turn => return self.turn(cx),
        }
        self.schedule_turn(cx);
        Ok(())
    }

    fn view(&self) -> Value {
        let RaftStatus { raft_id, role, term, leader_node, commit, applied, leading, progress, .. } =
            self.core.status(Clock.now());
        let (proposals, reads, writes) = self.core.in_flight();
        let (first, last, snapshot) = self.core.log_span();
        let peers: Vec<Value> = progress
            .iter()
            .map(|p| {
                json!({"raft_id": p.raft_id, "node": p.node, "voter": p.voter, "match": p.matched,
                       "acked_ago_ms": p.acked_ago.map(millis), "in_snapshot": p.in_snapshot})
            })
            .collect();
        json!({
            "raft_id": raft_id, "role": role, "term": term, "leader": leader_node, "leading": leading,
            "commit": commit, "applied": applied,
            "log": {"first": first, "last": last, "snapshot": snapshot},
            "disk": {"syncs": self.disk.syncs(), "renewals": self.renewals},
            "in_flight": {"proposals": proposals, "reads": reads, "disk_writes": writes},
            "snapshots": {"taken": self.snapshots_taken, "sent": self.snapshots_sent},
            "dropped": self.core.counters(),
            "progress": peers,
        })
    }
}

impl Drop for RaftMember {
    /// A member that does not run must not be published as leader.
    fn drop(&mut self) {
        self.publish.send_modify(|replica| {
            let RaftStatus { raft_id, term, commit, applied, .. } = replica.raft.clone();
            let raft = RaftStatus { raft_id, term, commit, applied, ..RaftStatus::default() };
            *replica = Arc::new(Replica { tables: replica.tables.clone(), raft });
        });
    }
}
