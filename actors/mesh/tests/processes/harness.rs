//! Node processes, from outside. Each ends when its handle goes, and fails the test if its universe judges badly.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Generous: it is only waited out when something is broken.
const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Heard {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

pub struct Node {
    pub number: u128,
    pub addr: String,
    child: Child,
    stdin: ChildStdin,
    heard: Arc<Heard>,
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
    /// It is told where to look for managers that are not where they should be.
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
            .expect("it starts");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let heard = Arc::new(Heard::default());
        let into = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // The test harness writes lines of its own, sometimes before ours on the same line.
                if let Some((_, line)) = line.split_once('@') {
                    into.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
                    into.more.notify_all();
                }
            }
        });
        let mut node = Self { number, addr: String::new(), child, stdin, heard, killed: false };
        node.addr = node.wait_for("listening ").split_off("listening ".len());
        node
    }
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it listens");
    }
    /// Lines heard so far that begin so.
    pub fn heard(&self, prefix: &str) -> Vec<String> {
        let lines = self.heard.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|l| l.starts_with(prefix)).cloned().collect()
    }
    /// Waits for the first line that begins so; it is taken out.
    pub fn wait_for(&self, prefix: &str) -> String {
        let mut lines = self.heard.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(at) = lines.iter().position(|l| l.starts_with(prefix)) {
                return lines.remove(at);
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "node {} never said `{prefix}`; it said {lines:#?}", self.number);
            lines = self.heard.more.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    /// Waits until the lines that begin so satisfy `enough`; they are taken out.
    pub fn take_until(&self, prefix: &str, enough: impl Fn(&[String]) -> bool) {
        let until = Instant::now() + DEADLINE;
        let mut lines = self.heard.lines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let found: Vec<String> = lines.iter().filter(|l| l.starts_with(prefix)).cloned().collect();
            if enough(&found) {
                lines.retain(|l| !l.starts_with(prefix));
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            let tail = &found[found.len().saturating_sub(5)..];
            assert!(!left.is_zero(), "node {}: never enough `{prefix}`; last {tail:#?}", self.number);
            lines = self.heard.more.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    pub fn view(&mut self, path: &str) -> Value {
        self.tell(&format!("view {path}"));
        let line = self.wait_for("view ");
        serde_json::from_str(&line["view ".len()..]).expect("a view is JSON")
    }
    /// Looks at the view until it satisfies `right`.
    pub fn wait_view(&mut self, path: &str, right: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + DEADLINE;
        loop {
            let view = self.view(path);
            if right(&view) {
                return view;
            }
            assert!(Instant::now() < until, "node {}: the view never got there: {view:#}", self.number);
        }
    }
    /// Resident memory, in MiB.
    pub fn rss_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find(|l| l.starts_with("VmRSS")).expect("Linux");
        let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
        kib / 1024
    }
    pub fn pause(&self) {
        kill_process(self.pid(), Signal::STOP).expect("it runs");
    }
    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).expect("it runs");
    }
    pub fn kill(&mut self) {
        self.killed = true;
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
    /// Has it stop its mesh and judge what it leaves.
    fn finish(&mut self) {
        self.tell("finish");
        let until = Instant::now() + DEADLINE;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                assert!(status.success(), "node {} ended badly: its stderr says how", self.number);
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
        panic!("node {} does not finish", self.number);
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

/// Tells every node who the members are, and waits until each has a session with each other.
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
