//! One `muster`: run to its end, or in the foreground.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

use muster_local_cluster::{ProcessId, parent};
use muster_messages::ErrorCode;
use rustix::process::Signal;
use serde_json::Value;

use super::{MUSTER, WAIT_LIMIT, eventually};

/// A command line for `muster` in a folder.
pub fn muster(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(MUSTER);
    command.args(args).current_dir(folder).env_remove("MUSTER_SOCKET").stdin(Stdio::null());
    parent::tie(&mut command);
    command
}

/// A `muster` that has ended.
pub struct EndedMuster {
    pub line: String,
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl EndedMuster {
    pub fn new(folder: &Path, args: &[&str]) -> Self {
        let output: Output = muster(folder, args).output().expect("muster starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("muster prints text");
        Self {
            line: format!("muster {}", args.join(" ")),
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Fails unless it exited with this status.
    #[track_caller]
    pub fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}{}", self.line, self.stdout, self.stderr);
        self
    }

    /// The single JSON document on stdout.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("{}: {e}\n{}{}", self.line, self.stdout, self.stderr))
    }

    /// The error document, the last line on stderr.
    #[track_caller]
    fn error(&self) -> Value {
        let last = self.stderr.lines().last().unwrap_or("");
        let mut document: Value =
            serde_json::from_str(last).unwrap_or_else(|e| panic!("{}: {e}\n{}", self.line, self.stderr));
        document["error"].take()
    }

    /// The code in the error document.
    #[track_caller]
    pub fn error_code(&self) -> String {
        self.error()["code"].as_str().expect("an error has a code").to_owned()
    }

    /// The names of the missing managers in the error document.
    #[track_caller]
    pub fn missing(&self) -> Vec<String> {
        let error = self.error();
        let names = error["details"]["missing"].as_array().unwrap_or_else(|| panic!("no names in {error}"));
        names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
    }

    /// Its document, or `None` if it failed with one of these codes. Fails on any other end.
    #[track_caller]
    pub fn done_unless(&self, transient: &[ErrorCode]) -> Option<Value> {
        if self.code == 0 {
            return Some(self.json());
        }
        let code = self.error_code();
        let is_transient = transient.iter().any(|transient| transient.to_string() == code);
        assert!(is_transient, "{}\n{}{}", self.line, self.stdout, self.stderr);
        None
    }
}

fn children_of(parent: ProcessId) -> Vec<ProcessId> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", parent.pid)).into_iter().flatten().flatten();
    let of_task = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let pids: Vec<u32> =
        tasks.flat_map(|t| of_task(t).split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect();
    pids.into_iter().filter_map(ProcessId::of).collect()
}

/// A `muster` in the foreground.
pub struct ForegroundMuster {
    child: Child,
    pub id: ProcessId,
    lines: Receiver<String>,
    seen: String,
}

impl ForegroundMuster {
    pub fn start(folder: &Path, args: &[&str]) -> Self {
        let mut child = muster(folder, args).stdout(Stdio::piped()).spawn().expect("muster starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        Self::spawn_reader(child, stdout)
    }

    /// A `muster` that runs a command, which owns stdout: its own output is on stderr.
    pub fn start_for_command(folder: &Path, args: &[&str]) -> Self {
        let mut child = muster(folder, args).stderr(Stdio::piped()).spawn().expect("muster starts");
        let stderr = child.stderr.take().expect("stderr is piped");
        Self::spawn_reader(child, stderr)
    }

    fn spawn_reader(child: Child, output: impl Read + Send + 'static) -> Self {
        let id = ProcessId::of(child.id()).expect("it was just started");
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).all(|line| tell.send(line).is_ok())
        });
        Self { child, id, lines, seen: String::new() }
    }

    /// Reads until a line contains this.
    #[track_caller]
    pub fn wait_for_line(&mut self, text: &str) {
        while !self.seen.contains(text) {
            match self.lines.recv_timeout(WAIT_LIMIT) {
                Ok(line) => self.seen += &(line + "\n"),
                Err(error) => panic!("it never printed {text:?} ({error}), but\n{}", self.seen),
            }
        }
    }

    /// A line that it has printed, if there is one that was not read.
    pub fn next_line(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// What was read so far.
    pub fn seen(&self) -> &str {
        &self.seen
    }

    pub fn signal(&self, signal: Signal) {
        self.id.signal(signal);
    }

    /// All its descendants, nearest first.
    pub fn descendants(&self) -> Vec<ProcessId> {
        let mut found = vec![self.id];
        let mut next = 0;
        while next < found.len() {
            found.extend(children_of(found[next]));
            next += 1;
        }
        found.split_off(1)
    }

    /// Waits for its end; returns the exit status, or `None` after a signal.
    #[track_caller]
    pub fn exit(&mut self) -> Option<i32> {
        eventually("muster ends", || self.child.try_wait().expect("it is our child")).code()
    }
}

impl Drop for ForegroundMuster {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
