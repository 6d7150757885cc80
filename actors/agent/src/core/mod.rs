//! Agent: keeps one session to some manager, keeps the node's certificate up to date with the cluster's grant, and decides
//! whether the manager runtime should run.
//!
//! Owns        the managers it knows, its session or the search for one, the need for a certificate, requests of this process to the
//!             leader, final refusals.
//! Inputs      views, lists of workloads and answers of its host, ends of connections, requests to the leader, refusals that the manager
//!             runtime received.
//! Outputs     dial, send, hang up, make a signing request, install a certificate, whether the manager runtime should run.
//! Invariants  AGENT-1…4 (see `managers` and `renewal`).
//!             AGENT-5  only `blocked`, `removed` (both permanently), `demoted` and `old_incarnation` (until the next certificate)
//!                      stop the manager runtime of a node whose certificate says manager; a lost connection or any other refusal
//!                      does not.
//!             AGENT-6  after `blocked` or `removed` the agent stops dialling.
//!             AGENT-10 (see `newest`).
//!             AGENT-12  a new certificate opens its session before the former one is closed, so that the manager runtime's requests
//!                       do not wait for it. The former session ends with the first attempt to replace it, however that ends.
//!             AGENT-7  the manager runtime is wanted exactly while the certificate says manager and AGENT-5 does not forbid it.
//! Why one session to any manager: a session carries views, never state, so losing one costs a reconnect.

mod asks;
mod managers;
mod newest;
mod pause;
mod published;
mod renewal;
mod roots;
mod session;
#[cfg(test)]
mod tests;
mod values;
#[cfg(test)]
mod views_tests;
mod workloads;

use std::time::Duration;

use muster_messages::wire::{
    AgentAnswer, AgentFrame, AgentHello, AgentView, BYE_NEW_CERTIFICATE, BYE_SHUTDOWN, HostFrame, Refusal,
};
use muster_messages::{ErrorBody, Incarnation, Moment, NodeId, RefusalReason, Revision, Rng, Role, WallTime};

use self::asks::Asks;
pub use self::managers::ManagerBook;
pub use self::newest::Stamp;
use self::newest::{Age, Newest};
use self::published::Published;
pub use self::renewal::Because;
use self::renewal::{Renewal, mixed_up};
use self::roots::Roots;
use self::session::{Live, Phase, hang_up};
pub use self::values::*;
use self::workloads::Workloads;
use crate::config::AgentConfig;
use crate::status::{ManagerWanted, NodeTrouble, TroubleReason, WantedBecause};

#[derive(Clone, Debug)]
pub struct Agent {
    config: AgentConfig,
    rng: Rng,
    hello: AgentHello,
    certificate: CertificateFacts,
    book: ManagerBook,
    phase: Phase,
    /// AGENT-12: the connection of the session that the next one replaces.
    former: Option<Attempt>,
    attempts: Attempt,
    /// Failed connections since a session was last stable.
    failures: u32,
    renewal: Renewal,
    roots: Roots,
    workloads: Workloads,
    asks: Asks,
    /// The id of the last request to a host, on any connection.
    next_id: u64,
    /// The newest view of any host.
    seen: Newest,
    ended: Option<NodeTrouble>,
    /// A manager of a newer incarnation has refused the present certificate.
    fenced: bool,
    last_refusal: Option<RefusalSeen>,
    last_loss: Option<String>,
    published: Published,
    log: EventLog,
}

impl Agent {
    pub fn new(start: Start, config: AgentConfig) -> Self {
        let mut rng = Rng::seeded(start.seed);
        let mut renewal = Renewal::new(&start.certificate, &mut rng);
        if start.demotion_reported {
            renewal.demoted();
        }
        let resting = Phase::Resting { until: Moment(0) };
        Self {
            renewal,
            book: ManagerBook::new(start.known, start.seeds),
            seen: Newest::of((start.certificate.incarnation, Revision(0))),
            certificate: start.certificate,
            hello: start.hello,
            config,
            rng,
            phase: if start.ended.is_some() { Phase::Over } else { resting },
            former: None,
            attempts: Attempt(0),
            failures: 0,
            roots: Roots::default(),
            workloads: Workloads::after(start.workloads),
            asks: Asks::default(),
            next_id: 0,
            ended: start.ended,
            fenced: false,
            last_refusal: None,
            last_loss: None,
            published: Published::default(),
            log: EventLog::default(),
        }
    }

