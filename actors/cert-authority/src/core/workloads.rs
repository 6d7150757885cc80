//! Certificates and JWTs of workloads. Nothing of them is written to the log: each node renews dozens of them every half hour.
//!
//! Owns        which workloads of which node hold certificates, and how many more certificates and JWTs each node may request, in the
//!             leader's memory: the next leader counts anew.
//! Invariants  SPIFFE-1  a certificate or a JWT is handed out only if its entry applies to the asking node, and allows JWTs, in an applied
//!                       state that was read linearizably after the signature. If the entry or the signing root changed meanwhile, it
//!                       is signed again.
//!             SPIFFE-7  a node has certificates for at most [`MAX_LIVE`] workloads from one leader, and gets at most as many at once and
//!                       one more each half second as [`WORKLOAD_BUDGET`] allows; and JWTs as [`JWT_BUDGET`] allows. What was withheld does
//!                       not count.
//! Why a read: no proposal shows that this manager still leads. One that was cut off or suspended would sign for nodes that were removed
//! long ago. The state that was read is judged, and not whether this manager leads: another leader's state is as good.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::SignedWorkload;
use muster_messages::{
    CertIdentity, ErrorBody, ErrorCode, Moment, NodeId, NodeRecord, Revision, Tables, WallTime, WorkloadEntry,
    WorkloadName,
};
use muster_pki::{JwtProfile, SignError, WorkloadProfile};

use super::CertAuthority;
use super::budget::{Budget, Used};
use super::pending::{CertificateRequest, Phase};
use super::values::{Answer, AskId, Effect, StepId, Wanted, WorkloadRequest, WorkloadSigned, WorkloadWork};

/// Workloads of one node that hold certificates: twice as many as a node holds at a time. A node evicts certificates that no program uses,
/// and they count until they expire.
pub const MAX_LIVE: usize = 400;
/// Certificates for one node at once: an agent that starts again requests all 200 of them, perhaps twice. One more each half second: more
/// than 200 workloads need that are renewed every 2.5 minutes.
pub const WORKLOAD_BUDGET: Budget = Budget { burst: 400, interval: Duration::from_millis(500) };
/// JWTs for one node, counted apart: a program that asks for many must not keep the node's certificates from being renewed.
pub const JWT_BUDGET: Budget = Budget { burst: 400, interval: Duration::from_millis(100) };

impl CertAuthority {
    pub(super) fn sign_workload(
        &mut self,
        ask: AskId,
        cert_request: &WorkloadRequest,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) -> Result<(), ErrorBody> {
        let (node, entry) = self.entitled(cert_request)?;
        self.workloads.may_take(node, (&entry.name, cert_request.wanted.is_jwt()), self.now)?;
        let cluster = self.cluster()?;
        let (workload, now) = (entry.name.clone(), wall);
        let work = match &cert_request.wanted {
            Wanted::Certificate(key) => {
                let profile = WorkloadProfile {
                    cluster: cluster.id,
                    workload,
                    dns: entry.dns.clone(),
                    incarnation: cluster.incarnation,
                    lifetime: entry.ttl,
                    now,
                };
                WorkloadWork::Certificate(profile, key.clone())
            }
            Wanted::Jwt(audience) => {
                WorkloadWork::Jwt(JwtProfile { cluster: cluster.id, workload, audience: audience.clone(), now })
            }
        };
        let seen = self.tables.revision;
        let step = self.next_step(ask);
        self.enter(ask, Phase::Signing { step, seen, grant: None });
        out.push(Effect::SignWorkload(step, work));
        Ok(())
    }

    /// SPIFFE-1.
    pub(super) fn signed_workload(
        &mut self,
        step: StepId,
        result: Result<WorkloadSigned, SignError>,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) {
        let Some(ask) = self.steps.remove(&step) else { return };
        let Some(Phase::Signing { seen, .. }) = self.pending.get(&ask).map(|pending| &pending.phase) else { return };
        let seen = *seen; // the state on which it was signed
        match result {
            Ok(signed) => {
                let step = self.next_step(ask);
                self.enter(ask, Phase::Confirming { step, seen, signed });
                out.push(Effect::Confirm(step));
            }
            Err(why) => self.cannot_sign(ask, &why, wall, out),
        }
    }

    pub(super) fn confirmed(
        &mut self,
        step: StepId,
        result: Result<Box<Tables>, ErrorBody>,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) {
        let Some(ask) = self.steps.remove(&step) else { return };
        match result {
            Ok(tables) => self.learn(*tables, wall, out),
            Err(error) => return self.answer(ask, Err(error), out),
        }
        let Some(pending) = self.pending.get(&ask) else { return };
        let Phase::Confirming { seen, signed, .. } = pending.phase.clone() else { return };
        match self.complete_workload(&pending.cert_request.clone(), seen, signed) {
            Ok(Some(answer)) => self.answer(ask, Ok(answer), out),
            Ok(None) => self.retry(ask, seen, wall, out),
            Err(refusal) => self.answer(ask, Err(refusal), out),
        }
    }

