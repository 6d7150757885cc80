use std::sync::atomic::{AtomicU64, Ordering};

use muster_kernel::Address;
use muster_messages::CrashHow;
use muster_testkit::{ActorHarness, Idle, Probe};
use tokio::sync::watch;

use super::*;

/// A child with this number; none at 0 and from 100 on.
struct Plans {
    stopped: muster_kernel::Recipient<u64>,
    /// Up to this number everything is in order; preparing is tried this often and succeeds the last time.
    in_order: AtomicU64,
    tries: AtomicU64,
}
impl Plan<u64> for Plans {
    fn wanted(&self, value: &u64) -> Option<u64> {
        (1..100).contains(value).then_some(*value)
    }
    fn child(&self, _level: &u64) -> Spec {
        Spec::actor("half", Address::new(1), || Ok(Idle))
    }
    fn needs_preparation(&self, value: &u64) -> bool {
        *value > self.in_order.load(Ordering::SeqCst)
    }
    fn prepare(&self, value: u64) -> BoxFuture<'static, ()> {
        if self.tries.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.in_order.store(value, Ordering::SeqCst);
        }
        let sent = self.stopped.tell(1000 + value);
        Box::pin(async move { sent.expect("the probe accepts every message") })
    }
    fn after_stop(&self, value: u64) -> BoxFuture<'static, ()> {
        let sent = self.stopped.tell(value);
        Box::pin(async move { sent.expect("the probe accepts every message") })
    }
    fn name(&self) -> &'static str {
        "half"
    }
}

async fn switch() -> (ActorHarness, watch::Sender<u64>, Probe<u64>) {
    switch_in_order_up_to(u64::MAX).await
}

async fn switch_in_order_up_to(value: u64) -> (ActorHarness, watch::Sender<u64>, Probe<u64>) {
    let in_order = AtomicU64::new(value);
    let harness = ActorHarness::start().await;
    let stopped = Probe::showing("stopped", u64::to_string);
    let (value, values) = watch::channel(0);
    let plan = Arc::new(Plans { stopped: stopped.recipient(), in_order, tries: AtomicU64::new(3) });
    let siblings = harness.children().clone();
    harness.start_actor(Spec::actor("switch", Address::new(8), move || {
        Ok(Switch::new(Arc::clone(&plan), siblings.clone(), values.clone()))
    }));
    harness.healthy("node/switch", 1).await;
    (harness, value, stopped)
}

#[tokio::test(start_paused = true)]
async fn child_runs_exactly_while_its_value_wants_it() {
    let (harness, value, mut stopped) = switch().await;
    assert!(!harness.tree().list().contains(&"node/half".to_owned()));
    value.send_replace(1);
    let first = harness.healthy("node/half", 1).await;
    // Another key is another child, started after the old one has ended.
    value.send_replace(2);
    assert_eq!(stopped.next("the end of the first").await, 2);
    let second = harness.healthy("node/half", 1).await;
    assert!(second.since >= first.since);
    value.send_replace(2);
    stopped.expect_none(std::time::Duration::from_secs(60)).await;
    value.send_replace(0);
    assert_eq!(stopped.next("the end of the second").await, 0);
    harness.gone("node/half").await;
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn crashed_switch_stops_its_child_and_rereads_its_value() {
    let (mut harness, value, mut stopped) = switch().await;
    value.send_replace(1);
    harness.healthy("node/half", 1).await;
    harness.crash("node/switch", CrashHow::Panic);
    assert_eq!(stopped.next("the end of the child left behind").await, 1);
    harness.healthy("node/half", 1).await;
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn child_starts_only_after_preparation_succeeds() {
    let (harness, value, mut stopped) = switch_in_order_up_to(1).await;
    value.send_replace(2);
    for _ in 0..3 {
        assert_eq!(stopped.next("a try").await, 1002);
    }
    harness.healthy("node/half", 1).await;
    stopped.expect_none(std::time::Duration::from_secs(60)).await;
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn preparation_runs_even_without_a_child() {
    let (harness, value, mut stopped) = switch_in_order_up_to(1).await;
    value.send_replace(100);
    for _ in 0..3 {
        assert_eq!(stopped.next("a try").await, 1100);
    }
    stopped.expect_none(std::time::Duration::from_secs(60)).await;
    assert!(!harness.tree().list().contains(&"node/half".to_owned()));
    harness.finish().await;
}
