//! Admission and restriction at once, both orders, with the frames of both held at a proxy in front of the sockets: a service under
//! `muster wait-ready`, and a program that runs the reconciler. What is held was sent by what its sender had read before.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_gateway::{FramedReader, FramedWriter};
use muster_messages::wire::{self, ApiAnswer, ApiCall, ReconcilerRequest, Request};
use muster_messages::{ErrorBody, ErrorCode, Release, Triple};
use muster_reconciler::{Embedded, Handler, LeaseTiming, Link, ReconcilerSpec, Setup, Socket};
use rustix::process::Signal;
use serde_json::Value;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::barrier::{is_admission, is_restriction};
use super::race::NoAction;
use super::record::{self, CheckContext, events};
use super::{blockers, managers_of, text};
use crate::harness::{ForegroundMuster, World, eventually, eventually_so};

/// Rounds for each order.
const ROUNDS: u64 = 3;
/// The release of the runner: above every floor.
const NEWEST: Triple = Triple::new(1000, 0, 0);

/// The answers to calls that were held, in their order.
type Answers = watch::Sender<Vec<Result<String, ErrorBody>>>;

/// A socket whose calls reach a node's socket, except for those that are held: these when they are released, even if their sender has
/// given up by then.
struct Proxy {
    socket: PathBuf,
    relay: Relay,
}

#[derive(Clone)]
struct Relay {
    node: PathBuf,
    stops: fn(&ReconcilerRequest) -> bool,
    closed: Arc<watch::Sender<bool>>,
    /// Calls held so far.
    held: Arc<watch::Sender<usize>>,
    answers: Arc<Answers>,
}

impl Proxy {
    fn start(runtime: &Runtime, socket: PathBuf, node: &Path, stops: fn(&ReconcilerRequest) -> bool) -> Self {
        let (closed, held, answers) = Default::default();
        let relay = Relay { node: node.to_owned(), stops, closed, held, answers };
        let listener = runtime.block_on(async { UnixListener::bind(&socket) }).expect("the world's folder is writable");
        let proxy = Self { socket, relay: relay.clone() };
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay.clone().run(client));
            }
        });
        proxy
    }
    /// From now on calls are held.
    fn close(&self) {
        self.relay.held.send_replace(0);
        self.relay.answers.send_replace(vec![]);
        self.relay.closed.send_replace(true);
    }
    #[track_caller]
    fn holds_one(&self) {
        eventually_so("a call is held", || *self.relay.held.borrow() > 0);
    }
    /// Releases what is held; the answer to the first call.
    #[track_caller]
    fn open(&self) -> Result<Value, ErrorBody> {
        self.relay.closed.send_replace(false);
        let answer = eventually("what was held is answered", || self.relay.answers.borrow().first().cloned());
        answer.map(|answer| serde_json::from_str(&answer).expect("answers are JSON"))
    }
}

impl Relay {
    async fn run(self, client: UnixStream) {
        let Ok(server) = UnixStream::connect(&self.node).await else { return };
        let ((calls, to_client), (answers, to_node)) = (client.into_split(), server.into_split());
        // Kept until the node closes its side: a call that was held is answered although its sender is gone.
        let mut to_node = FramedWriter::new(to_node);
        let held = Mutex::new(BTreeSet::new());
        tokio::join!(self.forth(calls, &mut to_node, &held), self.back(answers, to_client, &held));
    }

    async fn forth(
        &self,
        calls: OwnedReadHalf,
        to_node: &mut FramedWriter<OwnedWriteHalf>,
        held: &Mutex<BTreeSet<u64>>,
    ) {
        let (mut calls, mut closed) = (FramedReader::new(calls), self.closed.subscribe());
        while let Ok(Some(frame)) = calls.recv_bytes().await {
            let call: ApiCall = wire::decode(&frame).expect("clients send calls");
            let is_stopped = matches!(&call.request, Request::Reconciler(request) if (self.stops)(request));
            if is_stopped && *closed.borrow_and_update() {
                held.lock().expect("no test panics with it").insert(call.id);
                self.held.send_modify(|held| *held += 1);
                let _opened = closed.wait_for(|closed| !closed).await;
            }
            if to_node.feed_encoded(&frame).is_err() || to_node.flush().await.is_err() {
                return;
            }
        }
    }

    async fn back(&self, answers: OwnedReadHalf, to_client: OwnedWriteHalf, held: &Mutex<BTreeSet<u64>>) {
        let (mut answers, mut to_client) = (FramedReader::new(answers), FramedWriter::new(to_client));
        while let Ok(Some(frame)) = answers.recv_bytes().await {
            let answer: ApiAnswer = wire::decode(&frame).expect("nodes send answers");
            if held.lock().expect("no test panics with it").remove(&answer.id) {
                self.answers.send_modify(|answers| answers.push(answer.result));
            }
            // The sender may have given up.
            let _sent = match to_client.feed_encoded(&frame) {
                Ok(()) => to_client.flush().await.is_ok(),
                Err(_) => false,
            };
        }
    }
}

/// The reconciler `race` of the scope `pool`, whose floor each round raises by one.
struct Race {
    world: World,
    service: Proxy,
    runner: Proxy,
    floor: u64,
}

