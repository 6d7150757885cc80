//! Joining: from a token and some addresses to credentials on disk.
//!
//! Invariants  JOIN-1  nothing secret is sent before a received root has the digest that the token names, and then only to
//!                     a server whose certificate leads to this root, or to one that it vouches for (PKI-9).
//!             JOIN-2  node id, request id and key are chosen once and kept on disk, so every retry is the same request: a
//!                     lost reply costs neither a second node nor a second use of the token.
//!             JOIN-3  only a refusal that waiting cannot change ends it; everything else is retried indefinitely.
//! Why one line per change of stage and address: "deadline exceeded" alone did not say whether the name, the port, the
//! certificate, the token or the quorum was at fault.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::time::Duration;

use muster_gateway::{DialError, DialTimeouts, Dialer, FrameError, Stage};
use muster_kernel::Clock;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{JoinFrame, JoinReply, JoinRequest, Refusal, Rekey};
use muster_messages::{ErrorBody, ErrorCode, Name, OfferedRoot, Rng, in_short};
use muster_pki::{Bundle, CsrKey, IdentityFault, JoinAttempt, JoinToken, make_csr, prove_rekey};
use tokio::time::{Instant, timeout};

use crate::config::JoinConfig;
use crate::line::chain;
use crate::memory::NodeMemory;

