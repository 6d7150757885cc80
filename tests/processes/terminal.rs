//! What a person sees at a terminal.

use std::fs::File;
use std::io::Read as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::harness::{EndedMuster, ForegroundMuster, World, eventually_so, muster};

/// As the screen of `--watch` is entered and left.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// A `muster` at a terminal of 80 columns and 24 rows, and all that it has drawn.
struct Watching {
    process: std::process::Child,
    terminal: File,
    drawn: Arc<Mutex<String>>,
}

impl Watching {
    fn start(world: &World, args: &[&str]) -> Self {
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo terminal");
        grantpt(&person).and_then(|()| unlockpt(&person)).expect("it is ours");
        let path = ptsname(&person, Vec::new()).expect("it has a name");
        let program = rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("it can be opened");
        tcsetwinsize(&program, size(24)).expect("it is ours");
        let mut command = muster(world.folder(), args);
        command.env("TERM", "xterm").stdout(Stdio::from(program)).stderr(Stdio::null());
        let process = command.spawn().expect("muster starts");
        let drawn = Arc::new(Mutex::new(String::new()));
        let (mut screen, kept) = (File::from(person), Arc::clone(&drawn));
        let terminal = screen.try_clone().expect("a descriptor is free");
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The terminal ends with the last program at it.
            while let Ok(n @ 1..) = screen.read(&mut bytes) {
                kept.lock().expect("no reader panics").push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        });
        Self { process, terminal, drawn }
    }

    fn has_drawn(&self, text: &str, times: usize) -> bool {
        self.drawn.lock().expect("no reader panics").matches(text).count() >= times
    }

    #[track_caller]
    fn waits_for(&self, text: &str) {
        eventually_so(text, || self.has_drawn(text, 1));
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("it is our child");
    }

    /// The terminal controls no process, so that the kernel sends no signal.
    fn resize(&self, rows: u16) {
        tcsetwinsize(&self.terminal, size(rows)).expect("it is ours");
        self.signal(Signal::WINCH);
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
    }
}

/// So many rows of 80 columns.
fn size(rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ended = self.process.kill().and_then(|()| self.process.wait());
    }
}

/// How many managers may fail, before and after two of three have failed; the terminal is then as before.
#[test]
#[ignore = "full tier"]
fn status_says_how_many_managers_may_fail() {
    let mut world = World::with(3, 0);
    let socket = world.socket("n1").display().to_string();
    let status = ["--socket", &socket, "status"];
    let shown = |world: &World| EndedMuster::new(world.folder(), &status).ended(0).stdout;
    eventually_so("all are connected", || shown(&world).contains("held: 3 of 3, may lose 1\n"));
    let mut watching = Watching::start(&world, &[&status[..], &["--watch"]].concat());
    watching.waits_for(ENTER);
    watching.waits_for("held: 3 of 3, may lose 1");
    for (name, margin) in
        [("n3", "held: 2 of 3, may lose none; missing: n3"), ("n2", "LOST: 1 of 3, 2 needed; missing: n2, n3")]
    {
        world.node(name).kill();
        watching.waits_for(margin);
        assert!(shown(&world).contains(margin), "{}", shown(&world));
    }
    let nodes = EndedMuster::new(world.folder(), &["--socket", &socket, "node", "ls"]).ended(0).stdout;
    assert!(nodes.starts_with("no quorum: showing the local replica as of "), "{nodes}");
    watching.signal(Signal::TERM);
    assert!(watching.process.wait().expect("it is our child").success());
    watching.waits_for(LEAVE);
}

/// A8. The screen follows its terminal, and leaves it while the command is suspended.
#[test]
#[ignore = "full tier"]
fn watch_is_resized_suspended_and_resumed() {
    let world = World::with(1, 0);
    let socket = world.socket("n1").display().to_string();
    let mut watching = Watching::start(&world, &["--socket", &socket, "status", "--watch"]);
    watching.waits_for("held: 1 of 1, may lose none");
    assert!(!watching.has_drawn("more lines", 1), "all of it fits");
    watching.resize(4);
    watching.waits_for("more lines");

    watching.signal(Signal::TSTP);
    eventually_so("it is suspended", || watching.is_stopped());
    watching.waits_for(LEAVE);
    assert!(!watching.has_drawn(ENTER, 2));
    watching.signal(Signal::CONT);
    eventually_so("it draws again", || watching.has_drawn(ENTER, 2));
    watching.signal(Signal::TERM);
    assert!(watching.process.wait().expect("it is our child").success());
    eventually_so("the terminal is as before", || watching.has_drawn(LEAVE, 2));
}

#[test]
#[ignore = "full tier"]
fn events_are_chosen_by_kind_node_and_time() {
    let world = World::with(1, 1);
    let socket = world.socket("n1").display().to_string();
    let events = |args: &[&str]| EndedMuster::new(world.folder(), &[&["--socket", &socket, "events"], args].concat());
    let kinds = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
    };
    let shown_with = |args: &[&str]| events(args).ended(0).stdout;
    let all = || shown_with(&["--all"]);
    assert!(all().contains("muster-members/"));
    let shown = shown_with(&[]);
    assert!(shown.contains("of Muster's own leases are left out") && !shown.contains("muster-members/"), "{shown}");
    // The cluster goes on writing events: two lists are of one moment once nothing is written between them.
    eventually_so("events are chosen by kind", || {
        let of_kinds = kinds(&shown_with(&["--kind", "node,liveness"]));
        of_kinds == kinds(&all()).into_iter().filter(|k| k == "node" || k == "liveness").collect::<Vec<_>>()
    });
    eventually_so("events are chosen by node", || {
        let of_worker = shown_with(&["--node", "n2", "--after", "1h"]).lines().count();
        of_worker > 1 && of_worker == all().lines().filter(|line| line.contains("  n2  ")).count()
    });
    assert_eq!(shown_with(&["--after", "2099-01-01T00:00:00Z"]), "no events\n");
    eventually_so("the last two events are shown", || {
        let last = kinds(&shown_with(&["--all", "--last", "2"]));
        last.len() == 2 && kinds(&all()).ends_with(&last)
    });
    // The newest ones first, then all that follow.
    let arguments = ["--socket", &socket, "events", "--kind", "node", "--last", "1", "--watch"];
    let mut watch = ForegroundMuster::start(world.folder(), &arguments);
    watch.wait_for_line("  node  ");
    assert_eq!(watch.seen().trim_end(), shown_with(&["--kind", "node", "--last", "1"]).trim_end());
    world.muster(&["node", "rename", "n2", "later"]).ended(0);
    watch.wait_for_line("later");
    let document = events(&["-o", "json", "--kind", "lease"]).ended(0).json();
    let items = document["items"].as_array().expect("events").clone();
    assert!(!items.is_empty() && items.iter().all(|event| event["kind"] == "lease"), "{document}");
    assert!(events(&["--since", "1h"]).ended(2).stderr.contains("--after takes a time"));
    assert!(events(&["--kind", "bogus"]).ended(2).stderr.contains("one of cluster, node"));
    assert!(events(&["--node", "nowhere1"]).ended(4).stderr.contains("no node"));
}
