use std::sync::atomic::{AtomicU64, Ordering};

use muster_kernel::Address;
use muster_messages::CrashHow;
use muster_tests::{Idle, Probe, Universe};
use tokio::sync::watch;

use super::*;

/// A half of this number, none at 0 and from 100 on.
struct Halves {
    stopped: muster_kernel::Recipient<u64>,
    /// Up to this number everything is in order; tidying is tried as often as it says, and works the last time.
    in_order: AtomicU64,
    tries: AtomicU64,
}
impl Plan<u64> for Halves {
    fn wanted(&self, level: &u64) -> Option<u64> {
        (1..100).contains(level).then_some(*level)
    }
    fn child(&self, _level: &u64) -> Spec {
        Spec::actor("half", Address::new(1), || Ok(Idle))
    }
    fn disorder(&self, level: &u64) -> bool {
        *level > self.in_order.load(Ordering::SeqCst)
    }
    fn tidy(&self, level: u64) -> BoxFuture<'static, ()> {
        if self.tries.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.in_order.store(level, Ordering::SeqCst);
        }
        let told = self.stopped.tell(1000 + level);
        Box::pin(async move { told.expect("a probe takes everything") })
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
    switch_in_order_up_to(u64::MAX).await
}

async fn switch_in_order_up_to(level: u64) -> (Universe, watch::Sender<u64>, Probe<u64>) {
    let in_order = AtomicU64::new(level);
    let universe = Universe::start().await;
    let stopped = Probe::showing("stopped", u64::to_string);
    let (level, levels) = watch::channel(0);
    let plan = Arc::new(Halves { stopped: stopped.recipient(), in_order, tries: AtomicU64::new(3) });
    let siblings = universe.children().clone();
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

#[tokio::test(start_paused = true)]
async fn nothing_starts_before_what_is_in_disorder_is_tidied_however_often_that_fails() {
    let (universe, level, mut stopped) = switch_in_order_up_to(1).await;
    level.send_replace(2);
    for _ in 0..3 {
        assert_eq!(stopped.next("a try").await, 1002);
    }
    universe.healthy("node/half", 1).await;
    stopped.expect_none(std::time::Duration::from_secs(60)).await;
    universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_in_disorder_is_tidied_although_nothing_is_to_run() {
    let (universe, level, mut stopped) = switch_in_order_up_to(1).await;
    level.send_replace(100);
    for _ in 0..3 {
        assert_eq!(stopped.next("a try").await, 1100);
    }
    stopped.expect_none(std::time::Duration::from_secs(60)).await;
    assert!(!universe.tree().list().contains(&"node/half".to_owned()));
    universe.finish().await;
}
