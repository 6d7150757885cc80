//! The actor around the core: ports, timers, the disk thread, the network.
//!
//! Batching is natural: inputs are only absorbed. The first one sends this actor a `Turn`, which is queued behind everything that
//! waits in the mailbox; if nothing waits, the turn follows at once. The higher the load, the more one write and one packet carry.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Alarm, Clock, Cx, Fault, Shell};
use muster_messages::protocol::{Named, RaftMemberMsg, RaftTransport, SnapshotOutcome};
use muster_messages::wire::SnapshotHead;
use muster_messages::{Moment, NodeId, RaftId};
use muster_sealing::Keys;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::asks::Asks;
use crate::core::{Batch, Bundle, Incompatible, Input, RaftConfig, RaftCore, bundles};
use crate::drain::logger;
use crate::feed::ObjectFeed;
use crate::log::log_notice;
use crate::member_disk::{DiskNews, MemberDisk};
use crate::published::{Published, ReplicaSenders};
use crate::snapshots::{self, SnapshotWork};
use crate::view::view;

/// The arguments of a raft member.
#[derive(Clone)]
pub struct RaftArgs {
    /// The member's own directory; created if missing.
    pub data_dir: PathBuf,
    /// With which the directory is sealed.
    pub keys: Keys,
    pub node: NodeId,
    pub config: RaftConfig,
    pub transport: Arc<dyn RaftTransport>,
    /// The replica for all readers.
    pub publish: ReplicaSenders,
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
    /// First: what must not be published any more is withdrawn before anything else is dropped.
    published: Published,
    core: RaftCore,
    disk: MemberDisk,
    snapshots: SnapshotWork,
    transport: Arc<dyn RaftTransport>,
    tick: Duration,
    asks: Asks,
    turn_due: bool,
    alarm: Alarm,
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
        to: RaftId,
        index: u64,
    },
}

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
            keys,
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
        let (disk, recovered) = MemberDisk::open(&data_dir, keys, disk_hangs_while)?;
        let (tick, seed, now) = (config.tick, rand::random(), Clock.now());
        let core = RaftCore::start(config, node, recovered, founding, seed, now, logger())?;
        let published = Published::new(publish, feed, incompatible, core.tables().revision);
        Ok(Self {
            core: core.without(lost).at_wall_time(now, Clock.wall()),
            snapshots: SnapshotWork::new(Arc::clone(&transport)),
            disk,
            transport,
            published,
            tick,
            asks: Asks::default(),
            turn_due: false,
            alarm: Alarm::default(),
        })
    }

    fn turn(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.turn_due = false;
        let now = cx.now();
        // The report is only a hint, so that a full mailbox loses nothing.
        if let Some(number) = self.disk.newly_persisted() {
            self.core.step(now, Input::Persisted { number });
        }
        let batch = self.core.turn(now)?;
        self.apply_batch(cx, now, batch)
    }

    fn apply_batch(&mut self, cx: &Cx<Msg>, now: Moment, mut batch: Batch) -> Result<(), Fault> {
        for Bundle { node, addr, packets } in bundles(std::mem::take(&mut batch.send)) {
            self.transport.send(node, &addr, packets);
        }
        if let Some(why) = batch.lost.take() {
            tracing::error!(%why, "this manager's Raft data cannot be trusted and will not be used again");
            self.disk.mark_lost(&why)?;
            return Err(Fault::new(why));
        }
        if !batch.make_durable.is_empty()
            && let Err(fault) = self.disk.write(std::mem::take(&mut batch.make_durable))
        {
            self.disk.renew(cx, fault, &mut self.core)?;
        }
        self.published.update(now, self.core.tables().revision, &mut batch);
        if let Some((members, own_member)) = batch.members {
            self.transport.members(members, own_member);
        }
        for answer in batch.answers {
            self.asks.answer(answer);
        }
        for stopped in batch.stop_snapshots {
            self.transport.stop_snapshot(stopped.node, stopped.index);
        }
        for snapshot in batch.send_snapshots {
            self.snapshots.send(cx, snapshot);
        }
        if let Some(job) = batch.digest_state {
            snapshots::digest(cx, job);
        }
        if let Some(job) = batch.take_snapshot {
            self.snapshots.take(cx, self.disk.snapshot_files(), job);
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

    /// Sends a `Turn` behind everything that waits. If a full mailbox refuses it, the next tick causes one.
    fn schedule_turn(&mut self, cx: &Cx<Msg>) {
        self.turn_due = self.turn_due || cx.me().tell(Msg::Turn).is_ok();
    }
}

impl Shell for RaftMember {
    type Msg = Msg;
    const KIND: &'static str = "RaftMember";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.disk.watch(cx);
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
                let input = self.asks.input(now, msg);
                self.core.step(now, input);
            }
            Msg::Tick => {
                self.core.step(now, Input::Tick);
                self.turn_due = false; // in case its message was lost
                let core = &self.core;
                self.disk.follow_keys(now, || core.place_among_voters())?;
            }
            Msg::Wake => {
                self.alarm.fired();
                self.core.step(now, Input::Woke);
            }
            Msg::Disk(news) => {
                if let Some(fault) = self.disk.failure(news) {
                    self.disk.renew(cx, fault, &mut self.core)?;
                }
            }
            Msg::SnapshotTaken(head) => self.core.step(now, Input::SnapshotTaken { head }),
            Msg::StateDigested { index, digest } => self.core.step(now, Input::StateDigested { index, digest }),
            Msg::SnapshotLost { to, index } => {
                let outcome = SnapshotOutcome::Lost("it could not be encoded".to_owned());
                self.core.step(now, Input::SnapshotSent { to, index, outcome });
            }
            Msg::Turn => return self.turn(cx),
        }
        // The message being handled still has its place in the mailbox.
        if cx.me().depth() <= 1 {
            return self.turn(cx);
        }
        self.schedule_turn(cx);
        Ok(())
    }

    fn view(&self) -> Value {
        json!(view(self.core.status(Clock.now()), &self.core, self.disk.view(), self.snapshots.view()))
    }
}
