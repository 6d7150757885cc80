//! The manager runtime: mesh, Raft member, blocklist, sessions, join service, membership agent, the switch of the leader's subtree,
//! and its part in Muster's own scope. It runs while the certificate says manager and this build supports the cluster's feature
//! level. Its failure never takes the agent down.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_agent::WantedBecause;
use muster_api::{LeaderPorts, ManagerPorts, PeerCalls};
use muster_autolock::{AutolockShell, OnDisk};
use muster_blocklist::BlocklistShell;
use muster_join::{JoinLimits, JoinPorts, JoinService};
use muster_kernel::{Address, Children, Fault, Intensity, Slot, Spec};
use muster_mesh::{Mesh, MeshHandle, MeshWiring};
use muster_messages::protocol::RaftMemberMsg;
use muster_messages::{Incarnation, OfferedRoot, RaftId, Replica, RoleView, Trouble, word};
use muster_raft_member::{Incompatible, ObjectFeed, RaftArgs, RaftMember, ReplicaSenders, disk};
use muster_sessions::{SessionsPorts, sessions_address, sessions_spec};
use tokio::sync::{mpsc, watch};

use super::feature_level;
use super::leader::LeaderPlan;
use super::node::Shared;
use super::recovery;
use super::sealing;
use muster_manager::RaftData;
use muster_manager::feature_level::LevelPorts;
use muster_manager::membership::{MembershipAgent, MembershipAgentMsg, MembershipPorts};
use muster_manager::router::Router;
use muster_manager::runs::Runs;
use muster_manager::switch::{Plan, Switch, SwitchMsg};

/// Pause before retrying a directory that could not be prepared, on a full disk for example.
const TIDY_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Attempts to clear the data of a removed member. With the pauses, and the wait for its disk thread, about a minute; the next start clears
/// it otherwise.
const WIPE_ATTEMPTS: u32 = 10;

/// Starts and stops the manager runtime.
pub struct ManagerPlan {
    shared: Shared,
}

impl ManagerPlan {
    pub fn new(shared: Shared) -> Self {
        Self { shared }
    }
}

impl Plan<Runs> for ManagerPlan {
    fn wanted(&self, runs: &Runs) -> Option<u64> {
        (runs.wanted.wanted && !runs.incompatible).then_some(runs.incarnation.0)
    }
    fn child(&self, _runs: &Runs) -> Spec {
        tracing::info!("starting the manager runtime");
        let shared = self.shared.clone();
        // Its failures are contained: it may restart any number of times without ending the process.
        let backoff = shared.config.settings.backoff();
        Spec::group("manager", Intensity::default(), move |children| fill(&shared, children))
            .backoff(backoff)
            .contained()
    }
    /// MESH-22: a start that is not on disk yet. RECOVER-8: boot has checked data older than its certificate's incarnation, and
    /// stopping checks again; but a runtime that was no longer wanted before it had started has left its data untouched.
    fn needs_preparation(&self, runs: &Runs) -> bool {
        let unwritten = self.wanted(runs).is_some() && self.shared.starts.get().is_none();
        unwritten || runs.incarnation.0 > self.shared.raft_checked.load(Ordering::Acquire)
    }
    fn prepare(&self, runs: Runs) -> BoxFuture<'static, ()> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let disk = shared.clone();
            let prepared = tokio::task::spawn_blocking(move || prepare(&disk, runs.incarnation));
            let why = match prepared.await {
                Ok(Ok(())) => return drop(shared.raft_trouble.send_replace(None)),
                Ok(Err(why)) => why,
                Err(crashed) => Fault::from(crashed),
            };
            tracing::error!(%why, "cannot prepare the Raft data directory; retrying before starting the manager runtime");
            shared.raft_trouble.send_replace(Some(Trouble::DiskFailed(why.to_string())));
            tokio::time::sleep(TIDY_RETRY_PAUSE).await;
        })
    }
    fn after_stop(&self, runs: Runs) -> BoxFuture<'static, ()> {
        let shared = self.shared.clone();
        Box::pin(async move {
            shared.manager.send_replace(None);
            shared.raft_trouble.send_replace(None);
            let Runs { wanted, incompatible, incarnation } = runs;
            tracing::info!(because = %word(wanted.because), incompatible, "manager runtime stopped");
            let old_incarnation = wanted.because == WantedBecause::OldIncarnation;
            let wiped = tokio::task::spawn_blocking(move || {
                if old_incarnation {
                    recovery::set_aside(&shared.config.data_dir, recovery::FENCED)?;
                }
                let checked = set_aside_outlived(&shared, incarnation);
                if old_incarnation || wanted.may_wipe() {
                    wipe_in_time(&shared)?;
                } else {
                    checked?;
                }
                let credentials = shared.credentials.borrow().clone();
                sealing::settle_worker(&shared.config, &shared.memory, &credentials)
            });
            if let Ok(Err(why)) = wiped.await {
                tracing::error!(%why, "cannot settle the Raft data of a stopped member");
            }
        })
    }
    fn name(&self) -> &'static str {
        "manager"
    }
}

