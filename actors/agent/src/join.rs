//! Joining: from a token and some addresses to credentials on disk.
//!
//! Keeps  JOIN-1  nothing secret is sent before the root that came back has the digest that the token names, and then
//!                only to a server that this root has signed.
//!        JOIN-2  node id, request id and key are chosen once and kept on disk, so that every retry is the same
//!                request: a reply that was lost costs neither a second node nor a second use of the token.
//!        JOIN-3  only a refusal that no waiting can change ends it; everything else is retried for ever.
//! Why one line per change of stage and address: "deadline exceeded" told nobody whether the name, the port, the
//! certificate, the token or the quorum was at fault.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::time::Duration;

use muster_gateway::{DialError, DialTimeouts, Dialer, FrameError, Stage};
use muster_kernel::Clock;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{JoinFrame, JoinReply, JoinRequest, Refusal, Rekey};
use muster_messages::{Dice, ErrorBody, ErrorCode, Name, in_short};
use muster_pki::{CsrKey, IdentityFault, JoinAttempt, JoinToken, make_csr, prove_rekey};
use tokio::time::{Instant, timeout};

use crate::config::JoinConfig;
use crate::line::chain;
use crate::memory::NodeMemory;

/// What a joiner says of itself, and whom it asks.
#[derive(Clone, Debug)]
pub struct JoinArgs {
    /// `host:port`, tried in this order; managers that others name are added.
    pub addrs: Vec<String>,
    /// The whole token, as pasted.
    pub token: String,
    pub name: Name,
    pub advertise: String,
    pub release: String,
    pub labels: BTreeMap<String, String>,
    /// Re-keying: the credentials whose certificate has expired. The node keeps its id.
    pub rekey: Option<NodeCredentials>,
}

/// The outcome, on disk already.
#[derive(Clone, Debug)]
pub struct Joined {
    pub credentials: NodeCredentials,
    pub managers: Vec<String>,
}

/// Why joining ended without credentials.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No waiting changes this: exit 6 (2 for `invalid`).
    #[error("{0}")]
    Refused(ErrorBody),
    #[error("no address to join through was given")]
    NoAddress,
    #[error(transparent)]
    Identity(#[from] IdentityFault),
    #[error("cannot prove the old identity: {0}")]
    Rekey(String),
}

impl JoinError {
    /// The exit status of the daemon.
    pub fn exit_status(&self) -> u8 {
        match self {
            JoinError::Refused(error) => error.code.exit_status(),
            JoinError::NoAddress => 2,
            JoinError::Identity(_) | JoinError::Rekey(_) => 1,
        }
    }
}

/// How far a try came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinStage {
    Resolve,
    Connect,
    Tls,
    /// Fetching the root and comparing its digest.
    Digest,
    /// The request with the token: judged by the leader.
    Token,
    Joined,
}

impl fmt::Display for JoinStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JoinStage::Resolve => "resolve",
            JoinStage::Connect => "connect",
            JoinStage::Tls => "TLS",
            JoinStage::Digest => "digest",
            JoinStage::Token => "token",
            JoinStage::Joined => "joined",
        })
    }
}

/// A change of stage, or the reminder that there is none, for one line to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinProgress {
    pub addr: String,
    pub stage: JoinStage,
    /// What went wrong there, or what was reached.
    pub text: String,
    /// How long it has been so, in a reminder.
    pub lasts: Option<Duration>,
}

impl fmt::Display for JoinProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "joining through {}: {}: {}", self.addr, self.stage, self.text)?;
        match self.lasts.map(|lasts| lasts.as_secs() / 60) {
            Some(minutes @ 0..120) => write!(f, " (for {minutes} min now)"),
            Some(minutes) => write!(f, " (for {} h now)", minutes / 60),
            None => Ok(()),
        }
    }
}

