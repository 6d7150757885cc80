//! The decisions of the certificate authority, as plain values; signing itself is an effect.
//!
//! Owns        the pending requests, the step that each waits for, and the certificates of workloads that are valid.
//! Inputs      requests; newer replicas; results of signatures, proposals and reads; the clocks of the other managers ([`Input`]).
//! Outputs     signatures, proposals and reads to make; an answer to each request; news of the clock, for the log ([`Effect`]).
//! Invariants  those of the crate, CERT-1 to CERT-5 and CERT-8. A request is answered once; a late result finds none and changes nothing.
//! Phases of a [`Pending`] request: admitted (joins only), caught up, signed, recorded (of workloads: confirmed), answered.

mod admit;
mod budget;
mod clock;
mod early;
mod names;
mod pending;
mod users;
mod values;
mod workloads;

use std::collections::BTreeMap;

use muster_messages::protocol::ProposeError;
use muster_messages::wire::{JoinReply, SignReply, SignedWorkload};
use muster_messages::{
    CertIdentity, CertificateRecord, CertificateState, Change, ClusterRecord, Command, CommandRefusal, ErrorBody,
    ErrorCode, Guard, IssuedCertificate, Moment, NodeId, NodeRecord, Principal, Revision, Role, RootId, Tables,
    WallTime,
};
use muster_pki::{CsrKey, NodeProfile, SignError, Signed};

use crate::Config;
use crate::bugs::BugInjection;

use self::clock::ClockCheck;
pub use self::clock::ClockNews;
use self::early::EarlyRenewals;
use self::pending::Phase;
pub use self::pending::{CertificateRequest, Pending};
pub use self::values::{
    Answer, AskId, Effect, Input, NodeRequest, Profile, StepId, UserRequest, VerifiedJoin, Wanted, WorkloadRequest,
    WorkloadSigned, WorkloadWork,
};
use self::workloads::LiveWorkloads;
pub use self::workloads::{JWT_BUDGET, MAX_LIVE, WORKLOAD_BUDGET};

/// How often a request is signed again because its grant changed meanwhile. A role changes at most a few times a second, and
/// each round takes milliseconds.
const MAX_TRIES: u32 = 8;

/// Time to retry after a transient refusal. Role changes wait for certificates, so seconds matter here.
pub(crate) const RETRY_AFTER: std::time::Duration = std::time::Duration::from_millis(300);

/// Decides which certificates are signed.
#[derive(Clone, Debug)]
pub struct CertAuthority {
    config: Config,
    /// The newest applied state that this actor has seen.
    tables: Tables,
    pending: BTreeMap<AskId, Pending>,
    /// The request that waits for a proposal or signature.
    steps: BTreeMap<StepId, AskId>,
    last_step: StepId,
    wake: Option<Moment>,
    clock: ClockCheck,
    early: EarlyRenewals,
    workloads: LiveWorkloads,
    /// Both times of the current step.
    now: (Moment, WallTime),
    issued: u64,
    refused: u64,
}

