//! Controls node processes. Each ends when its handle is dropped, and fails the test if its own checks fail.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Generous: only a failing test waits this long.
pub const DEADLINE: Duration = Duration::from_secs(300);

#[derive(Default)]
struct Output {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

pub struct Node {
    pub number: u128,
    pub addr: String,
    child: Child,
    stdin: ChildStdin,
    received: Arc<Output>,
    /// By the test.
    killed: bool,
}

impl Node {
    pub fn start(number: u128) -> Self {
        Self::start_with_idle(number, Duration::from_secs(13))
    }
    pub fn start_with_idle(number: u128, idle: Duration) -> Self {
        Self::start_with(&format!("{number} {}", idle.as_millis()), number)
    }
    /// With hinted addresses of managers.
    pub fn start_with_hints(number: u128, hints: &[&str]) -> Self {
        Self::start_with(&format!("{number} 13000 {}", hints.join(" ")), number)
    }
    fn start_with(what: &str, number: u128) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["node_process", "--exact", "--nocapture"])
            .env("MUSTER_MESH_NODE", what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the process starts");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let received = Arc::new(Output::default());
        let into = Arc::clone(&received);
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // The test harness prints too, sometimes before ours on the same line.
                if let Some((_, line)) = line.split_once('@') {
                    into.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
                    into.more.notify_all();
                }
            }
        });
        let mut node = Self { number, addr: String::new(), child, stdin, received, killed: false };
        node.addr = node.wait_for("listening ").split_off("listening ".len());
        node
    }
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("the process reads its stdin");
    }
    /// The received lines with this prefix.
    pub fn received(&self, prefix: &str) -> Vec<String> {
        let lines = self.received.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|l| l.starts_with(prefix)).cloned().collect()
    }
    /// Waits for the first line with this prefix and removes it.
    pub fn wait_for(&self, prefix: &str) -> String {
        let mut lines = self.received.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(at) = lines.iter().position(|l| l.starts_with(prefix)) {
                return lines.remove(at);
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "node {} printed no `{prefix}`, only {lines:#?}", self.number);
            lines = self.received.more.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    /// Waits until the lines with this prefix satisfy `enough` and removes them.
    pub fn take_until(&self, prefix: &str, enough: impl Fn(&[String]) -> bool) {
        let until = Instant::now() + DEADLINE;
        let mut lines = self.received.lines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let found: Vec<String> = lines.iter().filter(|l| l.starts_with(prefix)).cloned().collect();
            if enough(&found) {
                lines.retain(|l| !l.starts_with(prefix));
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            let tail = &found[found.len().saturating_sub(5)..];
            assert!(!left.is_zero(), "node {}: not enough `{prefix}` lines; last {tail:#?}", self.number);
            lines = self.received.more.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    pub fn view(&mut self, path: &str) -> Value {
        self.tell(&format!("view {path}"));
        let line = self.wait_for("view ");
        serde_json::from_str(&line["view ".len()..]).expect("a view is JSON")
    }
    /// Waits until the view satisfies `right`.
    pub fn wait_view(&mut self, path: &str, right: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + DEADLINE;
        loop {
            let view = self.view(path);
            if right(&view) {
                return view;
            }
            assert!(Instant::now() < until, "node {}: the view does not satisfy the condition: {view:#}", self.number);
        }
    }
    /// Resident memory, in MiB.
    pub fn rss_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the process runs");
        let line = status.lines().find(|l| l.starts_with("VmRSS")).expect("Linux");
        let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
        kib / 1024
    }
    pub fn pause(&self) {
        kill_process(self.pid(), Signal::STOP).expect("the process runs");
    }
    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).expect("the process runs");
    }
    pub fn kill(&mut self) {
        self.killed = true;
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
    /// Stops its mesh and lets it check for leaks.
    fn finish(&mut self) {
        self.tell("finish");
        let until = Instant::now() + DEADLINE;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().expect("a child of this process") {
                assert!(status.success(), "node {} failed: see its stderr", self.number);
                return;
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        self.kill();
        panic!("node {} did not finish", self.number);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.kill();
        } else if !self.killed {
            self.finish();
        }
    }
}

/// Sends the members to every node, and waits until all have sessions with each other.
pub fn connect(nodes: &mut [Node]) {
    introduce(nodes);
    let numbers: Vec<u128> = nodes.iter().map(|n| n.number).collect();
    for node in nodes.iter() {
        for other in numbers.iter().filter(|n| **n != node.number) {
            node.wait_for(&format!("session {other} up"));
        }
    }
}
pub fn introduce(nodes: &mut [Node]) {
    let members: Vec<String> = nodes.iter().map(|n| format!("{}@{}", n.number, n.addr)).collect();
    for node in nodes {
        node.tell(&format!("members {}", members.join(" ")));
    }
}
