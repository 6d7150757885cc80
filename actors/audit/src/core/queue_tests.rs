use super::*;

struct World {
    queue: Queue,
    now: Moment,
}

impl World {
    fn new() -> Self {
        Self { queue: Queue::default(), now: Moment(1) }
    }
    fn step(&mut self, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        self.queue.step(self.now, input, &mut out);
        out
    }
    fn record(&mut self, line: &str, ask: Option<u64>) -> Vec<Effect> {
        self.step(Input::Record { line: line.to_owned(), ask: ask.map(AskId), unauthenticated: false })
    }
    fn tick(&mut self) -> Vec<Effect> {
        self.now = self.now + Duration::from_secs(1);
        self.step(Input::Tick)
    }
}

fn write(text: &str) -> Effect {
    Effect::Run(Job { text: text.to_owned(), ..Job::default() })
}
fn full() -> Result<(), String> {
    Err("no space left".to_owned())
}

#[test]
fn lines_are_written_in_order_one_job_at_a_time() {
    let mut world = World::new();
    assert_eq!(world.record("a", Some(1)), [write("a\n")]);
    assert_eq!(world.record("b", Some(2)), []);
    assert_eq!(world.record("c", None), []);
    assert_eq!(world.step(Input::Ended(Ok(()))), [Effect::Answer(AskId(1), Ok(())), write("b\nc\n")]);
    assert_eq!(world.step(Input::Ended(Ok(()))), [Effect::Answer(AskId(2), Ok(()))]);
    assert_eq!((world.queue.state().written, world.queue.state().waiting), (3, 0));
}

#[test]
fn what_was_written_is_synced_with_the_next_tick() {
    let mut world = World::new();
    assert_eq!(world.tick(), [], "nothing to sync");
    world.record("a", None);
    world.step(Input::Ended(Ok(())));
    assert_eq!(world.tick(), [Effect::Run(Job { sync: true, ..Job::default() })]);
    world.step(Input::Ended(Ok(())));
    assert_eq!(world.tick(), []);
}

#[test]
fn failing_file_is_known_tried_each_second_and_keeps_lines() {
    let mut world = World::new();
    world.record("a", Some(1));
    world.record("b", Some(2));
    let out = world.step(Input::Ended(full()));
    let refused = |n| Effect::Answer(AskId(n), full());
    let failing = Effect::Failing { why: "no space left".to_owned(), waiting: 2, dropped: 0 };
    assert_eq!(out, [refused(1), refused(2), failing]);
    assert_eq!(world.step(Input::Check(AskId(3))), [refused(3)], "immediately");
    assert_eq!(world.record("c", Some(4)), [refused(4)], "immediately, and the line is kept");
    assert_eq!(world.queue.state().failed, 3, "each line counts once");
    let again = Effect::Run(Job { text: "a\nb\nc\n".to_owned(), sync: true, reopen: true });
    assert_eq!(world.tick(), [again]);
    assert_eq!(world.step(Input::Ended(full())), [], "one log line per minute");
    world.tick();
    assert_eq!(world.step(Input::Ended(Ok(()))), [Effect::Recovered { dropped: 0 }]);
    let state = world.queue.state();
    assert_eq!((state.failing, state.written, state.failed, state.dropped), (None, 3, 3, 0));
}

#[test]
fn failing_file_is_reported_once_a_minute() {
    let mut world = World::new();
    world.record("a", None);
    let mut reports = world.step(Input::Ended(full())).len();
    for _ in 0..130 {
        reports += world.tick().iter().filter(|e| matches!(e, Effect::Failing { .. })).count();
        reports += world.step(Input::Ended(full())).len();
    }
    assert_eq!(reports, 3);
}

#[test]
fn hung_file_is_known_after_two_ticks_and_recovers() {
    let mut world = World::new();
    world.record("a", Some(1));
    world.step(Input::Check(AskId(2)));
    assert_eq!(world.tick(), []);
    let out = world.tick();
    let why = "a write to the file has not finished for 2 s".to_owned();
    let answers: Vec<_> = out.iter().filter(|e| matches!(e, Effect::Answer(..))).collect();
    assert_eq!(answers, [&Effect::Answer(AskId(2), Err(why.clone())), &Effect::Answer(AskId(1), Err(why.clone()))]);
    assert_eq!(world.step(Input::Check(AskId(3))), [Effect::Answer(AskId(3), Err(why))]);
    assert_eq!(world.record("b", None), [], "no second job");
    assert_eq!(world.step(Input::Ended(Ok(()))), [Effect::Recovered { dropped: 0 }, write("b\n")]);
}

#[test]
fn idle_file_that_failed_is_tried_without_lines() {
    let mut world = World::new();
    assert_eq!(world.step(Input::Check(AskId(1))), [write("")]);
    world.step(Input::Ended(full()));
    assert_eq!(world.tick(), [Effect::Run(Job { sync: true, reopen: true, ..Job::default() })]);
    world.step(Input::Ended(Ok(())));
    assert_eq!(world.step(Input::Check(AskId(2))), [write("")]);
    assert_eq!(world.step(Input::Ended(Ok(()))), [Effect::Answer(AskId(2), Ok(()))]);
}

#[test]
fn lines_without_room_are_counted() {
    let mut world = World::new();
    world.record("first", None);
    for _ in 0..MAX_WAITING {
        world.record("x", None);
    }
    let out = world.record("late", Some(9));
    assert!(matches!(out.as_slice(), [Effect::Answer(AskId(9), Err(_))]), "{out:?}");
    assert_eq!((world.queue.state().dropped, world.queue.state().failed), (1, 1));
    world.step(Input::Ended(Ok(())));
    assert!(world.tick().iter().any(|e| matches!(e, Effect::Failing { dropped: 1, .. })));
    let mut world = World::new();
    world.record("first", None);
    for _ in 0..9 {
        world.record(&"x".repeat(MAX_WAITING_BYTES / 8), None);
    }
    assert_eq!(world.queue.state().dropped, 1, "limited by bytes as well");
}

#[test]
fn unauthenticated_callers_have_a_rate() {
    let mut world = World::new();
    let unauthenticated_record = |world: &mut World| {
        world.step(Input::Record { line: "x".to_owned(), ask: None, unauthenticated: true });
    };
    (0..UNAUTHENTICATED_BURST + 5).for_each(|_| unauthenticated_record(&mut world));
    assert_eq!((world.queue.state().suppressed, world.queue.state().waiting), (5, UNAUTHENTICATED_BURST as usize));
    world.tick();
    (0..UNAUTHENTICATED_PER_TICK + 5).for_each(|_| unauthenticated_record(&mut world));
    assert_eq!(world.queue.state().suppressed, 10);
}

#[test]
fn crash_loses_no_line_that_waits_or_is_in_flight() {
    let mut world = World::new();
    world.record("a", Some(1));
    world.record("b", Some(2));
    world.step(Input::Check(AskId(3)));
    world.queue = world.queue.clone().resume();
    assert_eq!(world.step(Input::Tick), [Effect::Run(Job { text: "a\nb\n".to_owned(), sync: true, reopen: false })]);
    assert_eq!(world.step(Input::Ended(Ok(()))), [], "no caller waits");
}

#[test]
fn reopen_is_done_without_a_line() {
    let mut world = World::new();
    assert_eq!(world.step(Input::Reopen), [Effect::Run(Job { reopen: true, ..Job::default() })]);
}