    /// `None`: it is not what would be signed now.
    fn complete_workload(
        &mut self,
        cert_request: &CertificateRequest,
        seen: Revision,
        signed: WorkloadSigned,
    ) -> Result<Option<Answer>, ErrorBody> {
        let CertificateRequest::Workload(of) = cert_request else { return Ok(None) };
        let (node, entry) = self.entitled(of)?;
        // SPIFFE-5: the former root is retired when the certificates that it signed before this change have ended.
        let other_root = self.tables.authorities.active().is_some_and(|(active, _)| active != signed.issuer());
        if entry.revision > seen || other_root {
            return Ok(None);
        }
        self.workloads.may_take(node, (&entry.name, of.wanted.is_jwt()), self.now)?; // others were confirmed meanwhile
        match signed {
            WorkloadSigned::Certificate(signed) => {
                self.workloads.take(node, &entry.name, signed.not_after, self.now);
                self.complete(cert_request, signed).map(Some)
            }
            WorkloadSigned::Jwt(signed) => {
                self.workloads.take_jwt(node, self.now);
                let (text, not_after) = (signed.token, signed.not_after);
                Ok(Some(Answer::Workload(SignedWorkload { text, not_after })))
            }
        }
    }

    /// The asking node, and the entry that applies to it.
    fn entitled(&self, cert_request: &WorkloadRequest) -> Result<(NodeId, Arc<WorkloadEntry>), ErrorBody> {
        let presented = &cert_request.identity;
        let (node, _) =
            presented.node().ok_or_else(|| ErrorBody::forbidden("only nodes may request workload certificates"))?;
        if presented.cluster != self.cluster()?.id {
            return Err(ErrorBody::forbidden("the certificate is of another cluster"));
        }
        self.check_valid(node, presented)?;
        let record = self.member(node)?;
        is_of_trusted_root(&self.tables, node, presented)?;
        let name = &cert_request.workload;
        let entry = self.tables.workloads.entries.get(name).ok_or_else(|| no_such(name))?;
        if entry.applies_to(labels(record)) || crate::injected(super::BugInjection::SignAnyWorkload) {
            if cert_request.wanted.is_jwt() && !entry.jwt {
                return Err(ErrorBody::forbidden(format!(
                    "workload {name} may not have JWTs: its entry was set without --jwt"
                )));
            }
            return Ok((node, entry.clone()));
        }
        Err(ErrorBody::forbidden(format!(
            "workload {name} does not apply to node {node}: the node does not have all of its labels"
        )))
    }

    /// The workloads of which a node holds a certificate from this leader, until then.
    pub fn holders(&self, workload: &WorkloadName, wall: WallTime) -> impl Iterator<Item = (NodeId, WallTime)> {
        self.workloads.holders(workload, wall)
    }
    /// Certificates and JWTs of workloads that this leader has handed out.
    pub fn workload_certificates(&self) -> u64 {
        self.workloads.signed
    }
}

/// Those that the operator gave: a node may report any label of its own.
fn labels(record: &NodeRecord) -> &BTreeMap<String, String> {
    &record.labels
}

/// A certificate of a root that was withdrawn is good for a renewal only.
fn is_of_trusted_root(tables: &Tables, node: NodeId, presented: &CertIdentity) -> Result<(), ErrorBody> {
    let roots = &tables.authorities.roots;
    let recorded = tables.certificates.get(&node).and_then(|row| row.find(presented));
    let issuer = recorded.and_then(|issued| tables.issuer_of(issued));
    if roots.is_empty() || issuer.and_then(|id| roots.get(&id)).is_some_and(|root| root.is_credible()) {
        return Ok(());
    }
    let text =
        format!("the root of this certificate of node {node} is not trusted any more: renew the certificate first");
    Err(ErrorBody::new(ErrorCode::Unauthenticated, text))
}

fn no_such(name: &WorkloadName) -> ErrorBody {
    ErrorBody::new(ErrorCode::NotFound, format!("no such workload: {name}; `muster workload ls` lists them"))
}

/// What one node holds, and may request.
#[derive(Clone, Debug, Default)]
struct OfNode {
    /// With the end of the newest certificate of each.
    live: BTreeMap<WorkloadName, WallTime>,
    used: Used,
    used_jwts: Used,
}

#[derive(Clone, Debug, Default)]
pub(super) struct LiveWorkloads {
    nodes: BTreeMap<NodeId, OfNode>,
    signed: u64,
    swept: Moment,
}

/// How often nodes that hold nothing any more are forgotten.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

impl LiveWorkloads {
    /// SPIFFE-7.
    fn may_take(
        &mut self,
        node: NodeId,
        (workload, is_jwt): (&WorkloadName, bool),
        (now, wall): (Moment, WallTime),
    ) -> Result<(), ErrorBody> {
        self.sweep(now, wall);
        let Some(of_node) = self.nodes.get_mut(&node) else { return Ok(()) };
        of_node.settle(now, wall);
        let (budget, what) = if is_jwt {
            (JWT_BUDGET.check(of_node.used_jwts, now), "JWTs")
        } else {
            (WORKLOAD_BUDGET.check(of_node.used, now), "certificates")
        };
        if let Err(wait) = budget {
            let text = format!("node {node} has requested too many {what} of workloads; retry later");
            return Err(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(wait));
        }
        let is_one_more = !is_jwt && !of_node.live.contains_key(workload);
        if of_node.live.len() >= MAX_LIVE && is_one_more {
            let text = format!("node {node} holds certificates for {MAX_LIVE} workloads already, which is the limit");
            return Err(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(SWEEP_INTERVAL));
        }
        Ok(())
    }

