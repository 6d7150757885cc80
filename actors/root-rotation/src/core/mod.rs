//! The decisions of a root rotation, as plain values; signing itself is an effect.
//!
//! Owns        the steps in flight, the requests of operators and acknowledgements that wait for them, and the time of the next look.
//! Inputs      newer replicas; steps of operators; acknowledgements of nodes; results of signatures, proposals, reachability checks and of
//!             the question to the authority above ([`Input`]).
//! Outputs     signatures, proposals, checks and questions to begin; answers; when to wake it ([`Effect`]).
//! Invariants  those of the crate: ROOT-2, ROOT-3, ROOT-9, UP-1. It looks at no state from before what it has done.

mod above;
mod plan;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_messages::protocol::{ProposeError, RootsChange, RootsChanged};
use muster_messages::{
    AuthorityChange, AuthorityRefusal, AuthorityState, Change, Command, CommandRefusal, ErrorBody, ErrorCode, Guard,
    Member, Moment, NodeId, Principal, RaftId, RequestId, RetryPause, Revision, RootId, Tables, WallTime,
    request_digest,
};

use crate::Config;
use crate::bugs::{BugInjection, is_injected};

use self::above::Above;
use self::plan::{Awaited, Step};
pub use self::values::{Answer, AskId, Effect, Input, NotSigned, OperatorStep, Signing, StepId, UpstreamEnd};

/// Acknowledgements in one entry: a fleet of 10,000 takes 40.
const MAX_TRUSTED: usize = 256;
/// The pauses after a step of the leader's own failed. Most causes pass within seconds. One that does not is tried once
/// a minute: a rotation takes hours, and each failure is logged.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Whether two states are the same in what a rotation depends on, as far as that is known without a look inside.
pub fn is_same(a: &Tables, b: &Tables) -> bool {
    let no_rotation = a.authorities.roots.is_empty() && b.authorities.roots.is_empty();
    no_rotation && requested(a) == requested(b)
        || a.nodes.ptr_eq(&b.nodes)
            && a.certificates.ptr_eq(&b.certificates)
            && a.members.ptr_eq(&b.members)
            && a.authorities.roots.ptr_eq(&b.authorities.roots)
            && a.authorities.trusted_by.ptr_eq(&b.authorities.trusted_by)
            && requested(a) == requested(b)
}

fn requested(tables: &Tables) -> Option<RootId> {
    tables.authorities.requested.as_ref().map(|requested| requested.root)
}

/// What a signature or a proposal is for.
#[derive(Clone, Debug)]
enum Work {
    /// A step that follows from the state.
    Planned,
    /// A step that follows from the state: this root is revoked once the remaining voters have answered.
    Revocation(RootId),
    /// Nodes are asked to renew.
    Renewals(Vec<NodeId>),
    /// An answer of the authority above is published.
    Certified(RootId),
    /// These acknowledgements are recorded.
    Trusted(Vec<AskId>),
    Operator(AskId, OperatorStep),
}

/// Rotates the roots.
#[derive(Clone, Debug)]
pub struct RootRotation {
    config: Config,
    /// This node: it leads, and renews last.
    me: NodeId,
    /// The newest applied state that this actor has seen.
    tables: Tables,
    steps: BTreeMap<StepId, Work>,
    last_step: StepId,
    /// Applied steps of operators that are answered once the replica shows them.
    applied: Vec<(Revision, AskId, OperatorStep)>,
    /// Acknowledgements that wait for the one in progress.
    trusted: Vec<(AskId, NodeId, Revision)>,
    awaited: Awaited,
    above: Above,
    /// The state is not looked at before its end.
    pause: RetryPause,
    /// Nor before this revision is applied: an earlier one lacks what was done.
    settled_at: Revision,
    wake: Option<Moment>,
}