    /// Handles one input. `wall` only judges ages of certificates; every deadline is a `now`.
    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Woke => {}
            Input::Connected { attempt, host, incarnation } => {
                self.connected(now, wall, attempt, (host, incarnation), out);
            }
            Input::Received { attempt, frame } => self.received(now, wall, attempt, *frame, out),
            Input::Lost { attempt, why } => self.lost(now, wall, attempt, why, out),
            Input::AskLeader { ask, question } => self.asks.wait(now, (ask, question), &self.config, out),
            Input::RefusedByPeer { refusal, serial } => {
                if serial.is_none_or(|s| s == self.certificate.serial) {
                    if refusal.reason == RefusalReason::OldIncarnation {
                        self.book.hint(&refusal.managers);
                    }
                    self.judge_refusal("a peer", wall, &refusal, out);
                }
            }
            Input::Installed(certificate) => self.installed(now, certificate, out),
            Input::InstallFailed(why) => {
                self.renewal.failed(now, None, &self.config, &mut self.rng);
                self.log.add(LogEvent::SignFailed { why }, out);
            }
            Input::RootsInstalled(generation) => {
                self.roots.installed(generation, out);
                self.log.add(LogEvent::RootsTrusted { generation }, out);
            }
            Input::RootsRefused { generation, why } => {
                self.roots.refused(generation, now, &self.config, &mut self.rng, out);
                self.log.add(LogEvent::RootsRefused { why }, out);
            }
            Input::Stop => self.stop(out),
        }
        self.advance(now, wall, out);
        self.publish(wall, out);
    }

    /// When to wake the agent if there is no earlier input.
    pub fn wake_at(&self) -> Option<Moment> {
        let [session, renewal, roots] = match &self.phase {
            Phase::Resting { until } => [Some(*until), None, None],
            Phase::Live(live) => [Some(live.wake_at(&self.config)), self.renewal.wake_at(), self.roots.wake_at()],
            Phase::Connecting { .. } | Phase::Over => [None; 3],
        };
        [session, renewal, roots, self.asks.wake_at()].into_iter().flatten().min()
    }

    pub fn certificate(&self) -> &CertificateFacts {
        &self.certificate
    }
    pub fn renew_at(&self) -> WallTime {
        self.renewal.renew_at()
    }
    pub fn need(&self, wall: WallTime) -> Option<Because> {
        self.renewal.need(&self.certificate, wall)
    }
    pub fn managers(&self) -> &[String] {
        self.book.known()
    }
    pub fn session(&self) -> Option<SessionStatus> {
        match &self.phase {
            Phase::Live(live) if live.viewed => Some(live.status()),
            _ => None,
        }
    }
    /// The address being dialled, if any.
    pub fn connecting_to(&self) -> Option<&str> {
        match &self.phase {
            Phase::Connecting { addr, .. } => Some(addr),
            Phase::Live(live) if !live.viewed => Some(&live.addr),
            _ => None,
        }
    }
    pub fn last_refusal(&self) -> Option<&RefusalSeen> {
        self.last_refusal.as_ref()
    }
    pub fn last_loss(&self) -> Option<&str> {
        self.last_loss.as_deref()
    }
    pub fn failures(&self) -> u32 {
        self.failures
    }

    fn connected(
        &mut self,
        now: Moment,
        wall: WallTime,
        attempt: Attempt,
        (host, vouched): (NodeId, Incarnation),
        out: &mut Vec<Effect>,
    ) {
        let Phase::Connecting { attempt: current, addr } = &self.phase else {
            return;
        };
        if *current != attempt {
            return;
        }
        let beat_at = now + self.rng.around(self.config.heartbeat, self.config.heartbeat_jitter);
        self.phase = Phase::Live(Live {
            attempt,
            addr: addr.clone(),
            host,
            opened: now,
            since: wall,
            received: now,
            beat_at,
            viewed: false,
            incarnation: self.certificate.incarnation,
            vouched,
        });
        let frame = Box::new(AgentFrame::Hello(self.hello.clone()));
        out.push(Effect::Send { attempt, frame });
    }

    fn received(&mut self, now: Moment, wall: WallTime, attempt: Attempt, frame: HostFrame, out: &mut Vec<Effect>) {
        if self.former == Some(attempt) {
            return self.received_on_former(now, attempt, frame, out);
        }
        let Phase::Live(live) = &mut self.phase else {
            return;
        };
        if live.attempt != attempt {
            return;
        }
        live.received = now;
        match frame {
            HostFrame::View(view) => self.viewed(now, wall, attempt, &view, out),
            HostFrame::Roots(offer) if live.viewed => {
                // AGENT-10: forgotten with a false revision.
                self.seen.raise((live.incarnation, offer.generation));
                self.roots.offered(offer, out);
            }
            HostFrame::Workloads(page) if live.viewed => {
                let vouched = live.vouched;
                self.workloads.received((attempt, vouched), page, out);
            }
            HostFrame::HeartbeatAck { revision } if live.viewed => {
                let stamp = (live.incarnation, revision);
                self.workloads.acknowledged((now, &self.config), attempt, stamp, out);
            }
            // A host that has not shown its view does not know this node. Requests are answered where they arrive: AGENT-9.
            HostFrame::Roots(_) | HostFrame::Workloads(_) | HostFrame::HeartbeatAck { .. } | HostFrame::Ask { .. } => {}
            HostFrame::Answer { id, result } => self.answered(now, attempt, id, result, out),
            HostFrame::Move { reason } => {
                let why = format!("the host asked this node to use another manager: {reason}");
                self.lost(now, wall, attempt, Loss::Broken(why), out);
                out.push(Effect::HangUp { attempt });
            }
            HostFrame::Ended(refusal) => {
                self.lost(now, wall, attempt, Loss::Refused(refusal), out);
                out.push(Effect::HangUp { attempt });
            }
        }
    }

    /// Its views say nothing about the new certificate, and its end is expected.
    fn received_on_former(&mut self, now: Moment, attempt: Attempt, frame: HostFrame, out: &mut Vec<Effect>) {
        match frame {
            HostFrame::Answer { id, result } => self.answered(now, attempt, id, result, out),
            HostFrame::Move { .. } | HostFrame::Ended(_) => self.close_former(now, out),
            _ => {}
        }
    }

    fn close_former(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if let Some(attempt) = self.former.take() {
            hang_up(attempt, BYE_NEW_CERTIFICATE, out);
            self.roots.session_lost(attempt);
            self.asks.repeat(now, attempt);
        }
    }

    /// AGENT-3: each view is judged by itself. One older than any seen before, from any host, is ignored, unless views have
    /// been older for longer than a host lags behind: then the revision seen before was false (AGENT-10).
    fn viewed(&mut self, now: Moment, wall: WallTime, attempt: Attempt, view: &AgentView, out: &mut Vec<Effect>) {
        let Phase::Live(live) = &mut self.phase else { return };
        if view.incarnation > live.vouched {
            let (shown, own) = (view.incarnation, live.vouched);
            let why = format!("the host shows a view of incarnation {shown}, but its certificate is of {own}");
            out.push(Effect::HangUp { attempt });
            return self.lost(now, wall, attempt, Loss::Broken(why), out);
        }
        live.incarnation = view.incarnation;
        if !std::mem::replace(&mut live.viewed, true) {
            let (host, addr) = (live.host, live.addr.clone());
            self.book.worked(&addr);
            self.renewal.retry_now();
            self.roots.retry_now();
            self.log.add(LogEvent::SessionOpened { host, addr }, out);
            self.close_former(now, out);
        }
        match self.seen.judge(now, (view.incarnation, view.revision), self.config.forget_views) {
            Age::Current => {}
            Age::Older => return,
            Age::NewestWasFalse => self.roots.forget(out),
        }
        if self.book.learn(&view.managers) {
            out.push(Effect::KeepManagers(self.book.known().to_vec()));
        }
        self.renewal.viewed(&self.certificate, view);
    }

    fn answered(
        &mut self,
        now: Moment,
        attempt: Attempt,
        id: u64,
        result: Result<AgentAnswer, ErrorBody>,
        out: &mut Vec<Effect>,
    ) {
        if let Some(ask) = self.asks.answered(attempt, id) {
            out.push(Effect::LeaderAnswered { ask, result });
            return;
        }
        if self.roots.answered(attempt, id, &result, now, &self.config, &mut self.rng) {
            return;
        }
        if !self.renewal.expects(id) {
            return; // a request given up meanwhile
        }
        match result {
            Ok(AgentAnswer::Signed(reply)) => {
                self.renewal.installing();
                out.push(Effect::Install { id, reply });
            }
            Ok(_) => self.sign_failed(now, &mixed_up(), out),
            Err(error) => self.sign_failed(now, &error, out),
        }
    }

    fn sign_failed(&mut self, now: Moment, error: &ErrorBody, out: &mut Vec<Effect>) {
        let retry_after = error.retry_after_ms.map(Duration::from_millis);
        self.renewal.failed(now, retry_after, &self.config, &mut self.rng);
        self.log.add(LogEvent::SignFailed { why: error.message.clone() }, out);
    }

    /// A connection ended or failed to open.
    fn lost(&mut self, now: Moment, wall: WallTime, attempt: Attempt, why: Loss, out: &mut Vec<Effect>) {
        if self.former == Some(attempt) {
            return self.close_former(now, out);
        }
        let (addr, opened, was_session) = match &self.phase {
            Phase::Connecting { attempt: current, addr } if *current == attempt => (addr.clone(), None, false),
            Phase::Live(live) if live.attempt == attempt => (live.addr.clone(), Some(live.opened), live.viewed),
            _ => return,
        };
        self.session_lost(now, attempt, out);
        if opened.is_some_and(|at| now.since(at) >= self.config.stable_after) {
            self.failures = 0;
        }
        self.book.failed(&addr, now);
        let text = match &why {
            Loss::Refused(refusal) => format!("{}: {}", refusal.reason, refusal.message),
            Loss::Broken(text) => text.clone(),
        };
        match why {
            Loss::Refused(refusal) => {
                if let Some(ms) = refusal.retry_after_ms {
                    self.book.back_off(&addr, now + Duration::from_millis(ms));
                }
                self.book.hint(&refusal.managers);
                self.judge_refusal(&addr, wall, &refusal, out);
            }
            Loss::Broken(_) if was_session => {
                self.log.add(LogEvent::SessionLost { addr, why: text.clone() }, out);
            }
            Loss::Broken(_) => {
                self.log.add(LogEvent::DialFailed { addr, why: text.clone() }, out);
            }
        }
        self.last_loss = Some(text);
        if self.ended.is_none() {
            self.back_off(now);
        }
    }

    /// The next connection after a loss: soon the first time, later with longer pauses.
    fn back_off(&mut self, now: Moment) {
        let (first, cap) = (self.config.reconnect_first, self.config.reconnect_cap);
        let pause = pause::pause(&mut self.rng, first, cap, self.failures);
        self.failures = self.failures.saturating_add(1);
        self.phase = Phase::Resting { until: now + pause };
    }

    /// Requests on a lost session are repeated by their callers.
    fn session_lost(&mut self, now: Moment, attempt: Attempt, out: &mut Vec<Effect>) {
        self.renewal.session_lost();
        self.roots.session_lost(attempt);
        self.asks.lost(attempt, out);
        self.close_former(now, out);
    }

    /// AGENT-5: what a refusal means beyond its connection.
    fn judge_refusal(&mut self, from: &str, wall: WallTime, refusal: &Refusal, out: &mut Vec<Effect>) {
        let (reason, message) = (refusal.reason, refusal.message.clone());
        let (from, at) = (from.to_owned(), wall);
        self.log.add(LogEvent::Refused { addr: from.clone(), reason, message: message.clone() }, out);
        self.last_refusal = Some(RefusalSeen { from, reason, message: message.clone(), at });
        match reason {
            RefusalReason::Blocked => self.end(NodeTrouble::new(TroubleReason::Blocked, message, at), out),
            RefusalReason::Removed => self.end(NodeTrouble::new(TroubleReason::Removed, message, at), out),
            // The cluster was recovered without this node: its manager runtime belongs to the cluster before that.
            RefusalReason::Demoted | RefusalReason::OldIncarnation if self.certificate.role == Role::Manager => {
                self.fenced |= reason == RefusalReason::OldIncarnation;
                out.push(Effect::KeepDemoted(self.certificate.serial.clone()));
                self.renewal.demoted();
            }
            _ => {}
        }
    }

    /// AGENT-6.
    fn end(&mut self, trouble: NodeTrouble, out: &mut Vec<Effect>) {
        if self.ended.is_some() {
            return;
        }
        if let Some(attempt) = self.phase.attempt() {
            out.push(Effect::HangUp { attempt });
            self.asks.lost(attempt, out);
        }
        self.renewal.session_lost();
        if let Some(attempt) = self.former.take() {
            out.push(Effect::HangUp { attempt });
            self.asks.lost(attempt, out);
        }
        self.phase = Phase::Over;
        self.workloads.end(out);
        out.push(Effect::KeepTrouble(trouble.clone()));
        self.ended = Some(trouble);
    }

    /// A new certificate: a session is opened with it, at once and to the same manager (AGENT-12).
    fn installed(&mut self, now: Moment, certificate: CertificateFacts, out: &mut Vec<Effect>) {
        let (role, serial) = (certificate.role, certificate.serial.clone());
        self.log.add(LogEvent::CertificateInForce { role, serial }, out);
        self.fenced &= certificate.incarnation == self.certificate.incarnation;
        self.certificate = certificate;
        self.renewal.installed(now, &self.certificate, &self.config, &mut self.rng);
        if self.fenced {
            self.renewal.demoted();
        }
        if matches!(self.phase, Phase::Over) {
            return;
        }
        self.close_former(now, out);
        match std::mem::replace(&mut self.phase, Phase::Resting { until: now }) {
            Phase::Live(live) if live.viewed => self.former = Some(live.attempt),
            Phase::Live(live) => hang_up(live.attempt, BYE_NEW_CERTIFICATE, out),
            Phase::Connecting { attempt, .. } => out.push(Effect::HangUp { attempt }),
            Phase::Resting { .. } | Phase::Over => {}
        }
    }

    fn stop(&mut self, out: &mut Vec<Effect>) {
        let live = match &self.phase {
            Phase::Live(live) => Some(live.attempt),
            Phase::Connecting { attempt, .. } => {
                out.push(Effect::HangUp { attempt: *attempt });
                None
            }
            Phase::Resting { .. } | Phase::Over => None,
        };
        for attempt in self.former.take().into_iter().chain(live) {
            hang_up(attempt, BYE_SHUTDOWN, out);
            self.asks.lost(attempt, out);
        }
        self.phase = Phase::Over;
    }

    /// The only place that starts a dial, a heartbeat or a certificate request.
    fn advance(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        self.keep_session(now, wall, out);
        if let Phase::Resting { until } = self.phase
            && now >= until
        {
            self.dial(now, out);
        }
        self.renew(now, wall, out);
        self.acknowledge(now, out);
        self.send_asks(now, out);
    }

    /// AGENT-13.
    fn acknowledge(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let Phase::Live(live) = &self.phase else { return };
        self.roots.lapse(now, &self.config, &mut self.rng, out);
        if live.viewed {
            self.roots.send(now, live.attempt, &mut self.next_id, &self.config, out);
        }
    }

    fn keep_session(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        let Phase::Live(live) = &mut self.phase else {
            return;
        };
        let attempt = live.attempt;
        let fence = if self.fenced { self.certificate.incarnation.next() } else { self.certificate.incarnation };
        if let Some(why) = live.overdue(now, &self.config).or_else(|| live.outdated(fence.max(self.seen.stamp().0))) {
            out.push(Effect::HangUp { attempt });
            self.lost(now, wall, attempt, Loss::Broken(why), out);
            return;
        }
        if now >= live.beat_at {
            live.beat_at = now + self.rng.around(self.config.heartbeat, self.config.heartbeat_jitter);
            let (_, seen) = self.seen.stamp();
            out.push(Effect::Send { attempt, frame: Box::new(AgentFrame::Heartbeat { seen }) });
        }
    }

    fn dial(&mut self, now: Moment, out: &mut Vec<Effect>) {
        match self.book.pick(now, self.config.forgive, &mut self.rng) {
            managers::Pick::Now(addr) => {
                self.attempts.0 += 1;
                let attempt = self.attempts;
                out.push(Effect::Dial { attempt, addr: addr.clone() });
                self.phase = Phase::Connecting { attempt, addr };
            }
            managers::Pick::At(until) => self.phase = Phase::Resting { until },
            managers::Pick::NoAddress => {
                self.last_loss = Some("no manager is known".to_owned());
                self.phase = Phase::Resting { until: now + self.config.reconnect_cap };
            }
        }
    }

    fn renew(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        let Phase::Live(live) = &self.phase else {
            return;
        };
        self.renewal.lapse(now, &self.config, &mut self.rng);
        let Some(because) = self.renewal.need(&self.certificate, wall) else {
            return;
        };
        let (attempt, id) = (live.attempt, self.next_id + 1);
        if live.viewed && self.renewal.start(now, id, &self.config) {
            self.next_id = id;
            out.push(Effect::AskForCertificate { attempt, id, because });
        }
    }

    fn send_asks(&mut self, now: Moment, out: &mut Vec<Effect>) {
        match &self.phase {
            Phase::Live(live) if live.viewed => self.asks.send(live.attempt, &mut self.next_id, out),
            Phase::Over => self.asks.refuse_all(out),
            _ => match self.former {
                Some(attempt) => self.asks.send(attempt, &mut self.next_id, out),
                None => self.asks.expire(now, out),
            },
        }
    }

    fn publish(&mut self, wall: WallTime, out: &mut Vec<Effect>) {
        let (session, trouble, wanted) = (self.session(), self.trouble(wall), self.wanted());
        self.published.update(session, trouble, wanted, out);
    }

    fn trouble(&self, wall: WallTime) -> Option<NodeTrouble> {
        if let Some(ended) = &self.ended {
            return Some(ended.clone());
        }
        let not_after = self.certificate.not_after;
        (wall > not_after).then(|| NodeTrouble::expired(not_after))
    }

    /// AGENT-7.
    fn wanted(&self) -> ManagerWanted {
        let because = match &self.ended {
            Some(trouble) if trouble.reason == TroubleReason::Blocked => WantedBecause::Blocked,
            Some(_) => WantedBecause::Removed,
            None if self.certificate.role == Role::Worker => WantedBecause::CertificateSaysWorker,
            None if self.renewal.demotion_reported() && self.fenced => WantedBecause::OldIncarnation,
            None if self.renewal.demotion_reported() => WantedBecause::Demoted,
            None => WantedBecause::CertificateSaysManager,
        };
        ManagerWanted::new(because)
    }
}
