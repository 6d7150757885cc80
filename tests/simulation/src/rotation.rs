//! A leader's root rotation: incarnations and effects. Signatures are made up from ids.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_messages::protocol::{Applied, ProposeError, RootsChanged};
use muster_messages::{
    Authority, AuthorityChange, AuthorityOrigin, Change, CrossCertificate, ErrorBody, ErrorCode, NodeId, RaftId,
    Revision, RootId, Secret, Tables, Voucher,
};
use muster_pki::SignError;
use muster_raft_member::core::Input as MemberInput;
use muster_root_rotation::core::{self as rotation, Effect, Input, NotSigned, OperatorStep, Signing};

use crate::events::{Answered, Event};
use crate::machine::{Asker, Caller, MachineIdx, Rotation};
use crate::root_operators::{RootAttempt, RootOperators};
use crate::roots::{certified_text_of, cross, id_of, text_of, voucher};
use crate::rotations::Rotations;
use crate::world::World;

/// Both as in the shell.
const CHECK_DEADLINE: Duration = Duration::from_secs(1);
const PROPOSAL_DEADLINE: Duration = Duration::from_secs(5);

/// The requester of an answer.
pub enum RotationAsker {
    Host(Caller),
    Operator(RootAttempt),
}

impl Rotation {
    fn at(world: &mut World, idx: MachineIdx) -> Option<&mut Rotation> {
        world.machines[idx].runtime.as_mut()?.leader.as_mut()?.rotation.as_mut()
    }

    /// Only in runs about rotations.
    pub(crate) fn restart(world: &mut World, idx: MachineIdx, runtime: u32) {
        if !world.rotations.active {
            return;
        }
        world.incarnations += 1;
        let (incarnation, config, me) = (world.incarnations, world.settings.rotation.clone(), world.machines[idx].id);
        let Some(h) = world.machines[idx].runtime_mut(runtime) else { return };
        let Some(leader) = h.leader.as_mut().filter(|l| l.rotation.is_none()) else { return };
        let core = rotation::RootRotation::new(me, config);
        leader.rotation =
            Some(Rotation { incarnation, core, asks: BTreeMap::new(), shown: None, catching_up: Vec::new() });
        Self::observe(world, idx);
    }

    pub(crate) fn crash(world: &mut World, idx: MachineIdx) {
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let number = runtime.number;
        if runtime.leader.as_mut().is_some_and(|l| l.rotation.take().is_some()) {
            world.totals.count("fault: root rotation crashed");
            world.log(format!("the root rotation of n{} crashes", idx + 1));
            let back = world.rng.millis(1, 400);
            world.time.after(back, Event::RotationBack { idx, runtime: number });
        }
    }

    pub(crate) fn woke(world: &mut World, idx: MachineIdx, incarnation: u32) {
        if Self::at(world, idx).is_some_and(|r| r.incarnation == incarnation) {
            Self::step(world, idx, Input::Woke);
        }
    }

    // ---- the core -------------------------------------------------------------------------------------------------

    /// As the shell: it is passed a replica that has changed in what a rotation depends on, or for which it waits.
    pub(crate) fn observe(world: &mut World, idx: MachineIdx) {
        let Some(tables) = world.machines[idx].runtime.as_ref().map(|h| h.core.cluster_replica().tables.clone()) else {
            return;
        };
        let Some(rotation) = Self::at(world, idx) else { return };
        let waited = rotation.catching_up.len();
        rotation.catching_up.retain(|until| *until > tables.revision);
        let reached = rotation.catching_up.len() < waited;
        let changed = rotation.shown.as_ref().is_none_or(|shown| !rotation::is_same(shown, &tables));
        rotation.shown = Some(tables);
        if changed || reached {
            Self::refresh(world, idx);
        }
    }

    /// Every decision uses the newest replica.
    fn refresh(world: &mut World, idx: MachineIdx) {
        let Some(tables) = world.machines[idx].runtime.as_ref().map(|h| h.core.cluster_replica().tables.clone()) else {
            return;
        };
        if Self::at(world, idx).is_some_and(|r| tables.revision > r.core.tables().revision) {
            Self::handle(world, idx, Input::Replica(Box::new(tables)));
        }
    }

    pub(crate) fn step(world: &mut World, idx: MachineIdx, input: Input) {
        Self::refresh(world, idx);
        Self::handle(world, idx, input);
    }

