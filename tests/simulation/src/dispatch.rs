//! A leader's dispatcher: incarnations and effects.

use std::time::Duration;

use muster_messages::protocol::{Applied, ProposeError};
use muster_messages::wire::SessionDigest;
use muster_messages::{Change, Liveness};
use muster_sessions::core::dispatcher::{self, BatchId, DigestOutcome, Outcome};

use crate::checks::{DOWN_1, violation};
use crate::machine::{Asker, Caller, Dispatch, MachineIdx};
use crate::schedule::keep_earlier;
use crate::simulation::{Event, Simulation};

impl Simulation {
    fn dispatcher(&mut self, idx: MachineIdx) -> Option<&mut Dispatch> {
        self.machines[idx].runtime.as_mut()?.leader.as_mut()?.dispatch.as_mut()
    }

    pub(crate) fn dispatcher_back(&mut self, idx: MachineIdx, runtime: u32) {
        self.incarnations += 1;
        let (incarnation, config) = (self.incarnations, self.settings.dispatcher.clone());
        let (now, wall) = (self.clock(idx), self.wall(idx));
        let Some(h) = self.machines[idx].runtime_mut(runtime) else { return };
        let tables = h.core.replica().tables.clone();
        let Some(leader) = h.leader.as_mut().filter(|l| l.dispatch.is_none()) else { return };
        let core = dispatcher::Dispatcher::new(config, now, wall);
        leader.dispatch = Some(Dispatch { incarnation, core, wakes: None });
        self.dispatcher_step(idx, dispatcher::Input::Replica(tables));
    }

    pub(crate) fn crash_dispatcher(&mut self, idx: MachineIdx) {
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        let number = runtime.number;
        if runtime.leader.as_mut().is_some_and(|l| l.dispatch.take().is_some()) {
            self.log(format!("the dispatcher of n{} crashes", idx + 1));
            let back = self.rng.millis(1, 400);
            self.time.after(back, Event::DispatcherBack { idx, runtime: number });
        }
    }

    pub(crate) fn dispatcher_woke(&mut self, idx: MachineIdx, incarnation: u32) {
        if let Some(dispatch) = self.dispatcher(idx).filter(|d| d.incarnation == incarnation) {
            dispatch.wakes = None;
            self.dispatcher_step(idx, dispatcher::Input::Woke);
        }
    }

    pub(crate) fn dispatcher_step(&mut self, idx: MachineIdx, input: dispatcher::Input) -> Option<DigestOutcome> {
        let (now, wall) = (self.clock(idx), self.wall(idx));
        let dispatch = self.dispatcher(idx)?;
        let incarnation = dispatch.incarnation;
        let mut effects = Vec::new();
        let decision = dispatch.core.step(now, wall, input, &mut effects);
        let wakes = dispatch.core.wake_at(now);
        if let Some(at) = keep_earlier(&mut dispatch.wakes, wakes) {
            let at = self.moment(idx, at);
            self.time.at(at, Event::DispatcherWoke { idx, incarnation });
        }
        for effect in effects {
            if let dispatcher::Effect::Propose { batch, command } = effect {
                self.check_liveness(idx, &command.changes);
                self.propose(idx, Asker::Dispatch { incarnation, batch }, command, Duration::from_secs(5));
            }
        }
        Some(decision)
    }

    /// DOWN-1: without a recent fault no running node is declared down.
    fn check_liveness(&mut self, idx: MachineIdx, changes: &[Change]) {
        for change in changes {
            let Change::SetLiveness { node, liveness } = change else { continue };
            let name = self.name(*node);
            self.log(format!("n{} proposes liveness: {name} is {liveness:?}", idx + 1));
            if *liveness != Liveness::Down {
                continue;
            }
            self.totals.count("nodes declared down");
            let calm = self.now().since(self.last_fault_at) >= self.settings.quiet_after();
            if calm && self.idx_of(*node).is_some_and(|p| self.machines[p].runs()) {
                let detail = format!("n{} declares {name} down, which runs and is reachable", idx + 1);
                self.require(Err(violation(DOWN_1, detail)));
            }
        }
    }

    /// A host's digest arrived at the node that it believes leads.
    pub(crate) fn digest(&mut self, to: MachineIdx, caller: Caller, runtime: u32, digest: SessionDigest) {
        let (host, sequence) = (self.machines[caller.idx].id, digest.sequence);
        let taken = self.dispatcher_step(to, dispatcher::Input::Digest { host, digest });
        if self.reaches(to, caller.idx) && !self.rng.chance(self.net.conditions.loss) {
            let delay = self.net.conditions.slow + self.rng.micros(100, 1800);
            let ok = taken == Some(DigestOutcome::Accepted);
            self.time.after(delay, Event::DigestAnswered { idx: caller.idx, runtime, sequence, ok });
        }
    }

    pub(crate) fn dispatch_ended(
        &mut self,
        idx: MachineIdx,
        incarnation: u32,
        batch: BatchId,
        result: Result<Applied, ProposeError>,
    ) {
        if self.dispatcher(idx).is_some_and(|d| d.incarnation == incarnation) {
            let outcome = match result {
                Ok(applied) => Outcome::Applied(applied.revision),
                Err(ProposeError::Refused(_)) => Outcome::Refused,
                Err(_) => Outcome::Failed,
            };
            self.dispatcher_step(idx, dispatcher::Input::Proposed { batch, outcome });
        }
    }
}
