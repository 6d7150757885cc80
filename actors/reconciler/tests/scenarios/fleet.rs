//! Nodes of a fleet: what runs on each, with a command runner that the test controls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::Timekeeper;
use muster_elector::clock::TokioTime;
use muster_kernel::Tree;
use muster_messages::{ChainStep, CommandAction, Definition, DesiredObject, ManagedKey, MicroTime, Moment, NodeId};
use muster_reconciler::{
    Admission, CommandEnd, CommandExit, CommandOrder, CommandRunner, LeaseTiming, Member, ReconcilerSpec, Reconcilers,
    Setup, Waiting, reconcilers_spec,
};
use muster_testkit::Host;
use tokio::sync::watch;

use crate::cluster::World;
use crate::judge::{release, triple};

/// Longer than any scenario: such a command is ended.
pub const TEN_HOURS: Duration = Duration::from_secs(36_000);

/// What commands do, and a record of what they did.
#[derive(Clone, Default)]
pub struct Commands(Arc<Mutex<Ledger>>);

#[derive(Default)]
pub struct Ledger {
    /// Node, token and attempt of each command that was begun.
    pub begun: Vec<(String, u64, u32)>,
    /// The steps of chains that were begun.
    pub steps: Vec<String>,
    pub at_work: BTreeMap<String, u64>,
    /// A command that is asked to end succeeds all the same.
    pub ends_well: bool,
    /// Commands that were ended early.
    pub ended_early: usize,
    pub env: BTreeMap<String, String>,
    pub takes: Duration,
    /// The exit status on a node; 0 by default.
    pub exits: BTreeMap<String, u8>,
    /// How many more commands fail, on any node.
    pub fail_first: u32,
    /// Nodes on which no program is allowed.
    pub denied: BTreeSet<String>,
    /// Changes of that.
    pub changes: watch::Sender<()>,
    /// Runs a check when a command begins.
    pub before: Option<Box<dyn Fn() + Send>>,
}

impl Commands {
    pub fn with<T>(&self, access: impl FnOnce(&mut Ledger) -> T) -> T {
        access(&mut self.0.lock().unwrap())
    }
    /// Commands that take this long.
    pub fn taking(takes: Duration) -> Self {
        let commands = Self::default();
        commands.take(takes);
        commands
    }
    pub fn take(&self, takes: Duration) {
        self.with(|ledger| ledger.takes = takes);
    }
    /// As a reload of the node's configuration does.
    pub fn allow(&self, node: &str, allowed: bool) {
        self.with(|ledger| {
            if allowed {
                ledger.denied.remove(node)
            } else {
                ledger.denied.insert(node.to_owned())
            };
            ledger.changes.send_replace(());
        });
    }
    pub fn on(&self, node: &str) -> Arc<dyn CommandRunner> {
        Arc::new(Here { commands: self.clone(), node: node.to_owned() })
    }
}

struct Here {
    commands: Commands,
    node: String,
}

impl CommandRunner for Here {
    fn allows(&self, _program: &str) -> bool {
        self.commands.with(|ledger| !ledger.denied.contains(&self.node))
    }
    fn changes(&self) -> watch::Receiver<()> {
        self.commands.with(|ledger| ledger.changes.subscribe())
    }
    fn run(&self, order: CommandOrder) -> BoxFuture<'static, CommandEnd> {
        let (commands, node) = (self.commands.clone(), self.node.clone());
        async move {
            let token: u64 = order.env["MUSTER_FENCING_TOKEN"].parse().unwrap();
            let takes = commands.with(|ledger| {
                if let Some(judge) = &ledger.before {
                    judge();
                }
                let attempt = order.env["MUSTER_ATTEMPT"].parse().unwrap();
                ledger.begun.push((node.clone(), token, attempt));
                ledger.steps.extend(order.env.get("MUSTER_STEP").cloned());
                ledger.env = order.env;
                assert!(ledger.at_work.is_empty(), "two at once: {:?} and one on {node}", ledger.at_work);
                ledger.at_work.insert(node.clone(), token);
                ledger.takes
            });
            let exit = tokio::select! {
                () = order.cancelled.cancelled() => {
                    tokio::time::sleep(Duration::from_millis(300)).await; // between TERM and its end
                    None
                }
                () = tokio::time::sleep(takes) => Some(()),
            };
            commands.with(|ledger| {
                ledger.at_work.remove(&node);
                let exit = match exit {
                    Some(()) if ledger.fail_first > 0 => {
                        ledger.fail_first -= 1;
                        CommandExit::Code(1)
                    }
                    Some(()) => CommandExit::Code(ledger.exits.get(&node).copied().unwrap_or(0)),
                    None => {
                        ledger.ended_early += 1;
                        if ledger.ends_well { CommandExit::Code(0) } else { CommandExit::Signal(15) }
                    }
                };
                CommandEnd { exit, head: "said".to_owned(), output: "said something".to_owned() }
            })
        }
        .boxed()
    }
}