    fn handle(world: &mut World, idx: MachineIdx, input: Input) {
        let (now, wall) = (world.clock(idx), world.wall(idx));
        let Some(rotation) = Self::at(world, idx) else { return };
        let incarnation = rotation.incarnation;
        let mut effects = Vec::new();
        rotation.core.step(now, wall, input, &mut effects);
        for effect in effects {
            Self::apply_effect(world, idx, incarnation, effect);
        }
    }

    fn apply_effect(world: &mut World, idx: MachineIdx, incarnation: u32, effect: Effect) {
        match effect {
            Effect::Sign { step, what } => {
                let made = RootId(world.rng.sample().to_be_bytes());
                let Some(rotation) = Self::at(world, idx) else { return };
                let signed = sign(rotation.core.tables(), what, made);
                Self::handle(world, idx, Input::Signed(step, signed));
            }
            Effect::Propose { step, command } => {
                for change in &command.changes {
                    if let Change::Authority(change) = change {
                        world.log(format!("n{} proposes: {}", idx + 1, describe(change)));
                        let tables = Self::at(world, idx).map(|r| r.core.tables().clone()).unwrap_or_default();
                        Rotations::proposed(world, change, &tables);
                    }
                }
                world.propose(idx, Asker::Rotation { incarnation, step }, command, PROPOSAL_DEADLINE);
            }
            Effect::CheckReachable { step, members, needed } => {
                let deadline = world.clock(idx) + CHECK_DEADLINE;
                world.totals.count("voters asked before a revocation");
                if let Some(ask) = world.await_answer(idx, Asker::RevocationCheck { incarnation, step }) {
                    world.deliver(idx, MemberInput::CheckReachable { ask, members, needed, deadline });
                }
            }
            Effect::CatchUp(until) => {
                if let Some(rotation) = Self::at(world, idx) {
                    rotation.catching_up.push(until);
                }
            }
            Effect::Answer(ask, answer) => Self::answer(world, idx, ask, answer),
            // No command is configured.
            Effect::AskAbove { .. } | Effect::NotCertified { .. } => {}
            Effect::StepFailed(why) => {
                world.totals.count("steps of rotations refused");
                world.log(format!("a step of the root rotation of n{} failed: {why}", idx + 1));
            }
            Effect::WakeAt(at) => {
                let at = world.moment(idx, at);
                world.time.at(at, Event::RotationWoke { idx, incarnation });
            }
        }
    }

    fn answer(world: &mut World, idx: MachineIdx, ask: rotation::AskId, answer: Result<rotation::Answer, ErrorBody>) {
        match Self::at(world, idx).and_then(|r| r.asks.remove(&ask)) {
            Some(RotationAsker::Host(caller)) => world.reply(idx, caller, Answered::Roots(answer.map(|_| ()))),
            Some(RotationAsker::Operator(attempt)) => {
                let result = answer.map(|answer| match answer {
                    rotation::Answer::Changed(changed) => changed,
                    rotation::Answer::Trusted => RootsChanged { root: None, revision: Revision(0), changed: false },
                });
                RootOperators::answer(world, attempt, result);
            }
            None => {}
        }
    }

    pub(crate) fn step_ended(
        world: &mut World,
        idx: MachineIdx,
        incarnation: u32,
        step: rotation::StepId,
        result: Result<Applied, ProposeError>,
    ) {
        if Self::at(world, idx).is_some_and(|r| r.incarnation == incarnation) {
            Self::step(world, idx, Input::Proposed(step, result.map(|applied| applied.revision)));
        }
    }

    pub(crate) fn voters_asked(
        world: &mut World,
        idx: MachineIdx,
        incarnation: u32,
        step: rotation::StepId,
        answering: Option<BTreeSet<RaftId>>,
    ) {
        if Self::at(world, idx).is_some_and(|r| r.incarnation == incarnation) {
            Self::step(world, idx, Input::ReachabilityChecked(step, answering));
        }
    }

    // ---- requests -------------------------------------------------------------------------------------------------

    /// A node has acknowledged roots.
    pub(crate) fn trusted(world: &mut World, to: MachineIdx, caller: Caller, node: NodeId, generation: Revision) {
        let ask = rotation::AskId(caller.ask);
        match Self::at(world, to) {
            Some(rotation) => {
                rotation.asks.insert(ask, RotationAsker::Host(caller));
                Self::step(world, to, Input::Trusted(ask, node, generation));
            }
            None => world.reply(to, caller, Answered::Roots(Err(does_not_lead()))),
        }
    }

