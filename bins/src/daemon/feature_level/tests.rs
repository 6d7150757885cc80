use muster_messages::protocol::Reply;
use muster_messages::wire::LeaseRequest;
use muster_messages::{
    ActorState, ClusterId, ClusterRecord, CrashHow, ErrorCode, Incarnation, NodeRecord, Revision, Role, Secret,
    WallTime,
};
use muster_tests::{Probe, Universe};

use super::*;

/// What this manager says of reconcilers. Nobody answers about leases: the cluster has no leader for those.
struct Asked {
    request: ReconcilerRequest,
    reply: Reply<Result<String, ErrorBody>>,
}

struct Net(muster_kernel::Recipient<Asked>);

fn no_leader() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, "no leader at the moment; retry")
}

impl muster_elector::Cluster for Net {
    fn ask(&self, _request: LeaseRequest, _patience: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
        async { Err(no_leader()) }.boxed()
    }
}
impl Cluster for Net {
    fn reconcile(
        &self,
        request: ReconcilerRequest,
        patience: Duration,
    ) -> BoxFuture<'static, Result<String, ErrorBody>> {
        let net = self.0.clone();
        async move { net.ask(patience, |reply| Asked { request, reply }).await.map_err(ErrorBody::from)? }.boxed()
    }
}

struct World {
    universe: Universe,
    /// The definitions that it brings.
    brought: Probe<Asked>,
    over: Probe<String>,
    copies: watch::Sender<Arc<Replica>>,
    outgrown: watch::Sender<Option<Outgrown>>,
    ports: LevelPorts,
}

const PATH: &str = "node/feature-level";
const LEVEL: u32 = 2;

fn me() -> NodeId {
    NodeId::from_entropy(1)
}

/// A copy in which there is this manager, in a cluster of this level.
fn known(level: u32) -> Replica {
    let mut copy = Replica::default();
    copy.tables.cluster = Some(Arc::new(ClusterRecord {
        id: ClusterId::from_entropy(7),
        name: "test".parse().unwrap(),
        incarnation: Incarnation(1),
        feature_level: level,
        root_cert_pem: "root".into(),
        root_key_pem: Secret::new("key"),
        founded_at: WallTime(0),
        revision: Revision(0),
    }));
    let record = NodeRecord::new(me(), "n1".parse().unwrap(), Role::Manager, WallTime(0));
    copy.tables.nodes.insert(me(), Arc::new(record));
    copy
}

impl World {
    async fn new() -> Self {
        let universe = Universe::start().await;
        let brought = Probe::showing("brought", |asked: &Asked| format!("{:?}", asked.request));
        brought.on(|asked: Asked| match asked.request {
            ReconcilerRequest::Apply { .. } => Some(asked),
            _ => muster_tests::answered(asked.reply, Err(no_leader())),
        });
        let over = Probe::showing("over", String::clone);
        let (copies, outgrown) = (watch::Sender::new(Arc::new(Replica::default())), watch::Sender::new(None));
        let end = over.recipient();
        let ports = LevelPorts {
            me: me(),
            level: LEVEL,
            cluster: Arc::new(Net(brought.recipient())),
            copies: copies.subscribe(),
            outgrown: outgrown.subscribe(),
            raising: Arc::default(),
            outgrow: Arc::new(move |why| end.tell(why.to_owned()).unwrap()),
        };
        universe.start_actor(spec(ports.clone()));
        universe.healthy(PATH, 1).await;
        Self { universe, brought, over, copies, outgrown, ports }
    }
    fn publish(&self, copy: Replica) {
        self.copies.send_replace(Arc::new(copy));
    }
    /// Answers the next definition that is brought, which is that of this build's level.
    async fn brings(&mut self, answer: Result<String, ErrorBody>) {
        let asked = self.brought.next("a definition").await;
        let ReconcilerRequest::Apply { definitions, replace: false } = asked.request else { panic!("another request") };
        assert_eq!(definitions, [definition(LEVEL)]);
        asked.reply.send(answer).unwrap();
    }
    async fn takes_part(&self) {
        for child in ["member", "reconcilers"] {
            let healthy = |actor: &muster_messages::ActorNode| actor.state == ActorState::Healthy;
            self.universe.until(&format!("{PATH}/{child}"), "runs", healthy).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_manager_takes_part_once_its_copy_knows_it_and_brings_its_level_until_the_cluster_has_it() {
    let mut world = World::new().await;
    world.brought.expect_none(Duration::from_secs(3600)).await;
    assert!(!world.universe.tree().list().iter().any(|path| path.starts_with(&format!("{PATH}/"))));
    world.publish(known(1));
    world.brings(Err(no_leader())).await;
    world.takes_part().await;
    world.brings(Err(no_leader())).await;
    world.brings(Ok("{}".to_owned())).await;
    world.brought.expect_none(Duration::from_secs(3600)).await;
    let view = world.universe.tree().inspect(PATH).await.unwrap().view;
    assert_eq!((view["speaks"].as_u64(), view["cluster"].as_u64()), (Some(2), Some(1)));
    world.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_cluster_has_already_is_not_brought() {
    let mut world = World::new().await;
    let (mut copy, definition) = (known(1), definition(LEVEL));
    let key = DefinitionKey { reconciler: definition.reconciler.clone(), release: definition.release.triple };
    copy.tables.reconcilers.definitions.insert(key, Arc::new(definition));
    world.publish(copy);
    world.takes_part().await;
    world.brought.expect_none(Duration::from_secs(3600)).await;
    world.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn only_its_own_copy_and_no_peer_tells_a_manager_that_it_is_outgrown() {
    let mut world = World::new().await;
    world.outgrown.send_replace(Some(Outgrown::Snapshot(9)));
    world.over.expect_none(Duration::from_secs(3600)).await;
    world.outgrown.send_replace(Some(Outgrown::Level(3)));
    let why = world.over.next("why it is over").await;
    assert_eq!(
        why,
        "the cluster is at feature level 3, and this build of musterd speaks feature level 2 at most; install the build \
         that the other managers run"
    );
    world.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_crashed_takes_part_anew() {
    let mut world = World::new().await;
    world.publish(known(1));
    world.brings(Ok("{}".to_owned())).await;
    world.takes_part().await;
    for (incarnation, how) in (2..).zip([CrashHow::Panic, CrashHow::Error, CrashHow::Kill]) {
        world.universe.crash(PATH, how);
        world.universe.healthy(PATH, incarnation).await;
        world.brings(Ok("{}".to_owned())).await;
        world.takes_part().await;
        assert!(world.ports.raising.lock().unwrap().is_some(), "it stands for raising the level");
    }
    world.universe.finish().await;
}
