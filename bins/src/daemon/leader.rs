//! The leader's subtree: role manager, certificate authority, root rotation, autopilot, dispatcher, elections. It runs while this member leads and has
//! applied an entry of its own term; each term has its own subtree.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_api::ManagerPorts;
use muster_autopilot::AutopilotShell;
use muster_cert_authority::{CertAuthorityShell, Clocks};
use muster_elections::{ElectionsPorts, elections_address, elections_spec};
use muster_kernel::{Address, Backoff, Clock, Intensity, Recipient, Slot, Spec};
use muster_mesh::MeshHandle;
use muster_messages::protocol::RaftMemberMsg;
use muster_messages::wire::{self, PeerCall};
use muster_messages::{
    Change, ClusterRecord, Command, Guard, IDENTITY_LEVEL, IssuedCertificate, NodeDoubts, NodeId, NodeRecord,
    Principal, Replica, Revision, Role, RoleView, Term, Token, WallTime,
};
use muster_role_manager::RoleManagerShell;
use muster_role_manager::core::Checkpoint;
use muster_root_rotation::{RootRotationShell, Upstream};
use muster_sessions::{DispatcherPorts, dispatcher_address, dispatcher_spec};
use tokio::sync::watch;

use super::node::Shared;
use super::settings::Settings;
use super::upstream::UpstreamCommand;
use muster_manager::switch::Plan;

/// Addresses of the leader's actors, for every incarnation. `Down` while this member does not lead.
#[derive(Clone)]
pub struct LeaderAddresses {
    pub roles: Address<muster_role_manager::Msg>,
    pub authority: Address<muster_cert_authority::Msg>,
    pub rotation: Address<muster_root_rotation::Msg>,
    pub autopilot: Address<muster_autopilot::Msg>,
    pub dispatcher: Address<muster_sessions::DispatcherMailbox>,
    pub elections: Address<muster_elections::Msg>,
}

/// Mailboxes: each message is one person's or node's request; beyond these bounds requests are rejected with a time to retry.
pub fn addresses(settings: &Settings) -> LeaderAddresses {
    LeaderAddresses {
        roles: Address::new(1024),
        authority: Address::new(1024),
        // After a root is published, every node of the fleet acknowledges it.
        rotation: Address::new(16_384),
        autopilot: Address::new(256),
        dispatcher: dispatcher_address(&settings.dispatcher()),
        elections: elections_address(&settings.elections()),
    }
}

/// Starts and stops the leader's subtree.
pub struct LeaderPlan {
    shared: Shared,
    addresses: LeaderAddresses,
    ports: Arc<ManagerPorts>,
    mesh: MeshHandle,
    view: Arc<watch::Sender<Arc<RoleView>>>,
    doubts: Arc<watch::Sender<Arc<NodeDoubts>>>,
    kept: PerTerm<(Slot<Checkpoint>, ElectionsPorts)>,
}

/// State that lives as long as a leadership, however often its subtree restarts: what was in progress in this term may still be
/// applied. A new term decides anew from the current state.
struct PerTerm<T>(Mutex<Option<(Term, T)>>);

impl<T> Default for PerTerm<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}
impl<T: Clone> PerTerm<T> {
    fn of(&self, term: Term, make: impl FnOnce() -> T) -> T {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((of, value)) if *of == term => value.clone(),
            _ => kept.insert((term, make())).1.clone(),
        }
    }
}

impl LeaderPlan {
    pub fn new(
        shared: Shared,
        addresses: LeaderAddresses,
        ports: Arc<ManagerPorts>,
        mesh: MeshHandle,
        view: Arc<watch::Sender<Arc<RoleView>>>,
        doubts: Arc<watch::Sender<Arc<NodeDoubts>>>,
    ) -> Self {
        Self { shared, addresses, ports, mesh, view, doubts, kept: PerTerm::default() }
    }
}

impl Plan<Arc<Replica>> for LeaderPlan {
    fn wanted(&self, replica: &Arc<Replica>) -> Option<u64> {
        replica.raft.leading.then_some(replica.raft.term.0)
    }

