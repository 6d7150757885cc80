use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_messages::protocol::Reply;
use muster_messages::wire::LeaseRequest;
use muster_messages::{
    ActorState, ClusterId, ClusterRecord, CrashHow, DefinitionKey, ErrorBody, ErrorCode, Incarnation, NodeId,
    NodeRecord, Replica, Revision, Role, Secret, WallTime,
};
use muster_raft_member::Incompatible;
use muster_reconciler::Cluster;
use muster_testkit::{ActorHarness, Probe};

use super::*;

/// A reconciler request of this manager. Lease requests stay unanswered: the cluster has no leader for them.
struct Asked {
    request: ReconcilerRequest,
    reply: Reply<Result<String, ErrorBody>>,
}

struct Net(muster_kernel::Recipient<Asked>);

fn no_leader() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, "no leader at the moment; retry")
}

impl muster_elector::Cluster for Net {
    fn ask(&self, _request: LeaseRequest, _timeout: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
        async { Err(no_leader()) }.boxed()
    }
}
impl Cluster for Net {
    fn reconcile(
        &self,
        request: ReconcilerRequest,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<String, ErrorBody>> {
        let net = self.0.clone();
        async move { net.ask(timeout, |reply| Asked { request, reply }).await.map_err(ErrorBody::from)? }.boxed()
    }
}

struct World {
    harness: ActorHarness,
    /// The definitions that it registers.
    registered: Probe<Asked>,
    over: Probe<String>,
    replicas: watch::Sender<Arc<Replica>>,
    incompatible: watch::Sender<Option<Incompatible>>,
    ports: LevelPorts,
}

const PATH: &str = "node/feature-level";
const LEVEL: u32 = 2;

fn me() -> NodeId {
    NodeId::from_entropy(1)
}

/// A replica that contains this manager, in a cluster of this level.
pub(super) fn known(level: u32) -> Replica {
    let mut local_replica = Replica::default();
    local_replica.tables.cluster = Some(Arc::new(ClusterRecord {
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
    local_replica.tables.nodes.insert(me(), Arc::new(record));
    local_replica
}

impl World {
    async fn new() -> Self {
        let harness = ActorHarness::start().await;
        let registered = Probe::showing("brought", |asked: &Asked| format!("{:?}", asked.request));
        registered.on(|asked: Asked| match asked.request {
            ReconcilerRequest::Apply { .. } => Some(asked),
            _ => muster_testkit::answered(asked.reply, Err(no_leader())),
        });
        let over = Probe::showing("over", String::clone);
        let (replicas, incompatible) = (watch::Sender::new(Arc::new(Replica::default())), watch::Sender::new(None));
        let end = over.recipient();
        let ports = LevelPorts {
            me: me(),
            level: LEVEL,
            cluster: Arc::new(Net(registered.recipient())),
            replicas: replicas.subscribe(),
            incompatible: incompatible.subscribe(),
            raising: Arc::default(),
            report_incompatible: Arc::new(move |why| end.tell(why.to_owned()).unwrap()),
        };
        harness.start_actor(spec(ports.clone()));
        harness.healthy(PATH, 1).await;
        Self { harness, registered, over, replicas, incompatible, ports }
    }
    fn publish(&self, local_replica: Replica) {
        self.replicas.send_replace(Arc::new(local_replica));
    }
    /// Answers the next registered definition, which must be that of this build's level.
    async fn answers_definition(&mut self, answer: Result<String, ErrorBody>) {
        let asked = self.registered.next("a definition").await;
        let ReconcilerRequest::Apply { definitions, replace: false } = asked.request else { panic!("another request") };
        assert_eq!(definitions, [definition(LEVEL)]);
        asked.reply.send(answer).unwrap();
    }
    async fn takes_part(&self) {
        for child in ["member", "reconcilers"] {
            let healthy = |actor: &muster_messages::ActorNode| actor.state == ActorState::Healthy;
            self.harness.until(&format!("{PATH}/{child}"), "runs", healthy).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn known_manager_joins_scope_and_registers_its_level() {
    let mut world = World::new().await;
    world.registered.expect_none(Duration::from_secs(3600)).await;
    assert!(!world.harness.tree().list().iter().any(|path| path.starts_with(&format!("{PATH}/"))));
    world.publish(known(1));
    world.answers_definition(Err(no_leader())).await;
    world.takes_part().await;
    world.answers_definition(Err(no_leader())).await;
    world.answers_definition(Ok("{}".to_owned())).await;
    world.registered.expect_none(Duration::from_secs(3600)).await;
    let view = world.harness.tree().inspect(PATH).await.unwrap().view;
    assert_eq!((view["supports"].as_u64(), view["cluster"].as_u64()), (Some(2), Some(1)));
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn existing_definition_is_not_registered_again() {
    let mut world = World::new().await;
    let (mut local_replica, definition) = (known(1), definition(LEVEL));
    let key = DefinitionKey { reconciler: definition.reconciler.clone(), release: definition.release.triple };
    local_replica.tables.reconcilers.definitions.insert(key, Arc::new(definition));
    world.publish(local_replica);
    world.takes_part().await;
    world.registered.expect_none(Duration::from_secs(3600)).await;
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn only_its_own_replica_shows_a_manager_incompatible() {
    let mut world = World::new().await;
    world.incompatible.send_replace(Some(Incompatible::Snapshot(9)));
    world.over.expect_none(Duration::from_secs(3600)).await;
    world.incompatible.send_replace(Some(Incompatible::Level(3)));
    let why = world.over.next("the reason for the end").await;
    assert_eq!(
        why,
        "the cluster is at feature level 3, and this build of musterd supports feature level 2 at most; install the build \
         that the other managers run"
    );
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn crashed_feature_level_actor_rejoins_the_scope() {
    let mut world = World::new().await;
    world.publish(known(1));
    world.answers_definition(Ok("{}".to_owned())).await;
    world.takes_part().await;
    for (incarnation, how) in (2..).zip([CrashHow::Panic, CrashHow::Error, CrashHow::Kill]) {
        world.harness.crash(PATH, how);
        world.harness.healthy(PATH, incarnation).await;
        world.answers_definition(Ok("{}".to_owned())).await;
        world.takes_part().await;
        assert!(world.ports.raising.lock().unwrap().is_some(), "it campaigns for raising the level");
    }
    world.harness.finish().await;
}
