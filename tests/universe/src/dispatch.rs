//! The dispatcher of a leader: its incarnations and effects.

use std::time::Duration;

use muster_messages::protocol::{Applied, ProposeError};
use muster_messages::wire::SessionDigest;
use muster_messages::{Change, Liveness};
use muster_sessions::core::dispatcher::{self, BatchId, Outcome, Verdict};

use crate::checks::{DOWN_1, broken};
use crate::machine::{Asker, Caller, Dispatch, Place};
use crate::schedule::sooner;
use crate::world::{Event, Universe};

impl Universe {
    fn dispatcher(&mut self, place: Place) -> Option<&mut Dispatch> {
        self.machines[place].half.as_mut()?.leader.as_mut()?.dispatch.as_mut()
    }

    pub(crate) fn dispatcher_back(&mut self, place: Place, half: u32) {
        self.incarnations += 1;
        let (incarnation, config) = (self.incarnations, self.settings.dispatcher.clone());
        let (now, wall) = (self.clock(place), self.wall(place));
        let Some(h) = self.machines[place].half_mut(half) else { return };
        let tables = h.core.replica().tables.clone();
        let Some(leader) = h.leader.as_mut().filter(|l| l.dispatch.is_none()) else { return };
        let core = dispatcher::Dispatcher::new(config, now, wall);
        leader.dispatch = Some(Dispatch { incarnation, core, wakes: None });
        self.dispatcher_step(place, dispatcher::Input::Copy(tables));
    }

    pub(crate) fn crash_dispatcher(&mut self, place: Place) {
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let number = half.number;
        if half.leader.as_mut().is_some_and(|l| l.dispatch.take().is_some()) {
            self.say(format!("the dispatcher of n{} crashes", place + 1));
            let back = self.dice.millis(1, 400);
            self.time.after(back, Event::DispatcherBack { place, half: number });
        }
    }

    pub(crate) fn dispatcher_woke(&mut self, place: Place, incarnation: u32) {
        if let Some(dispatch) = self.dispatcher(place).filter(|d| d.incarnation == incarnation) {
            dispatch.wakes = None;
            self.dispatcher_step(place, dispatcher::Input::Woke);
        }
    }

    pub(crate) fn dispatcher_step(&mut self, place: Place, input: dispatcher::Input) -> Option<Verdict> {
        let (now, wall) = (self.clock(place), self.wall(place));
        let dispatch = self.dispatcher(place)?;
        let incarnation = dispatch.incarnation;
        let mut effects = Vec::new();
        let verdict = dispatch.core.step(now, wall, input, &mut effects);
        let wakes = dispatch.core.wake_at(now);
        if let Some(at) = sooner(&mut dispatch.wakes, wakes) {
            let at = self.moment(place, at);
            self.time.at(at, Event::DispatcherWoke { place, incarnation });
        }
        for effect in effects {
            if let dispatcher::Effect::Propose { batch, command } = effect {
                self.judge_liveness(place, &command.changes);
                self.propose(place, Asker::Dispatch { incarnation, batch }, command, Duration::from_secs(5));
            }
        }
        Some(verdict)
    }

    /// DOWN-1: where nothing has gone wrong for a while, nobody who runs is called down.
    fn judge_liveness(&mut self, place: Place, changes: &[Change]) {
        for change in changes {
            let Change::SetLiveness { node, liveness } = change else { continue };
            let name = self.name(*node);
            self.say(format!("n{} writes that {name} is {liveness:?}", place + 1));
            if *liveness != Liveness::Down {
                continue;
            }
            self.totals.count("nodes called down");
            let calm = self.now().since(self.disturbed) >= self.settings.calm_after();
            if calm && self.place_of(*node).is_some_and(|p| self.machines[p].runs()) {
                let detail = format!("n{} says so of {name}, which runs and can be reached by all", place + 1);
                self.hold_to(Err(broken(DOWN_1, detail)));
            }
        }
    }

    /// A host's digest has come to whom it takes for the leader.
    pub(crate) fn digest(&mut self, to: Place, caller: Caller, half: u32, digest: SessionDigest) {
        let (host, sequence) = (self.machines[caller.place].id, digest.sequence);
        let taken = self.dispatcher_step(to, dispatcher::Input::Digest { host, digest });
        if self.reaches(to, caller.place) && !self.dice.chance(self.net.weather.loss) {
            let delay = self.net.weather.slow + self.dice.micros(100, 1800);
            let ok = taken == Some(Verdict::Taken);
            self.time.after(delay, Event::DigestAnswered { place: caller.place, half, sequence, ok });
        }
    }

    pub(crate) fn dispatch_ended(
        &mut self,
        place: Place,
        incarnation: u32,
        batch: BatchId,
        result: Result<Applied, ProposeError>,
    ) {
        if self.dispatcher(place).is_some_and(|d| d.incarnation == incarnation) {
            let outcome = match result {
                Ok(applied) => Outcome::Applied(applied.revision),
                Err(ProposeError::Refused(_)) => Outcome::Refused,
                Err(_) => Outcome::Failed,
            };
            self.dispatcher_step(place, dispatcher::Input::Proposed { batch, outcome });
        }
    }
}