    fn child(&self, replica: &Arc<Replica>) -> Spec {
        tracing::info!(term = replica.raft.term.0, "this manager leads");
        let founding = self.shared.founding.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(founding) = founding {
            tokio::spawn(write_first_entry(self.shared.clone(), founding, self.ports.raft.clone()));
        }
        let settings = &self.shared.config.settings;
        let (authority_config, dispatcher_config, roles_config) =
            (settings.certificates(), settings.dispatcher(), settings.roles());
        let rotation_config = settings.rotation();
        let argv = settings.authority.upstream_command.clone();
        let upstream = (!argv.is_empty()).then(|| Arc::new(UpstreamCommand { argv }) as Arc<dyn Upstream>);
        let (addresses, ports, mesh, me) =
            (self.addresses.clone(), Arc::clone(&self.ports), self.mesh.clone(), self.shared.me);
        let (view, doubts) = (Arc::clone(&self.view), Arc::clone(&self.doubts));
        let term = replica.raft.term;
        let leads_since = muster_autopilot::core::Now { at: Clock.now(), wall: Clock.wall() };
        let autopilot_config = settings.autopilot();
        let (slot, elections) = self.kept.of(term, || {
            let (replicas, raft) = (ports.replica.clone(), ports.raft.clone());
            (Slot::new(), ElectionsPorts::new(settings.elections(), term, replicas, raft))
        });
        Spec::group("leader", Intensity::default(), move |children| {
            let (raft, replica) = (ports.raft.clone(), ports.cluster_replica.clone());
            let (view, slot, probe) = (Arc::clone(&view), slot.clone(), mesh.recipient());
            let (r, c, config) = (raft.clone(), replica.clone(), roles_config.clone());
            children.start(Spec::actor("role-manager", addresses.roles.clone(), move || {
                let ports = muster_role_manager::Ports {
                    raft: r.clone(),
                    mesh: probe.clone(),
                    replica: c.clone(),
                    view: Arc::clone(&view),
                };
                Ok(RoleManagerShell::new(me, config.clone(), ports, slot.clone()))
            }));
            // It waits for revisions of its own.
            let (r, c, config) = (raft.clone(), ports.replica.clone(), authority_config.clone());
            let clocks = clocks(me, replica.clone(), mesh.clone());
            children.start(Spec::actor("cert-authority", addresses.authority.clone(), move || {
                Ok(CertAuthorityShell::new(config.clone(), r.clone(), c.clone()).comparing(Arc::clone(&clocks)))
            }));
            let (r, c, config) = (raft.clone(), replica.clone(), rotation_config.clone());
            let upstream = upstream.clone();
            children.start(Spec::actor("root-rotation", addresses.rotation.clone(), move || {
                Ok(RootRotationShell::new(me, config.clone(), upstream.clone(), r.clone(), c.clone()))
            }));
            let ports = muster_autopilot::Ports {
                raft: raft.clone(),
                roles: addresses.roles.recipient(),
                replica: replica.clone(),
                doubts: doubts.subscribe(),
            };
            let config = autopilot_config.clone();
            children.start(Spec::actor("autopilot", addresses.autopilot.clone(), move || {
                Ok(AutopilotShell::new(config.clone(), term, leads_since, ports.clone()))
            }));
            let doubts = Arc::clone(&doubts);
            let ports = DispatcherPorts { config: dispatcher_config.clone(), replica, raft, doubts };
            children.start(dispatcher_spec(addresses.dispatcher.clone(), ports));
            children.start(elections_spec(addresses.elections.clone(), elections.clone()));
            Ok(())
        })
        .backoff(Backoff::QUICK)
    }

    fn after_stop(&self, _replica: Arc<Replica>) -> BoxFuture<'static, ()> {
        let view = Arc::clone(&self.view);
        Box::pin(async move {
            view.send_replace(Arc::new(RoleView::default()));
        })
    }

    fn name(&self) -> &'static str {
        "leader"
    }
}

/// How long another manager may take to answer with its time.
const CLOCK_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks every other Raft member for its time. Builds of feature level 2 do not know the question.
fn clocks(me: NodeId, replica: watch::Receiver<Arc<Replica>>, mesh: MeshHandle) -> Clocks {
    Arc::new(move || {
        let (replica, mesh) = (Arc::clone(&replica.borrow()), mesh.clone());
        Box::pin(async move {
            let tables = &replica.tables;
            let others = tables.members.values().map(|member| member.node).filter(|node| *node != me);
            let others: Vec<NodeId> = others.filter(|_| tables.records_identities()).collect();
            let asking = others.into_iter().map(|node| {
                let mesh = mesh.clone();
                async move {
                    let asked = Clock.wall();
                    let answer = mesh.call(node, CLOCK_ANSWER_TIMEOUT, PeerCall::Clock).await.ok()?;
                    let value: WallTime = wire::decode(&answer).ok()?;
                    // Half-way between question and answer; a clock that is set meanwhile is compared once more.
                    let here = asked.0.midpoint(Clock.wall().0);
                    Some(value.0.saturating_sub(here))
                }
            });
            futures_util::future::join_all(asking).await.into_iter().flatten().collect()
        })
    })
}

