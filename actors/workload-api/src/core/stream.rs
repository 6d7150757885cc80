//! One open stream: what its client was sent last, and what it should be sent now.
//!
//! Owns        the facts about its process, the workloads that it is about, its last message.
//! Invariants  SPIFFE-8  each message is complete: a client that lost an identity, or whose certificate has expired, gets another message
//!                       or the end of its stream, and never an identity in place of its default.

use std::sync::Arc;

use muster_messages::{ClusterId, Moment, WallTime, WorkloadName};

use super::{
    Audience, Certificates, Facts, Matched, Needs, Roots, SignId, State, Svid, Token, TokenKey, TokenState, Tokens,
    View,
};

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Certificates with keys, and the roots.
    Svids,
    /// The roots alone.
    Roots,
    /// JWTs, once: the first message answers the call.
    Jwts(JwtRequest),
}

/// Which JWTs a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtRequest {
    /// Never empty.
    pub audience: Audience,
    /// Of this identity alone.
    pub spiffe_id: Option<String>,
}

impl JwtRequest {
    /// The tokens of a process' identities that may have some, and that it asked for.
    fn keys<'a>(&'a self, matched: &'a [Matched], view: &'a View) -> impl Iterator<Item = (&'a Matched, TokenKey)> {
        let may = move |of: &&Matched| view.entry(&of.name).is_some_and(|entry| entry.jwt);
        let asked =
            move |of: &&Matched| self.spiffe_id.as_ref().is_none_or(|id| *id == of.name.spiffe_id(view.cluster));
        let matched = matched.iter().filter(may).filter(asked);
        matched.map(move |matched| (matched, (matched.name.clone(), Arc::clone(&self.audience))))
    }
}

/// A message: all that a client may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub cluster: ClusterId,
    /// The first one is the default. Empty unless certificates were asked for.
    pub identities: Vec<Identity>,
    /// Empty unless JWTs were asked for.
    pub tokens: Vec<IssuedToken>,
    pub roots: Arc<Roots>,
}

/// The JWT of one identity of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedToken {
    pub name: WorkloadName,
    pub hint: Option<String>,
    pub token: Arc<Token>,
}

/// What this node holds, and when.
#[derive(Clone, Copy)]
pub(super) struct Holdings<'a> {
    pub now: Moment,
    pub wall: WallTime,
    pub certificates: &'a Certificates,
    pub tokens: &'a Tokens,
}

/// One identity of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub name: WorkloadName,
    pub hint: Option<String>,
    pub svid: Arc<Svid>,
}

/// Why a client gets nothing, or no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// Its process has no identity. It drops what it holds.
    PermissionDenied(String),
    /// Later, perhaps. It keeps what it holds.
    Unavailable(String),
}

/// Tells a message from another one without comparing certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint {
    identities: Vec<(Matched, SignId)>,
    roots_changed: u64,
}

#[derive(Debug)]
pub(super) enum Decision {
    /// The client holds what it should, or has to wait.
    Keep,
    Send(Answer, Fingerprint),
    End(Denial),
}

#[derive(Debug)]
pub(super) struct Stream {
    uid: u32,
    kind: Kind,
    facts: Option<Facts>,
    /// The facts that were looked for.
    needs: Needs,
    attesting: bool,
    /// Nothing was decided since its process was looked at.
    fresh: bool,
    matched: Vec<Matched>,
    sent: Option<Fingerprint>,
    /// The first message comes until then.
    answer_by: Moment,
    due: Option<Moment>,
}

impl Stream {
    pub(super) fn new(uid: u32, kind: Kind, answer_by: Moment) -> Self {
        Self {
            uid,
            kind,
            facts: None,
            needs: Needs::default(),
            attesting: false,
            fresh: false,
            matched: Vec::new(),
            sent: None,
            answer_by,
            due: None,
        }
    }