/// Joins, or re-keys. Ends only with credentials, with a refusal that is final, or with a fault of this machine's disk.
/// Dropping the future gives up; the attempt stays on disk and is resumed by the next call.
pub async fn join(
    memory: &NodeMemory,
    args: JoinArgs,
    config: &JoinConfig,
    progress: impl Fn(&JoinProgress) + Send + Sync,
) -> Result<Joined, JoinError> {
    let token = JoinToken::parse(&args.token)
        .map_err(|bad| JoinError::Refused(ErrorBody::new(ErrorCode::BadToken, bad.to_string())))?;
    let node = args.rekey.as_ref().and_then(|old| old.identity.node()).map(|(node, _)| node);
    let attempt = memory.store().join_attempt(node)?;
    let request = request(&args, &token, &attempt)?;
    let via = Tls { timeouts: timeouts(config), answer: config.answer_deadline };
    let joined = seek(&via, &args.addrs, &token, request, config, progress).await?;
    let credentials = accepted(&attempt, joined.cert_pem, joined.root_pem)?;
    memory.store().joined(&credentials)?;
    let managers = joined.managers.clone();
    memory.update(|node| {
        node.ended = None;
        if !managers.is_empty() {
            node.managers = managers;
        }
    })?;
    Ok(Joined { credentials, managers: joined.managers })
}

fn timeouts(config: &JoinConfig) -> DialTimeouts {
    DialTimeouts { connect: config.stage_deadline, tls: config.stage_deadline, greeting: config.stage_deadline }
}

fn request(args: &JoinArgs, token: &JoinToken, attempt: &JoinAttempt) -> Result<JoinRequest, JoinError> {
    let broken = |e: String| JoinError::Rekey(e);
    let csr_pem = make_csr(&attempt.key_pem).map_err(|e| broken(e.to_string()))?;
    let rekey = match &args.rekey {
        None => None,
        Some(old) => {
            let key = CsrKey::parse(&csr_pem).map_err(|e| broken(e.to_string()))?;
            let signature = prove_rekey(&old.key_pem, &key).map_err(|e| broken(e.to_string()))?;
            Some(Rekey { old_cert_pem: old.cert_pem.clone(), signature })
        }
    };
    Ok(JoinRequest {
        request_id: attempt.request_id,
        node: attempt.node,
        token_secret: token.secret.clone(),
        csr_pem,
        name: args.name.clone(),
        advertise: args.advertise.clone(),
        release: args.release.clone(),
        labels: args.labels.clone(),
        rekey,
    })
}

/// The root is the one whose digest was checked, whatever the reply says.
fn accepted(attempt: &JoinAttempt, cert_pem: String, root_pem: String) -> Result<NodeCredentials, JoinError> {
    let wrong = |why: String| JoinError::Refused(ErrorBody::new(ErrorCode::Internal, why));
    let identity = muster_pki::identity_of_pem(&cert_pem).map_err(|e| wrong(e.to_string()))?;
    if identity.node().map(|(node, _)| node) != Some(attempt.node) {
        return Err(wrong("the certificate that came back is for another node".to_owned()));
    }
    Ok(NodeCredentials { cert_pem, key_pem: attempt.key_pem.clone(), root_pem, identity })
}

/// A yes of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Yes {
    pub cert_pem: String,
    pub root_pem: String,
    pub managers: Vec<String>,
}

/// Why one try through one address failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct No {
    pub stage: JoinStage,
    pub why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Nobody answered to the point.
    Broken(String),
    /// A clock is wrong. Names the time, and so differs each time.
    Clock(String),
    /// The gateway refused the connection.
    Turned(Refusal),
    /// The request was judged.
    Judged(ErrorBody),
}

impl Why {
    /// JOIN-3.
    fn is_final(&self) -> bool {
        use ErrorCode as C;
        match self {
            // Said before the request, by someone who may not even be verified yet.
            Why::Broken(_) | Why::Clock(_) | Why::Turned(_) => false,
            Why::Judged(error) => matches!(
                error.code,
                C::DigestMismatch
                    | C::BadToken
                    | C::TokenExpired
                    | C::TokenUsedUp
                    | C::Blocked
                    | C::Removed
                    | C::NotFound
                    | C::Invalid
                    | C::Forbidden
                    | C::Unauthenticated
                    | C::Conflict
            ),
        }
    }
    fn text(&self) -> String {
        match self {
            Why::Broken(text) | Why::Clock(text) => text.clone(),
            Why::Turned(refusal) => format!("{}: {}", refusal.reason, in_short(&refusal.message, SHOWN)),
            Why::Judged(error) => format!("{}: {}", error.code, in_short(&error.message, SHOWN)),
        }
    }
    /// Whether whoever read the line about the one need not read one about the other.
    fn is_like(&self, other: &Why) -> bool {
        matches!((self, other), (Why::Clock(_), Why::Clock(_))) || self == other
    }
    fn managers(&self) -> &[String] {
        match self {
            Why::Turned(refusal) => &refusal.managers,
            _ => &[],
        }
    }
    fn retry_after(&self) -> Option<Duration> {
        let ms = match self {
            Why::Broken(_) | Why::Clock(_) => None,
            Why::Turned(refusal) => refusal.retry_after_ms,
            Why::Judged(error) => error.retry_after_ms,
        };
        ms.map(Duration::from_millis)
    }
    fn into_error(self) -> ErrorBody {
        match self {
            Why::Broken(text) | Why::Clock(text) => ErrorBody::new(ErrorCode::Unreachable, text),
            Why::Turned(refusal) => ErrorBody::new(refusal.reason.code(), refusal.message),
            Why::Judged(error) => error,
        }
    }
}

