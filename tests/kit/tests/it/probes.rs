//! What probes take, and their failure texts.

use std::time::Duration;

use muster_kernel::{AskError, Undeliverable};
use muster_testkit::{ActorHarness, Probe, WAIT_LIMIT, answered};
use tokio::time::Instant;

use crate::actors::Msg;
use crate::failure;

fn text(msg: Msg) -> Option<&'static str> {
    match msg {
        Msg::Panic(text) | Msg::Error(text) => Some(text),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn messages_are_taken_in_order_or_by_kind() {
    let mut probe = Probe::new("p");
    let to = probe.recipient();
    for msg in [Msg::Error("1"), Msg::Leak, Msg::Panic("2")] {
        to.tell(msg).unwrap();
    }
    assert_eq!(probe.heard(), ["p: error", "p: leak", "p: panic"]);
    let last = probe.until("a panic", |msg| matches!(msg, Msg::Panic(_))).await;
    assert_eq!((text(last), probe.waiting()), (Some("2"), 2), "earlier messages stay");
    assert_eq!(probe.expect("the first", text).await, "1");
    assert!(matches!(probe.drain()[..], [Msg::Leak]));
}

#[tokio::test(start_paused = true)]
async fn late_message_is_awaited() {
    let mut probe = Probe::new("p");
    let to = probe.recipient();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(50)).await;
        to.tell(Msg::Leak).unwrap();
        to.tell(Msg::Error("x")).unwrap();
    });
    let began = Instant::now();
    probe.expect_none(Duration::from_secs(49)).await;
    assert_eq!(began.elapsed().as_secs(), 49);
    probe.until("an error", |msg| matches!(msg, Msg::Error(_))).await;
    assert_eq!((began.elapsed().as_secs(), probe.waiting()), (50, 1));
}

#[test]
fn missing_message_failure_lists_received_messages() {
    let text = failure(async {
        let harness = ActorHarness::start().await;
        let mut disk = harness.probe("disk");
        let net = harness.probe::<Msg>("net");
        disk.recipient().tell(Msg::Work).unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        net.recipient().tell(Msg::Leak).unwrap();
        disk.until("an error", |msg| matches!(msg, Msg::Error(_))).await;
    });
    let text_of_failure = text.replace(&format!("{WAIT_LIMIT:?}"), "TIMEOUT");
    let (what, came) = text_of_failure.split_once('\n').unwrap();
    assert_eq!(what, "disk: expected an error, which did not come within TIMEOUT");
    let came: Vec<_> = came.lines().map(|line| line.trim_start().split_once("  ").unwrap_or((line, ""))).collect();
    assert_eq!(came[1].1, "disk: work");
    assert!(came[2].0.starts_with("2.0") && came[2].1 == "net: leak" && came.len() == 3, "{text}");
}

#[test]
fn unexpected_message_fails_the_test() {
    let text = failure(async {
        let mut probe = Probe::new("disk");
        probe.recipient().tell(Msg::Leak).unwrap();
        probe.expect("an error", text).await;
    });
    assert!(text.starts_with("disk: expected an error, but leak came\n"), "{text}");
}

#[test]
fn probe_timeout_can_be_set() {
    let text = failure(async {
        let mut probe = Probe::<Msg>::new("disk").timeout(Duration::from_secs(3));
        probe.next("anything").await;
    });
    assert_eq!(text, "disk: expected anything, which did not come within 3s\n  nothing arrived at all");
}

#[test]
fn expect_none_fails_on_waiting_and_arriving_messages() {
    for after in [0, 7] {
        let text = failure(async {
            let mut probe = Probe::new("disk");
            let to = probe.recipient();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(after)).await;
                to.tell(Msg::Leak).unwrap();
            });
            tokio::time::sleep(Duration::from_secs(1)).await;
            probe.expect_none(Duration::from_secs(10)).await;
        });
        assert!(text.starts_with("disk: expected nothing, but leak came\n"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn scripts_answer_in_order_and_pass_on_the_rest() {
    let mut probe = Probe::new("p");
    let mut once = Some(7);
    probe.on(move |msg| match (msg, once.take()) {
        (Msg::Who(reply), Some(first)) => answered(reply, first),
        (msg, left) => {
            once = left;
            Some(msg)
        }
    });
    probe.on(|msg| match msg {
        Msg::Who(reply) => answered(reply, 8),
        other => Some(other),
    });
    let to = probe.recipient();
    to.tell(Msg::Work).unwrap();
    assert_eq!(to.ask(WAIT_LIMIT, Msg::Who).await, Ok(7));
    assert_eq!(to.ask(WAIT_LIMIT, Msg::Who).await, Ok(8));
    assert_eq!(probe.heard(), ["p: work", "p: who", "p: who"]);
    assert!(matches!(probe.next("what no script takes").await, Msg::Work));
    assert_eq!(probe.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn probe_refuses_like_a_mailbox() {
    let probe = Probe::new("p");
    let to = probe.recipient();
    probe.refuse(Undeliverable::Full);
    assert_eq!(to.tell(Msg::Leak), Err(Undeliverable::Full));
    probe.refuse(Undeliverable::Down);
    assert_eq!(to.ask(WAIT_LIMIT, Msg::Who).await, Err(AskError::Down));
    probe.accept();
    to.tell(Msg::Leak).unwrap();
    assert_eq!((probe.waiting(), probe.heard().len()), (1, 1), "refused messages have not arrived");
}

#[tokio::test(start_paused = true)]
async fn actor_in_front_of_probe_may_crash() {
    let mut harness = ActorHarness::start().await;
    let mut probe = harness.probe("disk");
    let address = harness.address_of(&probe).await;
    address.tell(Msg::Error("1")).unwrap();
    assert_eq!(probe.expect("the first", text).await, "1");
    harness.crash("node/disk", muster_kernel::CrashHow::Kill);
    harness.healthy("node/disk", 2).await;
    address.tell(Msg::Error("2")).unwrap();
    assert_eq!(probe.expect("the second", text).await, "2");
    assert_eq!(harness.journal(), ["disk: error", "disk: error"]);
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn probe_formats_messages_with_given_function() {
    let mut numbers = muster_testkit::Probe::showing("numbers", |n: &u32| n.to_string());
    numbers.recipient().tell(7).unwrap();
    assert_eq!(numbers.heard(), ["numbers: 7"]);
    assert_eq!(numbers.next("a number").await, 7);
}
