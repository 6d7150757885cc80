//! What the tests of a run share: views that they write, a clock that they move, and the recorded effects.

use muster_messages::wire::GateView;
use muster_messages::{Blocker, CommandAction, ErrorCode, GatePath, ParticipantPhase, Triple};

use super::*;

pub(super) const TERM: FencingToken = FencingToken(40);

pub(super) fn definition(action: Action) -> Definition {
    Definition {
        every_ms: Some(30_000),
        settle_ms: 5_000,
        run_timeout_ms: 60_000,
        resign_after: 3,
        digest: "d".into(),
        ..Definition::new("schema", "2.0.0".parse().unwrap(), "db", Triple::new(2, 0, 0), action)
    }
}
pub(super) fn command() -> Action {
    Action::Command(CommandAction { argv: vec!["true".into()], env: Default::default() })
}
pub(super) fn blocker(member: &str, release: &str) -> Blocker {
    Blocker {
        member: member.into(),
        release: release.parse().unwrap(),
        phase: ParticipantPhase::Serving,
        external: false,
        since: WallTime(0),
        why: "release is below 2.0.0".into(),
    }
}

pub(super) struct Scenario {
    pub run: Run,
    pub now: Moment,
    pub view: RunnerView,
    pub effects: Vec<Effect>,
    pub reports: Vec<Progress>,
    pub records: Vec<RunRecord>,
}

