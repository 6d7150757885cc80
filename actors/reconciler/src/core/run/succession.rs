//! From one term to the next, and from one incarnation of the actor to the next: which run a term has, and which inputs it takes.
//!
//! Inputs      the term that is held; the run that an earlier term or a crashed incarnation left; the action that still runs.
//! Outputs     what a change of term leads to; the run of the term, and the action whose end it awaits.

use super::*;

/// What a change of term leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TermStep<T> {
    /// No term is held: the run, if there is one, ends.
    End,
    /// The run is already of this term.
    Keep,
    Begin(FencingToken, T),
}

impl<T> TermStep<T> {
    /// `current`: the term of the run. `held`: the term that is held and not over, with what its holder knows of it.
    pub fn of(current: Option<FencingToken>, held: Option<(FencingToken, T)>) -> Self {
        match held {
            None => Self::End,
            Some((token, _)) if current == Some(token) => Self::Keep,
            Some((token, term)) => Self::Begin(token, term),
        }
    }
}

/// The run with which a term begins, or continues after a crash.
#[derive(Clone, Debug, PartialEq)]
pub struct Succession {
    pub run: Run,
    /// It continues, and an action of its term still runs: its end is the run's next news.
    pub awaits_action: bool,
}

impl Succession {
    /// `left`: the checkpoint of the last run. `acting`: the action of this term that still runs.
    pub fn of(who: Runner, seed: u64, left: Option<Run>, acting: Option<u64>) -> Self {
        match left {
            Some(mut run) if run.who.term == who.term && !run.has_ended() => {
                run.recover(acting);
                Self { run, awaits_action: acting.is_some() }
            }
            left => {
                let run = Run::new(who, seed);
                let run = if let Some(earlier) = left { run.counting_on(&earlier) } else { run };
                Self { run, awaits_action: false }
            }
        }
    }
}

/// Applies an input to the run of a term. `of`: the term that the input belongs to, if it belongs to one. `lasts`: whether the term
/// does, by the clock. False: the input is of another term, and ignored.
///
/// The process may have been frozen: input from before must not begin anything, so the end of the term comes first.
pub fn step_in_term(
    run: &mut Run,
    (now, wall): (Moment, WallTime),
    lasts: bool,
    (of, input): (Option<FencingToken>, Input),
    out: &mut Vec<Effect>,
) -> bool {
    if of.is_some_and(|of| of != run.who.term) {
        return false;
    }
    if !lasts && !run.has_ended() {
        run.step(now, wall, Input::Ended, out);
    }
    run.step(now, wall, input, out);
    true
}

#[cfg(test)]
mod tests {
    use muster_messages::GatePath;

    use super::super::scenario::{Scenario, TERM, command};
    use super::*;

    const NEXT: FencingToken = FencingToken(50);

    fn runner(term: FencingToken) -> Runner {
        Runner { term, ..Scenario::new(command(), GatePath::Reached).run.who().clone() }
    }
    /// A run whose action runs, and the number of the action.
    fn acting() -> (Scenario, u64) {
        let mut scenario = Scenario::new(command(), GatePath::First);
        scenario.unchanged_view();
        let (number, _) = scenario.acts();
        (scenario, number)
    }

    #[test]
    fn run_ends_stays_or_begins_with_its_term() {
        for (current, held, step) in [
            (None, None, TermStep::End),
            (Some(TERM), None, TermStep::End),
            (None, Some((TERM, "a")), TermStep::Begin(TERM, "a")),
            (Some(TERM), Some((TERM, "a")), TermStep::Keep),
            (Some(TERM), Some((NEXT, "b")), TermStep::Begin(NEXT, "b")),
        ] {
            assert_eq!(TermStep::of(current, held), step, "{current:?} {held:?}");
        }
    }

    #[test]
    fn crashed_run_continues_and_awaits_its_action() {
        let (scenario, number) = acting();
        for acting in [Some(number), None] {
            let mut recovered = scenario.run.clone();
            recovered.recover(acting);
            let succession = Succession::of(runner(TERM), 9, Some(scenario.run.clone()), acting);
            assert_eq!(succession, Succession { run: recovered, awaits_action: acting.is_some() });
        }
        assert_ne!(
            Succession::of(runner(TERM), 9, Some(scenario.run.clone()), None).run,
            Succession::of(runner(TERM), 9, Some(scenario.run.clone()), Some(number)).run,
            "without its action it begins again"
        );
    }

    #[test]
    fn another_term_begins_anew_and_keeps_counting() {
        let (mut scenario, number) = acting();
        let of_another_term = Succession::of(runner(NEXT), 9, Some(scenario.run.clone()), Some(number));
        scenario.receive(Input::Ended);
        let of_an_ended_one = Succession::of(runner(TERM), 9, Some(scenario.run.clone()), Some(number));
        for (Succession { run, awaits_action }, term) in [(of_another_term, NEXT), (of_an_ended_one, TERM)] {
            assert!(!awaits_action && !run.has_ended());
            assert_eq!((run.who().term, run.tally().attempts), (term, 1));
            assert_eq!(run, Run::new(runner(term), 9).counting_on(&scenario.run));
        }
        let first = Succession::of(runner(TERM), 9, None, Some(number));
        assert_eq!(first, Succession { run: Run::new(runner(TERM), 9), awaits_action: false });
    }

    /// The effects of an input that arrives 60 ms after the action has begun; `None`: it was ignored.
    fn effects(lasts: bool, of: Option<FencingToken>, input: Input) -> (Option<Vec<Effect>>, Run) {
        let (mut scenario, _) = acting();
        let mut out = Vec::new();
        let now = scenario.now + Duration::from_millis(60);
        let taken = step_in_term(&mut scenario.run, (now, WallTime(1_060)), lasts, (of, input), &mut out);
        (taken.then_some(out), scenario.run)
    }

    #[test]
    fn input_of_another_term_is_ignored() {
        let (ignored, run) = effects(true, Some(NEXT), Input::Ended);
        assert_eq!((ignored, run), (None, acting().0.run));
        for of in [Some(TERM), None] {
            let (effects, run) = effects(true, of, Input::Ended);
            assert!(effects.is_some() && run.has_ended());
        }
        let (ignored, run) = effects(false, Some(NEXT), Input::Woke);
        assert!(ignored.is_none() && !run.has_ended(), "nor does it end a term that is over");
    }

    #[test]
    fn term_that_is_over_by_the_clock_ends_first() {
        let acts = |lasts: bool| {
            let mut scenario = Scenario::new(command(), GatePath::First);
            let (at, mut out) = ((scenario.now, WallTime(1_000)), Vec::new());
            let view = Input::View(Arc::new(scenario.view.clone()));
            assert!(step_in_term(&mut scenario.run, at, lasts, (None, view), &mut out));
            (out.iter().any(|effect| matches!(effect, Effect::Act { .. })), scenario.run.has_ended())
        };
        assert_eq!((acts(true), acts(false)), ((true, false), (false, true)));
        let (effects, run) = effects(false, Some(TERM), Input::Woke);
        assert!(effects.unwrap().iter().any(|effect| matches!(effect, Effect::Cancel { .. })) && run.has_ended());
    }
}
