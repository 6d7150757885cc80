//! A resource that is safe from earlier leaders: it refuses writes with a smaller fencing token than it has seen.
//!
//! A lease alone cannot provide this. A leader may be frozen between the check of its lease and the write, for longer than the
//! lease lasts; when it resumes, its write is already on the way. Only the resource can detect that, and it only needs to store
//! one number. In a database: a column, and `UPDATE … WHERE token <= $1` in the same transaction as the write.
//!
//! ```text
//! fenced_resource serve 127.0.0.1:7000
//! muster elect demo -- fenced_resource write 127.0.0.1:7000 "hello from $$" 100
//! ```
//!
//! Start the second line twice, freeze the holder (`kill -STOP`) for longer than its lease, and resume it. Muster's guardian
//! has killed the frozen command before the other one starts; if the guardian is killed as well, the resource refuses.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A place to write to, by one leader at a time.
#[derive(Debug, Default)]
pub struct FencedResource {
    /// The largest token that ever wrote. Store it with the data, to last as long.
    seen: u64,
    lines: VecDeque<String>,
}

/// A later leader than the writer exists.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub seen: u64,
}

/// Lines that are kept, so that the example can run for days.
const MAX_LINES: usize = 1000;

impl FencedResource {
    /// Writes, unless a later leader has already written. The same token may write repeatedly.
    pub fn write(&mut self, token: u64, line: &str) -> Result<(), Refused> {
        if token < self.seen {
            return Err(Refused { seen: self.seen });
        }
        self.seen = token;
        if self.lines.len() == MAX_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line.to_owned());
        Ok(())
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    run(&args).into()
}

/// Runs the arguments; returns the exit status.
pub fn run(args: &[String]) -> u8 {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["serve", addr] => serve(addr),
        ["write", addr, text] => write(addr, text, None),
        ["write", addr, text, every_ms] => match every_ms.parse() {
            Ok(ms) => write(addr, text, Some(Duration::from_millis(ms))),
            Err(_) => return usage(),
        },
        _ => return usage(),
    };
    match done {
        Ok(exit) => exit,
        Err(error) => {
            eprintln!("fenced_resource: {error}");
            2
        }
    }
}

fn usage() -> u8 {
    eprintln!(
        "usage: fenced_resource serve ADDR\n       fenced_resource write ADDR TEXT [EVERY_MS]   (token from MUSTER_FENCING_TOKEN)"
    );
    2
}

/// One request per line, `TOKEN TEXT`; one answer per line, `ok` or `refused SEEN`. Each outcome is printed.
fn serve(addr: &str) -> io::Result<u8> {
    let listener = TcpListener::bind(addr)?;
    println!("listening on {}", listener.local_addr()?);
    let resource = Arc::new(Mutex::new(FencedResource::default()));
    for stream in listener.incoming() {
        let (stream, resource) = (stream?, Arc::clone(&resource));
        std::thread::spawn(move || {
            // A writer that disconnects, or was killed, does not matter.
            let _ended = serve_connection(&stream, &resource);
        });
    }
    Ok(0)
}

fn serve_connection(mut stream: &TcpStream, resource: &Mutex<FencedResource>) -> io::Result<()> {
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let Some((token, text)) = line.split_once(' ').and_then(|(token, text)| Some((token.parse().ok()?, text)))
        else {
            writeln!(stream, "what?")?;
            continue;
        };
        // Checked and written in one step: no other write may come in between.
        let written = resource.lock().unwrap_or_else(PoisonError::into_inner).write(token, text);
        match written {
            Ok(()) => {
                println!("accepted {token} {text}");
                writeln!(stream, "ok")?;
            }
            Err(Refused { seen }) => {
                println!("refused {token} {text} (seen {seen})");
                writeln!(stream, "refused {seen}")?;
            }
        }
    }
    Ok(())
}

/// Writes once, or repeatedly until it is refused: exit status 1.
fn write(addr: &str, text: &str, every: Option<Duration>) -> io::Result<u8> {
    let token =
        std::env::var("MUSTER_FENCING_TOKEN").map_err(|_| io::Error::other("MUSTER_FENCING_TOKEN is not set"))?;
    let mut stream = TcpStream::connect(addr)?;
    let mut answers = BufReader::new(stream.try_clone()?).lines();
    loop {
        writeln!(stream, "{token} {text}")?;
        let answer = answers.next().ok_or_else(|| io::Error::other("the resource hung up"))??;
        if answer != "ok" {
            eprintln!("fenced_resource: token {token} was {answer}");
            return Ok(1);
        }
        match every {
            Some(pause) => std::thread::sleep(pause),
            None => return Ok(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_leader_is_refused() {
        let mut resource = FencedResource::default();
        assert_eq!(resource.write(7, "first"), Ok(()));
        assert_eq!(resource.write(7, "again"), Ok(()));
        assert_eq!(resource.write(9, "the next one"), Ok(()));
        assert_eq!(resource.write(7, "late"), Err(Refused { seen: 9 }));
        assert_eq!(resource.lines, ["first", "again", "the next one"]);
    }
}