impl RootRotation {
    pub fn new(me: NodeId, config: Config) -> Self {
        Self {
            config,
            me,
            tables: Tables::default(),
            steps: BTreeMap::new(),
            last_step: StepId(0),
            applied: Vec::new(),
            trusted: Vec::new(),
            awaited: Awaited::default(),
            above: Above::default(),
            pause: RetryPause::default(),
            settled_at: Revision(0),
            wake: None,
        }
    }
    /// The applied state on which it decides.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }
    /// Steps in progress, and acknowledgements that wait.
    pub fn in_progress(&self) -> (usize, usize) {
        (self.steps.len(), self.trusted.len())
    }

    /// Handles one input.
    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Replica(tables) => self.learn(*tables),
            Input::Trusted(ask, node, generation) => self.acknowledged(ask, node, generation, out),
            Input::Asked(ask, step) => self.asked(ask, step, wall, out),
            Input::Signed(step, result) => self.signed(step, result, now, wall, out),
            Input::Above(root, end) => self.question_ended(root, end, now, out),
            Input::Proposed(step, result) => self.proposed(step, result, now, out),
            Input::ReachabilityChecked(step, answering) => self.checked(step, answering.as_ref(), now, wall, out),
            Input::Woke => self.wake = None,
        }
        self.answer_applied(out);
        self.record_trust(wall, out);
        self.ask_above(now, out);
        self.look(now, wall, out);
    }

    /// UP-1. Nothing else waits for this.
    fn ask_above(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if !self.config.upstream || self.tables.revision < self.settled_at {
            return;
        }
        match self.above.next(self.tables.authorities.requested.as_deref(), now) {
            above::Next::Ask(root, csr_pem) => out.push(Effect::AskAbove { root, csr_pem }),
            above::Next::WakeAt(at) => self.wake_at(at, out),
            above::Next::Nothing => {}
        }
    }

    fn question_ended(&mut self, root: RootId, end: UpstreamEnd, now: Moment, out: &mut Vec<Effect>) {
        let (why, later) = match end {
            UpstreamEnd::Answered(answer) if requested(&self.tables) == Some(root) => {
                let what = Signing::Issued { automatic: self.config.auto, answer };
                return self.sign(Work::Certified(root), what, out);
            }
            // Aborted or answered meanwhile.
            UpstreamEnd::Answered(_) => return self.above.ended(),
            UpstreamEnd::Later(why) => (why, true),
            UpstreamEnd::Failed(why) => (why, false),
        };
        self.above.failed(now, later);
        out.push(Effect::NotCertified { root, why, later });
    }

    fn learn(&mut self, tables: Tables) {
        if tables.revision > self.tables.revision {
            self.tables = tables;
        }
    }

    fn acknowledged(&mut self, ask: AskId, node: NodeId, generation: Revision, out: &mut Vec<Effect>) {
        match self.judged(node, generation) {
            Some(answer) => out.push(Effect::Answer(ask, answer)),
            None => self.trusted.push((ask, node, generation)),
        }
    }

    /// The answer to an acknowledgement that needs no entry.
    fn judged(&self, node: NodeId, generation: Revision) -> Option<Result<Answer, ErrorBody>> {
        let roots = &self.tables.authorities;
        if roots.roots.is_empty() || generation > roots.generation {
            // Its host may be ahead of this replica; otherwise the node is wrong.
            let text = format!("the roots are of generation {}, not {generation}", roots.generation);
            return Some(Err(ErrorBody::new(ErrorCode::NotKnownHereYet, text).retry_after(FIRST_PAUSE)));
        }
        if !self.tables.nodes.contains_key(&node) {
            let text = format!("node {node} is not part of this cluster");
            return Some(Err(ErrorBody::new(ErrorCode::NotFound, text)));
        }
        // An earlier generation decides nothing.
        (generation < roots.generation || roots.is_trusted_by(node)).then_some(Ok(Answer::Trusted))
    }

    /// One entry at a time: while it is on its way, further acknowledgements gather for the next one.
    fn record_trust(&mut self, wall: WallTime, out: &mut Vec<Effect>) {
        let recording = self.steps.values().any(|work| matches!(work, Work::Trusted(_)));
        if recording {
            return;
        }
        // Others may have been recorded, or the node removed, since they came: one node must not take others along.
        for (ask, node, generation) in std::mem::take(&mut self.trusted) {
            self.acknowledged(ask, node, generation, out);
        }
        if self.trusted.is_empty() {
            return;
        }
        let batch: Vec<_> = self.trusted.drain(..self.trusted.len().min(MAX_TRUSTED)).collect();
        let asks = batch.iter().map(|(ask, ..)| *ask).collect();
        let changes = batch.into_iter().map(|(_, node, generation)| AuthorityChange::Trusted { node, generation });
        let command = changes
            .map(|change| Change::Authority(Box::new(change)))
            .fold(own(wall, "roots acknowledged"), Command::change);
        self.propose(Work::Trusted(asks), command, out);
    }

    fn asked(&mut self, ask: AskId, step: OperatorStep, wall: WallTime, out: &mut Vec<Effect>) {
        if self.tables.cluster.is_none() {
            let unread = ErrorBody::new(ErrorCode::NotKnownHereYet, "this manager has not read the cluster's root yet");
            return out.push(Effect::Answer(ask, Err(unread.retry_after(FIRST_PAUSE))));
        }
        let others = self.steps.values().filter(|work| matches!(work, Work::Operator(..))).count();
        if others >= self.config.max_pending {
            let busy = ErrorBody::new(ErrorCode::TooManyRequests, "too many changes of the roots are in progress");
            return out.push(Effect::Answer(ask, Err(busy.retry_after(FIRST_PAUSE))));
        }
        if named(&step.change).is_some_and(|root| self.is_only_root(root)) {
            return self.asked_of_only_root(ask, step, wall, out);
        }
        let change = match step.change {
            RootsChange::Rotate { automatic, compromised } => {
                let what = Signing::Root { automatic, compromised };
                return self.sign(Work::Operator(ask, step), what, out);
            }
            RootsChange::Request { compromised } => {
                return self.sign(Work::Operator(ask, step), Signing::Request { compromised }, out);
            }
            RootsChange::Issued { automatic, ref answer } => {
                let what = Signing::Issued { automatic, answer: answer.clone() };
                return self.sign(Work::Operator(ask, step), what, out);
            }
            RootsChange::Activate(root) => {
                if let Err(early) = self.may_activate(root) {
                    return out.push(Effect::Answer(ask, Err(early)));
                }
                return self.sign(Work::Operator(ask, step), Signing::Crosses(root), out);
            }
            RootsChange::Abort => AuthorityChange::Abort,
            RootsChange::Retire { root, force } => AuthorityChange::Retire { root, force },
            RootsChange::Revoke(root) => return self.revoke(Work::Operator(ask, step), root, wall, out),
        };
        let command = operators(&step, wall).change(Change::Authority(Box::new(change)));
        self.propose(Work::Operator(ask, step), command, out);
    }

    /// Whether it signs and there was no rotation: it is not on record then.
    fn is_only_root(&self, root: RootId) -> bool {
        let cluster = self.tables.cluster.as_ref().filter(|_| self.tables.authorities.roots.is_empty());
        cluster.is_some_and(|cluster| muster_pki::root_id_of_pem(&cluster.root_cert_pem).is_ok_and(|only| only == root))
    }

    /// As the store would answer if the root were on record.
    fn asked_of_only_root(&mut self, ask: AskId, step: OperatorStep, wall: WallTime, out: &mut Vec<Effect>) {
        match step.change {
            RootsChange::Retire { root, .. } | RootsChange::Revoke(root) => {
                let refusal = AuthorityRefusal::NotFormer { root, state: AuthorityState::Active };
                out.push(Effect::Answer(ask, Err(CommandRefusal::Authority(refusal).into())));
            }
            // An entry without a change confirms that this manager leads: its replica may lack the first rotation.
            _ => {
                let command = operators(&step, wall);
                self.propose(Work::Operator(ask, step), command, out);
            }
        }
    }

    /// ROOT-2, also where an operator asks for it. A root that signed before is known to every manager.
    fn may_activate(&self, root: RootId) -> Result<(), ErrorBody> {
        let prepared = self.tables.authorities.in_state(AuthorityState::Prepared);
        let missing = plan::unacknowledged_members(&self.tables);
        let Some(first) = missing.first().filter(|_| prepared.is_some_and(|(id, _)| id == root)) else { return Ok(()) };
        let text = format!(
            "{} managers do not trust the root {root} yet, {first} among them; `muster ca status` lists them. Retry when they \
             have acknowledged it, or stop or remove them",
            missing.len()
        );
        Err(ErrorBody::new(ErrorCode::Conflict, text).retry_after(FIRST_PAUSE))
    }

    fn signed(
        &mut self,
        step: StepId,
        result: Result<AuthorityChange, NotSigned>,
        now: Moment,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) {
        let Some(work) = self.steps.remove(&step) else { return };
        let change = match result {
            Ok(change) => change,
            Err(why) => return self.not_done(work, why.into(), now, out),
        };
        let command = match &work {
            Work::Operator(_, step) => operators(step, wall),
            Work::Certified(_) => own(wall, "certified by the authority above"),
            _ => own(wall, "root rotation"),
        };
        let rotates = matches!(change, AuthorityChange::Prepare { .. } | AuthorityChange::Certify { .. });
        let room = plan::makes_room(&self.tables, wall).filter(|_| rotates);
        let forget = room.map(|root| Change::Authority(Box::new(AuthorityChange::Forget { root })));
        let command = forget.into_iter().fold(command, Command::change);
        self.propose(work, command.change(Change::Authority(Box::new(change))), out);
    }

    fn proposed(&mut self, step: StepId, result: Result<Revision, ProposeError>, now: Moment, out: &mut Vec<Effect>) {
        let Some(work) = self.steps.remove(&step) else { return };
        let revision = match result {
            Ok(revision) => revision,
            Err(why) => return self.not_done(work, why.into(), now, out),
        };
        self.settled_at = self.settled_at.max(revision);
        if revision > self.tables.revision {
            out.push(Effect::CatchUp(revision));
        }
        match work {
            Work::Planned | Work::Revocation(_) => self.pause.succeeded(),
            Work::Renewals(nodes) => {
                self.awaited.were_asked(&nodes, now);
                self.pause.succeeded();
            }
            Work::Certified(_) => self.above.ended(),
            Work::Trusted(asks) => {
                out.extend(asks.into_iter().map(|ask| Effect::Answer(ask, Ok(Answer::Trusted))));
            }
            Work::Operator(ask, step) => self.applied.push((revision, ask, step)),
        }
    }

    /// ROOT-3, for voters that failed a moment ago and are still recorded as up: they are asked first.
    fn revoke(&mut self, work: Work, root: RootId, wall: WallTime, out: &mut Vec<Effect>) {
        // What the state forbids is refused, and recorded as the request's outcome, by the store.
        let voters: Vec<&Member> = self.tables.members.values().filter(|member| member.voter).collect();
        let is_shut_out = |member: &&Member| self.tables.may_hold_of(root, member.node);
        if !voters.iter().any(is_shut_out) || muster_store::may_be_revoked(&self.tables, root).is_err() {
            return self.propose_revocation(work, root, wall, out);
        }
        // Only those that count: the answers of others would end the question too early.
        let (members, needed) = (muster_store::voters_without(&self.tables, root), voters.len() / 2 + 1);
        let step = self.begin(work);
        out.push(Effect::CheckReachable { step, members, needed });
    }

    fn checked(
        &mut self,
        step: StepId,
        answering: Option<&BTreeSet<RaftId>>,
        now: Moment,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) {
        let Some(work) = self.steps.remove(&step) else { return };
        let root = match &work {
            Work::Revocation(root) => *root,
            Work::Operator(_, OperatorStep { change: RootsChange::Revoke(root), .. }) => *root,
            _ => return,
        };
        let Some(answering) = answering else {
            let text = "this manager does not lead, or cannot ask the others";
            return self.not_done(work, ErrorBody::new(ErrorCode::NoQuorum, text), now, out);
        };
        match muster_store::may_be_revoked_by(&self.tables, root, answering) {
            Ok(()) => self.propose_revocation(work, root, wall, out),
            Err(refusal) => self.not_done(work, refusal.into(), now, out),
        }
    }

    fn propose_revocation(&mut self, work: Work, root: RootId, wall: WallTime, out: &mut Vec<Effect>) {
        let command = match &work {
            Work::Operator(_, step) => operators(step, wall),
            _ => own(wall, "others may have its key"),
        };
        self.propose(work, command.change(Change::Authority(Box::new(AuthorityChange::Revoke { root }))), out);
    }

    fn answer_applied(&mut self, out: &mut Vec<Effect>) {
        let shown = |(revision, ..): &mut (Revision, AskId, OperatorStep)| *revision <= self.tables.revision;
        let shown: Vec<_> = self.applied.extract_if(.., shown).collect();
        for (revision, ask, step) in shown {
            // Of a retry the entry of its first attempt counts, and not what was signed or published since.
            let first = self.tables.requests.get(&step.by, step.request);
            let revision = first.map_or(revision, |first| first.revision);
            let by_entry = muster_store::root_changed_at(&self.tables, revision);
            let (root, changed) = (by_entry.or_else(|| about(&step.change)), by_entry.is_some());
            out.push(Effect::Answer(ask, Ok(Answer::Changed(RootsChanged { root, revision, changed }))));
        }
    }

    fn not_done(&mut self, work: Work, why: ErrorBody, now: Moment, out: &mut Vec<Effect>) {
        match work {
            Work::Operator(ask, ..) => out.push(Effect::Answer(ask, Err(why))),
            // Nodes acknowledge again; one that was removed meanwhile is not among them then.
            Work::Trusted(asks) => {
                let again = why.retry_after(FIRST_PAUSE);
                out.extend(asks.into_iter().map(|ask| Effect::Answer(ask, Err(again.clone()))));
            }
            // The same command may answer better. What is not the answer's fault passes sooner.
            Work::Certified(root) => {
                let later = why.code != ErrorCode::Invalid;
                self.above.failed(now, later);
                out.push(Effect::NotCertified { root, why: why.message, later });
            }
            Work::Planned | Work::Revocation(_) | Work::Renewals(_) => self.step_failed(now, &why, out),
        }
    }

    fn step_failed(&mut self, now: Moment, why: &ErrorBody, out: &mut Vec<Effect>) {
        self.pause.failed(now, (FIRST_PAUSE, LONGEST_PAUSE));
        out.push(Effect::StepFailed(why.message.clone()));
    }

    /// ROOT-9: looks at the state and takes the next step, one at a time.
    fn look(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        let own = |work: &Work| matches!(work, Work::Planned | Work::Revocation(_) | Work::Renewals(_));
        if self.tables.authorities.roots.is_empty() || self.steps.values().any(own) {
            return;
        }
        if is_injected(BugInjection::ContinueNothing) && self.last_step == StepId(0) {
            return;
        }
        if !self.pause.is_over(now) {
            return self.wake_at(self.pause.ends(), out);
        }
        if self.tables.revision < self.settled_at {
            return; // the replica is passed in once it has applied that
        }
        self.pause.put_off(now + self.config.pace);
        let plan = plan::plan(&self.tables, &self.config, &mut self.awaited, self.me, (now, wall));
        if let Some(step) = plan.step {
            match step {
                Step::Activate(root) => self.sign(Work::Planned, Signing::Crosses(root), out),
                Step::Request => self.sign(Work::Planned, Signing::Request { compromised: false }, out),
                Step::Retire(root) => self.planned(
                    AuthorityChange::Retire { root, force: is_injected(BugInjection::RetireWhileBehind) },
                    "all nodes have left it",
                    wall,
                    out,
                ),
                Step::Revoke(root) => self.revoke(Work::Revocation(root), root, wall, out),
                Step::Forget(root) => {
                    self.planned(AuthorityChange::Forget { root }, "its last certificate has expired", wall, out)
                }
            }
        } else if !plan.renew.is_empty() {
            let command =
                plan.renew.iter().fold(own_renewals(wall), |command, node| command.change(Change::AskRotate(*node)));
            self.propose(Work::Renewals(plan.renew), command, out);
        } else if let Some(at) = plan.wake {
            self.wake_at(at, out);
        }
    }

    fn planned(&mut self, change: AuthorityChange, reason: &str, wall: WallTime, out: &mut Vec<Effect>) {
        let command = own(wall, reason).change(Change::Authority(Box::new(change)));
        self.propose(Work::Planned, command, out);
    }

    fn sign(&mut self, work: Work, what: Signing, out: &mut Vec<Effect>) {
        let step = self.begin(work);
        out.push(Effect::Sign { step, what });
    }

    fn propose(&mut self, work: Work, command: Command, out: &mut Vec<Effect>) {
        let step = self.begin(work);
        out.push(Effect::Propose { step, command });
    }

    fn begin(&mut self, work: Work) -> StepId {
        self.last_step = StepId(self.last_step.0 + 1);
        self.steps.insert(self.last_step, work);
        self.last_step
    }

    fn wake_at(&mut self, at: Moment, out: &mut Vec<Effect>) {
        if self.wake.is_none_or(|wake| at < wake) {
            self.wake = Some(at);
            out.push(Effect::WakeAt(at));
        }
    }
}

