//! The actor around the core: proposals, the local replica, the other managers' clocks.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Cx, Fault, Parked, Recipient, Shell};
use muster_messages::protocol::{CertAuthorityMsg, Named, ProposeError, RaftMemberMsg, ReadError};
use muster_messages::{Command, ErrorBody, Replica, Revision, Tables, millis};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::Config;
use crate::core::{Answer, AskId, CertAuthority, ClockNews, Effect, Input, StepId};
use crate::requests::{self, Arrived, Port};
use crate::signer::Signer;

/// Bound of a proposal and of a read: within the deadline of the request that they serve.
const PROPOSAL_DEADLINE: Duration = Duration::from_secs(5);
/// The member answers by its deadline; this is a little longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);

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
    /// A read ended.
    Confirmed(StepId, Result<Arc<Replica>, ErrorBody>),
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

/// The certificate authority's shell.
pub struct CertAuthorityShell {
    core: CertAuthority,
    raft: Recipient<RaftMemberMsg>,
    replica: watch::Receiver<Arc<Replica>>,
    signer: Signer,
    asks: Parked<Port>,
    clocks: Option<Clocks>,
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
            cx.report(async move { Msg::Compared(clocks().await) });
        }
    }

    /// A shell without pending requests: they do not survive a crash; their callers see a closed port and ask again.
    pub fn new(config: Config, raft: Recipient<RaftMemberMsg>, replica: watch::Receiver<Arc<Replica>>) -> Self {
        Self {
            core: CertAuthority::new(config),
            raft,
            replica,
            signer: Signer::default(),
            asks: Parked::default(),
            clocks: None,
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

    fn request(&mut self, cx: &Cx<Msg>, msg: CertAuthorityMsg) {
        match requests::read(msg, self.core.tables()) {
            Arrived::GetHolders { workload, reply } => {
                let _gone = reply.send(Ok(self.core.holders(&workload, cx.wall()).collect()));
            }
            Arrived::Request(port, Ok(cert_request)) => {
                let ask = self.asks.park(port);
                self.step(cx, Input::Asked(ask, cert_request));
            }
            Arrived::Request(port, Err(refusal)) => port.answer(Err(refusal)),
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
                return Some(Input::Signed(step, self.signer.sign(self.core.tables(), &profile, &key)));
            }
            Effect::SignWorkload(step, work) => {
                return Some(Input::SignedWorkload(step, self.signer.sign_workload(self.core.tables(), &work)));
            }
            Effect::Propose { step, command } => self.propose(cx, step, command),
            Effect::CatchUp(until) => {
                cx.when(self.replica.clone(), move |replica| replica.tables.revision >= until, Msg::CaughtUp)
            }
            Effect::Confirm(step) => self.confirm(cx, step),
            Effect::Answer(ask, answer) => self.answer(ask, answer),
            Effect::CompareClocks => self.compare(cx),
            Effect::ClockNews(ClockNews::Failed { why }) => warn!(%why, "clock check failed"),
            Effect::ClockNews(ClockNews::Passed) => info!("clock check passed"),
            Effect::WakeAt(at) => cx.after(at.since(cx.now()), Msg::Wake),
        }
        None
    }

    fn answer(&mut self, ask: AskId, answer: Result<Answer, ErrorBody>) {
        if let Some(port) = self.asks.take(ask) {
            port.answer(answer);
        }
    }

    fn confirm(&self, cx: &Cx<Msg>, step: StepId) {
        let raft = self.raft.clone();
        cx.report(async move {
            let deadline_ms = millis(PROPOSAL_DEADLINE);
            let read = raft.ask(ANSWER_TIMEOUT, |reply| RaftMemberMsg::Read { deadline_ms, reply }).await;
            Msg::Confirmed(step, read.map_err(ErrorBody::from).and_then(|read| read.map_err(unconfirmed)))
        });
    }

    fn propose(&self, cx: &Cx<Msg>, step: StepId, command: Command) {
        let raft = self.raft.clone();
        cx.report(async move {
            let (deadline_ms, command) = (millis(PROPOSAL_DEADLINE), Box::new(command));
            let asked = raft.ask(ANSWER_TIMEOUT, |reply| RaftMemberMsg::Propose { command, deadline_ms, reply });
            let result = match asked.await {
                Ok(result) => result.map(|applied| applied.revision),
                Err(lost) => Err(lost.into()),
            };
            Msg::Proposed(step, result)
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
            Msg::Protocol(msg) => self.request(cx, msg),
            Msg::Proposed(step, result) => self.step(cx, Input::Proposed(step, result)),
            Msg::Confirmed(step, read) => {
                self.step(cx, Input::Confirmed(step, read.map(|replica| Box::new(replica.tables.clone()))));
            }
            Msg::CaughtUp => {} // `refresh` has passed the replica to the core
            Msg::Compare => {
                self.compare(cx);
                cx.after(COMPARE_EVERY, Msg::Compare);
            }
            Msg::Compared(ahead_ms) => self.step(cx, Input::Clocks(ahead_ms)),
            Msg::Wake => self.step(cx, Input::Woke),
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let pending: Vec<Value> = (self.core.pending())
            .map(|p| json!({"kind": p.cert_request.kind(), "for": p.cert_request.who(), "phase": p.phase(), "since": p.since}))
            .collect();
        let (issued, refused) = self.core.counts();
        json!({"pending": pending, "issued": issued, "refused": refused, "workloads": self.core.workload_certificates(), "clock": self.core.clock_trouble()})
    }
}

/// A failed read means only that the certificate is withheld.
fn unconfirmed(why: ReadError) -> ErrorBody {
    let error = ErrorBody::from(why);
    ErrorBody { message: format!("the certificate is withheld: {}; retry", error.message), ..error }
}
