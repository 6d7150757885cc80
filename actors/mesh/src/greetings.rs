//! Greetings: every dial and every hello in progress, up to a stream for a session or the reason why there is none.
//!
//! Owns        this side's hello; the hellos in progress on accepted connections; the last error of each node; the [`Refusals`].
//! Inputs      addresses to dial, accepted connections, the pid of the RPC endpoint, how each greeting ended.
//! Outputs     `Greeted`, `Probed`, `Asked`; streams for sessions; refusals, to the agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_gateway::Connection;
use muster_kernel::{Cx, Recipient};
use muster_messages::protocol::{AgentMsg, NodeCredentials, Reply};
use muster_messages::wire::Refusal;
use muster_messages::{CertIdentity, ErrorBody, NodeId, RaftId, Replica};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::core::hello::{Own, StreamUse};
use crate::core::links::DialOutcome;
use crate::core::refusals::{Reaction, Refusals, refused_serial};
use crate::dial::Dial;
use crate::greeting::{Greeted, GreetedPeer, Greeter, NotOpened, Opened};
use crate::msg::Msg;
use crate::offences::Offences;
use crate::register::Register;
use crate::wiring::MeshWiring;

/// Concurrent hellos on accepted connections of one node: a dial, a probe, and the remains of earlier ones.
const MAX_HELLOS_PER_NODE: usize = 4;

pub struct Greetings {
    credentials: watch::Receiver<Arc<NodeCredentials>>,
    replica: watch::Receiver<Arc<Replica>>,
    dialer: Arc<dyn Dial>,
    agent: Recipient<AgentMsg>,
    register: Register,
    offences: Arc<Offences>,
    /// The pid of the open RPC endpoint.
    endpoint: Option<u64>,
    /// This side's hello; `None` while its RPC endpoint is closed or its member id unknown. Hello exchanges wait for it.
    own_hello: watch::Sender<Option<Own>>,
    /// Hellos in progress on accepted connections, by node.
    under_way: BTreeMap<NodeId, usize>,
    last_errors: BTreeMap<NodeId, String>,
    refusals: Refusals,
}

impl Greetings {
    /// `own_hello`: what the register reads as well.
    pub fn new(
        wiring: &MeshWiring,
        own_hello: watch::Sender<Option<Own>>,
        register: Register,
        offences: Arc<Offences>,
    ) -> Self {
        Self {
            credentials: wiring.credentials.clone(),
            replica: wiring.replica.clone(),
            dialer: Arc::clone(&wiring.dialer),
            agent: wiring.agent.clone(),
            register,
            offences,
            endpoint: None,
            own_hello,
            under_way: BTreeMap::new(),
            last_errors: BTreeMap::new(),
            refusals: Refusals::default(),
        }
    }

    /// This node, by its certificate: known before the RPC endpoint opens, unlike its hello.
    pub fn node(&self) -> Option<NodeId> {
        self.credentials.borrow().identity.node().map(|(node, _)| node)
    }
    /// The pid of the open RPC endpoint.
    pub fn endpoint(&self) -> Option<u64> {
        self.endpoint
    }
    pub fn own(&self) -> Option<Own> {
        *self.own_hello.borrow()
    }
    /// Hellos in progress on accepted connections.
    pub fn under_way(&self) -> usize {
        self.under_way.values().sum()
    }
    pub fn last_error(&self, node: NodeId) -> Option<&String> {
        self.last_errors.get(&node)
    }

    pub fn endpoint_opened(&mut self, pid: u64) {
        self.endpoint = Some(pid);
    }
    pub fn endpoint_closed(&mut self, pid: u64) {
        self.endpoint = self.endpoint.filter(|open| *open != pid);
    }

    /// Updates this side's hello: it has one when its RPC endpoint is open and the raft member has reported its member id, if it
    /// has one: a process that was accepted without a member id can be replaced by another one (MESH-23). `reported`: that
    /// report. True: the earlier hello named another RPC endpoint.
    pub fn renew(&mut self, reported: Option<Option<RaftId>>) -> bool {
        let own = self.current_own(reported);
        let earlier = self.own_hello.send_replace(own);
        earlier.is_some() && earlier.map(|own| own.endpoint_pid) != self.endpoint
    }

    fn current_own(&self, reported: Option<Option<RaftId>>) -> Option<Own> {
        let credentials = self.credentials.borrow();
        let (node, _) = credentials.identity.node()?;
        Some(Own {
            node,
            cluster: credentials.identity.cluster,
            incarnation: credentials.identity.incarnation,
            member_id: reported?,
            endpoint_pid: self.endpoint?,
        })
    }

    pub fn dial(&self, cx: &Cx<Msg>, node: NodeId, addr: String) {
        let (serial, paused) = (self.serial(), self.offences.paused(cx.now(), node));
        let opening = self.greeter().dial(addr, Some(node), false);
        cx.report(async move {
            let result = if paused { Err(NotOpened::Paused) } else { opening.await };
            Msg::Greeted(Box::new(Greeted { who: GreetedPeer::Dialed(node), serial, result }))
        });
    }

    /// Finds out which manager answers at `addr`.
    pub fn ask(&self, cx: &Cx<Msg>, addr: String) {
        let opening = self.greeter().dial(addr.clone(), None, true);
        let serial = self.serial();
        cx.report(async move {
            let result = Box::new(opening.await.map(|opened| opened.agreed.node));
            Msg::Asked { addr, serial, result }
        });
    }