    fn take(&mut self, node: NodeId, workload: &WorkloadName, until: WallTime, (now, wall): (Moment, WallTime)) {
        let of_node = self.nodes.entry(node).or_default();
        of_node.settle(now, wall);
        of_node.used = WORKLOAD_BUDGET.one_more(of_node.used, now);
        of_node.live.insert(workload.clone(), until);
        self.signed += 1;
    }

    /// It expires soon, and so is not listed among what the node holds.
    fn take_jwt(&mut self, node: NodeId, (now, wall): (Moment, WallTime)) {
        let of_node = self.nodes.entry(node).or_default();
        of_node.settle(now, wall);
        of_node.used_jwts = JWT_BUDGET.one_more(of_node.used_jwts, now);
        self.signed += 1;
    }

    fn holders(&self, workload: &WorkloadName, wall: WallTime) -> impl Iterator<Item = (NodeId, WallTime)> {
        self.nodes.iter().filter_map(move |(node, of_node)| {
            let until = of_node.live.get(workload).copied().filter(|until| *until > wall);
            until.map(|until| (*node, until))
        })
    }

    fn sweep(&mut self, now: Moment, wall: WallTime) {
        if now < self.swept + SWEEP_INTERVAL {
            return;
        }
        self.swept = now;
        self.nodes.retain(|_, of_node| {
            of_node.settle(now, wall);
            !of_node.used.is_nothing() || !of_node.used_jwts.is_nothing() || !of_node.live.is_empty()
        });
    }
}

impl OfNode {
    fn settle(&mut self, now: Moment, wall: WallTime) {
        self.used = WORKLOAD_BUDGET.returned(self.used, now);
        self.used_jwts = JWT_BUDGET.returned(self.used_jwts, now);
        // Each request looks at all of them: there are at most `MAX_LIVE`.
        self.live.retain(|_, until| *until > wall);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: usize) -> WorkloadName {
        format!("a/w{n}").parse().unwrap()
    }

    #[test]
    fn workload_certificates_of_a_node_are_limited() {
        let mut live = LiveWorkloads::default();
        let (node, other) = (NodeId::from_entropy(1), NodeId::from_entropy(2));
        let (begin, wall) = (Moment(0) + Duration::from_secs(3600), WallTime(1_000_000));
        let until = wall.plus(Duration::from_secs(300));
        let take = |live: &mut LiveWorkloads, node, n: usize, now: (Moment, WallTime)| {
            live.may_take(node, (&name(n), false), now)?;
            live.take(node, &name(n), until, now);
            Ok::<(), ErrorBody>(())
        };
        let later = begin + WORKLOAD_BUDGET.interval * WORKLOAD_BUDGET.burst;
        for n in 0..MAX_LIVE {
            take(&mut live, node, n, (begin, wall)).unwrap();
        }
        let refusal = take(&mut live, node, MAX_LIVE, (later, wall)).unwrap_err();
        assert!(refusal.message.contains("which is the limit"), "one more workload: {}", refusal.message);
        let begin = later;
        for n in 0..WORKLOAD_BUDGET.burst as usize {
            take(&mut live, node, n, (begin, wall)).unwrap();
        }
        assert_eq!(live.holders(&name(7), wall).collect::<Vec<_>>(), [(node, until)]);
        let refusal = take(&mut live, node, 0, (begin, wall)).unwrap_err();
        assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::TooManyRequests, Some(500)));
        take(&mut live, other, 0, (begin, wall)).unwrap();
        take(&mut live, node, 0, (begin + WORKLOAD_BUDGET.interval, wall)).unwrap();
        assert!(take(&mut live, node, 0, (begin + WORKLOAD_BUDGET.interval, wall)).is_err());
        // JWTs are counted apart, and hold nothing.
        for _ in 0..JWT_BUDGET.burst {
            live.may_take(other, (&name(0), true), (begin, wall)).unwrap();
            live.take_jwt(other, (begin, wall));
        }
        assert_eq!(live.may_take(other, (&name(0), true), (begin, wall)).unwrap_err().retry_after_ms, Some(100));
        take(&mut live, other, 0, (begin, wall)).unwrap();
        // All have expired, and all are returned.
        let (later, end) = (begin + WORKLOAD_BUDGET.interval * 1000, until);
        assert_eq!(live.holders(&name(7), end).count(), 0);
        take(&mut live, node, MAX_LIVE, (later, end)).unwrap();
        live.sweep(later + SWEEP_INTERVAL * 2, end.plus(SWEEP_INTERVAL));
        assert_eq!((live.nodes.len(), live.signed), (0, 1204));
    }
}