    pub(crate) fn asked(world: &mut World, to: MachineIdx, attempt: RootAttempt, step: OperatorStep) {
        let ask = rotation::AskId(world.number());
        match Self::at(world, to) {
            Some(rotation) => {
                rotation.asks.insert(ask, RotationAsker::Operator(attempt));
                Self::step(world, to, Input::Asked(ask, step));
            }
            None => RootOperators::answer(world, attempt, Err(does_not_lead())),
        }
    }
}

fn does_not_lead() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead")
}

fn with_key(tables: &Tables) -> impl Iterator<Item = (RootId, &Authority)> {
    tables.authorities.roots.iter().filter(|(_, root)| root.key_pem.is_some()).map(|(id, root)| (*id, &**root))
}

/// As the product's signer; `made`: the id of a new root.
fn sign(tables: &Tables, what: Signing, made: RootId) -> Result<AuthorityChange, NotSigned> {
    match what {
        Signing::Root { automatic, compromised } => {
            let Vouched { signer, vouchers, for_others } = vouched(tables, made, compromised)?;
            Ok(AuthorityChange::Prepare {
                signer,
                compromised,
                root: made,
                cert_pem: text_of(made),
                key_pem: Secret::new(format!("key of {made}")),
                origin: AuthorityOrigin::Made,
                automatic,
                vouchers,
                for_others,
            })
        }
        Signing::Request { compromised } => Ok(AuthorityChange::Request {
            root: made,
            key_pem: Secret::new(format!("key of {made}")),
            csr_pem: format!("request of {made}"),
            compromised,
        }),
        // The authority above certifies every request.
        Signing::Issued { automatic, .. } => {
            let requested = tables.authorities.requested.as_ref().ok_or(NotSigned::NotRequested)?;
            let root = requested.root;
            let Vouched { signer, vouchers, for_others } = vouched(tables, root, requested.compromised)?;
            let (cert_pem, upstream) = (certified_text_of(root), Vec::new());
            Ok(AuthorityChange::Certify { signer, root, cert_pem, upstream, automatic, vouchers, for_others })
        }
        Signing::Crosses(root) => {
            if !tables.authorities.roots.contains_key(&root) {
                return Ok(AuthorityChange::Activate { root, crosses: Vec::new(), tokens: Vec::new() });
            }
            let signed = with_key(tables).filter(|(id, other)| *id != root && other.activated_at.is_some());
            let crosses: Vec<CrossCertificate> = signed.map(|(by, _)| cross(root, by)).collect();
            Ok(AuthorityChange::Activate { root, crosses, tokens: Vec::new() })
        }
    }
}

struct Vouched {
    signer: RootId,
    vouchers: Vec<Voucher>,
    for_others: Vec<(RootId, Voucher)>,
}

fn vouched(tables: &Tables, made: RootId, compromised: bool) -> Result<Vouched, SignError> {
    let cluster = tables.cluster.as_ref().ok_or(SignError::Root)?;
    let signer = id_of(&cluster.root_cert_pem).ok_or(SignError::Root)?;
    let others = with_key(tables).map(|(id, _)| id).filter(|id| *id != signer);
    let sound = with_key(tables).filter(|(id, other)| *id != signer && !other.compromised).map(|(id, _)| id);
    let sound = Some(signer).filter(|_| !compromised).into_iter().chain(sound);
    Ok(Vouched {
        signer,
        vouchers: std::iter::once(signer).chain(others).map(|by| voucher(by, made)).collect(),
        for_others: sound.map(|of| (of, voucher(made, of))).collect(),
    })
}

fn describe(change: &AuthorityChange) -> String {
    match change {
        AuthorityChange::Prepare { root, automatic, compromised, .. } => {
            format!("prepare {root} automatic={automatic} compromised={compromised}")
        }
        AuthorityChange::Activate { root, crosses, .. } => {
            let by: Vec<String> = crosses.iter().map(|cross| cross.by.to_string()).collect();
            format!("activate {root}, certified by {}", by.join(" "))
        }
        other => format!("{other:?}"),
    }
}