    /// Dials `addr`, where the node must answer. `stays`: the stream may become its session.
    pub fn probe(
        &self,
        cx: &Cx<Msg>,
        (addr, node): (String, NodeId),
        stays: bool,
        reply: Reply<Result<(), ErrorBody>>,
    ) {
        if self.node() == Some(node) {
            let greeter = self.greeter();
            cx.spawn(async move {
                let answered = greeter.finds_itself(&addr, node).await;
                let _gone = reply.send(answered.map_err(|why| why.body(&addr)));
            });
            return;
        }
        let stays = stays && !self.offences.paused(cx.now(), node);
        let opening = self.greeter().dial(addr.clone(), Some(node), !stays);
        let me = cx.me().clone();
        cx.spawn(async move {
            let answered = match opening.await {
                Ok(opened) => {
                    let _gone = me.tell(Msg::Probed { node, opened: Box::new(opened) });
                    Ok(())
                }
                Err(why) => Err(why.body(&addr)),
            };
            let _gone = reply.send(answered);
        });
    }

    pub fn accept(&mut self, cx: &Cx<Msg>, connection: Connection) {
        let node = connection.identity.as_ref().and_then(CertIdentity::node).map(|(node, _)| node);
        let Some(node) = node else { return };
        let under_way = self.under_way.entry(node).or_default();
        if *under_way >= MAX_HELLOS_PER_NODE || self.offences.paused(cx.now(), node) {
            return; // dropped: the peer dials again
        }
        *under_way += 1;
        let (serial, greeting) = (self.serial(), self.greeter().accept(connection));
        cx.report(async move {
            let result = greeting.await;
            Msg::Greeted(Box::new(Greeted { who: GreetedPeer::Accepted(node), serial, result }))
        });
    }

    /// A dial or a hello on an accepted connection ended. The stream, if it is for a session.
    pub fn greeted(&mut self, greeted: Greeted) -> (DialOutcome, Option<Opened>) {
        let Greeted { who, serial, result } = greeted;
        if let GreetedPeer::Accepted(node) = who {
            let under_way = self.under_way.remove(&node).unwrap_or(0);
            if under_way > 1 {
                self.under_way.insert(node, under_way - 1);
            }
        }
        match result {
            Ok(opened) => match self.stream_use(&opened) {
                StreamUse::Outdated => (DialOutcome::Failed, None),
                StreamUse::Probe => (DialOutcome::Opened, None),
                StreamUse::Session => (DialOutcome::Opened, Some(opened)),
            },
            Err(why) => {
                self.not_opened(who, serial, &why);
                (if why.refused_at_once() { DialOutcome::Refused } else { DialOutcome::Failed }, None)
            }
        }
    }

    pub fn stream_use(&self, opened: &Opened) -> StreamUse {
        opened.own.stream_use(self.endpoint, opened.agreed.probe)
    }

    fn not_opened(&mut self, who: GreetedPeer, serial: String, why: &NotOpened) {
        let (GreetedPeer::Dialed(node) | GreetedPeer::Accepted(node)) = who;
        debug!(%node, %why, "no mesh session");
        if let GreetedPeer::Dialed(node) = who {
            self.failed(node, why.to_string());
        }
        let Some(refusal) = why.refusal() else { return };
        match self.refusals.of_session(node, refusal.reason) {
            Reaction::InformAgent => self.inform_agent(refusal, serial),
            Reaction::LogDuplicate => {
                warn!(by = %node, why = refusal.message, "manager refuses this process: another one runs with this node's identity");
            }
            Reaction::Ignore => {}
        }
    }

    /// A query to a hinted address ended.
    pub fn asked(&self, addr: &str, serial: String, result: &Result<NodeId, NotOpened>) {
        match result {
            Ok(node) => info!(%node, addr, "manager found at a hinted address"),
            Err(why) => {
                debug!(addr, %why, "no manager found at a hinted address");
                if let Some(refusal) = why.refusal()
                    && Refusals::at_hinted_address(refusal.reason) == Reaction::InformAgent
                {
                    self.inform_agent(refusal, serial);
                }
            }
        }
    }

    fn inform_agent(&self, refusal: &Refusal, serial: String) {
        let msg = AgentMsg::RefusedByPeer { refusal: refusal.clone(), serial: Some(serial) };
        let _gone = self.agent.tell(msg); // lost: the next refusal
    }

    /// A session with the node is up.
    pub fn up(&mut self, node: NodeId) {
        self.last_errors.remove(&node);
        self.refusals.forget(node);
    }
    /// The node's last session or dial failed.
    pub fn failed(&mut self, node: NodeId, why: String) {
        self.last_errors.insert(node, why);
    }
    pub fn forget(&mut self, node: NodeId) {
        self.last_errors.remove(&node);
        self.refusals.forget(node);
    }

    /// The serial of the certificate that the next hello presents, read before it is presented: a renewal in between attributes a
    /// refusal to an older certificate, and it is ignored; it is never attributed to a newer one.
    fn serial(&self) -> String {
        refused_serial(self.own_hello.borrow().as_ref(), &self.credentials.borrow().identity)
    }

    fn greeter(&self) -> Greeter {
        Greeter {
            own_hello: self.own_hello.subscribe(),
            replica: self.replica.clone(),
            dialer: Arc::clone(&self.dialer),
            register: self.register.clone(),
        }
    }
}
