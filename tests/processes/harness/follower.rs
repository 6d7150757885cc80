//! A continuous long poll: collects all answers about one subject.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use muster_client::{Client, Failure, parse};
use muster_messages::Revision;
use muster_messages::wire::Request;
use serde_json::Value;

use super::{between_checks, eventually};

/// How long one request waits for a change.
pub const WAIT_MS: u64 = 500;

/// A thread that repeats one request after the revision that it has seen last, at any socket that answers.
pub struct Follower {
    stop: Arc<AtomicBool>,
    received: Arc<Mutex<Heard>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Heard {
    answers: Vec<Value>,
    upto: u64,
}

impl Follower {
    /// From the beginning. The request names a revision, and every answer its own.
    pub fn start(sockets: Vec<PathBuf>, question: impl Fn(Revision) -> Request + Send + 'static) -> Self {
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stopped, tell) = (Arc::clone(&stop), Arc::clone(&received));
        let thread = std::thread::spawn(move || follow(&sockets, &question, &stopped, &tell));
        Self { stop, received, thread: Some(thread) }
    }

    /// All answers so far, once they include everything up to this revision.
    #[track_caller]
    pub fn answers_until(&self, revision: u64) -> Vec<Value> {
        eventually("all answers have arrived", || {
            let received = locked(&self.received);
            (received.upto >= revision).then(|| received.answers.clone())
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn follow(sockets: &[PathBuf], question: &impl Fn(Revision) -> Request, stop: &AtomicBool, tell: &Mutex<Heard>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut clients: Vec<Client> = sockets.iter().map(|s| Client::to_socket(s, Duration::from_secs(2))).collect();
    let (mut upto, mut turn) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let client = &mut clients[turn % sockets.len()];
        let request = question(Revision(upto));
        let answer: Result<Value, Failure> = runtime.block_on(async { parse(&client.call(request).await?) });
        match answer {
            Ok(answer) => {
                upto = upto.max(answer["revision"].as_u64().unwrap_or(0));
                let mut received = locked(tell);
                received.answers.push(answer);
                received.upto = upto;
            }
            Err(_) => {
                turn += 1;
                between_checks();
            }
        }
    }
}