/// A command of the cluster itself: idempotent, because it follows from the state.
fn own(wall: WallTime, reason: &str) -> Command {
    Command::idempotent(wall, Principal::Cluster, reason)
}

fn own_renewals(wall: WallTime) -> Command {
    own(wall, "another root signs")
}

/// The root that an operator's step names.
fn named(change: &RootsChange) -> Option<RootId> {
    match *change {
        RootsChange::Activate(root) | RootsChange::Retire { root, .. } | RootsChange::Revoke(root) => Some(root),
        RootsChange::Rotate { .. } | RootsChange::Request { .. } | RootsChange::Issued { .. } | RootsChange::Abort => {
            None
        }
    }
}

/// The root that an operator's step is about, as far as the step says.
fn about(change: &RootsChange) -> Option<RootId> {
    match change {
        RootsChange::Issued { answer, .. } => muster_pki::first_of_answer(answer).map(|(root, _)| root),
        other => named(other),
    }
}

fn operators(step: &OperatorStep, wall: WallTime) -> Command {
    let reason = match step.change {
        RootsChange::Rotate { compromised: true, .. } => "root rotation requested: others may have the key",
        RootsChange::Rotate { .. } => "root rotation requested",
        RootsChange::Request { compromised: true } => "issuing certificate requested: others may have the key",
        RootsChange::Request { .. } => "issuing certificate requested",
        RootsChange::Issued { .. } => "root rotation requested: certified by an authority above",
        RootsChange::Abort => "root rotation ended",
        RootsChange::Activate(_) => "root activated",
        RootsChange::Retire { .. } => "root retired",
        RootsChange::Revoke(_) => "root revoked",
    };
    let command = Command::idempotent(wall, step.by.clone(), reason);
    if step.request == RequestId(0) {
        return command;
    }
    command.with_request(step.request).guard(Guard::Request { digest: digest(&step.change) })
}

/// Distinguishes the step from everything else that may use the same request id.
fn digest(change: &RootsChange) -> u64 {
    let step = |name: &str, root: Option<RootId>, flags: [bool; 2]| {
        let root = root.map(|root| root.to_string()).unwrap_or_default();
        request_digest(&[b"roots", name.as_bytes(), root.as_bytes(), &flags.map(u8::from)])
    };
    match change {
        RootsChange::Rotate { automatic, compromised } => step("rotate", None, [*automatic, *compromised]),
        RootsChange::Request { compromised } => step("request", None, [*compromised, false]),
        RootsChange::Issued { automatic, answer } => {
            request_digest(&[b"roots", b"issued", answer.as_bytes(), &[u8::from(*automatic)]])
        }
        RootsChange::Abort => step("abort", None, [false; 2]),
        RootsChange::Activate(root) => step("activate", Some(*root), [false; 2]),
        RootsChange::Retire { root, force } => step("retire", Some(*root), [*force, false]),
        RootsChange::Revoke(root) => step("revoke", Some(*root), [false; 2]),
    }
}