impl Race {
    fn define(&self, floor: u64) {
        let spec = ReconcilerSpec::handler("race", Release::from(NEWEST), "pool");
        let definition = spec.floor(Triple::new(floor, 0, 0)).once().settle(Duration::ZERO).definition();
        let apply = ReconcilerRequest::Apply { definitions: vec![definition], replace: true };
        let retry = ReconcilerRequest::Retry { name: "race".to_owned(), release: None };
        for request in [apply, retry] {
            self.world.answer("n1", Request::Reconciler(request));
        }
    }
    fn status(&self) -> Value {
        self.world.muster_insists(&["reconciler", "status", "race"])
    }
    #[track_caller]
    fn reaches(&self, floor: u64) {
        let floor = Triple::new(floor, 0, 0).to_string();
        eventually_so(&format!("the floor is {floor}"), || {
            let status = self.status();
            status["gate"]["floor"] == floor.as_str() && status["gate"]["state"] == "done"
        });
    }

    /// A service that the gate admits before the restriction only, with its admission and the restriction at the proxies.
    fn both_held(&self) -> ForegroundMuster {
        self.service.close();
        self.runner.close();
        let socket = self.service.socket.to_str().expect("the folder's path is text");
        let (release, member) = (self.release(), self.member());
        let args = ["--socket", socket, "wait-ready", "pool", "--reconciler", "race", "--release", &release];
        let args =
            [&args[..], &["--member", &member, "--lease-duration", "1m", "--exec", "--", "sleep", "1000"]].concat();
        let service = ForegroundMuster::start_for_command(self.world.folder(), &args);
        self.define(self.floor + 1);
        self.service.holds_one();
        self.runner.holds_one();
        service
    }
    fn release(&self) -> String {
        Triple::new(self.floor, 0, 0).to_string()
    }
    fn member(&self) -> String {
        format!("m{}", self.floor)
    }

    /// The admission is applied first: the restriction is refused, and waits for the service's end.
    fn admission_first(&mut self) {
        let mut service = self.both_held();
        let admitted = self.service.open();
        assert!(admitted.as_ref().is_ok_and(|answer| answer["phase"] == "serving"), "{admitted:?}");
        service.wait_for_line("serving in pool");
        let refused = self.runner.open().expect_err("a serving member forbids the restriction");
        assert!(refused.code == ErrorCode::GateClosed && refused.details.contains(&self.member()), "{refused:?}");
        let waiting = self.status();
        assert_eq!((&waiting["phase"], blockers(&waiting)), (&"waiting".into(), vec![self.member()]), "{waiting}");
        assert_eq!(text(&waiting["gate"]["floor"]), self.release(), "{waiting}");
        service.signal(Signal::TERM);
        assert_eq!(service.exit(), Some(128 + 15));
        self.floor += 1;
        self.reaches(self.floor);
    }

    /// The restriction is applied first: the admission is refused, and says why.
    fn restriction_first(&mut self) {
        let mut service = self.both_held();
        let restricted = self.runner.open();
        assert!(restricted.is_ok(), "{restricted:?}");
        let denied = self.service.open();
        assert!(denied.as_ref().is_ok_and(|answer| answer["phase"] == "announced"), "{denied:?}");
        service.wait_for_line("below-floor");
        assert!(!service.seen().contains("serving in"), "{}", service.seen());
        service.signal(Signal::TERM);
        assert_eq!(service.exit(), Some(128 + 15));
        self.floor += 1;
        self.reaches(self.floor);
    }
}

#[test]
#[ignore = "full tier"]
fn held_frames_of_admission_and_restriction_exclude_each_other() {
    let world = managers_of("1.0.0");
    let log = record::follow(&world, &["n1", "n2", "n3"]);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let proxy =
        |name: &str, node: &str, stops| Proxy::start(&runtime, world.folder().join(name), &world.socket(node), stops);
    let (service, runner) = (proxy("s.sock", "n2", is_admission), proxy("r.sock", "n3", is_restriction));
    let link = Arc::new(Link::new(Socket(runner.socket.clone())));
    let handlers = BTreeMap::from([("race".to_owned(), Arc::new(NoAction) as Arc<dyn Handler>)]);
    // Its term lasts through the stalls of a busy machine: what is held must be answered under it.
    let lease = LeaseTiming::of(Duration::from_secs(60));
    let setup = Setup { handlers, lease, ..Setup::new(link, "runner".to_owned(), Release::from(NEWEST)) };
    let embedded = runtime.block_on(Embedded::start(setup)).expect("it starts");
    let mut race = Race { world, service, runner, floor: 1 };
    race.define(1);
    race.reaches(1);
    for _ in 0..ROUNDS {
        race.admission_first();
        race.restriction_first();
    }
    let end = race.status()["revision"].as_u64().expect("a revision");
    runtime.block_on(embedded.stop());

    let (floors, written_under) = (BTreeMap::new(), BTreeMap::new());
    let context =
        CheckContext { reconciler: "race", scope: "pool", floors, needs: |_| Triple::default(), written_under };
    let states = context.states(&events(&log.answers_until(end))).unwrap_or_else(|why| panic!("{why}"));
    let serves = |state: &record::State| state.members.iter().any(record::Member::serves);
    let served = states.windows(2).filter(|pair| !serves(&pair[0]) && serves(&pair[1])).count();
    assert_eq!(served as u64, ROUNDS, "of each two services one has served");
}