/// Pause between proposals of the first entry until it is applied.
const FOUNDING_RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Last step of founding: the first entry writes the cluster, its root and its founder. Repeated until applied; the guard
/// `NotFounded` makes it take effect once.
async fn write_first_entry(shared: Shared, founding: muster_pki::Founding, raft: Recipient<RaftMemberMsg>) {
    let feature_level = shared.config.settings.debug.feature_level;
    // Each term led before the entry is applied, and each restart of the manager runtime, proposes it again: once one
    // proposal succeeds, the others end.
    while shared.founding.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
        let mut command = Command::idempotent(founding.at, Principal::Operator, "founded").guard(Guard::NotFounded);
        command = command.change(Change::Found {
            cluster: Box::new(ClusterRecord { feature_level, ..founding.cluster_record() }),
            founder: Box::new(founder(&shared, &founding)),
            tokens: [Role::Worker, Role::Manager].map(|role| default_token(role, &founding)).to_vec(),
        });
        if feature_level >= IDENTITY_LEVEL {
            command = command.change(first_certificate(&shared, &founding));
        }
        let command = Box::new(command);
        let deadline = Duration::from_secs(5);
        let done = raft.ask(deadline, |reply| RaftMemberMsg::Propose { command, deadline_ms: 5000, reply }).await;
        match done {
            Ok(Ok(_)) => break,
            Ok(Err(muster_messages::protocol::ProposeError::Refused(
                muster_messages::CommandRefusal::AlreadyFounded,
            ))) => break,
            other => tracing::debug!(?other, "first entry not applied yet"),
        }
        tokio::time::sleep(FOUNDING_RETRY_PAUSE).await;
    }
    let store = shared.memory.store().clone();
    let finished = tokio::task::spawn_blocking(move || store.finish_founding()).await;
    *shared.founding.lock().unwrap_or_else(PoisonError::into_inner) = None;
    match finished {
        Ok(Ok(())) => tracing::info!(cluster = %founding.cluster, "cluster founded"),
        Ok(Err(why)) => tracing::error!(%why, "the cluster is founded, but its founding file cannot be removed"),
        Err(why) => tracing::error!(%why, "the cluster is founded, but its founding file cannot be removed"),
    }
}

fn founder(shared: &Shared, founding: &muster_pki::Founding) -> NodeRecord {
    NodeRecord {
        addr: shared.advertise.clone(),
        release: shared.config.release.clone(),
        labels: shared.config.labels.clone(),
        last_not_after: shared.credentials.borrow().identity.not_after,
        ..NodeRecord::new(
            founding.node,
            muster_messages::Name::sanitized(&shared.config.name),
            Role::Manager,
            founding.at,
        )
    }
}

/// The certificate that the founder signed before the log existed.
fn first_certificate(shared: &Shared, founding: &muster_pki::Founding) -> Change {
    let identity = shared.credentials.borrow().identity.clone();
    let certificate = IssuedCertificate {
        serial: identity.serial,
        role: Role::Manager,
        granted: identity.granted,
        not_after: identity.not_after,
        pin: identity.pin,
        issuer: muster_pki::root_id_of_pem(&founding.root_cert_pem).ok(),
    };
    Change::IssueCertificate { node: founding.node, certificate: Box::new(certificate), held: None, replaces: None }
}

fn default_token(role: Role, founding: &muster_pki::Founding) -> Token {
    Token {
        id: format!("default-{role}"),
        role,
        secret: muster_pki::new_token_secret(),
        default: true,
        created_at: founding.at,
        expires_at: None,
        uses_left: None,
        revision: Revision(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_term_state_survives_restarts_within_its_term() {
        let kept = PerTerm::default();
        let [first, again, next] = [3, 3, 4].map(|term| kept.of(Term(term), Slot::<u32>::new));
        first.set(7);
        assert_eq!((again.get(), next.get()), (Some(7), None));
    }
}