/// What must be on disk, or deleted, before this process acts as a manager.
fn prepare(shared: &Shared, newest: Incarnation) -> Result<(), Fault> {
    set_aside_outlived(shared, newest)?;
    if shared.starts.get().is_none() {
        let starts = shared.memory.store().begin_start(shared.instance)?;
        let _once = shared.starts.set(starts);
    }
    Ok(())
}

/// RECOVER-8. Afterwards no data of an earlier incarnation is left. It fails while the data cannot be read, because an earlier disk thread is
/// still writing it for example: the preparation of the next runtime repeats it.
fn set_aside_outlived(shared: &Shared, newest: Incarnation) -> Result<(), Fault> {
    let data = &shared.config.data_dir;
    let found = disk::state(&data.join("raft"), shared.memory.store().keys());
    if recovery::is_outlived(&found, newest)? {
        recovery::set_aside(data, recovery::FENCED)?;
        wipe(shared)?;
    }
    shared.raft_checked.fetch_max(newest.0, Ordering::AcqRel);
    Ok(())
}

/// [`wipe`]. The disk thread of the member may still be writing the whole state.
fn wipe_in_time(shared: &Shared) -> Result<(), Fault> {
    for _ in 1..WIPE_ATTEMPTS {
        match wipe(shared) {
            Ok(()) => return Ok(()),
            Err(why) => tracing::warn!(%why, "cannot clear the Raft data yet; retrying"),
        }
        std::thread::sleep(TIDY_RETRY_PAUSE);
    }
    wipe(shared)
}

/// The member was removed for good: its data is worthless, and must not look like lost data later.
pub fn wipe(shared: &Shared) -> Result<(), Fault> {
    disk::wipe(&shared.config.data_dir.join("raft"))?;
    shared.memory.update(|node| node.held_member_id = None)?;
    *shared.raft_data.lock().unwrap_or_else(PoisonError::into_inner) = RaftData::None;
    Ok(())
}

