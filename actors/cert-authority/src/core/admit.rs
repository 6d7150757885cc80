//! Admission of new nodes: tokens, retries, names.

use std::collections::BTreeSet;

use muster_messages::{
    CertIdentity, Change, Command, CommandRefusal, ErrorBody, ErrorCode, Guard, Name, NodeId, NodeRecord, Principal,
    RequestId, Revision, Token, WallTime,
};
use muster_pki::secrets_equal;

use super::names::unique;
use super::pending::Phase;
use super::values::{AskId, Effect, VerifiedJoin, request_id};
use super::{CertAuthority, removed};

/// How many refused tries of one join are remembered separately (each lost a race for a name or a token).
const MAX_ADMISSION_ROUNDS: u32 = 64;

/// What the outcomes in the replica show about a join.
enum History {
    /// The node was admitted.
    Admitted,
    /// Not yet admitted; this id is free for the next try.
    Free(RequestId),
    Exhausted,
}

impl CertAuthority {
    /// Proposes the entry that admits a new node, or finds that it is already admitted.
    pub(super) fn admit(
        &mut self,
        ask: AskId,
        cert_request: &VerifiedJoin,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) -> Result<(), ErrorBody> {
        self.cluster()?;
        self.not_blocked(cert_request.node)?;
        let tried = self.pending.get(&ask).map_or(0, |p| p.tries);
        let history = self.history(cert_request, tried);
        let token = match (self.token(cert_request), &history) {
            (Ok(token), _) => token.clone(),
            // Its token was valid when it was admitted; only the holder of the same key can repeat the request.
            (Err(_), History::Admitted) if cert_request.rekey.is_none() => {
                self.mark_admitted(ask);
                self.advance(ask, wall, out);
                return Ok(());
            }
            (Err(bad_token), _) => return Err(bad_token),
        };
        if let Some(proven) = &cert_request.rekey {
            self.check_rekey(cert_request.node, proven, &token, wall)?;
        }
        let request = match history {
            History::Admitted => {
                self.mark_admitted(ask);
                self.advance(ask, wall, out);
                return Ok(());
            }
            History::Free(request) => request,
            History::Exhausted => return Err(id_taken(cert_request)),
        };
        usable(&token, wall)?;
        let known = self.tables.nodes.contains_key(&cert_request.node);
        let (command, name) = match (cert_request.rekey.is_some(), known) {
            (true, true) => (rekeying(cert_request, &token, wall), None),
            (true, false) => return Err(removed(cert_request.node)),
            (false, true) => return Err(id_taken(cert_request)),
            (false, false) => {
                self.check_node_limit()?;
                let name = self.free_name(cert_request);
                (creation(cert_request, name.clone(), &token, wall), Some(name))
            }
        };
        let step = self.next_step(ask);
        let seen = self.tables.revision;
        self.enter(ask, Phase::Admitting { step, seen, name });
        let command = command.with_request(request);
        out.push(Effect::Propose { step, command });
        Ok(())
    }

    /// CERT-8. The key of an old certificate is worth no more than a token of the same role, and only for a limited time.
    fn check_rekey(&self, node: NodeId, proven: &CertIdentity, token: &Token, wall: WallTime) -> Result<(), ErrorBody> {
        let record = self.member(node)?;
        if record.role != token.role {
            let (role, wrong) = (record.role, token.role);
            let text = format!("node {node} is a {role}: re-keying it needs a token for a {role}, not for a {wrong}");
            return Err(ErrorBody::new(ErrorCode::BadToken, text));
        }
        self.check_valid(node, proven)?;
        self.check_root(node, proven)?;
        let (expired, within) = (proven.not_after, self.config.rekey_within);
        if expired.plus(within) <= wall {
            let text = format!(
                "the old certificate of node {node} expired at {expired}, more than {} days ago: raise `[certificates] rekey_within` \
                 on the managers, or remove the node and join again as a new one from an empty directory",
                within.as_secs() / (24 * 3600)
            );
            return Err(ErrorBody::new(ErrorCode::Unauthenticated, text));
        }
        Ok(())
    }

    /// ADMIT-9, for a key that comes with a token: others may have the key of a root that no longer signs, and a row that may lack
    /// certificates lacks none of such a root.
    fn check_root(&self, node: NodeId, proven: &CertIdentity) -> Result<(), ErrorBody> {
        let root = proven.issuer.and_then(|issuer| self.tables.authorities.roots.get(&issuer));
        if root.is_none_or(|root| root.is_credible()) {
            return Ok(());
        }
        let recorded = self.tables.certificates.get(&node).and_then(|row| row.find(proven));
        if recorded.is_some_and(|recorded| recorded.pin.is_some()) {
            return Ok(());
        }
        let text = format!(
            "the root of the old certificate of node {node} no longer signs, and the certificate's digest is not on record: remove \
             the node, and join again as a new one from an empty directory"
        );
        Err(ErrorBody::new(ErrorCode::Unauthenticated, text))
    }

    pub(super) fn admitted(&mut self, ask: AskId, revision: Revision, wall: WallTime, out: &mut Vec<Effect>) {
        self.mark_admitted(ask);
        self.catch_up(ask, revision, wall, out);
    }

    /// Another change came first: to the name, to the id, or to the last use of the token.
    pub(super) fn admission_refused(
        &mut self,
        ask: AskId,
        seen: Revision,
        why: CommandRefusal,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) {
        let gone = |what: &str| matches!(&why, CommandRefusal::NotFound { what: w, .. } if w == what);
        if gone("token") {
            self.answer(ask, Err(bad_token()), out);
        } else if gone("node")
            || matches!(
                why,
                CommandRefusal::NameTaken { .. } | CommandRefusal::Stale { .. } | CommandRefusal::Exists { .. }
            )
        {
            self.retry(ask, seen, wall, out);
        } else {
            self.answer(ask, Err(why.into()), out);
        }
    }

