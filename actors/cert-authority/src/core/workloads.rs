//! Certificates of workloads. Nothing of them is written to the log: each node renews dozens of them every half hour.
//!
//! Owns        which workloads of which node hold certificates, and how many more each node may ask for, in the leader's memory: the
//!             next leader counts anew.
//! Invariants  SPIFFE-1  a certificate is signed only for an entry that applies to the asking node in this leader's applied state.
//!             SPIFFE-7  a node has certificates for at most [`MAX_LIVE`] workloads from one leader, and gets at most [`BURST`] at once and
//!                       one more each [`INTERVAL`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::SignedWorkload;
use muster_messages::{
    CertIdentity, ErrorBody, ErrorCode, Moment, NodeId, NodeRecord, RootId, Tables, WallTime, WorkloadEntry,
    WorkloadName,
};
use muster_pki::{Signed, WorkloadProfile};

use super::CertAuthority;
use super::pending::Phase;
use super::values::{Answer, AskId, Effect, WorkloadRequest};

/// Workloads of one node that hold certificates.
pub const MAX_LIVE: usize = 200;
/// Certificates for one node at once: an agent that starts again asks for all of them, perhaps twice.
pub const BURST: u32 = 400;
/// One more after this time: more than 200 workloads need that are renewed every 2.5 minutes.
pub const INTERVAL: Duration = Duration::from_millis(500);

impl CertAuthority {
    pub(super) fn sign_workload(
        &mut self,
        ask: AskId,
        cert_request: &WorkloadRequest,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) -> Result<(), ErrorBody> {
        let (node, entry) = self.entitled(cert_request)?;
        self.workloads.may_take(node, &entry.name, self.now)?;
        let cluster = self.cluster()?;
        let profile = WorkloadProfile {
            cluster: cluster.id,
            workload: entry.name.clone(),
            dns: entry.dns.clone(),
            incarnation: cluster.incarnation,
            lifetime: entry.ttl,
            now: wall,
        };
        let seen = self.tables.revision;
        let step = self.next_step(ask);
        self.enter(ask, Phase::Signing { step, seen, grant: None });
        out.push(Effect::SignWorkload { step, profile, key: cert_request.key.clone() });
        Ok(())
    }

    pub(super) fn complete_workload(
        &mut self,
        cert_request: &WorkloadRequest,
        signed: &Signed,
    ) -> Result<Answer, ErrorBody> {
        // The state may have changed while the certificate was signed.
        let (node, entry) = self.entitled(cert_request)?;
        self.workloads.take(node, &entry.name, signed.not_after, self.now);
        let chain_pem = self.chained(&signed.cert_pem);
        Ok(Answer::Workload(SignedWorkload { chain_pem, not_after: signed.not_after }))
    }

    /// SPIFFE-1. The asking node, and the entry that applies to it.
    fn entitled(&self, cert_request: &WorkloadRequest) -> Result<(NodeId, Arc<WorkloadEntry>), ErrorBody> {
        let presented = &cert_request.identity;
        let (node, _) = presented.node().ok_or_else(|| ErrorBody::forbidden("only nodes ask for workloads"))?;
        if presented.cluster != self.cluster()?.id {
            return Err(ErrorBody::forbidden("the certificate is of another cluster"));
        }
        self.check_valid(node, presented)?;
        let record = self.member(node)?;
        is_of_trusted_root(&self.tables, node, presented)?;
        let name = &cert_request.workload;
        let entry = self.tables.workloads.entries.get(name).ok_or_else(|| no_such(name))?;
        if entry.applies_to(labels(record)) || crate::injected(super::BugInjection::SignAnyWorkload) {
            return Ok((node, entry.clone()));
        }
        Err(ErrorBody::forbidden(format!("workload {name} does not apply to node {node}: it lacks one of its labels")))
    }

    /// The workloads of which a node holds a certificate from this leader, until then.
    pub fn holders(&self, workload: &WorkloadName, wall: WallTime) -> impl Iterator<Item = (NodeId, WallTime)> {
        self.workloads.holders(workload, wall)
    }
    /// Certificates of workloads that this leader has handed out.
    pub fn workload_certificates(&self) -> u64 {
        self.workloads.signed
    }
}

/// Those that the operator gave: a node may report any label about itself.
fn labels(record: &NodeRecord) -> &BTreeMap<String, String> {
    &record.labels
}