/// A clock that the test can advance, as a freeze does.
#[derive(Clone, Default)]
pub struct Jumping(Arc<AtomicU64>);

impl Jumping {
    pub fn jump(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_micros()).unwrap(), Ordering::SeqCst);
    }
}
impl Timekeeper for Jumping {
    fn now(&self) -> Moment {
        Moment(TokioTime.now().0 + self.0.load(Ordering::SeqCst))
    }
    fn wall(&self) -> MicroTime {
        TokioTime.wall()
    }
    fn until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        tokio::time::sleep(moment.since(self.now())).boxed()
    }
}

/// A node with its tree.
pub struct Node {
    host: Host,
    reconcilers: Reconcilers,
}

impl Node {
    pub async fn start(world: &World, name: &str, runs: &str, commands: &Commands) -> Self {
        let setup = Setup {
            clock: Arc::new(TokioTime),
            node: Some(node_id(name)),
            objects: true,
            commands: Some(commands.on(name)),
            ..Setup::new(world.link(name), name, release(runs))
        };
        Self::with(world, setup).await
    }
    pub async fn with(world: &World, setup: Setup) -> Self {
        let host = world.harness.another("node").await;
        let (spec, reconcilers) = reconcilers_spec(setup).unwrap();
        host.start_actor(spec);
        Self { host, reconcilers }
    }
    pub fn tree(&self) -> &Tree {
        self.host.tree()
    }
    /// Stops in order, as a daemon does.
    pub async fn stop(self) {
        self.reconcilers.hand_over().await;
        self.host.stop().await;
    }
    /// Stops without releasing anything.
    pub async fn die(self) {
        self.host.stop().await;
    }
}

pub fn node_id(name: &str) -> NodeId {
    NodeId::from_entropy(name.bytes().fold(0, |sum, byte| sum * 256 + u128::from(byte)))
}

/// A member of scope `db` that wants to serve.
pub async fn announce(world: &World, name: &str, runs: &str, needs: Option<&str>) -> Waiting {
    let mut member = Member::new("db", name, release(runs));
    if let Some(needs) = needs {
        member = member.needs("schema", triple(needs));
    }
    let link = world.link(name);
    Admission::announce_with(link, member, LeaseTiming::default(), Arc::new(TokioTime)).await.unwrap()
}

/// `schema` of a release: a command whose outcome is incompatible with members below `floor`.
pub fn schema(of: &str, floor: &str) -> ReconcilerSpec {
    let argv = vec!["migrate".to_owned()];
    let spec = ReconcilerSpec::command("schema", release(of), "db", argv, BTreeMap::new());
    spec.floor(triple(floor)).downgrade(true)
}
/// `schema` as a chain of migrations, one for each step.
pub fn chain(of: &str, steps: &[&str]) -> ReconcilerSpec {
    let step = |name: &&str| ChainStep {
        name: (*name).to_owned(),
        command: CommandAction { argv: vec!["migrate".to_owned(), (*name).to_owned()], env: BTreeMap::new() },
        digest: String::new(),
    };
    ReconcilerSpec::chain("schema", release(of), "db", steps.iter().map(step).collect()).floor(triple("1.0.0"))
}
/// A definition as the cluster stores it.
pub fn digested(spec: ReconcilerSpec) -> Definition {
    muster_gates::sealed(spec.definition()).unwrap()
}
/// Objects by name and body, each in a wave of its own.
pub fn objects(of: &str, wanted: &[(&str, &str)]) -> ReconcilerSpec {
    let object = |(wave, (name, body)): (u32, &(&str, &str))| DesiredObject {
        key: ManagedKey { kind: "thing".into(), namespace: "default".into(), name: (*name).into() },
        labels: BTreeMap::new(),
        body: format!("{{\"is\":\"{body}\"}}"),
        wave,
    };
    let objects = (0..).zip(wanted).map(object).collect();
    ReconcilerSpec::objects("things", release(of), "db", objects)
}