/// Builds one incarnation of the manager runtime.
fn fill(shared: &Shared, children: &Children) -> Result<(), Fault> {
    let raft: Address<muster_raft_member::Msg> = Address::new(16_384);
    let replicas = ReplicaSenders::default();
    let (replica, cluster) = (&replicas.every, &replicas.cluster);
    let feed = ObjectFeed::default();
    let incompatible = Arc::new(watch::Sender::new(None));
    let local_replica = Arc::new(shared.local_replica.attach(cluster.subscribe()));
    let (calls, incoming) = mpsc::channel(1024);
    let starts = shared.starts.get().ok_or_else(|| Fault::new("this start is not on disk yet"))?;
    let mesh = Mesh::new(
        shared.config.settings.mesh(),
        MeshWiring {
            starts: starts.clone(),
            advertise: shared.advertise.clone(),
            credentials: shared.credentials.clone(),
            replica: replica.subscribe(),
            raft: raft.recipient(),
            calls,
            agent: shared.agent.clone(),
            dialer: Arc::new(shared.dialer.clone().with_replica(shared.local_replica.clone())),
            services: shared.services.clone(),
            hints: shared.config.join.iter().filter(|addr| **addr != shared.advertise).cloned().collect(),
        },
    );
    let handle = mesh.handle();
    let view = Arc::new(watch::Sender::new(Arc::new(RoleView::default())));
    let leader = super::leader::addresses(&shared.config.settings);
    let sessions_config = shared.config.settings.sessions();
    let sessions = sessions_address(&sessions_config);
    let doubts = Arc::new(watch::Sender::new(Arc::default()));
    let ports = Arc::new(ManagerPorts {
        node: shared.me,
        replica: replica.subscribe(),
        cluster_replica: cluster.subscribe(),
        feed: feed.clone(),
        raft: raft.recipient(),
        call: peer_calls(&handle),
        sessions: sessions.recipient(),
        peers: peers_of(&handle),
        leader: LeaderPorts {
            roles: leader.roles.recipient(),
            authority: leader.authority.recipient(),
            rotation: leader.rotation.recipient(),
            autopilot: leader.autopilot.recipient(),
            dispatcher: leader.dispatcher.recipient(),
            elections: leader.elections.recipient(),
            view: view.subscribe(),
            doubts: doubts.subscribe(),
        },
    });
    let router = Router::new(shared.api.clone(), Arc::clone(&ports));

    children.start(mesh.spec());
    children.start(raft_spec(shared, &raft, &handle, &replicas, (feed, Arc::clone(&incompatible))));
    let (gateway, raft_port, slot) = (shared.gateway.clone(), raft.recipient::<RaftMemberMsg>(), Slot::new());
    let members = cluster.subscribe();
    children.start(Spec::actor("blocklist", Address::new(1024), move || {
        Ok(BlocklistShell::new(members.clone(), gateway.clone(), raft_port.clone(), slot.clone()))
    }));
    children.start(sessions_spec(
        sessions,
        SessionsPorts {
            config: sessions_config,
            services: shared.services.clone(),
            replica: cluster.subscribe(),
            leader: Arc::new(router.clone()),
        },
    ));
    let join = JoinPorts {
        services: shared.services.clone(),
        leader: Arc::new(router.clone()),
        root_pem: root_of(shared, replica.subscribe()),
        roots: offered_roots(replica.subscribe()),
        limits: JoinLimits::default(),
    };
    children.start(Spec::actor("join", Address::new(256), move || Ok(JoinService::new(join.clone()))));
    children.start(router.spec(incoming));
    let plan = LeaderPlan::new(shared.clone(), leader, Arc::clone(&ports), handle, view, doubts);
    let (plan, siblings, levels) = (Arc::new(plan), children.clone(), cluster.subscribe());
    let switch: Address<SwitchMsg<Arc<Replica>>> = Address::new(64);
    children.start(Spec::actor("leader-switch", switch, move || {
        Ok(Switch::new(Arc::clone(&plan), siblings.clone(), levels.clone()))
    }));
    let membership: Address<MembershipAgentMsg> = Address::new(64);
    let membership_ports = membership_ports(shared, cluster, &incompatible, children);
    let membership_agent = Spec::actor("membership", membership, move || {
        // The replica stays attached exactly as long as an actor of this incarnation lives.
        let _attached = &local_replica;
        Ok(MembershipAgent::new(membership_ports.clone()))
    });
    // No membership is requested before the Raft member runs: a learner that never answers blocks other changes.
    children.start(membership_agent.requires("raft-member"));
    children.start(muster_manager::feature_level::spec(level_ports(shared, cluster, &incompatible)));
    children.start(autolock_spec(shared, &router, cluster));
    shared.manager.send_replace(Some(ports));
    Ok(())
}

/// Keeps the keyring at the replicated version of the unlock key. It is created with the Raft data.
fn autolock_spec(shared: &Shared, router: &Router, replica: &watch::Sender<Arc<Replica>>) -> Spec {
    let (keys, unlock) = (shared.memory.store().keys().clone(), shared.unlocks_by);
    let files = Arc::new(sealing::Files::of(shared));
    let keyring = OnDisk { keys, unlock, files };
    let ports = muster_autolock::Ports {
        me: shared.me,
        keyring: Arc::new(keyring),
        leader: Arc::new(router.clone()),
        replica: replica.subscribe(),
    };
    Spec::actor("autolock", Address::new(64), move || Ok(AutolockShell::new(ports.clone()))).requires("raft-member")
}

fn membership_ports(
    shared: &Shared,
    replica: &watch::Sender<Arc<Replica>>,
    incompatible: &watch::Sender<Option<Incompatible>>,
    group: &Children,
) -> MembershipPorts {
    MembershipPorts {
        agent: shared.agent.clone(),
        replica: replica.subscribe(),
        incompatible: incompatible.subscribe(),
        group: group.clone(),
        raft_dir: shared.config.data_dir.join("raft"),
        memory: shared.memory.clone(),
        data: Arc::clone(&shared.raft_data),
        trouble: Arc::clone(&shared.raft_trouble),
        advertise: shared.advertise.clone(),
        feature_level: shared.config.settings.debug.feature_level,
        report_incompatible: feature_level::incompatible_reporter(shared),
    }
}

fn level_ports(
    shared: &Shared,
    replica: &watch::Sender<Arc<Replica>>,
    incompatible: &watch::Sender<Option<Incompatible>>,
) -> LevelPorts {
    LevelPorts {
        me: shared.me,
        level: shared.config.settings.debug.feature_level,
        cluster: super::reconcilers::own_cluster(shared),
        replicas: replica.subscribe(),
        incompatible: incompatible.subscribe(),
        raising: Arc::clone(&shared.raising),
        report_incompatible: feature_level::incompatible_reporter(shared),
    }
}