/// A certificate of a root that was withdrawn is good for a renewal only.
fn is_of_trusted_root(tables: &Tables, node: NodeId, presented: &CertIdentity) -> Result<(), ErrorBody> {
    let roots = &tables.authorities.roots;
    let recorded = tables.certificates.get(&node).and_then(|row| row.find(presented));
    let issuer = recorded.and_then(|issued| tables.issuer_of(issued));
    let is_trusted = |id: RootId| roots.get(&id).is_some_and(|root| root.state.trusted() && !root.is_disowned());
    if roots.is_empty() || issuer.is_some_and(is_trusted) {
        return Ok(());
    }
    let text =
        format!("the root of this certificate of node {node} is not trusted any more: renew the certificate first");
    Err(ErrorBody::new(ErrorCode::Unauthenticated, text))
}

fn no_such(name: &WorkloadName) -> ErrorBody {
    ErrorBody::new(ErrorCode::NotFound, format!("no such workload: {name}; `muster workload ls` lists them"))
}

/// What one node holds, and may ask for.
#[derive(Clone, Debug, Default)]
struct OfNode {
    /// With the end of the newest certificate of each.
    live: BTreeMap<WorkloadName, WallTime>,
    /// Used and not yet returned, counted from this moment on.
    used: u32,
    since: Moment,
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
        workload: &WorkloadName,
        (now, wall): (Moment, WallTime),
    ) -> Result<(), ErrorBody> {
        self.sweep(now, wall);
        let Some(of_node) = self.nodes.get_mut(&node) else { return Ok(()) };
        of_node.settle(now, wall);
        if of_node.used >= BURST {
            let text = format!("node {node} has asked for too many certificates of workloads; retry later");
            let wait = INTERVAL.saturating_sub(now.since(of_node.since));
            return Err(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(wait));
        }
        if of_node.live.len() >= MAX_LIVE && !of_node.live.contains_key(workload) {
            let text = format!("node {node} holds certificates for {MAX_LIVE} workloads already, which is the limit");
            return Err(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(SWEEP_INTERVAL));
        }
        Ok(())
    }

    fn take(&mut self, node: NodeId, workload: &WorkloadName, until: WallTime, (now, wall): (Moment, WallTime)) {
        let of_node = self.nodes.entry(node).or_insert_with(|| OfNode { since: now, ..OfNode::default() });
        of_node.settle(now, wall);
        of_node.used += 1;
        of_node.live.insert(workload.clone(), until);
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
            of_node.used > 0 || !of_node.live.is_empty()
        });
    }
}

impl OfNode {
    fn settle(&mut self, now: Moment, wall: WallTime) {
        let back = now.since(self.since).as_millis() / INTERVAL.as_millis();
        match u32::try_from(back).ok().filter(|back| *back < self.used) {
            Some(back) => (self.used, self.since) = (self.used - back, self.since + INTERVAL * back),
            None => (self.used, self.since) = (0, now),
        }
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
            live.may_take(node, &name(n), now)?;
            live.take(node, &name(n), until, now);
            Ok::<(), ErrorBody>(())
        };
        for n in 0..MAX_LIVE {
            take(&mut live, node, n, (begin, wall)).unwrap();
        }
        assert!(take(&mut live, node, MAX_LIVE, (begin, wall)).is_err(), "one more workload");
        assert_eq!(live.holders(&name(7), wall).collect::<Vec<_>>(), [(node, until)]);
        for n in 0..BURST as usize - MAX_LIVE {
            take(&mut live, node, n, (begin, wall)).unwrap();
        }
        let refusal = take(&mut live, node, 0, (begin, wall)).unwrap_err();
        assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::TooManyRequests, Some(500)));
        take(&mut live, other, 0, (begin, wall)).unwrap();
        take(&mut live, node, 0, (begin + INTERVAL, wall)).unwrap();
        assert!(take(&mut live, node, 0, (begin + INTERVAL, wall)).is_err());
        // All have expired, and all are returned.
        let (later, end) = (begin + INTERVAL * 1000, until);
        assert_eq!(live.holders(&name(7), end).count(), 0);
        take(&mut live, node, MAX_LIVE, (later, end)).unwrap();
        live.sweep(later + SWEEP_INTERVAL * 2, end.plus(SWEEP_INTERVAL));
        assert_eq!((live.nodes.len(), live.signed), (0, 403));
    }
}
