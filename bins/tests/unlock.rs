//! `muster unlock` at a terminal: what is typed is not shown, and afterwards the terminal is as before. And `[unlock] command`, for a
//! command of the daemon that tries it once.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use muster_pki::IdentityStore;
use muster_sealing::UnlockKey;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

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

    fn wait_for_echo(&self, echoes: bool) {
        let end = Instant::now() + DEADLINE;
        while self.echoes() != echoes {
            assert!(Instant::now() < end, "the echo never was {echoes}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// `muster unlock` here, once it asks. No daemon is needed: the key comes first.
    fn asked(&self) -> Child {
        self.asked_at(Path::new("/nowhere/muster.sock"))
    }

    fn asked_at(&self, socket: &Path) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
        command.arg("unlock").arg("--socket").arg(socket).args(["--timeout", "600s"]);
        command.stdin(Stdio::from(self.duplicate())).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().expect("muster starts");
        self.wait_for_echo(false);
        child
    }

    fn duplicate(&self) -> OwnedFd {
        self.program.as_fd().try_clone_to_owned().expect("a file")
    }
}

fn pid_of(child: &Child) -> Pid {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a pid")
}

/// The exit status, and what was printed on stderr.
fn ended(mut child: Child) -> (Option<i32>, String) {
    let end = Instant::now() + DEADLINE;
    while child.try_wait().expect("it is our child").is_none() {
        if Instant::now() > end {
            child.kill().expect("it is our child");
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("it is our child");
    (output.status.code(), String::from_utf8(output.stderr).expect("muster prints text"))
}

#[test]
fn terminal_shows_what_is_typed_again_after_a_signal() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let terminal = Terminal::open();
        assert!(terminal.echoes());
        let child = terminal.asked();
        kill_process(pid_of(&child), signal).expect("it is our child");
        assert_eq!(ended(child).0, Some(status), "{signal:?}");
        assert!(terminal.echoes(), "{signal:?}");
    }
}

#[test]
fn mistyped_key_is_not_shown_and_is_a_usage_error() {
    let terminal = Terminal::open();
    let child = terminal.asked();
    rustix::io::write(&terminal.person, b"MSTR-UNLOCK-1-MISTYPED\n").expect("it is open");
    let (status, text) = ended(child);
    assert_eq!(status, Some(2), "{text}");
    assert!(!text.contains("MISTYPED") && terminal.echoes(), "{text}");
}

/// A request that takes long can be ended, too.
#[test]
fn unlock_ends_with_a_signal_after_the_prompt() {
    let dir = tempfile::tempdir().expect("there is room");
    let socket = dir.path().join("s");
    // It accepts, and never answers.
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("the folder is writable");
    let terminal = Terminal::open();
    let child = terminal.asked_at(&socket);
    let line = format!("{}\n", *UnlockKey::new().to_text());
    rustix::io::write(&terminal.person, line.as_bytes()).expect("it is open");
    terminal.wait_for_echo(true);
    kill_process(pid_of(&child), Signal::TERM).expect("it is our child");
    assert_eq!(ended(child).0, Some(143));
}

#[test]
fn unlock_command_that_fails_is_named_with_its_reason() {
    let dir = tempfile::tempdir().expect("there is room");
    let (key, data) = (UnlockKey::new(), dir.path().join("data"));
    let store = IdentityStore::open(&data).expect("the folder is writable");
    store.keys().ensure().and_then(|()| store.keys().protect(5, Some(&key))).expect("the folder is writable");
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
        musterd.args(["--force-new-cluster", "--print-plan", "--name", "n1"]).arg("--data-dir").arg(&data);
        let output = musterd.arg("--config").arg(&config).output().expect("musterd starts");
        let text = String::from_utf8_lossy(&output.stderr);
        let locked = text.contains("sealed under version 5");
        assert_eq!((locked, text.contains(reason)), (!reason.is_empty(), true), "{command:?}: {text}");
    }
}
