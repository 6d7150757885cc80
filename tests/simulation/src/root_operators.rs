//! Operators who rotate the root: their steps, in any order and at any time, and the attempts of each.

use std::time::Duration;

use muster_messages::protocol::{RootsChange, RootsChanged};
use muster_messages::{AuthorityState, ErrorBody, ErrorCode, Principal, RequestId, RootId};
use muster_root_rotation::core::OperatorStep;

use crate::events::Event;
use crate::machine::{MachineIdx, Rotation};
use crate::world::World;

/// Rotations that operators begin in a run. One more follows in the end, and at most eight roots are on record.
const MAX_ROTATIONS: usize = 5;
/// An operator repeats a step without an answer this often.
const MAX_ATTEMPTS: u32 = 6;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// One attempt of an operator's step.
#[derive(Clone, Copy, Debug)]
pub struct RootAttempt {
    op: usize,
    attempt: u32,
}

#[derive(Clone, Debug)]
struct Op {
    change: RootsChange,
    request: RequestId,
    attempt: u32,
    result: Option<Result<RootsChanged, ErrorBody>>,
}

/// The operators and their steps.
#[derive(Clone, Debug, Default)]
pub struct RootOperators {
    ops: Vec<Op>,
}

impl RootOperators {
    /// The answer to a step, once there is one.
    pub fn result(&self, op: usize) -> Option<&Result<RootsChanged, ErrorBody>> {
        self.ops[op].result.as_ref()
    }

    /// The first step that has no answer yet.
    pub(crate) fn unanswered(&self) -> Option<usize> {
        self.ops.iter().position(|op| op.result.is_none())
    }

    /// A random step.
    pub(crate) fn act(&mut self, world: &mut World) {
        if world.resting {
            return;
        }
        let next = world.rng.millis(600, 4000);
        world.time.after(next, Event::RootOperator);
        let Some(tables) = world.checks.newest().cloned() else { return };
        let in_states = |states: &[AuthorityState]| -> Vec<RootId> {
            let roots = tables.authorities.roots.iter();
            roots.filter(|(_, root)| states.contains(&root.state)).map(|(id, _)| *id).collect()
        };
        use AuthorityState as S;
        let change = match world.rng.below(12) {
            0..=3 => {
                let compromised = world.rng.chance(250);
                Some(RootsChange::Rotate { automatic: world.rng.chance(750), compromised })
            }
            4 | 5 => Some(match tables.authorities.requested {
                // The answer is made up when it is judged.
                Some(_) if world.rng.chance(750) => {
                    RootsChange::Issued { automatic: world.rng.chance(750), answer: String::new() }
                }
                _ => RootsChange::Request { compromised: world.rng.chance(250) },
            }),
            6 => Some(RootsChange::Abort),
            // One that has ended is refused, and so is one whose key others may have (ROOT-11).
            7 | 8 => {
                let ended = world.rng.chance(150);
                let states: &[S] = if ended { &[S::Retired, S::Revoked] } else { &[S::Prepared, S::Retiring] };
                world.rng.pick(&in_states(states)).map(RootsChange::Activate)
            }
            9 => {
                let force = world.rng.chance(600);
                world.rng.pick(&in_states(&[S::Retiring])).map(|root| RootsChange::Retire { root, force })
            }
            10 => world.rng.pick(&in_states(&[S::Retiring, S::Retired])).map(RootsChange::Revoke),
            _ => return self.repeat(world),
        };
        let rotates = |change: &RootsChange| matches!(change, RootsChange::Rotate { .. } | RootsChange::Issued { .. });
        let rotations = self.ops.iter().filter(|op| rotates(&op.change)).count();
        let too_many = change.as_ref().is_some_and(rotates) && rotations >= MAX_ROTATIONS;
        if let Some(change) = change.filter(|_| !too_many) {
            self.ask(world, change);
        }
    }

    /// A late retry of an earlier step.
    fn repeat(&mut self, world: &mut World) {
        let ops: Vec<usize> = (0..self.ops.len()).collect();
        if let Some(op) = world.rng.pick(&ops) {
            self.send(world, op);
        }
    }

