use muster_kernel::Address;
use muster_messages::CrashHow;
use muster_tests::{Idle, Probe, Universe};
use tokio::sync::watch;

use super::*;

/// A half of this number, none at 0.
struct Halves {
    stopped: muster_kernel::Recipient<u64>,
}
impl Plan<u64> for Halves {
    fn wanted(&self, level: &u64) -> Option<u64> {
        (*level > 0).then_some(*level)
    }
    fn child(&self, _level: &u64) -> Spec {
        Spec::actor("half", Address::new(1), || Ok(Idle))
    }
    fn after_stop(&self, level: u64) -> BoxFuture<'static, ()> {
        let told = self.stopped.tell(level);
        Box::pin(async move { told.expect("a probe takes everything") })
    }
    fn name(&self) -> &'static str {
        "half"
    }
}

async fn switch() -> (Universe, watch::Sender<u64>, Probe<u64>) {
    let universe = Universe::start().await;
    let stopped = Probe::showing("stopped", u64::to_string);
    let (level, levels) = watch::channel(0);
    let (plan, siblings) = (Arc::new(Halves { stopped: stopped.recipient() }), universe.children().clone());
    universe.start_actor(Spec::actor("switch", Address::new(8), move || {
        Ok(Switch::new(Arc::clone(&plan), siblings.clone(), levels.clone()))
    }));
    universe.healthy("node/switch", 1).await;
    (universe, level, stopped)
}

#[tokio::test(start_paused = true)]
async fn a_child_runs_exactly_while_its_level_wants_it() {
    let (universe, level, mut stopped) = switch().await;
    assert!(!universe.tree().list().contains(&"node/half".to_owned()));
    level.send_replace(1);
    let first = universe.healthy("node/half", 1).await;
    // Another key is another child, after the old one has gone.
    level.send_replace(2);
    assert_eq!(stopped.next("the end of the first").await, 2);
    let second = universe.healthy("node/half", 1).await;
    assert!(second.since >= first.since);
    level.send_replace(2);
    stopped.expect_none(std::time::Duration::from_secs(60)).await;
    level.send_replace(0);
    assert_eq!(stopped.next("the end of the second").await, 0);
    universe.gone("node/half").await;
    universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_switch_that_crashed_stops_what_it_left_running_and_reads_its_level_again() {
    let (mut universe, level, mut stopped) = switch().await;
    level.send_replace(1);
    universe.healthy("node/half", 1).await;
    universe.crash("node/switch", CrashHow::Panic);
    assert_eq!(stopped.next("the end of what was left").await, 1);
    universe.healthy("node/half", 1).await;
    universe.finish().await;
}
