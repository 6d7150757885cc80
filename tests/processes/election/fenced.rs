//! A whole candidate frozen for longer than its lease, and the fenced resource of the documented example.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use muster_local_cluster::parent;
use rustix::process::{Signal, test_kill_process_group};

use super::candidate::{Candidate, Entry, Family, Frozen, Leftovers};
use super::played::{ChildProgram, words};
use crate::harness::{WAIT_LIMIT, World, eventually, eventually_so};

const LEASE: &str = "resource";
const LEASE_FLAGS: [&str; 6] = ["--lease-duration", "3s", "--renew-deadline", "2s", "--retry-period", "400ms"];

/// `fenced_resource serve`, and its output.
struct Resource {
    child: Child,
    lines: Receiver<String>,
    pub addr: String,
    result: Vec<WriteResult>,
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WriteResult {
    accepted: bool,
    token: u64,
    text: String,
}

impl Resource {
    fn start() -> Self {
        let words = words(&ChildProgram::FencedResource(vec!["serve".into(), "127.0.0.1:0".into()]));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped());
        parent::tie(&mut command);
        let mut child = command.spawn().expect("it starts");
        let (tell, lines) = channel();
        let stdout = child.stdout.take().expect("stdout is piped");
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).all(|line| tell.send(line).is_ok())
        });
        let addr = loop {
            let line = lines.recv_timeout(WAIT_LIMIT).expect("it prints its address");
            if let Some((_, addr)) = line.split_once("listening on ") {
                break addr.to_owned();
            }
        };
        Self { child, lines, addr, result: vec![] }
    }

    fn read(&mut self) {
        self.result.extend(self.lines.try_iter().filter_map(|line| result(&line)));
    }

    /// Waits for a matching answer.
    #[track_caller]
    fn wait_for_request(&mut self, what: &str, wanted: impl Fn(&WriteResult) -> bool) -> WriteResult {
        self.read();
        let seen = self.result.len();
        eventually(what, || {
            self.read();
            self.result[seen..].iter().find(|result| wanted(result)).cloned()
        })
    }

    /// No write was accepted under a smaller token than the greatest before, and no other was refused.
    fn assert_fenced(&mut self) {
        self.read();
        let mut greatest = 0;
        for result in &self.result {
            assert_eq!(result.accepted, result.token >= greatest, "{result:?} after token {greatest}");
            greatest = greatest.max(result.token);
        }
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _status = self.child.wait();
    }
}

/// `accepted TOKEN TEXT` or `refused TOKEN TEXT (seen N)`.
fn result(line: &str) -> Option<WriteResult> {
    let (word, rest) = line.split_once(' ')?;
    let accepted = match word {
        "accepted" => true,
        "refused" => false,
        _ => return None,
    };
    let (token, text) = rest.split_once(' ')?;
    Some(WriteResult { accepted, token: token.parse().ok()?, text: text.to_owned() })
}

/// Writes `ID GUARDIAN COMMAND` repeatedly, also when refused, and ignores every signal but KILL.
fn term_ignoring_writer(addr: &str) -> Vec<OsString> {
    let script = r#"addr=$1; shift; trap "" TERM; who="$MUSTER_HOLDER $PPID $$"
        while :; do ARGS="$(printf 'write\n%s\n%s' "$addr" "$who")" "$@" > written 2>&1; sleep 0.01; done"#;
    let writer = words(&ChildProgram::FencedResource(vec![]));
    ["sh", "-c", script, "sh", addr].into_iter().map(OsString::from).chain(writer).collect()
}

/// The processes of the writer of a write, if they still run: its lease lasts a second.
fn family(candidates: &[Candidate], result: &WriteResult) -> Option<(usize, Family)> {
    let words: Vec<&str> = result.text.split(' ').collect();
    let number = |index: usize| words[index].parse::<u32>().ok();
    let index = candidates.iter().position(|candidate| candidate.id == words[0])?;
    Some((index, candidates[index].family(number(1), number(2))?))
}

