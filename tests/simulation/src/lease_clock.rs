//! A leader's lease clock, the real core of the elections: incarnations and effects.

use std::collections::BTreeMap;

use muster_elections::KeeperConfig;
use muster_elections::core::keeper::{AskId, Effect, Input as KeeperInput, Keeper, OpenExpiry, Outcome, ReadId};
use muster_messages::protocol::{ProposeError, ReadError, Renewal};
use muster_messages::{ErrorBody, Moment, ObjectKey, Replica, RequestId, Term};
use muster_raft_member::core::Input;

use crate::candidates::{Candidates, PendingRequest, Reply};
use crate::events::Event;
use crate::fleet;
use crate::machine::{Asker, MachineIdx};
use crate::world::World;

/// The requester of a renewal.
pub enum Renewer {
    Candidate(PendingRequest),
    Fleet(Box<fleet::PendingRequest>),
}

/// A leader's lease clock, one incarnation of it.
pub struct Clock {
    pub incarnation: u32,
    keeper: Keeper,
    /// State for the next incarnation.
    slot: BTreeMap<ObjectKey, OpenExpiry>,
    pub asks: BTreeMap<AskId, Renewer>,
    /// Its next wake-up.
    wakes: Option<Moment>,
}

impl Clock {
    pub(crate) fn at(world: &mut World, idx: MachineIdx) -> Option<&mut Clock> {
        world.machines[idx].runtime.as_mut()?.leader.as_mut()?.clock.as_mut()
    }

    /// An incarnation starts with the open expiries of its predecessor.
    pub(crate) fn restart(world: &mut World, idx: MachineIdx, term: Term, open: BTreeMap<ObjectKey, OpenExpiry>) {
        world.incarnations += 1;
        let (incarnation, now, entropy) = (world.incarnations, world.clock(idx), world.rng.next_u128());
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let replica = runtime.core.replica().clone();
        let Some(leader) = runtime.leader.as_mut() else { return };
        let keeper = Keeper::new(KeeperConfig::default(), term, now, entropy, open.clone());
        leader.clock = Some(Clock { incarnation, keeper, slot: open, asks: BTreeMap::new(), wakes: None });
        Self::step(world, idx, KeeperInput::Replica(replica));
        world.time.after(KeeperConfig::default().tick, Event::Beat { idx, incarnation });
    }

    pub(crate) fn beat(world: &mut World, idx: MachineIdx, incarnation: u32) {
        if Self::at(world, idx).is_none_or(|clock| clock.incarnation != incarnation) {
            return;
        }
        if world.faults_active && world.rng.chance(3) {
            world.totals.count("fault: elections crashed");
            let leader = world.machines[idx].runtime.as_mut().and_then(|runtime| runtime.leader.as_mut());
            let Some(leader) = leader else { return };
            let open = leader.clock.take().map(|clock| clock.slot).unwrap_or_default();
            let term = leader.term;
            return Self::restart(world, idx, term, open);
        }
        world.time.after(KeeperConfig::default().tick, Event::Beat { idx, incarnation });
        Self::step(world, idx, KeeperInput::Tick);
    }

    pub(crate) fn woke(world: &mut World, idx: MachineIdx, incarnation: u32) {
        if let Some(clock) = Self::at(world, idx).filter(|clock| clock.incarnation == incarnation) {
            clock.wakes = None;
            Self::step(world, idx, KeeperInput::Tick);
        }
    }

    pub(crate) fn step(world: &mut World, idx: MachineIdx, input: KeeperInput) {
        let (now, wall) = (world.clock(idx), world.wall(idx));
        let Some(clock) = Self::at(world, idx) else { return };
        let mut effects = Vec::new();
        clock.keeper.step(now, wall, input, &mut effects);
        let incarnation = clock.incarnation;
        let wakes = clock.keeper.wake_at().filter(|at| clock.wakes.is_none_or(|scheduled| *at < scheduled));
        if let Some(at) = wakes {
            clock.wakes = Some(at);
            let at = world.moment(idx, at).max(world.now());
            world.time.at(at, Event::ClockWoke { idx, incarnation });
        }
        for effect in effects {
            Self::apply_effect(world, idx, incarnation, effect);
        }
    }

    fn apply_effect(world: &mut World, idx: MachineIdx, incarnation: u32, effect: Effect) {
        match effect {
            Effect::Keep(open) => {
                if let Some(clock) = Self::at(world, idx) {
                    clock.slot = open;
                }
            }
            Effect::Answer { ask, answer } => {
                let pending = match Self::at(world, idx).and_then(|clock| clock.asks.remove(&ask)) {
                    Some(Renewer::Candidate(pending)) => pending,
                    Some(Renewer::Fleet(pending)) => {
                        return fleet::PendingRequest::renewed(world, *pending, answer.as_deref().ok());
                    }
                    None => return,
                };
                let reply = match answer.as_deref() {
                    Ok([Renewal::Renewed { .. }]) => Reply::Renewed,
                    Ok([Renewal::Lost { .. }]) => Reply::Lost,
                    _ => Reply::Failed,
                };
                Candidates::reply_to(world, pending, reply);
            }
            Effect::Read(read) => {
                let deadline = world.clock(idx) + KeeperConfig::default().read_deadline;
                if let Some(ask) = world.await_answer(idx, Asker::ClockRead { incarnation, read }) {
                    world.deliver(idx, Input::Read { ask, deadline });
                }
            }
            Effect::Propose(command) => {
                world.totals.count("expiries proposed");
                let request = command.request;
                let within = KeeperConfig::default().propose_deadline;
                world.propose(idx, Asker::Expiry { incarnation, request }, *command, within);
            }
        }
    }

    pub(crate) fn read_ended(
        world: &mut World,
        idx: MachineIdx,
        incarnation: u32,
        read: ReadId,
        result: Result<std::sync::Arc<Replica>, ReadError>,
    ) {
        if Self::at(world, idx).is_some_and(|clock| clock.incarnation == incarnation) {
            let unread = |why: ReadError| ErrorBody::new(muster_messages::ErrorCode::NoQuorum, why.to_string());
            Self::step(world, idx, KeeperInput::Read { read, result: result.map_err(unread) });
        }
    }

    pub(crate) fn expiry_ended<T>(
        world: &mut World,
        idx: MachineIdx,
        incarnation: u32,
        request: RequestId,
        result: Result<T, ProposeError>,
    ) {
        if Self::at(world, idx).is_none_or(|clock| clock.incarnation != incarnation) {
            return;
        }
        // PROPOSE-2: which refusals prove that the entry is not in the log.
        let outcome = match result {
            Ok(_) => Outcome::Applied,
            Err(ProposeError::Refused(_)) => Outcome::Refused,
            Err(ProposeError::NotLeader { .. } | ProposeError::Busy | ProposeError::TooLarge { .. }) => {
                Outcome::NotTaken
            }
            Err(_) => Outcome::Unknown,
        };
        if outcome == Outcome::Applied {
            world.totals.count("leases expired");
        }
        Self::step(world, idx, KeeperInput::Proposed { request, outcome });
    }
}