    pub(super) fn uid(&self) -> u32 {
        self.uid
    }
    pub(super) fn kind(&self) -> &Kind {
        &self.kind
    }
    /// The tokens that its client waits for.
    pub(super) fn wanted_tokens<'a>(&'a self, view: &'a View) -> impl Iterator<Item = TokenKey> + 'a {
        let request = match &self.kind {
            Kind::Jwts(request) if self.sent.is_none() => Some(request),
            _ => None,
        };
        request.into_iter().flat_map(move |request| request.keys(&self.matched, view)).map(|(_, key)| key)
    }
    pub(super) fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }
    pub(super) fn matched(&self) -> &[Matched] {
        &self.matched
    }
    pub(super) fn is_about(&self, name: &WorkloadName) -> bool {
        self.matched.iter().any(|matched| matched.name == *name)
    }
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }
    /// Whether the facts that entries name were looked for.
    pub(super) fn knows(&self, needs: &Needs) -> bool {
        self.needs.cover(needs)
    }
    /// When to decide again. While its process is looked at, not before that has ended.
    pub(super) fn wake_at(&self) -> Option<Moment> {
        self.due.filter(|_| !self.attesting)
    }

    pub(super) fn begin_attesting(&mut self, needs: Needs) {
        self.needs = needs;
        self.attesting = true;
    }
    pub(super) fn attested(&mut self, now: Moment, facts: Facts) {
        self.facts = Some(facts);
        self.attesting = false;
        self.fresh = true;
        self.due = Some(now);
    }
    /// Decide again then, or earlier if that was planned already.
    pub(super) fn touch(&mut self, at: Moment) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
    /// Whether they differ from those before.
    pub(super) fn set_matched(&mut self, matched: Vec<Matched>) -> bool {
        let is_change = self.matched != matched;
        self.matched = matched;
        is_change
    }
    pub(super) fn settled(&mut self) {
        self.fresh = false;
        self.due = self.sent.is_none().then_some(self.answer_by);
    }
    pub(super) fn sent(&mut self, fingerprint: Fingerprint) {
        self.sent = Some(fingerprint);
        self.settled();
    }

    pub(super) fn decide(&self, view: Option<&View>, roots_changed: u64, holdings: Holdings<'_>) -> Decision {
        let Holdings { now, certificates, .. } = holdings;
        let late = now >= self.answer_by;
        let unavailable = |why: &str| Decision::End(Denial::Unavailable(why.to_owned()));
        let Some(view) = view else {
            return if late {
                unavailable("this node has received no workloads from its cluster yet")
            } else {
                Decision::Keep
            };
        };
        if self.matched.is_empty() {
            return Decision::End(Denial::PermissionDenied("no identity issued".to_owned()));
        }
        if let Kind::Jwts(request) = &self.kind {
            return self.decide_tokens(request, view, holdings);
        }
        let mut identities = Vec::new();
        if self.kind == Kind::Svids {
            let wanted = self.matched.iter().map(|matched| (matched, certificates.state(now, &matched.name)));
            for (matched, state) in wanted {
                match state {
                    State::Held(svid, by) => identities.push((matched, svid, by)),
                    _ if self.was_sent(matched) => return unavailable("a certificate has expired"),
                    // An identity more, as soon as it is signed; until then the client holds what it held.
                    _ if self.sent.is_some() => {}
                    State::Pending if !late => return Decision::Keep,
                    State::Pending => return unavailable("a certificate was not signed in time"),
                    State::Failed(failure) if !failure.refused => return unavailable(&failure.why),
                    State::Failed(_) => {}
                }
            }
            match (identities.is_empty(), &self.sent) {
                (true, Some(_)) => return unavailable("the certificates of other identities are not signed yet"),
                (true, None) => {
                    let why = "the cluster issues no certificate for this node's workload";
                    return Decision::End(Denial::PermissionDenied(why.to_owned()));
                }
                (false, _) => {}
            }
        }
        let fingerprint = Fingerprint {
            identities: identities.iter().map(|(matched, _, by)| ((*matched).clone(), *by)).collect(),
            roots_changed,
        };
        if self.sent.as_ref() == Some(&fingerprint) {
            return Decision::Keep;
        }
        let identities = identities.into_iter().map(|(matched, svid, _)| Identity {
            name: matched.name.clone(),
            hint: matched.hint.clone(),
            svid,
        });
        let (identities, roots) = (identities.collect(), Arc::clone(&view.roots));
        Decision::Send(Answer { cluster: view.cluster, identities, tokens: Vec::new(), roots }, fingerprint)
    }

    fn decide_tokens(&self, request: &JwtRequest, view: &View, holdings: Holdings<'_>) -> Decision {
        let Holdings { now, wall, tokens, .. } = holdings;
        if self.sent.is_some() {
            return Decision::Keep;
        }
        let late = now >= self.answer_by;
        let unavailable = |why: &str| Decision::End(Denial::Unavailable(why.to_owned()));
        let mut held = Vec::new();
        for (matched, key) in request.keys(&self.matched, view) {
            match tokens.state((now, wall), &key, late) {
                TokenState::Held(token) => {
                    held.push(IssuedToken { name: matched.name.clone(), hint: matched.hint.clone(), token });
                }
                TokenState::Pending if !late => return Decision::Keep,
                TokenState::Pending => return unavailable("a JWT was not signed in time"),
                TokenState::Failed(failure) if !failure.refused => return unavailable(&failure.why),
                TokenState::Failed(_) => {}
            }
        }
        if held.is_empty() {
            let why = "no identity of this process that was asked for may have JWTs";
            return Decision::End(Denial::PermissionDenied(why.to_owned()));
        }
        let (identities, roots) = (Vec::new(), Arc::clone(&view.roots));
        // It is not compared: a call is answered once.
        let fingerprint = Fingerprint::default();
        Decision::Send(Answer { cluster: view.cluster, identities, tokens: held, roots }, fingerprint)
    }

    fn was_sent(&self, matched: &Matched) -> bool {
        let sent = self.sent.iter().flat_map(|sent| &sent.identities);
        sent.into_iter().any(|(earlier, _)| earlier.name == matched.name)
    }
}
