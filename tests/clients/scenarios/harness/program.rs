//! A client in its own process.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::WAIT_LIMIT;

/// A program that has ended.
pub struct EndedProgram {
    pub line: String,
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl EndedProgram {
    pub fn of(mut command: Command) -> Self {
        let output = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("programs print text");
        Self {
            line: format!("{command:?}"),
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
}

/// A running program. On drop it is killed.
pub struct Program {
    name: String,
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Program {
    /// A command line for a program that is killed when the test's thread ends, or on a timeout.
    pub fn command(program: &Path) -> Command {
        let tied = ["setpriv", "--pdeathsig", "KILL", "--"];
        let bounded = ["timeout", "--signal", "KILL", "150"];
        let words: Vec<&str> = [&tied[..], &bounded, &tied].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    pub fn start(name: &str, mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let (tell, lines) = channel();
        relay(child.stdout.take().expect("stdout is piped"), tell.clone());
        relay(child.stderr.take().expect("stderr is piped"), tell);
        Self { name: name.to_owned(), child, lines, seen: vec![] }
    }

    /// Reads until a line contains this; returns that line.
    #[track_caller]
    pub fn wait_for_line(&mut self, text: &str) -> String {
        let end = Instant::now() + WAIT_LIMIT;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(error) => panic!("{} never printed {text:?} ({error}), but\n{}", self.name, self.seen.join("\n")),
            }
        }
    }

    /// Its output so far.
    pub fn said(&mut self) -> String {
        self.seen.extend(self.lines.try_iter());
        self.seen.join("\n")
    }

    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn ends(&mut self) -> Option<i32> {
        let status =
            super::eventually(&format!("{} ends", self.name), || self.child.try_wait().expect("it is our child"));
        status.code()
    }

    /// Ctrl-C, passed on by the wrapper that bounds the program.
    pub fn interrupt(&self) {
        let _ended = kill_process(Pid::from_child(&self.child), Signal::INT);
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is our child");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn relay(from: impl Read + Send + 'static, tell: Sender<String>) {
    std::thread::spawn(move || BufReader::new(from).lines().map_while(Result::ok).all(|line| tell.send(line).is_ok()));
}