/// The root that signs, as far as this replica knows; before it knows the cluster, the one that issued this node's certificate.
/// One certificate: a joiner compares its digest.
fn root_of(shared: &Shared, replica: watch::Receiver<Arc<Replica>>) -> Arc<dyn Fn() -> String + Send + Sync> {
    let credentials = shared.credentials.clone();
    Arc::new(move || {
        let on_record = replica.borrow().tables.cluster.as_ref().map(|cluster| cluster.root_cert_pem.clone());
        on_record.or_else(|| muster_pki::own_root_pem(&credentials.borrow())).unwrap_or_default()
    })
}

fn offered_roots(replica: watch::Receiver<Arc<Replica>>) -> Arc<dyn Fn() -> Option<Vec<OfferedRoot>> + Send + Sync> {
    Arc::new(move || muster_join::offered(&replica.borrow().tables))
}

fn peers_of(handle: &MeshHandle) -> Arc<dyn Fn() -> std::collections::BTreeSet<muster_messages::NodeId> + Send + Sync> {
    let handle = handle.clone();
    Arc::new(move || handle.connected())
}

fn peer_calls(handle: &MeshHandle) -> PeerCalls {
    let handle = handle.clone();
    Arc::new(move |to, timeout, call| {
        let handle = handle.clone();
        Box::pin(async move { handle.call(to, timeout, call).await })
    })
}

fn raft_spec(
    shared: &Shared,
    address: &Address<muster_raft_member::Msg>,
    mesh: &MeshHandle,
    replicas: &ReplicaSenders,
    (feed, incompatible): (ObjectFeed, Arc<watch::Sender<Option<Incompatible>>>),
) -> Spec {
    let (shared, mesh, replicas) = (shared.clone(), mesh.clone(), replicas.clone());
    let config = shared.config.settings.raft();
    Spec::actor("raft-member", address.clone(), move || {
        let founding = shared.founding.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        set_aside_lost(&shared, replicas.every.borrow().raft.raft_id)?;
        let member = RaftMember::open(RaftArgs {
            data_dir: shared.config.data_dir.join("raft"),
            keys: shared.memory.store().keys().clone(),
            config: config.clone(),
            transport: Arc::new(mesh.clone()),
            publish: replicas.clone(),
            feed: feed.clone(),
            incompatible: Arc::clone(&incompatible),
            node: shared.me,
            founding,
            lost: shared.raft_data.lock().unwrap_or_else(PoisonError::into_inner).lost_member(),
            disk_hangs_while: shared.config.settings.debug.disk_hangs_while(),
        })?;
        sealing::reseal_identity(shared.memory.store());
        Ok(member)
    })
}

/// Damaged data is moved aside, and the node requests a new member id, as after a start that found damage. `published`: the member id of
/// the incarnation that ended, which may not have been recorded yet.
fn set_aside_lost(shared: &Shared, published: Option<RaftId>) -> Result<(), Fault> {
    let Some(fault) = disk::lost(&shared.config.data_dir.join("raft")) else { return Ok(()) };
    let held = shared.memory.load()?.held_member_id.max(published);
    let (file, why) = (fault.file.display().to_string(), fault.why);
    recovery::set_aside(&shared.config.data_dir, "raft.damaged")?;
    *shared.raft_data.lock().unwrap_or_else(PoisonError::into_inner) = RaftData::Damaged { held, file, why };
    Ok(())
}

/// Before a leader stops: another voter takes over without waiting for an election timeout.
pub async fn hand_over(shared: &Shared) {
    let Some(manager) = shared.manager.borrow().clone() else { return };
    let others = {
        let replica = manager.replica.borrow();
        let voters = replica.tables.members.values().filter(|m| m.voter && m.node != shared.me).count();
        replica.raft.leading && voters > 0
    };
    if !others {
        return;
    }
    let asked =
        manager.raft.ask(Duration::from_secs(2), |reply| RaftMemberMsg::TransferLeadership { to: None, reply }).await;
    match asked {
        Ok(Ok(transfer_target)) => tracing::info!(%transfer_target, "leadership transferred"),
        Ok(Err(why)) => tracing::warn!(%why, "stopping as leader: no voter took over leadership in time"),
        Err(why) => tracing::warn!(%why, "stopping as leader: no voter took over leadership in time"),
    }
}