/// How one try is made: over TLS in use, scripted in tests.
pub(crate) trait Try: Sync {
    fn attempt(
        &self,
        addr: &str,
        token: &JoinToken,
        request: &JoinRequest,
    ) -> impl Future<Output = Result<Yes, No>> + Send;
}

/// How many characters of another party's text are shown.
const SHOWN: usize = 500;
/// The most addresses tried in one round; refusals may name more.
const MOST: usize = 32;

/// What was said last about one address.
struct Told {
    no: No,
    since: Instant,
    remind_at: Instant,
}

/// What does not change is said again after this, and then after four times as long each time.
const REMIND: Duration = Duration::from_secs(60);
/// But at least so often: whoever looks at a machine that has waited for days wants to see that it still does.
const REMIND_AT_LEAST: Duration = Duration::from_secs(3600);

impl Told {
    /// Whether this is to be said, and for how long it has been so if it was said before.
    fn again(told: &mut BTreeMap<String, Told>, addr: &str, no: &No) -> Option<Option<Duration>> {
        let now = Instant::now();
        match told.get_mut(addr).filter(|told| told.no.stage == no.stage && told.no.why.is_like(&no.why)) {
            Some(told) if now < told.remind_at => None,
            Some(told) => {
                let lasts = now - told.since;
                told.remind_at = now + (lasts * 3).min(REMIND_AT_LEAST);
                Some(Some(lasts))
            }
            None => {
                let news = Told { no: no.clone(), since: now, remind_at: now + REMIND };
                told.insert(addr.to_owned(), news);
                Some(None)
            }
        }
    }
}

/// Round after round over the addresses, until one says yes or something final.
pub(crate) async fn seek(
    via: &impl Try,
    addrs: &[String],
    token: &JoinToken,
    request: JoinRequest,
    config: &JoinConfig,
    progress: impl Fn(&JoinProgress),
) -> Result<Yes, JoinError> {
    if addrs.is_empty() {
        return Err(JoinError::NoAddress);
    }
    let mut known: Vec<String> = addrs.to_vec();
    let mut told: BTreeMap<String, Told> = BTreeMap::new();
    let mut dice = Dice::seeded(rand::random());
    let mut pause = config.retry_first;
    loop {
        let mut round: VecDeque<String> = known.iter().cloned().collect();
        let mut asked_to_wait = Duration::ZERO;
        while let Some(addr) = round.pop_front() {
            let no = match via.attempt(&addr, token, &request).await {
                Ok(yes) => {
                    let text = format!("node {}", request.node);
                    progress(&JoinProgress { addr, stage: JoinStage::Joined, text, lasts: None });
                    return Ok(yes);
                }
                Err(no) => no,
            };
            if let Some(lasts) = Told::again(&mut told, &addr, &no) {
                progress(&JoinProgress { addr: addr.clone(), stage: no.stage, text: no.why.text(), lasts });
            }
            if no.why.is_final() {
                return Err(JoinError::Refused(no.why.into_error()));
            }
            asked_to_wait = asked_to_wait.max(no.why.retry_after().unwrap_or_default());
            for manager in no.why.managers() {
                if known.len() < MOST && !known.contains(manager) {
                    known.push(manager.clone());
                    round.push_back(manager.clone());
                }
            }
        }
        let wait = dice.around(pause, 0.3).max(asked_to_wait).min(config.retry_cap);
        tokio::time::sleep(wait).await;
        pause = pause.mul_f64(1.5).min(config.retry_cap);
    }
}

struct Tls {
    timeouts: DialTimeouts,
    answer: Duration,
}

