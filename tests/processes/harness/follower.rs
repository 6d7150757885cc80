//! A long poll that is never let go of: everything that a cluster says about one thing.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use muster_client::{Client, Failure, parse};
use muster_messages::Revision;
use muster_messages::wire::Request;
use serde_json::Value;

use super::{between_looks, eventually};

/// How long one question waits for news.
pub const WAIT_MS: u64 = 500;

/// A thread that asks one question again and again, after what it has seen last, of whichever socket answers.
pub struct Follower {
    stop: Arc<AtomicBool>,
    heard: Arc<Mutex<Heard>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Heard {
    answers: Vec<Value>,
    upto: u64,
}

impl Follower {
    /// From the beginning. The question is asked after a revision, and every answer says of which it is.
    pub fn start(sockets: Vec<PathBuf>, question: impl Fn(Revision) -> Request + Send + 'static) -> Self {
        let (stop, heard) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stopped, tell) = (Arc::clone(&stop), Arc::clone(&heard));
        let thread = std::thread::spawn(move || follow(&sockets, &question, &stopped, &tell));
        Self { stop, heard, thread: Some(thread) }
    }

    /// All answers so far, once everything up to this revision is among them.
    #[track_caller]
    pub fn heard_until(&self, revision: u64) -> Vec<Value> {
        eventually("everything was heard of", || {
            let heard = locked(&self.heard);
            (heard.upto >= revision).then(|| heard.answers.clone())
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
                let mut heard = locked(tell);
                heard.answers.push(answer);
                heard.upto = upto;
            }
            Err(_) => {
                turn += 1;
                between_looks();
            }
        }
    }
}