struct Scenario {
    /// Declared before the world, which deletes the folder.
    candidates: Vec<Candidate>,
    _leftovers: Leftovers,
    resource: Resource,
    world: World,
    started: u32,
}

impl Scenario {
    fn begin() -> Self {
        let (world, resource) = (World::with(3, 0), Resource::start());
        let _leftovers = Leftovers(world.folder().to_owned());
        let mut scenario = Self { candidates: vec![], _leftovers, resource, world, started: 0 };
        scenario.fill_up();
        scenario
    }

    /// Two candidates at different managers.
    fn fill_up(&mut self) {
        self.candidates.retain_mut(|candidate| candidate.ended().is_none());
        while self.candidates.len() < 2 {
            self.started += 1;
            let (id, socket) = (format!("c{}", self.started), self.world.socket(&format!("n{}", self.started % 3 + 1)));
            let asks = ["--socket", socket.to_str().expect("the path is text")];
            let command = term_ignoring_writer(&self.resource.addr);
            let folder = self.world.folder();
            let entry = Entry { folder, id: &id, asks, lease: LEASE, flags: &LEASE_FLAGS, command, clock: None };
            self.candidates.push(Candidate::start(entry));
        }
    }

    /// Freezes the writing candidate until another one writes. Returns it with its processes and token.
    fn freeze(&mut self) -> (Candidate, Frozen, u64) {
        let (index, frozen, token) = eventually("a writing candidate is frozen", || {
            self.fill_up();
            let holds = self.resource.wait_for_request("a candidate writes", |result| result.accepted);
            let (index, family) = family(&self.candidates, &holds)?;
            let frozen = family.freeze();
            if family.is_alive() {
                return Some((index, frozen, holds.token));
            }
            frozen.thaw(); // it lost its lease before it was frozen
            None
        });
        let candidate = self.candidates.remove(index);
        self.wait_for_another("another candidate writes", token);
        assert!(frozen.family.is_alive(), "frozen processes do not notice");
        (candidate, frozen, token)
    }

    /// Waits for a write under a later token. On a busy machine a candidate can lose its lease, too, and ends: it is replaced.
    #[track_caller]
    fn wait_for_another(&mut self, what: &str, token: u64) {
        self.resource.read();
        let seen = self.resource.result.len();
        eventually_so(what, || {
            self.fill_up();
            self.resource.read();
            self.resource.result[seen..].iter().any(|result| result.accepted && result.token > token)
        });
    }
}

#[test]
#[ignore = "full tier"]
fn candidate_frozen_past_lease_ends_and_writes_are_refused() {
    let mut scenario = Scenario::begin();
    let mut took = vec![];
    for _ in 0..5 {
        let (mut candidate, frozen, _) = scenario.freeze();
        let group = frozen.family.group();
        let thawed = Instant::now();
        frozen.thaw();
        while test_kill_process_group(group).is_ok() {
            assert!(thawed.elapsed() < WAIT_LIMIT, "the thawed process keeps writing");
            std::thread::park_timeout(Duration::from_micros(200));
        }
        took.push(thawed.elapsed());
        assert_eq!(candidate.exit(), Some(7), "it lost its lease");
    }
    // A tenth of a second is promised; this test does not measure a busy machine.
    took.sort_unstable();
    println!("after a thaw all of the command was gone within {took:?}");
    scenario.resource.assert_fenced();
}

#[test]
#[ignore = "full tier"]
fn writer_without_guardian_is_refused_by_fencing_token() {
    let mut scenario = Scenario::begin();
    let (mut candidate, frozen, token) = scenario.freeze();
    // What no elector can prevent: the command alone is resumed.
    let command = frozen.family.command;
    frozen.family.signal_group(Signal::CONT);
    scenario.resource.wait_for_request("its writes are refused", |result| !result.accepted && result.token == token);
    frozen.thaw();
    eventually_so("the command has ended", || !command.is_alive());
    assert_eq!(candidate.exit(), Some(7), "it lost its lease");
    scenario.wait_for_another("another candidate keeps writing", token);
    scenario.resource.assert_fenced();
}