impl Try for Tls {
    async fn attempt(&self, addr: &str, token: &JoinToken, request: &JoinRequest) -> Result<Yes, No> {
        let root_pem = self.root(addr).await?;
        if !token.is_for(&root_pem) {
            let error = ErrorBody::new(
                ErrorCode::DigestMismatch,
                format!(
                    "the cluster at {addr} is not the one this token was made for: its root has another digest; join through \
                     a node of the right cluster, or take a token of this one (`muster token show worker` on its manager)"
                ),
            );
            return Err(No { stage: JoinStage::Digest, why: Why::Judged(error) });
        }
        self.ask(addr, root_pem, request).await
    }
}

impl Tls {
    /// Whatever root the other side claims: worth nothing until its digest was compared.
    async fn root(&self, addr: &str) -> Result<String, No> {
        let digest = |why| No { stage: JoinStage::Digest, why };
        let dialled = Dialer::dial_unverified(addr, self.timeouts).await;
        let mut stream = match dialled {
            Ok(dialled) => dialled.stream,
            Err(error) => return Err(self.no(addr, error).await),
        };
        let limit = self.timeouts.greeting;
        let exchange = async {
            stream.send(&JoinFrame::GetRoot).await?;
            stream.recv::<JoinReply>().await
        };
        let reply = reply(addr, timeout(limit, exchange).await, limit).map_err(digest)?;
        match reply {
            JoinReply::Root { root_pem } => Ok(root_pem),
            JoinReply::Refused(error) => Err(digest(Why::Broken(format!("{addr}: {error}")))),
            JoinReply::Joined { .. } => Err(digest(Why::Broken(format!("{addr} answered another question")))),
        }
    }

    /// Why there is no connection. Of a clock that is wrong both are shown: neither side knows which one it is.
    async fn no(&self, addr: &str, error: DialError) -> No {
        let stage = stage_of(&error);
        let why = match error {
            DialError::Clock { .. } => {
                let there = Dialer::told_time(addr, self.timeouts).await;
                let there = there.map_or_else(String::new, |date| format!(", the one at {addr} {date}"));
                Why::Clock(format!("{}; this machine's clock says {}{there}", error.in_words(), Clock.wall()))
            }
            DialError::Refused { refusal, .. } => Why::Turned(refusal),
            other => Why::Broken(other.in_words()),
        };
        No { stage, why }
    }

    async fn ask(&self, addr: &str, root_pem: String, request: &JoinRequest) -> Result<Yes, No> {
        let token = |why| No { stage: JoinStage::Token, why };
        let dialer = Dialer::anonymous(&root_pem).with_timeouts(self.timeouts);
        let dialled = dialer.dial(addr, Service::Join, None).await;
        let mut stream = match dialled {
            Ok(dialled) => dialled.stream,
            Err(error) => return Err(self.no(addr, error).await),
        };
        let exchange = async {
            stream.send(&JoinFrame::Join(request.clone())).await?;
            stream.recv::<JoinReply>().await
        };
        let reply = reply(addr, timeout(self.answer, exchange).await, self.answer).map_err(token)?;
        match reply {
            JoinReply::Joined { cert_pem, managers, .. } => Ok(Yes { cert_pem, root_pem, managers }),
            JoinReply::Refused(error) => Err(token(Why::Judged(error))),
            JoinReply::Root { .. } => Err(token(Why::Broken(format!("{addr} answered another question")))),
        }
    }
}

type Exchange = Result<Result<Option<JoinReply>, FrameError>, tokio::time::error::Elapsed>;

fn reply(addr: &str, exchange: Exchange, limit: Duration) -> Result<JoinReply, Why> {
    match exchange {
        Ok(Ok(Some(reply))) => Ok(reply),
        Ok(Ok(None)) => Err(Why::Broken(format!("{addr} closed the connection without an answer"))),
        Ok(Err(error)) => Err(Why::Broken(format!("{addr}: {}", chain(&error)))),
        Err(_) => Err(Why::Broken(format!("{addr} did not answer within {} s", limit.as_secs()))),
    }
}

fn stage_of(error: &DialError) -> JoinStage {
    match error {
        DialError::Resolve { .. } | DialError::Timeout { stage: Stage::Resolve, .. } => JoinStage::Resolve,
        DialError::Connect { .. } | DialError::Timeout { stage: Stage::Connect, .. } => JoinStage::Connect,
        DialError::Refused { .. } => JoinStage::Token,
        _ => JoinStage::Tls,
    }
}

#[cfg(test)]
mod tests;