impl CertAuthority {
    /// An authority without requests or state.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            tables: Tables::default(),
            pending: BTreeMap::new(),
            steps: BTreeMap::new(),
            last_step: StepId(0),
            wake: None,
            clock: ClockCheck::default(),
            early: EarlyRenewals::default(),
            workloads: LiveWorkloads::default(),
            now: (Moment(0), WallTime(0)),
            issued: 0,
            refused: 0,
        }
    }
    /// The applied state on which it decides.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }
    /// Requests in progress.
    pub fn pending(&self) -> impl Iterator<Item = &Pending> {
        self.pending.values()
    }
    /// Certificates handed out and requests refused since it started.
    pub fn counts(&self) -> (u64, u64) {
        (self.issued, self.refused)
    }

    /// Handles one input.
    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input, out: &mut Vec<Effect>) {
        self.now = (now, wall);
        match input {
            Input::Clocks(ahead_ms) => out.extend(self.clock.compare(now, wall, ahead_ms).map(Effect::ClockNews)),
            Input::Replica(tables) => self.learn(tables, wall, out),
            Input::Asked(ask, cert_request) => self.take(now, wall, ask, cert_request, out),
            Input::Signed(step, result) => self.signed(step, result, wall, out),
            Input::SignedWorkload(step, result) => self.signed_workload(step, result, wall, out),
            Input::Proposed(step, result) => self.proposed(step, result, wall, out),
            Input::Confirmed(step, result) => self.confirmed(step, result, wall, out),
            Input::Woke => self.expire(now, out),
        }
        self.set_alarm(out);
    }

    fn learn(&mut self, tables: Tables, wall: WallTime, out: &mut Vec<Effect>) {
        if tables.revision <= self.tables.revision {
            return;
        }
        self.tables = tables;
        let ready: Vec<AskId> = (self.pending.iter())
            .filter(|(_, p)| matches!(p.phase, Phase::CatchingUp(until) if until <= self.tables.revision))
            .map(|(ask, _)| *ask)
            .collect();
        for ask in ready {
            self.advance(ask, wall, out);
        }
    }

    fn take(
        &mut self,
        now: Moment,
        wall: WallTime,
        ask: AskId,
        cert_request: CertificateRequest,
        out: &mut Vec<Effect>,
    ) {
        if self.is_full(&cert_request) {
            let busy = ErrorBody::new(ErrorCode::TooManyRequests, "too many certificates are being signed; retry");
            out.push(Effect::Answer(ask, Err(busy.retry_after(RETRY_AFTER))));
            self.refused += 1;
            return;
        }
        self.cancel_older(&cert_request, out);
        if let Err(early) = self.check_early_renewals(&cert_request, now, wall) {
            out.push(Effect::Answer(ask, Err(early)));
            self.refused += 1;
            return;
        }
        let pending = Pending {
            cert_request,
            phase: Phase::CatchingUp(self.tables.revision),
            since: wall,
            until: now + self.config.deadline,
            tries: 0,
            admitted: false,
        };
        self.pending.insert(ask, pending);
        self.advance(ask, wall, out);
    }

    /// Neither joins nor workloads crowd out the renewals of nodes: a workload's certificate waits for a read, seconds long without a quorum.
    fn is_full(&self, cert_request: &CertificateRequest) -> bool {
        let alike = |of: fn(&CertificateRequest) -> bool| self.pending.values().filter(|p| of(&p.cert_request)).count();
        self.pending.len() >= self.config.max_pending
            || cert_request.is_join() && alike(CertificateRequest::is_join) >= self.config.max_joins
            || cert_request.is_workload() && alike(CertificateRequest::is_workload) >= self.config.max_workloads
    }

    /// CERT-10.
    fn check_early_renewals(
        &mut self,
        cert_request: &CertificateRequest,
        now: Moment,
        wall: WallTime,
    ) -> Result<(), ErrorBody> {
        let Some((node, _)) = cert_request.presented().and_then(CertIdentity::node) else { return Ok(()) };
        let Some(record) = self.tables.nodes.get(&node) else { return Ok(()) };
        if early::is_due(record, self.config.node_lifetime, wall) {
            return Ok(());
        }
        self.early.take(node, now).map_err(|wait| {
            let text = format!(
                "node {node} was issued many certificates that it does not need and holds a valid one; retry later"
            );
            ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(wait)
        })
    }

    /// CERT-7: a node's new request cancels its older ones. An older certificate, if recorded after this answer, would push out the one
    /// that the node uses then. (Those of a repeated join are all for one key.)
    fn cancel_older(&mut self, cert_request: &CertificateRequest, out: &mut Vec<Effect>) {
        let Some(node) = cert_request.presented().and_then(CertIdentity::node).map(|(node, _)| node) else { return };
        let of_node = |p: &Pending| p.cert_request.node() == Some(node) && p.cert_request.presented().is_some();
        let older: Vec<AskId> = self.pending.iter().filter(|(_, p)| of_node(p)).map(|(ask, _)| *ask).collect();
        for ask in older {
            let text = format!("node {node} has made a newer certificate request; this one is cancelled");
            self.answer(ask, Err(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(RETRY_AFTER)), out);
        }
    }

    /// Starts the next phase of a request from the current replica. The only place that does.
    fn advance(&mut self, ask: AskId, wall: WallTime, out: &mut Vec<Effect>) {
        if let Err(refusal) = self.may_sign(out) {
            return self.answer(ask, Err(refusal), out);
        }
        let Some(pending) = self.pending.get(&ask) else {
            return;
        };
        let started = match (&pending.cert_request, pending.admitted) {
            (CertificateRequest::Node(cert_request), _) => self.sign_member(ask, &cert_request.clone(), wall, out),
            (CertificateRequest::Join(cert_request), false) => self.admit(ask, &cert_request.clone(), wall, out),
            (CertificateRequest::Join(cert_request), true) => {
                let ips = cert_request.observed.map(|o| o.ip());
                self.sign_node(ask, cert_request.node, ips.into_iter().collect(), &cert_request.key.clone(), wall, out)
            }
            (CertificateRequest::User(cert_request), _) => self.sign_user(ask, &cert_request.clone(), wall, out),
            (CertificateRequest::Workload(cert_request), _) => {
                self.sign_workload(ask, &cert_request.clone(), wall, out)
            }
        };
        if let Err(refusal) = started {
            self.answer(ask, Err(refusal), out);
        }
    }

    /// CERT-9.
    fn may_sign(&mut self, out: &mut Vec<Effect>) -> Result<(), ErrorBody> {
        let (now, wall) = self.now;
        if self.clock.was_set(now, wall) && !std::mem::replace(&mut self.clock.asked, true) {
            out.push(Effect::CompareClocks);
        }
        self.clock.may_sign(now, wall)
    }

    /// Why nothing is signed, if this manager's clock was the reason at the last comparison.
    pub fn clock_trouble(&self) -> Option<&str> {
        self.clock.trouble()
    }

    fn sign_member(
        &mut self,
        ask: AskId,
        cert_request: &NodeRequest,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) -> Result<(), ErrorBody> {
        let (node, _) = (cert_request.identity.node()).ok_or_else(|| ErrorBody::forbidden("only nodes renew here"))?;
        if cert_request.identity.cluster != self.cluster()?.id {
            return Err(ErrorBody::forbidden("the certificate is of another cluster"));
        }
        self.check_valid(node, &cert_request.identity)?;
        let ips = cert_request.observed.map(|o| o.ip()).into_iter().collect();
        self.sign_node(ask, node, ips, &cert_request.key, wall, out)
    }

    /// CERT-1: the role and the revision of its grant come only from the applied state.
    fn sign_node(
        &mut self,
        ask: AskId,
        node: NodeId,
        ips: Vec<std::net::IpAddr>,
        key: &CsrKey,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) -> Result<(), ErrorBody> {
        let cluster = self.cluster()?;
        let record = self.member(node)?;
        let profile = NodeProfile {
            cluster: cluster.id,
            node,
            role: signed_role(record),
            granted: Some(record.granted),
            incarnation: cluster.incarnation,
            ips,
            lifetime: self.config.node_lifetime,
            now: wall,
        };
        let (grant, seen) = (Some((record.role, record.granted)), self.tables.revision);
        let step = self.next_step(ask);
        self.enter(ask, Phase::Signing { step, seen, grant });
        let (profile, key) = (Profile::Node(profile), key.clone());
        out.push(Effect::Sign { step, profile, key });
        Ok(())
    }

    fn signed(&mut self, step: StepId, result: Result<Signed, SignError>, wall: WallTime, out: &mut Vec<Effect>) {
        let Some(ask) = self.steps.remove(&step) else {
            return;
        };
        let Some(pending) = self.pending.get(&ask) else {
            return;
        };
        let signed = match result {
            Ok(signed) => signed,
            Err(why) => return self.cannot_sign(ask, &why, wall, out),
        };
        let Phase::Signing { seen, grant, .. } = pending.phase else {
            return;
        };
        match (&pending.cert_request, grant) {
            (CertificateRequest::User(cert_request), _) => {
                self.record_user(ask, &cert_request.clone(), signed, wall, out)
            }
            (_, Some(grant)) => self.record_node(ask, seen, grant, signed, wall, out),
            // Those for workloads have an input of their own.
            (request, None) => debug_assert!(false, "a request without a grant: {}", request.kind()),
        }
    }

    /// CERT-2: the certificate is handed out once this is applied, and not at all if the grant has changed.
    fn record_node(
        &mut self,
        ask: AskId,
        seen: Revision,
        (role, granted): (Role, Revision),
        signed: Signed,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) {
        let Some(node) = self.pending.get(&ask).and_then(|p| p.cert_request.node()) else {
            return;
        };
        let change = match self.recording(ask, node, (role, granted), &signed) {
            Ok(change) => change,
            Err(refusal) => return self.answer(ask, Err(refusal), out),
        };
        let command = Command::idempotent(wall, Principal::Node(node), "certificate signed")
            .guard(Guard::NotBlocked(node))
            .guard(Guard::NodeExists(node))
            .guard(Guard::Granted { node, granted })
            .change(change);
        let step = self.next_step(ask);
        self.enter(ask, Phase::Recording { step, seen, signed });
        out.push(Effect::Propose { step, command });
    }

    /// CERT-7: the certificate that the node presented with its request stays valid beside the new one. It may have stopped counting
    /// while this one was signed.
    fn recording(
        &self,
        ask: AskId,
        node: NodeId,
        (role, granted): (Role, Revision),
        signed: &Signed,
    ) -> Result<Change, ErrorBody> {
        let (serial, not_after, granted) = (signed.serial.clone(), signed.not_after, Some(granted));
        if !self.tables.records_identities() && !crate::injected(BugInjection::IgnoreLevel) {
            let state = CertificateState::Issued;
            let certificate = CertificateRecord { role, serial, granted, not_after, state };
            return Ok(Change::RecordCertificate { node, certificate });
        }
        let presented = self.pending.get(&ask).and_then(|p| p.cert_request.presented());
        if let Some(presented) = presented {
            self.check_valid(node, presented)?;
        }
        let row = self.tables.certificates.get(&node);
        let held = presented.and_then(|presented| {
            let recorded =
                row.and_then(|row| row.find(presented)).filter(|recorded| recorded.serial == presented.serial);
            // Recorded below feature level 3, it has no pin yet.
            let pinned = recorded.map(|old| IssuedCertificate { pin: old.pin.or(presented.pin), ..old.clone() });
            pinned.or_else(|| held(presented, signed.issuer)).map(Box::new)
        });
        let replaces = row.and_then(|row| Some(row.current.as_ref()?.serial.clone()));
        let (pin, issuer) = (Some(signed.pin), Some(signed.issuer));
        let certificate = Box::new(IssuedCertificate { serial, role, granted, not_after, pin, issuer });
        Ok(Change::IssueCertificate { node, certificate, held, replaces })
    }

    fn proposed(
        &mut self,
        step: StepId,
        result: Result<Revision, ProposeError>,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) {
        let Some(ask) = self.steps.remove(&step) else {
            return;
        };
        let Some(pending) = self.pending.get(&ask) else {
            return;
        };
        match (&pending.phase, result) {
            (Phase::Admitting { .. }, Ok(revision)) => self.admitted(ask, revision, wall, out),
            (Phase::Admitting { seen, .. }, Err(ProposeError::Refused(why))) => {
                let seen = *seen;
                self.admission_refused(ask, seen, why, wall, out);
            }
            (Phase::Recording { signed, .. }, Ok(_)) => {
                let answer = self.complete(&pending.cert_request, signed.clone());
                self.answer(ask, answer, out);
            }
            (Phase::Recording { seen, .. }, Err(ProposeError::Refused(why))) => {
                let seen = *seen;
                self.recording_refused(ask, seen, why, wall, out);
            }
            (_, Err(failed)) => self.answer(ask, Err(failed.into()), out),
            (_, Ok(_)) => {}
        }
    }

    fn recording_refused(
        &mut self,
        ask: AskId,
        seen: Revision,
        why: CommandRefusal,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) {
        match why {
            CommandRefusal::Stale { .. } => self.retry(ask, seen, wall, out),
            CommandRefusal::NotFound { .. } => {
                let node = self.pending.get(&ask).and_then(|p| p.cert_request.node());
                let refusal = node.map_or_else(|| why.into(), removed);
                self.answer(ask, Err(refusal), out);
            }
            _ => self.answer(ask, Err(why.into()), out),
        }
    }

    /// An assumption no longer holds: decides anew, on a replica newer than the one it was based on.
    fn retry(&mut self, ask: AskId, seen: Revision, wall: WallTime, out: &mut Vec<Effect>) {
        let Some(pending) = self.pending.get_mut(&ask) else {
            return;
        };
        pending.tries += 1;
        if pending.tries >= MAX_TRIES {
            let changing = ErrorBody::new(ErrorCode::Conflict, "the state to be certified kept changing; retry");
            self.answer(ask, Err(changing.retry_after(RETRY_AFTER)), out);
        } else {
            self.catch_up(ask, seen.next(), wall, out);
        }
    }

    fn catch_up(&mut self, ask: AskId, until: Revision, wall: WallTime, out: &mut Vec<Effect>) {
        if until <= self.tables.revision {
            self.advance(ask, wall, out);
        } else {
            self.enter(ask, Phase::CatchingUp(until));
            out.push(Effect::CatchUp(until));
        }
    }

    fn complete(&self, cert_request: &CertificateRequest, signed: Signed) -> Result<Answer, ErrorBody> {
        // Another root may have been activated since it was recorded.
        let issuer = self.tables.authorities.roots.get(&signed.issuer).map(|root| &root.cert_pem);
        let root_pem = issuer.unwrap_or(&self.cluster()?.root_cert_pem).clone();
        let cert_pem = self.chained(&signed.cert_pem);
        Ok(match cert_request {
            CertificateRequest::Node(_) => Answer::Signed(SignReply { cert_pem, root_pem }),
            CertificateRequest::Join(cert_request) => Answer::Joined(JoinReply::Joined {
                node: cert_request.node,
                cert_pem,
                root_pem,
                managers: self.managers(cert_request.node),
            }),
            CertificateRequest::User(_) => Answer::User(users::certificate(signed, self.tables.bundle_pem())),
            CertificateRequest::Workload(_) => {
                Answer::Workload(SignedWorkload { text: cert_pem, not_after: signed.not_after })
            }
        })
    }

    /// For those that were away, and know only an earlier root, and for clients that trust an authority above.
    fn chained(&self, cert_pem: &str) -> String {
        std::iter::once(cert_pem).chain(self.tables.authorities.chain()).collect()
    }

    /// Raft members first: managers dial each other at their addresses.
    fn managers(&self, except: NodeId) -> Vec<String> {
        let members = self.tables.members.values().map(|m| (m.node, &m.addr));
        let others = self.tables.managers().map(|n| (n.id, &n.addr));
        let mut addresses: Vec<String> = Vec::new();
        for (node, addr) in members.chain(others) {
            if node != except && !addresses.contains(addr) {
                addresses.push(addr.clone());
            }
        }
        addresses
    }

    /// Records the failure in the node's record, unless it is there already: a broken root would otherwise fill the log.
    fn cannot_sign(&mut self, ask: AskId, why: &SignError, wall: WallTime, out: &mut Vec<Effect>) {
        let node = self.pending.get(&ask).and_then(|p| p.cert_request.node());
        let known = node.and_then(|n| self.tables.nodes.get(&n)?.certificate.as_ref());
        if let (Some(node), Some(known)) = (node, known)
            && known.state != CertificateState::Failed
        {
            let step = self.next_step(ask);
            self.steps.remove(&step); // no request waits for it
            let command = Command::idempotent(wall, Principal::Node(node), "signing failed")
                .change(Change::CertificateFailed(node));
            out.push(Effect::Propose { step, command });
        }
        let code = match why {
            SignError::Lifetime { .. } => ErrorCode::Invalid,
            _ => ErrorCode::Internal,
        };
        self.answer(ask, Err(ErrorBody::new(code, why.to_string())), out);
    }

    fn expire(&mut self, now: Moment, out: &mut Vec<Effect>) {
        self.wake = None;
        let late: Vec<AskId> = (self.pending.iter()).filter(|(_, p)| p.until <= now).map(|(ask, _)| *ask).collect();
        for ask in late {
            let phase = self.pending.get(&ask).map_or("", |p| p.phase.word());
            let text = format!("certificate request timed out in phase {phase}");
            self.answer(ask, Err(ErrorBody::new(ErrorCode::TimedOut, text)), out);
        }
    }

    fn answer(&mut self, ask: AskId, answer: Result<Answer, ErrorBody>, out: &mut Vec<Effect>) {
        if let Some(pending) = self.pending.remove(&ask) {
            if let Some(step) = pending.phase.awaited_step() {
                self.steps.remove(&step);
            }
            let count = if answer.is_ok() { &mut self.issued } else { &mut self.refused };
            *count += 1;
            out.push(Effect::Answer(ask, answer));
        }
    }

    fn set_alarm(&mut self, out: &mut Vec<Effect>) {
        let next = self.pending.values().map(|p| p.until).min();
        if self.wake.is_none() && next.is_some() {
            self.wake = next;
            out.extend(next.map(Effect::WakeAt));
        }
    }

    fn enter(&mut self, ask: AskId, phase: Phase) {
        if let Some(pending) = self.pending.get_mut(&ask) {
            pending.phase = phase;
        }
    }

    fn next_step(&mut self, ask: AskId) -> StepId {
        self.last_step = StepId(self.last_step.0 + 1);
        self.steps.insert(self.last_step, ask);
        self.last_step
    }

    fn cluster(&self) -> Result<&ClusterRecord, ErrorBody> {
        self.tables.cluster.as_deref().ok_or_else(|| {
            ErrorBody::new(ErrorCode::NotKnownHereYet, "this manager has not read the cluster's root yet; retry")
                .retry_after(RETRY_AFTER)
        })
    }

    /// CERT-3. A node that is no longer in the list was removed.
    fn member(&self, node: NodeId) -> Result<&NodeRecord, ErrorBody> {
        self.not_blocked(node)?;
        (self.tables.nodes.get(&node).map(|n| &**n)).ok_or_else(|| removed(node))
    }

    /// CERT-6. A leader has applied every certificate that was handed out.
    fn check_valid(&self, node: NodeId, presented: &CertIdentity) -> Result<(), ErrorBody> {
        self.member(node)?;
        if self.tables.certificate_counts(node, presented) || crate::injected(BugInjection::RenewSuperseded) {
            return Ok(());
        }
        let text = format!(
            "this certificate of node {node} is no longer valid: the cluster has issued newer ones or revoked it. Use the key \
             of the newest one, or remove the node and join again from an empty directory"
        );
        Err(ErrorBody::new(ErrorCode::Unauthenticated, text))
    }

    fn not_blocked(&self, node: NodeId) -> Result<(), ErrorBody> {
        match self.tables.blocklist.get(&node) {
            None => Ok(()),
            Some(block) => Err(CommandRefusal::Blocked { node, until: block.expires_at }.into()),
        }
    }
}

/// A certificate without a row: signed by a manager for itself, or from before the rows were complete.
fn held(presented: &CertIdentity, issuer: RootId) -> Option<IssuedCertificate> {
    let (_, role) = presented.node()?;
    Some(IssuedCertificate {
        serial: presented.serial.clone(),
        role,
        granted: presented.granted,
        not_after: presented.not_after,
        pin: presented.pin,
        issuer: Some(issuer),
    })
}

fn signed_role(record: &NodeRecord) -> Role {
    if crate::injected(BugInjection::SignDesiredRole) { record.desired_role } else { record.role }
}

fn removed(node: NodeId) -> ErrorBody {
    ErrorBody::new(ErrorCode::Removed, format!("node {node} is no longer part of this cluster"))
}
