//! The actor around the core: reply ports, the signing key, proposals, the local replica.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{AskError, Cx, Fault, Parked, Recipient, Shell};
use muster_messages::protocol::{CertAuthorityMsg, Named, ProposeError, RaftMemberMsg, Reply, UserCertificate};
use muster_messages::wire::{JoinReply, SignReply};
use muster_messages::{Command, ErrorBody, Replica, Revision, Tables, millis};
use muster_pki::{CsrKey, Issuer, SignError, Signed};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::Config;
use crate::core::{
    Answer, CertAuthority, CertificateRequest, Effect, Input, NodeRequest, Profile, StepId, UserRequest,
};
use crate::verify;

/// Bound of a proposal: within the deadline of the request that it serves.
const PROPOSAL_DEADLINE: Duration = Duration::from_secs(5);

/// Interval of comparing the managers' clocks: one small call to each. A change of this clock triggers a comparison at once.
const COMPARE_EVERY: Duration = Duration::from_secs(30);

/// Inputs of the actor.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(CertAuthorityMsg),
    /// A proposal ended.
    Proposed(StepId, Result<Revision, ProposeError>),
    /// The replica has reached a revision that a request waits for.
    CaughtUp,
    /// It is time to compare the clocks.
    Compare,
    Compared(Vec<i64>),
    Wake,
}

impl From<CertAuthorityMsg> for Msg {
    fn from(msg: CertAuthorityMsg) -> Self {
        Msg::Protocol(msg)
    }
}

/// The reply port of a request.
enum Port {
    Sign(Reply<Result<SignReply, ErrorBody>>),
    Join(Reply<Result<JoinReply, ErrorBody>>),
    User(Reply<Result<UserCertificate, ErrorBody>>),
}

/// The certificate authority's shell.
pub struct CertAuthorityShell {
    core: CertAuthority,
    raft: Recipient<RaftMemberMsg>,
    replica: watch::Receiver<Arc<Replica>>,
    /// The signing root, with the certificate from which it was made.
    issuer: Option<(String, Issuer)>,
    asks: Parked<Port>,
    clocks: Option<Clocks>,
    clock_trouble: Option<String>,
}

/// Asks the other managers for their time: by how many milliseconds each answering manager is ahead of this one.
pub type Clocks = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Vec<i64>> + Send>> + Send + Sync>;

impl CertAuthorityShell {
    /// Compares its clock with the other managers' clocks.
    #[must_use]
    pub fn comparing(mut self, clocks: Clocks) -> Self {
        self.clocks = Some(clocks);
        self
    }

    fn compare(&self, cx: &Cx<Msg>) {
        if let Some(clocks) = self.clocks.clone() {
            let me = cx.me().clone();
            cx.spawn(async move {
                let _gone = me.tell(Msg::Compared(clocks().await));
            });
        }
    }

    /// Logs once when the clock check starts to fail, and once when it passes again.
    fn log_clock_check(&mut self) {
        let trouble = self.core.clock_trouble();
        match (&trouble, &self.clock_trouble) {
            (Some(why), None) => warn!(%why, "clock check failed"),
            (None, Some(_)) => info!("clock check passed"),
            _ => {}
        }
        self.clock_trouble = trouble;
    }

    /// A shell without pending requests: they do not survive a crash; their callers see a closed port and ask again.
    pub fn new(config: Config, raft: Recipient<RaftMemberMsg>, replica: watch::Receiver<Arc<Replica>>) -> Self {
        Self {
            core: CertAuthority::new(config),
            raft,
            replica,
            issuer: None,
            asks: Parked::default(),
            clocks: None,
            clock_trouble: None,
        }
    }

    /// Every decision uses the newest replica.
    fn refresh(&mut self, cx: &Cx<Msg>) {
        let newest: Tables = {
            let replica = self.replica.borrow_and_update();
            if replica.tables.revision <= self.core.tables().revision {
                return;
            }
            replica.tables.clone()
        };
        self.step(cx, Input::Replica(newest));
    }

