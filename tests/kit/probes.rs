//! What probes take, and what they say when it does not come.

use std::time::Duration;

use muster_kernel::{AskError, Undeliverable};
use muster_tests::{PATIENCE, Probe, Universe, answered};
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
async fn messages_are_taken_in_order_or_by_what_they_are() {
    let mut probe = Probe::new("p");
    let to = probe.recipient();
    for msg in [Msg::Error("1"), Msg::Leak, Msg::Panic("2")] {
        to.tell(msg).unwrap();
    }
    assert_eq!(probe.heard(), ["p: error", "p: leak", "p: panic"]);
    let last = probe.until("a panic", |msg| matches!(msg, Msg::Panic(_))).await;
    assert_eq!((text(last), probe.waiting()), (Some("2"), 2), "what came before it stays");
    assert_eq!(probe.expect("the first", text).await, "1");
    assert!(matches!(probe.drain()[..], [Msg::Leak]));
}

#[tokio::test(start_paused = true)]
async fn what_comes_late_is_waited_for() {
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
fn what_did_not_come_is_told_with_what_did() {
    let text = failure(async {
        let universe = Universe::start().await;
        let mut disk = universe.probe("disk");
        let net = universe.probe::<Msg>("net");
        disk.recipient().tell(Msg::Work).unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        net.recipient().tell(Msg::Leak).unwrap();
        disk.until("an error", |msg| matches!(msg, Msg::Error(_))).await;
    });
    let told = text.replace(&format!("{PATIENCE:?}"), "PATIENCE");
    let (what, came) = told.split_once('\n').unwrap();
    assert_eq!(what, "disk: expected an error, which did not come within PATIENCE");
    let came: Vec<_> = came.lines().map(|line| line.trim_start().split_once("  ").unwrap_or((line, ""))).collect();
    assert_eq!(came[1].1, "disk: work");
    assert!(came[2].0.starts_with("2.0") && came[2].1 == "net: leak" && came.len() == 3, "{text}");
}

#[test]
fn another_message_than_the_expected_one_is_a_failure() {
    let text = failure(async {
        let mut probe = Probe::new("disk");
        probe.recipient().tell(Msg::Leak).unwrap();
        probe.expect("an error", text).await;
    });
    assert!(text.starts_with("disk: expected an error, but leak came\n"), "{text}");
}

#[test]
fn patience_has_an_end_of_its_own() {
    let text = failure(async {
        let mut probe = Probe::<Msg>::new("disk").patience(Duration::from_secs(3));
        probe.next("anything").await;
    });
    assert_eq!(text, "disk: expected anything, which did not come within 3s\n  nothing arrived at all");
}

#[test]
fn silence_is_broken_by_what_waits_and_by_what_comes() {
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
async fn scripts_answer_in_turn_and_leave_the_rest() {
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
    assert_eq!(to.ask(PATIENCE, Msg::Who).await, Ok(7));
    assert_eq!(to.ask(PATIENCE, Msg::Who).await, Ok(8));
    assert_eq!(probe.heard(), ["p: work", "p: who", "p: who"]);
    assert!(matches!(probe.next("what no script takes").await, Msg::Work));
    assert_eq!(probe.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_probe_refuses_as_a_mailbox_would() {
    let probe = Probe::new("p");
    let to = probe.recipient();
    probe.refuse(Undeliverable::Full);
    assert_eq!(to.tell(Msg::Leak), Err(Undeliverable::Full));
    probe.refuse(Undeliverable::Down);
    assert_eq!(to.ask(PATIENCE, Msg::Who).await, Err(AskError::Down));
    probe.accept();
    to.tell(Msg::Leak).unwrap();
    assert_eq!((probe.waiting(), probe.heard().len()), (1, 1), "what was refused has not arrived");
}

#[tokio::test(start_paused = true)]
async fn an_actor_stands_before_a_probe_and_may_crash() {
    let mut universe = Universe::start().await;
    let mut probe = universe.probe("disk");
    let address = universe.address_of(&probe).await;
    address.tell(Msg::Error("1")).unwrap();
    assert_eq!(probe.expect("the first", text).await, "1");
    universe.crash("node/disk", muster_messages::CrashHow::Kill);
    universe.healthy("node/disk", 2).await;
    address.tell(Msg::Error("2")).unwrap();
    assert_eq!(probe.expect("the second", text).await, "2");
    assert_eq!(universe.journal(), ["disk: error", "disk: error"]);
    universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_probe_shows_messages_as_it_is_told_to() {
    let mut numbers = muster_tests::Probe::showing("numbers", |n: &u32| n.to_string());
    numbers.recipient().tell(7).unwrap();
    assert_eq!(numbers.heard(), ["numbers: 7"]);
    assert_eq!(numbers.next("a number").await, 7);
}