impl Scenario {
    pub(super) fn new(action: Action, path: GatePath) -> Self {
        let who = Runner {
            reconciler: "schema".into(),
            node: NodeId::from_entropy(1),
            member: "n1".into(),
            release: "2.0.0".parse().unwrap(),
            term: TERM,
        };
        let gate = GateView {
            epoch: if path == GatePath::First { 0 } else { 4 },
            readable: true,
            reconciled: (path != GatePath::First).then(|| "1.0.0".parse().unwrap()),
            term: FencingToken(20),
            at_work: false,
        };
        let view = RunnerView {
            revision: Revision(41),
            definition: Some(definition(action)),
            gate,
            candidates: vec![],
            choice: Default::default(),
            pinned: None,
            timing: Default::default(),
            hold: None,
            path: Some(path.into()),
            blockers: vec![],
            blockers_in_all: 0,
            retries: 0,
            waves: 3,
            steps_done: 0,
            records_runs: true,
        };
        Self { run: Run::new(who, 3), now: Moment(1_000_000), view, effects: vec![], reports: vec![], records: vec![] }
    }
    pub(super) fn receive(&mut self, input: Input) {
        let mut out = Vec::new();
        let wall = WallTime(i64::try_from(self.now.0 / 1000).unwrap());
        self.run.step(self.now, wall, input, &mut out);
        for effect in out {
            match effect {
                Effect::Report(progress) => {
                    self.reports.push(*progress);
                    self.receive(Input::Reported { ok: true });
                }
                Effect::RecordRun(record) => {
                    self.records.push(*record);
                    self.receive(Input::RunRecorded { decided: true });
                }
                other => self.effects.push(other),
            }
        }
    }
    /// The view changes.
    pub(super) fn change_view(&mut self, change: impl FnOnce(&mut RunnerView)) {
        self.view.revision = self.view.revision.next();
        change(&mut self.view);
        self.receive(Input::View(Arc::new(self.view.clone())));
    }
    pub(super) fn unchanged_view(&mut self) {
        self.change_view(|_| {});
    }
    pub(super) fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while let Some(at) = self.run.wake_at().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let before = self.run.clone();
            self.receive(Input::Woke);
            assert!(self.run != before || self.run.wake_at() != Some(at), "it wakes without effect: {:?}", self.run);
        }
        self.now = end;
    }
    /// Time passes, from each moment at which the run wakes to the next, until it has such an effect.
    pub(super) fn pass_until(&mut self, wanted: impl Fn(&Effect) -> bool) {
        for _ in 0..10_000 {
            if self.effects.iter().any(&wanted) {
                return;
            }
            let wakes = self.run.wake_at().unwrap_or_else(|| panic!("it waits for no moment: {:?}", self.run));
            self.now = self.now.max(wakes);
            self.receive(Input::Woke);
        }
        panic!("it never has the effect: {:?}", self.run);
    }
    pub(super) fn pass_until_it_acts(&mut self) {
        self.pass_until(|effect| matches!(effect, Effect::Act { .. }));
    }
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }
    /// Its only effect, log lines aside.
    pub(super) fn only(&mut self) -> Effect {
        let mut effects = self.effects();
        effects.retain(|effect| !matches!(effect, Effect::Log(_)));
        assert_eq!(effects.len(), 1, "{effects:?}");
        effects.remove(0)
    }
    pub(super) fn nothing(&mut self) {
        let effects = self.effects();
        assert!(effects.iter().all(|effect| matches!(effect, Effect::Log(_))), "{effects:?}");
    }
    /// The requested step is granted; the view follows, if `seen`.
    pub(super) fn grant(&mut self, expected: GateStep, seen: bool) {
        let Effect::Step { number, epoch, step, .. } = self.only() else { panic!("it requests no step") };
        assert_eq!((step, epoch), (expected, self.view.gate.epoch));
        self.view.gate = GateView { epoch: epoch + 1, term: TERM, ..self.view.gate.clone() };
        self.view.path = Some(if step == GateStep::Complete { GatePath::Reached } else { GatePath::Open }.into());
        self.view.revision = self.view.revision.next();
        let stepped = Stepped { epoch: epoch + 1, revision: self.view.revision };
        self.receive(Input::Stepped { number, result: Ok(stepped) });
        if seen {
            self.receive(Input::View(Arc::new(self.view.clone())));
        }
    }
    pub(super) fn refuse(&mut self, code: ErrorCode) {
        let result = Err(ErrorBody::new(code, "no"));
        match self.only() {
            Effect::Step { number, .. } => {
                self.receive(Input::Stepped { number, result: result.map(|()| Stepped::default()) })
            }
            Effect::Wave { number, .. } => {
                self.receive(Input::Waved { number, result: result.map(|()| Waved::default()) })
            }
            Effect::Record { number, .. } => {
                self.receive(Input::Recorded { number, result: result.map(|()| Recorded::default()) })
            }
            other => panic!("{other:?}"),
        }
    }
    /// The step of this name is asked to be recorded, and is, as the next view shows.
    pub(super) fn records(&mut self, expected: &str) {
        let Effect::Record { number, step, .. } = self.only() else { panic!("{:?}", self.effects) };
        assert_eq!(step, expected);
        self.view.steps_done += 1;
        self.view.revision = self.view.revision.next();
        let recorded = Recorded { revision: self.view.revision };
        self.receive(Input::Recorded { number, result: Ok(recorded) });
        self.receive(Input::View(Arc::new(self.view.clone())));
    }
    pub(super) fn acts(&mut self) -> (u64, Work) {
        match self.only() {
            Effect::Act { number, work } => (number, *work),
            other => panic!("{other:?}"),
        }
    }
    pub(super) fn end(&mut self, number: u64, outcome: Outcome) {
        let ended = Ended { head: "begin".into(), output: "out".into(), ..outcome.into() };
        self.receive(Input::Acted { number, ended: Box::new(ended) });
    }
    pub(super) fn fails(&mut self, text: &str) {
        let (number, _) = self.acts();
        self.end(number, Outcome::Failed(text.into()));
    }
    pub(super) fn phase_and_reason(&mut self) -> (String, String) {
        let progress = self.run.progress(WallTime(0));
        (progress.phase.text().to_owned(), progress.reason.text().to_owned())
    }
    pub(super) fn is(&mut self, phase: &str, reason: &str) {
        assert_eq!(self.phase_and_reason(), (phase.to_owned(), reason.to_owned()));
    }
}