/// The joiner's data and the addresses to try.
#[derive(Clone, Debug)]
pub struct JoinArgs {
    /// `host:port`, tried in this order; managers named in refusals are added.
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

/// The outcome, already on disk.
#[derive(Clone, Debug)]
pub struct Joined {
    pub credentials: NodeCredentials,
    pub managers: Vec<String>,
}

/// Why joining ended without credentials.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Waiting does not change this: exit 6 (2 for `invalid`).
    #[error("{0}")]
    Refused(ErrorBody),
    #[error("no address of a manager to join through was given")]
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinStage {
    Resolve,
    Connect,
    Tls,
    /// Fetching the roots, and finding the one with the token's digest.
    Digest,
    /// The request with the token: the leader decides.
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

/// A change of stage, or a reminder that nothing changed, as one line for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinProgress {
    pub addr: String,
    pub stage: JoinStage,
    /// The failure at that stage, or the result.
    pub text: String,
    /// In a reminder, how long it has been so.
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

/// Joins or re-keys. Ends only with credentials, a final refusal, or a fault of this machine's disk. Dropping the
/// future gives up; the attempt stays on disk and the next call resumes it.
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
    let credentials = accepted(&attempt, joined.cert_pem, joined.roots_pem)?;
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

/// The roots are those that the token's digest leads to, whatever the reply says.
fn accepted(attempt: &JoinAttempt, cert_pem: String, root_pem: String) -> Result<NodeCredentials, JoinError> {
    let wrong = |why: String| JoinError::Refused(ErrorBody::new(ErrorCode::Internal, why));
    let identity = muster_pki::identity_of_pem(&cert_pem).map_err(|e| wrong(e.to_string()))?;
    if identity.node().map(|(node, _)| node) != Some(attempt.node) {
        return Err(wrong("the received certificate is for another node".to_owned()));
    }
    Ok(NodeCredentials { cert_pem, key_pem: attempt.key_pem.clone(), root_pem, identity })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acceptance {
    pub cert_pem: String,
    pub roots_pem: String,
    pub managers: Vec<String>,
}

/// Why one attempt through one address failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttemptFailure {
    pub stage: JoinStage,
    pub why: FailureReason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FailureReason {
    /// No usable answer.
    Broken(String),
    /// A clock is wrong. The text names the time and so differs at each attempt.
    Clock(String),
    /// The gateway refused the connection.
    Rejected(Refusal),
    /// A question about the roots was refused, by a peer that is not verified yet: most likely it is busy.
    Busy(ErrorBody),
    /// The cluster decided on the request.
    Decided(ErrorBody),
}

impl FailureReason {
    /// JOIN-3.
    fn is_final(&self) -> bool {
        use ErrorCode as C;
        match self {
            // Received before the request, from a peer that may not be verified yet.
            FailureReason::Broken(_)
            | FailureReason::Clock(_)
            | FailureReason::Rejected(_)
            | FailureReason::Busy(_) => false,
            FailureReason::Decided(error) => matches!(
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
            FailureReason::Broken(text) | FailureReason::Clock(text) => text.clone(),
            FailureReason::Rejected(refusal) => {
                format!("{}: {}", refusal.reason, in_short(&refusal.message, MAX_TEXT_CHARS))
            }
            FailureReason::Busy(error) | FailureReason::Decided(error) => {
                format!("{}: {}", error.code, in_short(&error.message, MAX_TEXT_CHARS))
            }
        }
    }
    /// Whether a reader of the line about one learns nothing from a line about the other.
    fn is_like(&self, other: &FailureReason) -> bool {
        matches!((self, other), (FailureReason::Clock(_), FailureReason::Clock(_))) || self == other
    }
    fn managers(&self) -> &[String] {
        match self {
            FailureReason::Rejected(refusal) => &refusal.managers,
            _ => &[],
        }
    }
    fn retry_after(&self) -> Option<Duration> {
        let ms = match self {
            FailureReason::Broken(_) | FailureReason::Clock(_) => None,
            FailureReason::Rejected(refusal) => refusal.retry_after_ms,
            FailureReason::Busy(error) | FailureReason::Decided(error) => error.retry_after_ms,
        };
        ms.map(Duration::from_millis)
    }
    fn into_error(self) -> ErrorBody {
        match self {
            FailureReason::Broken(text) | FailureReason::Clock(text) => ErrorBody::new(ErrorCode::Unreachable, text),
            FailureReason::Rejected(refusal) => ErrorBody::new(refusal.reason.code(), refusal.message),
            FailureReason::Busy(error) | FailureReason::Decided(error) => error,
        }
    }
}

/// How one attempt is made: over TLS in production, scripted in tests.
pub(crate) trait Try: Sync {
    fn attempt(
        &self,
        addr: &str,
        token: &JoinToken,
        request: &JoinRequest,
    ) -> impl Future<Output = Result<Acceptance, AttemptFailure>> + Send;
}

/// How many characters of another party's text are shown.
const MAX_TEXT_CHARS: usize = 500;
/// The most addresses tried in one round; refusals may name more.
const MAX_ADDRESSES: usize = 32;

struct LastReport {
    failure: AttemptFailure,
    since: Instant,
    remind_at: Instant,
}

/// An unchanged failure is reported again after this, and then after four times as long each time.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);
/// But at least this often: a person at a machine that has waited for days must see that it still waits.
const MAX_REMINDER_INTERVAL: Duration = Duration::from_secs(3600);

impl LastReport {
    /// Whether to report this, and how long it has been so if it was reported before.
    fn repeat_due(
        reported: &mut BTreeMap<String, LastReport>,
        addr: &str,
        failure: &AttemptFailure,
    ) -> Option<Option<Duration>> {
        let now = Instant::now();
        match reported
            .get_mut(addr)
            .filter(|reported| reported.failure.stage == failure.stage && reported.failure.why.is_like(&failure.why))
        {
            Some(reported) if now < reported.remind_at => None,
            Some(reported) => {
                let lasts = now - reported.since;
                reported.remind_at = now + (lasts * 3).min(MAX_REMINDER_INTERVAL);
                Some(Some(lasts))
            }
            None => {
                let news = LastReport { failure: failure.clone(), since: now, remind_at: now + REMINDER_INTERVAL };
                reported.insert(addr.to_owned(), news);
                Some(None)
            }
        }
    }
}

/// Tries the addresses round after round until one accepts or refuses for good.
pub(crate) async fn seek(
    via: &impl Try,
    addrs: &[String],
    token: &JoinToken,
    request: JoinRequest,
    config: &JoinConfig,
    progress: impl Fn(&JoinProgress),
) -> Result<Acceptance, JoinError> {
    if addrs.is_empty() {
        return Err(JoinError::NoAddress);
    }
    let mut known: Vec<String> = addrs.to_vec();
    let mut reported: BTreeMap<String, LastReport> = BTreeMap::new();
    let mut rng = Rng::seeded(rand::random());
    let mut pause = config.retry_first;
    loop {
        let mut round: VecDeque<String> = known.iter().cloned().collect();
        let mut asked_to_wait = Duration::ZERO;
        while let Some(addr) = round.pop_front() {
            let failure = match via.attempt(&addr, token, &request).await {
                Ok(acceptance) => {
                    let text = format!("node {}", request.node);
                    progress(&JoinProgress { addr, stage: JoinStage::Joined, text, lasts: None });
                    return Ok(acceptance);
                }
                Err(failure) => failure,
            };
            if let Some(lasts) = LastReport::repeat_due(&mut reported, &addr, &failure) {
                progress(&JoinProgress { addr: addr.clone(), stage: failure.stage, text: failure.why.text(), lasts });
            }
            if failure.why.is_final() {
                return Err(JoinError::Refused(failure.why.into_error()));
            }
            asked_to_wait = asked_to_wait.max(failure.why.retry_after().unwrap_or_default());
            for manager in failure.why.managers() {
                if known.len() < MAX_ADDRESSES && !known.contains(manager) {
                    known.push(manager.clone());
                    round.push_back(manager.clone());
                }
            }
        }
        let wait = rng.around(pause, 0.3).max(asked_to_wait).min(config.retry_cap);
        tokio::time::sleep(wait).await;
        pause = pause.mul_f64(1.5).min(config.retry_cap);
    }
}

struct Tls {
    timeouts: DialTimeouts,
    answer: Duration,
}

impl Try for Tls {
    async fn attempt(
        &self,
        addr: &str,
        token: &JoinToken,
        request: &JoinRequest,
    ) -> Result<Acceptance, AttemptFailure> {
        let roots_pem = self.roots(addr, token).await?;
        self.ask(addr, roots_pem, request).await
    }
}

impl Tls {
    /// The roots to trust: the one of the token, or those that it leads to. The server is not verified.
    async fn roots(&self, addr: &str, token: &JoinToken) -> Result<String, AttemptFailure> {
        let digest = |why| AttemptFailure { stage: JoinStage::Digest, why };
        match self.question(addr, &JoinFrame::GetRoot).await? {
            JoinReply::Root { root_pem } if token.is_for(&root_pem) => return Ok(root_pem),
            JoinReply::Root { .. } => {}
            other => return Err(digest(unexpected(addr, other))),
        }
        let offered = match self.question(addr, &JoinFrame::GetRoots).await? {
            JoinReply::Roots(offered) => offered,
            // A build that knows no rotation: its root is the only one.
            JoinReply::Refused(error) if error.code == ErrorCode::Invalid => Vec::new(),
            other => return Err(digest(unexpected(addr, other))),
        };
        followed(token, &offered).map_err(|why| {
            let text = format!(
                "the cluster at {addr} is not the one this token was made for: {why}; join through a node of the right cluster, \
                 or use a token of this one (`muster token show worker` on a manager)"
            );
            digest(FailureReason::Decided(ErrorBody::new(ErrorCode::DigestMismatch, text)))
        })
    }

    /// Each question on a connection of its own: a build that does not know it says so only in answer to the first frame.
    async fn question(&self, addr: &str, frame: &JoinFrame) -> Result<JoinReply, AttemptFailure> {
        let mut stream = match Dialer::dial_unverified(addr, self.timeouts).await {
            Ok(dialled) => dialled.stream,
            Err(error) => return Err(self.failure(addr, error).await),
        };
        let exchange = async {
            stream.send(frame).await?;
            stream.recv::<JoinReply>().await
        };
        let limit = self.timeouts.greeting;
        let answer = reply(addr, timeout(limit, exchange).await, limit);
        answer.map_err(|why| AttemptFailure { stage: JoinStage::Digest, why })
    }

    /// Why there is no connection. For a wrong clock both times are shown: neither side knows which one is wrong.
    async fn failure(&self, addr: &str, error: DialError) -> AttemptFailure {
        let stage = stage_of(&error);
        let why = match error {
            DialError::Clock { .. } => {
                let there = Dialer::reported_time(addr, self.timeouts).await;
                let there = there.map_or_else(String::new, |date| format!(", the one at {addr} {date}"));
                FailureReason::Clock(format!(
                    "{}; this machine's clock says {}{there}",
                    error.full_text(),
                    Clock.wall()
                ))
            }
            DialError::Refused { refusal, .. } => FailureReason::Rejected(refusal),
            other => FailureReason::Broken(other.full_text()),
        };
        AttemptFailure { stage, why }
    }

    async fn ask(&self, addr: &str, roots_pem: String, request: &JoinRequest) -> Result<Acceptance, AttemptFailure> {
        let token = |why| AttemptFailure { stage: JoinStage::Token, why };
        let dialer = Dialer::anonymous(&roots_pem).with_timeouts(self.timeouts);
        let dialled = dialer.dial(addr, Service::Join, None).await;
        let mut stream = match dialled {
            Ok(dialled) => dialled.stream,
            Err(error) => return Err(self.failure(addr, error).await),
        };
        let exchange = async {
            stream.send(&JoinFrame::Join(request.clone())).await?;
            stream.recv::<JoinReply>().await
        };
        let reply = reply(addr, timeout(self.answer, exchange).await, self.answer).map_err(token)?;
        match reply {
            JoinReply::Joined { cert_pem, managers, .. } => Ok(Acceptance { cert_pem, roots_pem, managers }),
            JoinReply::Refused(error) => Err(token(FailureReason::Decided(error))),
            other => Err(token(unexpected(addr, other))),
        }
    }
}

fn unexpected(addr: &str, reply: JoinReply) -> FailureReason {
    match reply {
        JoinReply::Refused(error) => FailureReason::Busy(error),
        _ => FailureReason::Broken(format!("{addr} answered a different request")),
    }
}

/// The trusted ones of these roots, if the token's root vouches for them, directly or over others. Nothing else that was offered
/// is believed.
fn followed(token: &JoinToken, offered: &[OfferedRoot]) -> Result<String, String> {
    let of_token = offered.iter().find(|root| token.is_for(&root.cert_pem));
    let of_token = of_token.ok_or("its root has another digest")?;
    let cluster = muster_pki::cluster_of_root_pem(&of_token.cert_pem);
    let cluster = cluster.ok_or("the root with the token's digest names no cluster")?;
    let bundle = Bundle::from_pem(&of_token.cert_pem).and_then(|root| root.accept(cluster, offered));
    let bundle = bundle.map_err(|why| format!("it offered roots for which the token's root does not vouch: {why}"))?;
    Ok(bundle.to_pem())
}

type Exchange = Result<Result<Option<JoinReply>, FrameError>, tokio::time::error::Elapsed>;

fn reply(addr: &str, exchange: Exchange, limit: Duration) -> Result<JoinReply, FailureReason> {
    match exchange {
        Ok(Ok(Some(reply))) => Ok(reply),
        Ok(Ok(None)) => Err(FailureReason::Broken(format!("{addr} closed the connection without an answer"))),
        Ok(Err(error)) => Err(FailureReason::Broken(format!("{addr}: {}", chain(&error)))),
        Err(_) => Err(FailureReason::Broken(format!("{addr} did not answer within {} s", limit.as_secs()))),
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
