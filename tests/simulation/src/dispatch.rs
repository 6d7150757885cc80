//! A leader's dispatcher: incarnations and effects.

use std::time::Duration;

use muster_messages::protocol::{Applied, ProposeError};
use muster_messages::wire::SessionDigest;
use muster_messages::{Change, Liveness};
use muster_sessions::core::dispatcher::{self, BatchId, DigestOutcome, Outcome};

use crate::checks::{DOWN_1, violation};
use crate::events::Event;
use crate::machine::{Asker, Autopilot, Caller, Dispatch, MachineIdx};
use crate::schedule::keep_earlier;
use crate::world::World;

impl Dispatch {
    fn at(world: &mut World, idx: MachineIdx) -> Option<&mut Dispatch> {
        world.machines[idx].runtime.as_mut()?.leader.as_mut()?.dispatch.as_mut()
    }

    pub(crate) fn restart(world: &mut World, idx: MachineIdx, runtime: u32) {
        world.incarnations += 1;
        let (incarnation, config) = (world.incarnations, world.settings.dispatcher.clone());
        let (now, wall) = (world.clock(idx), world.wall(idx));
        let Some(h) = world.machines[idx].runtime_mut(runtime) else { return };
        let tables = h.core.cluster_replica().tables.clone();
        let Some(leader) = h.leader.as_mut().filter(|l| l.dispatch.is_none()) else { return };
        let core = dispatcher::Dispatcher::new(config, now, wall);
        leader.dispatch = Some(Dispatch { incarnation, core, wakes: None });
        Self::step(world, idx, dispatcher::Input::Replica(tables));
    }

    pub(crate) fn crash(world: &mut World, idx: MachineIdx) {
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let number = runtime.number;
        if runtime.leader.as_mut().is_some_and(|l| l.dispatch.take().is_some()) {
            world.log(format!("the dispatcher of n{} crashes", idx + 1));
            let back = world.rng.millis(1, 400);
            world.time.after(back, Event::DispatcherBack { idx, runtime: number });
        }
    }

    pub(crate) fn woke(world: &mut World, idx: MachineIdx, incarnation: u32) {
        if let Some(dispatch) = Self::at(world, idx).filter(|d| d.incarnation == incarnation) {
            dispatch.wakes = None;
            Self::step(world, idx, dispatcher::Input::Woke);
        }
    }

    pub(crate) fn step(world: &mut World, idx: MachineIdx, input: dispatcher::Input) -> Option<DigestOutcome> {
        let (now, wall) = (world.clock(idx), world.wall(idx));
        let dispatch = Self::at(world, idx)?;
        let incarnation = dispatch.incarnation;
        let mut effects = Vec::new();
        let decision = dispatch.core.step(now, wall, input, &mut effects);
        let wakes = dispatch.core.wake_at(now);
        if let Some(at) = keep_earlier(&mut dispatch.wakes, wakes) {
            let at = world.moment(idx, at);
            world.time.at(at, Event::DispatcherWoke { idx, incarnation });
        }
        for effect in effects {
            if let dispatcher::Effect::Propose { batch, command } = effect {
                Self::check_liveness(world, idx, &command.changes);
                world.propose(idx, Asker::Dispatch { incarnation, batch }, command, Duration::from_secs(5));
            }
        }
        if world.policies.active {
            Autopilot::observe(world, idx);
        }
        Some(decision)
    }

    /// DOWN-1: without a recent fault no running node is declared down.
    fn check_liveness(world: &mut World, idx: MachineIdx, changes: &[Change]) {
        for change in changes {
            let Change::SetLiveness { node, liveness } = change else { continue };
            let name = world.name(*node);
            world.log(format!("n{} proposes liveness: {name} is {liveness:?}", idx + 1));
            if *liveness != Liveness::Down {
                continue;
            }
            world.totals.count("nodes declared down");
            let calm = world.now().since(world.last_fault_at) >= world.settings.quiet_after();
            if calm && world.idx_of(*node).is_some_and(|p| world.machines[p].runs()) {
                let detail = format!("n{} declares {name} down, which runs and is reachable", idx + 1);
                world.require(Err(violation(DOWN_1, detail)));
            }
        }
    }

    /// A host's digest arrived at the node that it believes leads.
    pub(crate) fn digest(world: &mut World, to: MachineIdx, caller: Caller, runtime: u32, digest: SessionDigest) {
        let (host, sequence) = (world.machines[caller.idx].id, digest.sequence);
        let taken = Self::step(world, to, dispatcher::Input::Digest { host, digest });
        if world.reaches(to, caller.idx) && !world.rng.chance(world.net.conditions.loss) {
            let delay = world.net.conditions.slow + world.rng.micros(100, 1800);
            let ok = taken == Some(DigestOutcome::Accepted);
            world.time.after(delay, Event::DigestAnswered { idx: caller.idx, runtime, sequence, ok });
        }
    }

    pub(crate) fn step_ended(
        world: &mut World,
        idx: MachineIdx,
        incarnation: u32,
        batch: BatchId,
        result: Result<Applied, ProposeError>,
    ) {
        if Self::at(world, idx).is_some_and(|d| d.incarnation == incarnation) {
            let outcome = match result {
                Ok(applied) => Outcome::Applied(applied.revision),
                Err(ProposeError::Refused(_)) => Outcome::Refused,
                Err(_) => Outcome::Failed,
            };
            Self::step(world, idx, dispatcher::Input::Proposed { batch, outcome });
        }
    }
}
