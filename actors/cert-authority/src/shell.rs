//! The actor around the core: reply ports, the signing key, proposals, the applied copy.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{AskError, Cx, Fault, Recipient, Shell};
use muster_messages::protocol::{CertAuthorityMsg, Named, ProposeError, RaftMemberMsg, Reply, UserCertificate};
use muster_messages::wire::{JoinReply, SignReply};
use muster_messages::{Command, ErrorBody, Replica, Revision, Tables, millis};
use muster_pki::{CsrKey, Issuer, SignError, Signed};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::Config;
use crate::core::{Answer, AskId, CertAuthority, Effect, Input, NodeWish, Profile, StepId, UserWish, Wish};
use crate::verify;

/// How long a proposal may take: within the deadline of the request it serves.
const PROPOSAL_DEADLINE: Duration = Duration::from_secs(5);

/// How often the clocks of the managers are compared: one small call to each, and a clock that was set is noticed at once.
const COMPARE_EVERY: Duration = Duration::from_secs(30);

/// What the actor hears.
pub enum Msg {
    Protocol(CertAuthorityMsg),
    /// A proposal ended.
    Proposed(StepId, Result<Revision, ProposeError>),
    /// The copy has reached a revision that something waits for.
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

impl Named for Msg {
    fn name(&self) -> &'static str {
        match self {
            Msg::Protocol(msg) => msg.name(),
            Msg::Proposed(..) => "proposed",
            Msg::CaughtUp => "caught_up",
            Msg::Compare => "compare",
            Msg::Compared(_) => "compared",
            Msg::Wake => "wake",
        }
    }
}

/// Whoever waits for a certificate.
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
    /// The root that signs, with the certificate that it was made from.
    issuer: Option<(String, Issuer)>,
    ports: BTreeMap<AskId, Port>,
    last_ask: AskId,
    clocks: Option<Clocks>,
    clock_trouble: Option<String>,
}

/// Asks the other managers for their time: how many milliseconds those that answer are ahead of this one.
pub type Clocks = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Vec<i64>> + Send>> + Send + Sync>;

impl CertAuthorityShell {
    /// Compares its clock with those of the other managers.
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

    /// Says once that this clock dates nothing, and once that it does again.
    fn note_clock(&mut self) {
        let trouble = self.core.clock_trouble();
        match (&trouble, &self.clock_trouble) {
            (Some(why), None) => warn!(%why, "clock check failed"),
            (None, Some(_)) => info!("clock check passed"),
            _ => {}
        }
        self.clock_trouble = trouble;
    }

    /// A shell with nothing pending: requests do not survive a crash, those who asked see a closed port and ask again.
    pub fn new(config: Config, raft: Recipient<RaftMemberMsg>, replica: watch::Receiver<Arc<Replica>>) -> Self {
        Self {
            core: CertAuthority::new(config),
            raft,
            replica,
            issuer: None,
            ports: BTreeMap::new(),
            last_ask: AskId(0),
            clocks: None,
            clock_trouble: None,
        }
    }

    /// Every step is decided on the newest copy there is.
    fn refresh(&mut self, cx: &Cx<Msg>) {
        let newest: Tables = {
            let replica = self.replica.borrow_and_update();
            if replica.tables.revision <= self.core.tables().revision {
                return;
            }
            replica.tables.clone()
        };
        self.step(cx, Input::Copy(newest));
    }

    fn hear(&mut self, cx: &Cx<Msg>, msg: CertAuthorityMsg) {
        let (port, wish) = match msg {
            CertAuthorityMsg::SignNode { identity, observed_addr, csr_pem, reply } => {
                let wish = verify::key(&csr_pem).map(|key| {
                    let observed = observed_addr.parse().ok();
                    Wish::Node(NodeWish { identity: *identity, observed, key })
                });
                (Port::Sign(reply), wish)
            }
            CertAuthorityMsg::Join { observed_addr, request, reply } => {
                let observed = observed_addr.parse().ok();
                let wish = verify::join(*request, observed, self.core.tables());
                (Port::Join(reply), wish.map(|w| Wish::Join(Box::new(w))))
            }
            CertAuthorityMsg::SignUser { name, rights, lifetime_ms, csr_pem, by, request, reply } => {
                let lifetime = lifetime_ms.map(Duration::from_millis);
                let wish =
                    verify::key(&csr_pem).map(|key| Wish::User(UserWish { name, rights, lifetime, by, request, key }));
                (Port::User(reply), wish)
            }
        };
        match wish {
            Ok(wish) => {
                self.last_ask = AskId(self.last_ask.0 + 1);
                self.ports.insert(self.last_ask, port);
                self.step(cx, Input::Asked(self.last_ask, wish));
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
                inputs.extend(self.perform(cx, effect));
            }
        }
    }

    /// Signing takes about 100 µs and is done on the spot; everything else reports by message.
    fn perform(&mut self, cx: &Cx<Msg>, effect: Effect) -> Option<Input> {
        match effect {
            Effect::Sign { step, profile, key } => {
                return Some(Input::Signed(step, self.sign(&profile, &key)));
            }
            Effect::Propose { step, command } => self.propose(cx, step, command),
            Effect::CatchUp(until) => self.watch_for(cx, until),
            Effect::Answer(ask, answer) => {
                if let Some(port) = self.ports.remove(&ask) {
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
            warn!(%why, "cannot sign");
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
            Msg::Protocol(msg) => self.hear(cx, msg),
            Msg::Proposed(step, result) => self.step(cx, Input::Proposed(step, result)),
            Msg::CaughtUp => {} // `refresh` has handed the copy in
            Msg::Compare => {
                self.compare(cx);
                cx.after(COMPARE_EVERY, Msg::Compare);
            }
            Msg::Compared(ahead_ms) => {
                self.step(cx, Input::Clocks(ahead_ms));
                self.note_clock();
            }
            Msg::Wake => self.step(cx, Input::Woke),
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let pending: Vec<Value> = (self.core.pending())
            .map(|p| json!({"kind": p.wish.kind(), "for": p.wish.who(), "phase": p.phase(), "since": p.since}))
            .collect();
        let (issued, refused) = self.core.counts();
        json!({"pending": pending, "issued": issued, "refused": refused, "clock": self.clock_trouble})
    }
}

/// Answers, and says so. Whoever asked may have gone; then it asks again.
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
    let answer = answer.map(|a| pick(a).expect("the core answers what it was asked"));
    let _gone = port.send(answer);
}
