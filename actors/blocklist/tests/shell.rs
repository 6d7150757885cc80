//! The blocklist as an actor, with probes in the place of gateway and raft member.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_blocklist::core::SWEEP_EVERY;
use muster_blocklist::{BlocklistShell, Msg};
use muster_kernel::{Address, Intensity, Recipient, Slot, Spec, Supervisor, Tree, Undeliverable};
use muster_messages::protocol::{Applied, GatewayMsg, ProposeError, RaftMemberMsg, Reply};
use muster_messages::*;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

const PATH: &str = "node/manager/blocklist";

type Proposal = (Command, Reply<Result<Applied, ProposeError>>);

/// One manager's blocklist between its probes.
struct World {
    root: Supervisor,
    tree: Tree,
    replica: watch::Sender<Arc<Replica>>,
    tables: Tables,
    leading: bool,
    gateway_up: Arc<AtomicBool>,
    cuts: mpsc::UnboundedReceiver<(Principal, RefusalReason)>,
    proposals: mpsc::UnboundedReceiver<Proposal>,
}

impl World {
    async fn start() -> Self {
        let tree = Tree::new();
        let root = Supervisor::root("node/manager", tree.clone(), Intensity::default()).await.expect("a root starts");
        let (replica, replicas) = watch::channel(Arc::default());
        let gateway_up = Arc::new(AtomicBool::new(true));
        let (cut, cuts) = mpsc::unbounded_channel();
        let up = Arc::clone(&gateway_up);
        let gateway = Recipient::new(move |msg| {
            if !up.load(Ordering::SeqCst) {
                return Err(Undeliverable::Full);
            }
            let GatewayMsg::Cut { principal, reason, .. } = msg;
            cut.send((principal, reason)).map_err(|_| Undeliverable::Down)
        });
        let (propose, proposals) = mpsc::unbounded_channel();
        let raft = Recipient::new(move |msg| match msg {
            RaftMemberMsg::Propose { command, reply, .. } => {
                propose.send((*command, reply)).map_err(|_| Undeliverable::Down)
            }
            _ => panic!("the blocklist only proposes"),
        });
        let slot = Slot::new();
        let address: Address<Msg> = Address::new(8);
        root.children().start(Spec::actor("blocklist", address, move || {
            Ok(BlocklistShell::new(replicas.clone(), gateway.clone(), raft.clone(), slot.clone()))
        }));
        Self { root, tree, replica, tables: Tables::default(), leading: false, gateway_up, cuts, proposals }
    }

    fn publish(&self) {
        let raft = RaftStatus { leading: self.leading, ..RaftStatus::default() };
        self.replica.send_replace(Arc::new(Replica { tables: self.tables.clone(), raft }));
    }

    fn apply(&mut self, change: Change) -> Revision {
        let at = self.tables.revision.next();
        let command = Command::idempotent(WallTime(0), Principal::Operator, "test").change(change);
        muster_store::apply(&mut self.tables, at, &command).expect("the test writes what may be written");
        self.publish();
        at
    }

    fn block(&mut self, n: u8, expires_at: WallTime) {
        let node = NodeId::from_entropy(n.into());
        self.apply(Change::Block(Blocked { node, by: Principal::Operator, blocked_at: WallTime(0), expires_at }));
    }

    async fn cut(&mut self) -> (Principal, RefusalReason) {
        timeout(Duration::from_secs(600), self.cuts.recv()).await.expect("a cut in time").expect("the actor lives")
    }

    async fn proposal(&mut self) -> Proposal {
        let proposal = timeout(Duration::from_secs(600), self.proposals.recv()).await;
        proposal.expect("a proposal in time").expect("the actor lives")
    }

    /// Waits until the live tree says so.
    async fn until(&self, holds: impl Fn(&ActorNode) -> bool) {
        let seen = async {
            while !self.tree.inspect(PATH).await.is_ok_and(|actor| holds(&actor)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(600), seen).await.expect("the live tree says so in time");
    }

    /// Waits until the actor's own view says so.
    async fn view(&self, holds: impl Fn(&serde_json::Value) -> bool) {
        self.until(|actor| holds(&actor.view)).await;
    }
}

fn blocked(n: u8) -> (Principal, RefusalReason) {
    (Principal::Node(NodeId::from_entropy(n.into())), RefusalReason::Blocked)
}

const NEVER: WallTime = WallTime(i64::MAX);

#[tokio::test(start_paused = true)]
async fn a_blocked_node_is_cut_and_counted() {
    let mut world = World::start().await;
    world.block(9, NEVER);
    assert_eq!(world.cut().await, blocked(9));
    world.block(8, NEVER);
    assert_eq!(world.cut().await, blocked(8));
    world.view(|view| view["entries"] == 2 && view["cuts"] == 2 && view["owed"] == 0).await;
    world.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn a_cut_survives_a_full_gateway_and_a_crash() {
    let mut world = World::start().await;
    world.gateway_up.store(false, Ordering::SeqCst);
    let revoked = User {
        name: Name::sanitized("ann"),
        admin: false,
        namespaces: vec![],
        serial: "1".to_owned(),
        created_at: WallTime(0),
        not_after: NEVER,
        revision: Revision(0),
    };
    let written = world.apply(Change::PutUser(revoked.clone()));
    world.view(|view| view["revision"] == written.0).await;
    world.apply(Change::DeleteUser(revoked.name.clone()));
    world.view(|view| view["owed"] == 1).await;
    world.tree.crash(PATH, CrashHow::Panic).expect("it runs");
    world.until(|actor| actor.incarnation == 2 && actor.view["owed"] == 1).await;
    world.gateway_up.store(true, Ordering::SeqCst);
    assert_eq!(world.cut().await, (Principal::User(revoked.name), RefusalReason::Unauthenticated));
    world.view(|view| view["owed"] == 0).await;
    world.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn the_leader_forgets_blocks_that_are_over_by_a_timer() {
    let mut world = World::start().await;
    world.leading = true;
    world.block(9, WallTime(1));
    world.block(8, NEVER);
    // Nobody answers the first one: the next tick proposes again.
    let (first, reply) = world.proposal().await;
    drop(reply);
    let before = tokio::time::Instant::now();
    let (again, reply) = world.proposal().await;
    assert!(before.elapsed() <= 2 * SWEEP_EVERY);
    assert_eq!((&first.guards.len(), &first.changes), (&again.guards.len(), &again.changes));
    let at = world.tables.revision.next();
    muster_store::apply(&mut world.tables, at, &again).expect("its guards hold");
    world.publish();
    reply.send(Ok(Applied { revision: at })).expect("it waits for the answer");
    world.view(|view| view["sweeps"] == 1 && view["entries"] == 1).await;
    world.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn its_view_names_the_next_expiry() {
    let mut world = World::start().await;
    world.block(9, WallTime(1_700_000_000_000));
    world.view(|view| view["next_expiry"] == "2023-11-14T22:13:20Z").await;
    let actor = world.tree.inspect(PATH).await.expect("it runs");
    assert_eq!(actor.kind, "Blocklist");
    world.root.shut_down().await;
}
