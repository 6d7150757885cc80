//! The actor `node/workloads`: the socket, the looks at processes, the requests to the leader.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use muster_kernel::{Address, Alarm, Backoff, Cx, Fault, Shell, Slot, Spec, UnixSocket};
use muster_messages::WorkloadView;
use muster_messages::protocol::Named;
use serde_json::Value;
use tokio::sync::watch;

use crate::attest::{Peer, look};
use crate::core::{
    Certificates, Effect, Facts, Input, Kind, NotAttested, Roots, SignFailure, SignId, StreamId, Svid, Token, View,
    WorkloadCore,
};
use crate::limits::{Looks, Permit};
use crate::serve::{self, Inbox, Outgoing};
use crate::shown::{log_signed, shown};
use crate::socket;
use crate::svid::{WorkloadSigner, new_svid, new_token, roots};

/// Messages waiting: a request of every stream, and their looks.
const MAILBOX: usize = 4096;

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    /// The agent has another view.
    Viewed,
    Asked(Ask),
    Attested(StreamId, Result<Facts, NotAttested>),
    Closed(StreamId),
    Signed(SignId, Result<Svid, SignFailure>),
    SignedJwt(SignId, Result<Token, SignFailure>),
    Wake,
}

/// A process opens a stream.
pub struct Ask {
    pub(crate) peer: Arc<Peer>,
    pub(crate) kind: Kind,
    pub(crate) sender: watch::Sender<Outgoing>,
    /// Given back once the request is handled.
    pub(crate) waiting: Permit,
}

/// What the actor works with.
#[derive(Clone)]
pub struct WorkloadApiPorts {
    pub socket: PathBuf,
    pub view: watch::Receiver<WorkloadView>,
    pub signer: Arc<dyn WorkloadSigner>,
    /// Keys and certificates outlive a crash, in memory.
    slot: Slot<Certificates>,
}

impl WorkloadApiPorts {
    pub fn new(socket: PathBuf, view: watch::Receiver<WorkloadView>, signer: Arc<dyn WorkloadSigner>) -> Self {
        Self { socket, view, signer, slot: Slot::new() }
    }
}

/// The address of the actor, for all incarnations.
pub fn workload_api_address() -> Address<Msg> {
    Address::new(MAILBOX)
}

/// The actor. A socket that cannot be created, because another process serves it, is a failure that is shown and tried again.
pub fn workload_api_spec(address: Address<Msg>, ports: WorkloadApiPorts) -> Spec {
    let requests = address.clone();
    let new = move || WorkloadApi::new(ports.clone(), requests.clone());
    Spec::actor("workloads", address, new).contained().backoff(Backoff::SLOW)
}

/// An open stream's process, and its client.
struct Open {
    peer: Arc<Peer>,
    sender: Arc<watch::Sender<Outgoing>>,
}

struct WorkloadApi {
    ports: WorkloadApiPorts,
    inbox: Inbox,
    core: WorkloadCore,
    /// The changes of certificates that are in the slot.
    stored: u64,
    socket: UnixSocket,
    open: BTreeMap<StreamId, Open>,
    last: StreamId,
    /// The roots as last parsed.
    roots: (Arc<Vec<String>>, Arc<Roots>),
    looks: Looks,
    alarm: Alarm,
}

impl WorkloadApi {
    fn new(ports: WorkloadApiPorts, address: Address<Msg>) -> Result<Self, Fault> {
        let socket = socket::bind(&ports.socket)?;
        let core = WorkloadCore::new(ports.slot.get().unwrap_or_default(), rand::random());
        Ok(Self {
            stored: core.certificates().changes(),
            ports,
            inbox: Inbox::new(address),
            core,
            socket,
            open: BTreeMap::new(),
            last: StreamId(0),
            roots: Default::default(),
            looks: Looks::default(),
            alarm: Alarm::default(),
        })
    }