    pub(crate) fn ask(&mut self, world: &mut World, change: RootsChange) -> usize {
        world.totals.count(match change {
            RootsChange::Rotate { compromised: true, .. } => "operator: rotated a compromised root",
            RootsChange::Rotate { automatic: false, .. } => "operator: prepared a root",
            RootsChange::Rotate { .. } => "operator: rotated the root",
            RootsChange::Request { .. } => "operator: asked an authority above",
            RootsChange::Issued { .. } => "operator: passed an answer from above",
            RootsChange::Abort => "operator: aborted a rotation",
            RootsChange::Activate(_) => "operator: activated a root",
            RootsChange::Retire { force: true, .. } => "operator: forced a retirement",
            RootsChange::Retire { .. } => "operator: retired a root",
            RootsChange::Revoke(_) => "operator: revoked a root",
        });
        if let RootsChange::Retire { root, force: true } = change {
            world.rotations.forced.insert(root);
        }
        let op = self.ops.len();
        world.log(format!("operator's step {op}: {change:?}"));
        let request = world.request();
        self.ops.push(Op { change, request, attempt: 0, result: None });
        self.send(world, op);
        op
    }

    fn send(&mut self, world: &mut World, op: usize) {
        let idx = match world.leading().filter(|_| !world.rng.chance(100)) {
            Some(idx) => Some(idx),
            None => world.any_manager(),
        };
        self.ops[op].attempt += 1;
        let attempt = RootAttempt { op, attempt: self.ops[op].attempt };
        let silence = ErrorBody::new(ErrorCode::TimedOut, "no answer came");
        world.time.after(REQUEST_TIMEOUT, Event::RootAnswered { attempt, result: Err(silence) });
        if let Some(idx) = idx.filter(|_| !world.rng.chance(world.net.conditions.loss)) {
            let delay = world.net.conditions.slow + world.rng.micros(80, 1500);
            world.time.after(delay, Event::RootAsked { idx, attempt });
        }
    }

    pub(crate) fn arrives(&mut self, world: &mut World, idx: MachineIdx, attempt: RootAttempt) {
        if world.machines[idx].up && world.machines[idx].runtime.is_some() {
            let op = &self.ops[attempt.op];
            let step = OperatorStep { change: op.change.clone(), by: Principal::Operator, request: op.request };
            Rotation::asked(world, idx, attempt, step);
        }
    }

    pub(crate) fn answered(
        &mut self,
        world: &mut World,
        attempt: RootAttempt,
        result: Result<RootsChanged, ErrorBody>,
    ) {
        use ErrorCode as C;
        let op = &mut self.ops[attempt.op];
        if op.result.is_some() || result.is_err() && op.attempt != attempt.attempt {
            return;
        }
        let again = |error: &ErrorBody| {
            matches!(error.code, C::Unreachable | C::UnknownOutcome | C::TimedOut | C::NoQuorum | C::TooManyRequests)
        };
        if result.as_ref().is_err_and(again) && op.attempt < MAX_ATTEMPTS {
            let pause = world.rng.millis(20, 400);
            return world.time.after(pause, Event::RetryRoot(attempt.op));
        }
        world.totals.count(match &result {
            Ok(RootsChanged { changed: true, .. }) => "operators' steps done",
            Ok(_) => "operators' steps without effect",
            Err(_) => "operators' steps refused",
        });
        world.log(format!("operator's step {} result={result:?}", attempt.op));
        op.result = Some(result);
    }

    pub(crate) fn retry(&mut self, world: &mut World, op: usize) {
        if self.ops[op].result.is_none() {
            self.send(world, op);
        }
    }

    /// A leader answers an operator.
    pub(crate) fn answer(world: &mut World, attempt: RootAttempt, result: Result<RootsChanged, ErrorBody>) {
        if !world.rng.chance(world.net.conditions.loss) {
            let delay = world.net.conditions.slow + world.rng.micros(80, 1500);
            world.time.after(delay, Event::RootAnswered { attempt, result });
        }
    }
}