    fn handle_request(&mut self, cx: &Cx<Msg>, msg: CertAuthorityMsg) {
        let (port, cert_request) = match msg {
            CertAuthorityMsg::SignNode { identity, observed_addr, csr_pem, reply } => {
                let cert_request = verify::key(&csr_pem).map(|key| {
                    let observed = observed_addr.parse().ok();
                    CertificateRequest::Node(NodeRequest { identity: *identity, observed, key })
                });
                (Port::Sign(reply), cert_request)
            }
            CertAuthorityMsg::Join { observed_addr, request, reply } => {
                let observed = observed_addr.parse().ok();
                let cert_request = verify::join(*request, observed, self.core.tables());
                (Port::Join(reply), cert_request.map(|w| CertificateRequest::Join(Box::new(w))))
            }
            CertAuthorityMsg::SignUser { name, rights, lifetime_ms, csr_pem, by, request, reply } => {
                let lifetime = lifetime_ms.map(Duration::from_millis);
                let cert_request = verify::key(&csr_pem)
                    .map(|key| CertificateRequest::User(UserRequest { name, rights, lifetime, by, request, key }));
                (Port::User(reply), cert_request)
            }
        };
        match cert_request {
            Ok(cert_request) => {
                let ask = self.asks.park(port);
                self.step(cx, Input::Asked(ask, cert_request));
            }
            Err(refusal) => reply(port, Err(refusal)),
        }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut effects = Vec::new();
            self.core.step(cx.now(), cx.wall(), input, &mut effects);
            for effect in effects {
                inputs.extend(self.apply(cx, effect));
            }
        }
    }

    /// Signing takes about 100 µs and is done inline; all other effects report by message.
    fn apply(&mut self, cx: &Cx<Msg>, effect: Effect) -> Option<Input> {
        match effect {
            Effect::Sign { step, profile, key } => {
                return Some(Input::Signed(step, self.sign(&profile, &key)));
            }
            Effect::Propose { step, command } => self.propose(cx, step, command),
            Effect::CatchUp(until) => self.watch_for(cx, until),
            Effect::Answer(ask, answer) => {
                if let Some(port) = self.asks.take(ask) {
                    reply(port, answer);
                }
            }
            Effect::CompareClocks => self.compare(cx),
            Effect::WakeAt(at) => cx.after(at.since(cx.now()), Msg::Wake),
        }
        None
    }

    fn sign(&mut self, profile: &Profile, key: &CsrKey) -> Result<Signed, SignError> {
        let issuer = self.issuer()?;
        let signed = match profile {
            Profile::Node(profile) => issuer.sign_node(profile, key),
            Profile::User(profile) => issuer.sign_user(profile, key),
        };
        if let Err(why) = &signed {
            warn!(%why, "certificate signing failed");
        }
        signed
    }

    fn issuer(&mut self) -> Result<&Issuer, SignError> {
        let cluster = self.core.tables().cluster.as_ref().ok_or(SignError::Root)?;
        let current = matches!(&self.issuer, Some((pem, _)) if *pem == cluster.root_cert_pem);
        if !current {
            let issuer = Issuer::from_pem(&cluster.root_cert_pem, &cluster.root_key_pem)?;
            self.issuer = Some((cluster.root_cert_pem.clone(), issuer));
        }
        let (_, issuer) = self.issuer.as_ref().ok_or(SignError::Root)?;
        Ok(issuer)
    }

    fn propose(&self, cx: &Cx<Msg>, step: StepId, command: Command) {
        let (raft, me) = (self.raft.clone(), cx.me().clone());
        cx.spawn(async move {
            let deadline_ms = millis(PROPOSAL_DEADLINE);
            let command = Box::new(command);
            let asked = raft.ask(PROPOSAL_DEADLINE, |reply| RaftMemberMsg::Propose { command, deadline_ms, reply });
            let result = match asked.await {
                Ok(result) => result.map(|applied| applied.revision),
                Err(AskError::Full) => Err(ProposeError::Busy),
                Err(AskError::Down) => Err(ProposeError::NotLeader { leader: None }),
                Err(AskError::Closed) => Err(ProposeError::UnknownOutcome),
                Err(AskError::TimedOut) => Err(ProposeError::TimedOut),
            };
            let _gone = me.tell(Msg::Proposed(step, result));
        });
    }

    fn watch_for(&self, cx: &Cx<Msg>, until: Revision) {
        let (mut replica, me) = (self.replica.clone(), cx.me().clone());
        cx.spawn(async move {
            let reached = replica.wait_for(|r| r.tables.revision >= until).await.is_ok();
            if reached {
                let _gone = me.tell(Msg::CaughtUp);
            }
        });
    }
}

impl Shell for CertAuthorityShell {
    type Msg = Msg;
    const KIND: &'static str = "CertAuthority";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        if self.clocks.is_some() {
            self.compare(cx);
            cx.after(COMPARE_EVERY, Msg::Compare);
        }
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        self.refresh(cx);
        match msg {
            Msg::Protocol(msg) => self.handle_request(cx, msg),
            Msg::Proposed(step, result) => self.step(cx, Input::Proposed(step, result)),
            Msg::CaughtUp => {} // `refresh` has passed the replica to the core
            Msg::Compare => {
                self.compare(cx);
                cx.after(COMPARE_EVERY, Msg::Compare);
            }
            Msg::Compared(ahead_ms) => {
                self.step(cx, Input::Clocks(ahead_ms));
                self.log_clock_check();
            }
            Msg::Wake => self.step(cx, Input::Woke),
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let pending: Vec<Value> = (self.core.pending())
            .map(|p| json!({"kind": p.cert_request.kind(), "for": p.cert_request.who(), "phase": p.phase(), "since": p.since}))
            .collect();
        let (issued, refused) = self.core.counts();
        json!({"pending": pending, "issued": issued, "refused": refused, "clock": self.clock_trouble})
    }
}

/// Answers and logs the answer. A caller that is gone asks again.
fn reply(port: Port, answer: Result<Answer, ErrorBody>) {
    match &answer {
        Ok(Answer::Signed(_)) => debug!("certificate signed"),
        Ok(Answer::Joined(JoinReply::Joined { node, .. })) => info!(%node, "node joined"),
        Ok(Answer::Joined(_)) => {}
        Ok(Answer::User(user)) => info!(serial = %user.serial, "user certificate signed"),
        Err(refusal) => debug!(code = %refusal.code, why = %refusal.message, "certificate refused"),
    }
    match port {
        Port::Sign(port) => deliver(port, answer, |a| match a {
            Answer::Signed(reply) => Some(reply),
            _ => None,
        }),
        Port::Join(port) => deliver(port, answer, |a| match a {
            Answer::Joined(reply) => Some(reply),
            _ => None,
        }),
        Port::User(port) => deliver(port, answer, |a| match a {
            Answer::User(user) => Some(user),
            _ => None,
        }),
    }
}

fn deliver<T>(
    port: Reply<Result<T, ErrorBody>>,
    answer: Result<Answer, ErrorBody>,
    pick: impl FnOnce(Answer) -> Option<T>,
) {
    let answer = answer.map(|a| pick(a).expect("the core answers in the kind of the request"));
    let _gone = port.send(answer);
}
