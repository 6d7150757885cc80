//! A whole candidate that freezes for longer than its lease, and the resource of the documents' example.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use muster_local_cluster::parent;
use rustix::process::{Signal, test_kill_process_group};

use super::candidate::{Candidate, Entry, Family, Frozen, Leftovers};
use super::played::{Part, words};
use crate::harness::{PATIENCE, World, eventually, eventually_so};

const LEASE: &str = "resource";
const TIMES: [&str; 6] = ["--lease-duration", "1s", "--renew-deadline", "700ms", "--retry-period", "200ms"];

/// `fenced_resource serve`, and what it has said.
struct Resource {
    child: Child,
    lines: Receiver<String>,
    pub addr: String,
    said: Vec<Said>,
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    accepted: bool,
    token: u64,
    text: String,
}

impl Resource {
    fn start() -> Self {
        let words = words(&Part::FencedResource(vec!["serve".into(), "127.0.0.1:0".into()]));
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
            let line = lines.recv_timeout(PATIENCE).expect("it says where it listens");
            if let Some((_, addr)) = line.split_once("listening on ") {
                break addr.to_owned();
            }
        };
        Self { child, lines, addr, said: vec![] }
    }

    fn read(&mut self) {
        self.said.extend(self.lines.try_iter().filter_map(|line| said(&line)));
    }

    /// Waits for an answer such as this one, from now on.
    #[track_caller]
    fn says(&mut self, what: &str, wanted: impl Fn(&Said) -> bool) -> Said {
        self.read();
        let seen = self.said.len();
        eventually(what, || {
            self.read();
            self.said[seen..].iter().find(|said| wanted(said)).cloned()
        })
    }

    /// Never has anything been accepted under a smaller token than the greatest before, and nothing else been refused.
    fn assert_fenced(&mut self) {
        self.read();
        let mut greatest = 0;
        for said in &self.said {
            assert_eq!(said.accepted, said.token >= greatest, "{said:?} after token {greatest}");
            greatest = greatest.max(said.token);
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
fn said(line: &str) -> Option<Said> {
    let (word, rest) = line.split_once(' ')?;
    let accepted = match word {
        "accepted" => true,
        "refused" => false,
        _ => return None,
    };
    let (token, text) = rest.split_once(' ')?;
    Some(Said { accepted, token: token.parse().ok()?, text: text.to_owned() })
}

/// Writes `ID GUARDIAN COMMAND` again and again, also when it is refused, and is deaf to everything but KILL.
fn stubborn_writer(addr: &str) -> Vec<OsString> {
    let script = r#"addr=$1; shift; trap "" TERM; who="$MUSTER_HOLDER $PPID $$"
        while :; do ARGS="$(printf 'write\n%s\n%s' "$addr" "$who")" "$@" > written 2>&1; sleep 0.01; done"#;
    let writer = words(&Part::FencedResource(vec![]));
    ["sh", "-c", script, "sh", addr].into_iter().map(OsString::from).chain(writer).collect()
}

/// The processes of the writer that the resource has just heard of.
fn family(candidates: &[Candidate], said: &Said) -> (usize, Family) {
    let words: Vec<&str> = said.text.split(' ').collect();
    let number = |index: usize| words[index].parse::<u32>().ok();
    let index = candidates.iter().position(|candidate| candidate.id == words[0]).expect("one of the two");
    let shown = candidates[index].family(number(1), number(2));
    (index, shown.expect("it has just written"))
}

struct Story {
    /// Before the world, which takes its folder along.
    candidates: Vec<Candidate>,
    _leftovers: Leftovers,
    resource: Resource,
    world: World,
    started: u32,
}

impl Story {
    fn begin() -> Self {
        let (world, resource) = (World::with(3, 0), Resource::start());
        let _leftovers = Leftovers(world.folder().to_owned());
        let mut story = Self { candidates: vec![], _leftovers, resource, world, started: 0 };
        story.fill_up();
        story
    }

    /// Two candidates, each asking another manager.
    fn fill_up(&mut self) {
        self.candidates.retain_mut(|candidate| candidate.ended().is_none());
        while self.candidates.len() < 2 {
            self.started += 1;
            let (id, socket) = (format!("c{}", self.started), self.world.socket(&format!("n{}", self.started % 3 + 1)));
            let asks = ["--socket", socket.to_str().expect("the path is text")];
            let command = stubborn_writer(&self.resource.addr);
            let folder = self.world.folder();
            let entry = Entry { folder, id: &id, asks, lease: LEASE, flags: &TIMES, command, clock: None };
            self.candidates.push(Candidate::start(entry));
        }
    }

    /// Freezes all of the one that writes until the other does. The frozen one, under which token, and its index.
    fn freeze(&mut self) -> (usize, Frozen, u64) {
        self.fill_up();
        let holds = self.resource.says("somebody writes", |said| said.accepted);
        let (index, family) = family(&self.candidates, &holds);
        let frozen = family.freeze();
        self.resource.says("the other one writes", |said| said.accepted && said.token > holds.token);
        assert!(family.command.is_alive() && family.guardian.is_alive(), "the frozen do not notice");
        (index, frozen, holds.token)
    }
}

#[test]
#[ignore = "full tier"]
fn a_candidate_that_was_frozen_past_its_lease_is_gone_at_once_and_none_of_its_writes_is_accepted() {
    let mut story = Story::begin();
    let mut took = vec![];
    for _ in 0..5 {
        let (index, frozen, _) = story.freeze();
        let group = frozen.family.group();
        let thawed = Instant::now();
        frozen.thaw();
        while test_kill_process_group(group).is_ok() {
            assert!(thawed.elapsed() < PATIENCE, "it goes on");
            std::thread::park_timeout(Duration::from_micros(200));
        }
        took.push(thawed.elapsed());
        assert_eq!(story.candidates[index].exit(), Some(7), "it has lost its lease");
    }
    // A tenth of a second is promised; what a busy machine adds is not this test's business.
    took.sort_unstable();
    println!("after a thaw all of the command was gone within {took:?}");
    story.resource.assert_fenced();
}

#[test]
#[ignore = "full tier"]
fn a_frozen_writer_whose_guardian_stays_frozen_writes_on_and_is_refused() {
    let mut story = Story::begin();
    let (index, frozen, token) = story.freeze();
    // What no elector can prevent: the command alone goes on.
    let command = frozen.family.command;
    frozen.family.signal_group(Signal::CONT);
    story.resource.says("its writes are refused", |said| !said.accepted && said.token == token);
    frozen.thaw();
    eventually_so("it is gone", || !command.is_alive());
    assert_eq!(story.candidates[index].exit(), Some(7), "it has lost its lease");
    story.resource.says("the other one writes on", |said| said.accepted && said.token > token);
    story.resource.assert_fenced();
}