    /// Every token is compared, each in constant time, so that the duration reveals neither their number nor matching digits.
    fn token(&self, cert_request: &VerifiedJoin) -> Result<&Token, ErrorBody> {
        let mut found = None;
        for token in self.tables.tokens.values() {
            if secrets_equal(&token.secret, &cert_request.secret) {
                found = Some(token);
            }
        }
        found.ok_or_else(bad_token)
    }

    /// Nodes being admitted count.
    fn check_node_limit(&self) -> Result<(), ErrorBody> {
        let coming =
            self.pending.values().filter(|p| matches!(p.phase, Phase::Admitting { name: Some(_), .. })).count();
        if self.tables.nodes.len() + coming < self.config.max_nodes {
            return Ok(());
        }
        Err(ErrorBody::forbidden(format!(
            "the cluster has reached its maximum of {} nodes: remove nodes that are gone (`muster node rm`), or raise \
             `[certificates] max_nodes` on every manager",
            self.config.max_nodes
        )))
    }

    /// CERT-4: a repeated join is recognised by the outcomes that every member remembers.
    /// `tried`: the number of refused tries whose outcomes the replica may not show yet.
    fn history(&self, cert_request: &VerifiedJoin, tried: u32) -> History {
        for round in 0..MAX_ADMISSION_ROUNDS {
            let request = round_of(cert_request, round);
            match self.tables.outcome_of(&Principal::Cluster, request) {
                Some(outcome) if outcome.refused.is_none() => return History::Admitted,
                None if round >= tried => return History::Free(request),
                _ => {}
            }
        }
        History::Exhausted
    }

    /// Nodes on one machine often request the same name at the same time: names being written count as taken, and so do prefixes of
    /// other nodes' ids, which a person would mean by them.
    fn free_name(&self, cert_request: &VerifiedJoin) -> Name {
        let wanted = &cert_request.name;
        let proposed = self.pending.values().filter_map(|p| match &p.phase {
            Phase::Admitting { name, .. } if p.cert_request.node() != Some(cert_request.node) => name.as_ref(),
            _ => None,
        });
        let proposed: BTreeSet<&Name> = proposed.collect();
        let is_taken = |n: &Name| proposed.contains(n) || self.tables.mistaken_for(n, None).is_some();
        if !is_taken(wanted) {
            return wanted.clone();
        }
        // Thousands of machines made from one image have one host name: a scan of all nodes for each number would take seconds.
        let written: BTreeSet<&Name> = self.tables.nodes.values().map(|n| &n.name).collect();
        unique(wanted, |n| written.contains(n) || is_taken(n))
    }

    fn mark_admitted(&mut self, ask: AskId) {
        if let Some(pending) = self.pending.get_mut(&ask) {
            pending.admitted = true;
        }
    }
}

/// CERT-5: the id of a try depends on the key too, so that only its holder can repeat the request.
fn round_of(cert_request: &VerifiedJoin, round: u32) -> RequestId {
    request_id(&[
        b"muster-join/1",
        &cert_request.request.0.to_be_bytes(),
        cert_request.node.as_str().as_bytes(),
        cert_request.key.spki(),
        &round.to_be_bytes(),
    ])
}

fn creation(cert_request: &VerifiedJoin, name: Name, token: &Token, wall: WallTime) -> Command {
    let record = NodeRecord {
        addr: cert_request.addr.clone(),
        release: cert_request.release.clone(),
        labels: cert_request.labels.clone(),
        ..NodeRecord::new(cert_request.node, name, token.role, wall)
    };
    let reason = format!("joined with token {}", token.id);
    Command::idempotent(wall, Principal::Anonymous, reason)
        .guard(Guard::NotBlocked(cert_request.node))
        .guard(Guard::NodeAbsent(cert_request.node))
        .guard(Guard::TokenUsable(token.id.clone()))
        .change(Change::CreateNode(Box::new(record)))
        .change(Change::UseToken(token.id.clone()))
}

/// Only the use of the token is written: everything else about the node stays as recorded.
fn rekeying(cert_request: &VerifiedJoin, token: &Token, wall: WallTime) -> Command {
    let reason = format!("re-keyed with token {}", token.id);
    Command::idempotent(wall, Principal::Node(cert_request.node), reason)
        .guard(Guard::NotBlocked(cert_request.node))
        .guard(Guard::NodeExists(cert_request.node))
        .guard(Guard::TokenUsable(token.id.clone()))
        .change(Change::UseToken(token.id.clone()))
}

fn usable(token: &Token, wall: WallTime) -> Result<(), ErrorBody> {
    let id = token.id.clone();
    if let Some(at) = token.expires_at.filter(|at| *at <= wall) {
        return Err(CommandRefusal::TokenExpired { id, at }.into());
    }
    if token.uses_left == Some(0) {
        return Err(CommandRefusal::TokenUsedUp { id }.into());
    }
    Ok(())
}

fn bad_token() -> ErrorBody {
    ErrorBody::new(
        ErrorCode::BadToken,
        "the cluster does not know this join token; it may have been revoked or rotated",
    )
}

fn id_taken(cert_request: &VerifiedJoin) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::Conflict,
        format!("the node id {} is taken; join again with a new one", cert_request.node),
    )
}
