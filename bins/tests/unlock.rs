//! `muster unlock` at a terminal: what is typed is not shown, and afterwards the terminal is as before. And `[unlock] command`, for a
//! command of the daemon that tries it once.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use muster_local_cluster::{ProcessId, parent};
use muster_pki::IdentityStore;
use muster_sealing::UnlockKey;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(60);

/// A pseudo terminal: the end of the person, and the end of the program.
struct Terminal {
    person: OwnedFd,
    program: OwnedFd,
}

impl Terminal {
    fn open() -> Self {
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo terminal");
        grantpt(&person).and_then(|()| unlockpt(&person)).expect("it is ours");
        let path = ptsname(&person, Vec::new()).expect("it has a name");
        let program = rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("it can be opened");
        Self { person, program }
    }

    fn echoes(&self) -> bool {
        tcgetattr(&self.program).expect("it is a terminal").local_modes.contains(LocalModes::ECHO)
    }

    fn types(&self, line: &str) {
        rustix::io::write(&self.person, format!("{line}\n").as_bytes()).expect("it is open");
    }

    fn wait_for_echo(&self, echoes: bool) {
        let end = Instant::now() + DEADLINE;
        while self.echoes() != echoes {
            assert!(Instant::now() < end, "the echo never was {echoes}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// `muster unlock` here, once it asks.
    fn asked(&self, daemon: &Locked) -> Child {
        let child = self.started(daemon);
        self.wait_for_echo(false);
        child
    }

    fn started(&self, daemon: &Locked) -> Child {
        let mut command = daemon.muster("unlock");
        command.stdin(Stdio::from(self.duplicate())).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("muster starts")
    }

    fn duplicate(&self) -> OwnedFd {
        self.program.as_fd().try_clone_to_owned().expect("a file")
    }
}

/// A daemon that is locked, of a directory that holds a keyring and nothing else.
struct Locked {
    dir: TempDir,
    key: UnlockKey,
    process: Child,
}

impl Locked {
    fn start() -> Self {
        let (dir, key) = sealed_directory();
        let mut musterd = Command::new(env!("CARGO_BIN_EXE_musterd"));
        musterd.args(["--name", "n1", "--listen", "127.0.0.1:0", "--metrics", "off"]).arg("--data-dir").arg(dir.path());
        parent::tie(&mut musterd);
        let process = musterd.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("musterd starts");
        let daemon = Self { dir, key, process };
        let end = Instant::now() + DEADLINE;
        while !daemon.muster("status").output().expect("muster starts").status.success() {
            assert!(Instant::now() < end, "it never answered");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        daemon
    }

    fn muster(&self, command: &str) -> Command {
        let mut muster = Command::new(env!("CARGO_BIN_EXE_muster"));
        muster.arg(command).arg("--socket").arg(self.dir.path().join("muster.sock")).args(["--timeout", "600s"]);
        parent::tie(&mut muster);
        muster.stdin(Stdio::null());
        muster
    }

    /// SIGSTOP, and waits until all its threads are stopped.
    fn freeze(&self) {
        let process = ProcessId::of(self.process.id()).expect("it is our child");
        process.signal(Signal::STOP);
        let end = Instant::now() + DEADLINE;
        while !process.is_stopped() {
            assert!(Instant::now() < end, "it never stopped");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ended = self.process.kill().and_then(|()| self.process.wait());
    }
}

fn sealed_directory() -> (TempDir, UnlockKey) {
    let (dir, key) = (tempfile::tempdir().expect("there is room"), UnlockKey::new());
    let store = IdentityStore::open(dir.path()).expect("the folder is writable");
    store.keys().ensure().and_then(|()| store.keys().protect(5, Some(&key))).expect("the folder is writable");
    (dir, key)
}

fn pid_of(child: &Child) -> Pid {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a pid")
}

/// Waits until it has ended, and kills it at the deadline.
fn wait_for(child: &mut Child) {
    let end = Instant::now() + DEADLINE;
    while child.try_wait().expect("it is our child").is_none() {
        if Instant::now() > end {
            child.kill().expect("it is our child");
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// The exit status, and what was printed on stderr.
fn ended(mut child: Child) -> (Option<i32>, String) {
    wait_for(&mut child);
    let output = child.wait_with_output().expect("it is our child");
    (output.status.code(), String::from_utf8(output.stderr).expect("muster prints text"))
}

#[test]
fn terminal_shows_what_is_typed_again_after_a_signal() {
    let daemon = Locked::start();
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let terminal = Terminal::open();
        assert!(terminal.echoes());
        let child = terminal.asked(&daemon);
        kill_process(pid_of(&child), signal).expect("it is our child");
        let (ended, text) = ended(child);
        assert_eq!((ended, text.as_str()), (Some(status), "unlock key, version 5: \n"), "{signal:?}");
        assert!(terminal.echoes(), "{signal:?}");
    }
}

/// A request that takes long can be ended, too.
#[test]
fn unlock_ends_with_a_signal_after_the_prompt() {
    let daemon = Locked::start();
    let terminal = Terminal::open();
    let child = terminal.asked(&daemon);
    daemon.freeze();
    terminal.types(&daemon.key.to_text());
    terminal.wait_for_echo(true);
    kill_process(pid_of(&child), Signal::TERM).expect("it is our child");
    assert_eq!(ended(child).0, Some(143));
}

#[test]
fn mistyped_key_is_refused_and_the_right_one_unlocks() {
    let mut daemon = Locked::start();
    let terminal = Terminal::open();
    let child = terminal.asked(&daemon);
    terminal.types("MSTR-UNLOCK-1-MISTYPED");
    let (status, text) = ended(child);
    assert_eq!(status, Some(2), "{text}");
    assert!(!text.contains("MISTYPED") && terminal.echoes(), "{text}");

    let child = terminal.asked(&daemon);
    terminal.types(&daemon.key.to_text());
    assert_eq!(ended(child), (Some(0), "unlock key, version 5: ".to_owned()));
    // The directory is of no node: the daemon ends.
    wait_for(&mut daemon.process);
    let (status, text) = ended(terminal.started(&daemon));
    assert_eq!((status, text.contains("unlock key")), (Some(5), false), "{text}");
}

#[test]
fn unlock_command_that_fails_is_named_with_its_reason() {
    let (data, key) = sealed_directory();
    let dir = tempfile::tempdir().expect("there is room");
    let file = dir.path().join("key");
    std::fs::write(&file, key.to_text().as_bytes()).expect("the folder is writable");
    let file = file.to_str().expect("a path");
    // What follows a right key is about something else: this directory is of no node.
    for (command, reason) in [
        (&["/no/such/program"][..], "exit status 127: not found"),
        (&["/"], "exit status 126"),
        (&["sh", "-c", "exit 3"], "it failed with exit status 3"),
        (&["sh", "-c", "kill -9 $$"], "it was ended by signal 9"),
        (&["echo", "MSTR"], "not an unlock key"),
        (&["true"], "the input is empty"),
        (&["sh", "-c", "sleep 3600 & echo late"], "not an unlock key"),
        (&["cat", file], ""),
    ] {
        let config = dir.path().join("musterd.toml");
        std::fs::write(&config, format!("[unlock]\ncommand = {command:?}\n")).expect("the folder is writable");
        let mut musterd = Command::new(env!("CARGO_BIN_EXE_musterd"));
        musterd.args(["--force-new-cluster", "--print-plan", "--name", "n1"]).arg("--data-dir").arg(data.path());
        parent::tie(&mut musterd);
        musterd.arg("--config").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let (_, text) = ended(musterd.spawn().expect("musterd starts"));
        let locked = text.contains("sealed under version 5");
        assert_eq!((locked, text.contains(reason)), (!reason.is_empty(), true), "{command:?}: {text}");
    }
}