    fn view(&mut self) -> Option<Input> {
        let view = self.ports.view.borrow_and_update().clone();
        if view.generation == 0 {
            return None;
        }
        if *self.roots.0 != *view.bundle {
            let roots = roots(&view.bundle);
            self.roots = (view.bundle, Arc::new(roots));
        }
        Some(Input::View(View { cluster: view.cluster, entries: view.entries, roots: Arc::clone(&self.roots.1) }))
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let mut effects = Vec::new();
        self.core.step(cx.now(), cx.wall(), input, &mut effects);
        let changes = self.core.certificates().changes();
        if std::mem::replace(&mut self.stored, changes) != changes {
            self.ports.slot.set(self.core.certificates().clone());
        }
        for effect in effects {
            self.apply(cx, effect);
        }
        self.alarm.set(cx, self.core.wake_at(cx.now(), cx.wall()), Msg::Wake);
    }

    fn apply(&mut self, cx: &Cx<Msg>, effect: Effect) {
        match effect {
            Effect::Attest(stream, needs) => {
                if let Some(open) = self.open.get(&stream) {
                    let look = look(Arc::clone(&open.peer), needs, self.looks.clone());
                    cx.report(async move { Msg::Attested(stream, look.await) });
                }
            }
            Effect::Send(stream, answer) => {
                if let Some(open) = self.open.get(&stream) {
                    open.sender.send_replace(Outgoing::Answer(answer));
                }
            }
            Effect::End(stream, denial) => {
                if let Some(open) = self.open.remove(&stream) {
                    tracing::debug!(uid = open.peer.uid, ?denial, "stream of a workload refused or ended");
                    open.sender.send_replace(Outgoing::Ended(denial));
                }
            }
            Effect::Sign(by, workload) => {
                let Some(view) = self.core.view() else { return };
                let spiffe_id = workload.spiffe_id(view.cluster);
                let signing = new_svid(Arc::clone(&self.ports.signer), workload, spiffe_id);
                cx.report(async move { Msg::Signed(by, signing.await) });
            }
            Effect::SignJwt(by, key) => {
                let Some(View { cluster, .. }) = self.core.view() else { return };
                let signing = new_token(Arc::clone(&self.ports.signer), key, *cluster, cx.wall());
                cx.report(async move { Msg::SignedJwt(by, signing.await) });
            }
        }
    }

    fn asked(&mut self, cx: &Cx<Msg>, Ask { peer, kind, sender, waiting }: Ask) -> Input {
        self.last = StreamId(self.last.0 + 1);
        let (stream, uid, sender) = (self.last, peer.uid, Arc::new(sender));
        let client = Arc::clone(&sender);
        cx.report(async move {
            client.closed().await;
            Msg::Closed(stream)
        });
        self.open.insert(stream, Open { peer, sender });
        drop(waiting); // from here on the core counts it
        Input::Asked { stream, uid, kind }
    }
}

impl Shell for WorkloadApi {
    type Msg = Msg;
    const KIND: &'static str = "WorkloadApi";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let acceptor = self.socket.acceptor("workload socket")?;
        cx.spawn(serve::accept(acceptor, self.inbox.clone(), cx.ended().clone()));
        let mut view = self.ports.view.clone();
        view.mark_changed();
        cx.on_change(view, || Msg::Viewed);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        let input = match msg {
            Msg::Viewed => match self.view() {
                Some(input) => input,
                None => return Ok(()),
            },
            Msg::Asked(ask) => self.asked(cx, ask),
            Msg::Attested(stream, facts) => Input::Attested { stream, facts },
            Msg::Closed(stream) => {
                self.open.remove(&stream);
                Input::Closed(stream)
            }
            Msg::Signed(by, outcome) => {
                log_signed("certificate", self.core.certificates().asked_for(by), outcome.as_ref().err());
                Input::Signed { by, outcome }
            }
            Msg::SignedJwt(by, outcome) => {
                log_signed("JWT", self.core.tokens().asked_for(by), outcome.as_ref().err());
                Input::SignedJwt { by, outcome }
            }
            Msg::Wake => {
                self.alarm.fired();
                Input::Woke
            }
        };
        self.step(cx, input);
        Ok(())
    }

    fn view(&self) -> Value {
        shown(&self.ports, &self.inbox, &self.core)
    }
}
