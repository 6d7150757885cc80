//! The audit log as an actor, with a file that the test controls.

#![expect(clippy::unwrap_used, reason = "a test ends where what it relies on fails")]

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_audit::core::Job;
use muster_audit::{AuditPorts, FileConfig, LogFile, Msg, Sink, audit_address, audit_spec};
use muster_kernel::Address;
use muster_messages::CrashHow;
use muster_messages::protocol::{AuditFault, AuditMsg};
use muster_testkit::{ActorHarness, at_every_point, eventually};

const PATH: &str = "node/audit";
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A disk: its content, and whether it fails or hangs.
#[derive(Clone, Default)]
struct Disk {
    text: Arc<Mutex<String>>,
    fails: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
}

impl Disk {
    fn lines(&self) -> Vec<String> {
        self.text.lock().unwrap().lines().map(str::to_owned).collect()
    }
}

impl Sink for Disk {
    fn run(&mut self, job: &Job) -> io::Result<()> {
        while self.hangs.load(Ordering::Relaxed) {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        if self.fails.load(Ordering::Relaxed) {
            return Err(io::Error::other("no space left"));
        }
        self.text.lock().unwrap().push_str(&job.text);
        Ok(())
    }
}

async fn started(harness: &ActorHarness, disk: &Disk) -> (Address<Msg>, AuditPorts) {
    let disk = disk.clone();
    let ports = AuditPorts::new(Arc::new(move || Box::new(disk.clone()) as Box<dyn Sink>));
    let address = audit_address();
    harness.start_actor(audit_spec(address.clone(), ports.clone()));
    harness.healthy(PATH, 1).await;
    (address, ports)
}

async fn record(to: &Address<Msg>, line: &str) -> Result<(), AuditFault> {
    let line = line.to_owned();
    to.ask(ANSWER_TIMEOUT, |reply| AuditMsg::Record { line, reply: Some(reply) }.into())
        .await
        .expect("the actor answers")
}
async fn check(to: &Address<Msg>) -> Result<(), AuditFault> {
    to.ask(ANSWER_TIMEOUT, |reply| AuditMsg::Check { reply }.into()).await.expect("the actor answers")
}

#[tokio::test]
async fn lines_are_in_the_file_when_they_are_acknowledged() {
    let harness = ActorHarness::start().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let config = FileConfig { path: path.clone(), max_bytes: 1 << 20, keep: 1 };
    let ports = AuditPorts::new(Arc::new(move || Box::new(LogFile::new(config.clone())) as Box<dyn Sink>));
    let address = audit_address();
    harness.start_actor(audit_spec(address.clone(), ports));
    harness.healthy(PATH, 1).await;
    record(&address, "a").await.unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\n");
    std::fs::rename(&path, dir.path().join("old")).unwrap();
    record(&address, "b").await.unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "b\n");
    harness.finish().await;
}

#[tokio::test]
async fn failing_file_is_shown_and_its_lines_come_later() {
    let mut harness = ActorHarness::start().await;
    harness.expects_error("audit log cannot be written");
    let disk = Disk::default();
    let (address, ports) = started(&harness, &disk).await;
    check(&address).await.unwrap();
    disk.fails.store(true, Ordering::Relaxed);
    assert_eq!(record(&address, "a").await, Err(AuditFault("no space left".to_owned())));
    assert_eq!(check(&address).await, Err(AuditFault("no space left".to_owned())));
    let state = ports.state.borrow().clone();
    assert_eq!((state.failing.as_deref(), state.failed, state.waiting), (Some("no space left"), 1, 1));
    harness.until(PATH, "failing", |actor| actor.view["failing"] == "no space left").await;
    disk.fails.store(false, Ordering::Relaxed);
    let mut state = ports.state.subscribe();
    state.wait_for(|state| state.failing.is_none()).await.unwrap();
    check(&address).await.unwrap();
    assert_eq!(disk.lines(), ["a"]);
    harness.finish().await;
}

#[tokio::test]
async fn hung_file_delays_callers_only_briefly() {
    let mut harness = ActorHarness::start().await;
    harness.expects_error("audit log cannot be written");
    let disk = Disk::default();
    let (address, ports) = started(&harness, &disk).await;
    check(&address).await.unwrap();
    disk.hangs.store(true, Ordering::Relaxed);
    let refused = record(&address, "a").await.unwrap_err();
    assert!(refused.0.contains("has not finished"), "{refused:?}");
    assert!(check(&address).await.is_err(), "immediately");
    disk.hangs.store(false, Ordering::Relaxed);
    ports.state.subscribe().wait_for(|state| state.failing.is_none()).await.unwrap();
    eventually("the line is there", || disk.lines() == ["a"]).await;
    harness.finish().await;
}

#[tokio::test]
async fn crash_at_any_point_loses_no_accepted_line() {
    at_every_point(async |fuse| {
        let mut harness = ActorHarness::start().await;
        let disk = Disk::default();
        let (address, _ports) = started(&harness, &disk).await;
        harness.crash_at(PATH, &fuse);
        // A caller without an answer sends its line again, so lines may occur twice.
        for line in ["a", "b", "c"] {
            while address
                .ask(ANSWER_TIMEOUT, |reply| AuditMsg::Record { line: line.to_owned(), reply: Some(reply) }.into())
                .await
                .is_err()
            {
                tokio::task::yield_now().await;
            }
        }
        let lines = disk.lines();
        assert!(["a", "b", "c"].iter().all(|line| lines.iter().any(|there| there == line)), "{lines:?}");
        harness.finish().await;
    })
    .await;
}

#[tokio::test]
async fn restart_writes_what_waits() {
    let mut harness = ActorHarness::start().await;
    let disk = Disk::default();
    let (address, _ports) = started(&harness, &disk).await;
    record(&address, "a").await.unwrap();
    harness.crash(PATH, CrashHow::Error);
    harness.healthy(PATH, 2).await;
    record(&address, "b").await.unwrap();
    assert_eq!(disk.lines(), ["a", "b"]);
    harness.finish().await;
}
