//! Long answers take milliseconds of a processor each, and one caller may ask for hundreds at once. Pages of events,
//! Kubernetes lists and the actors of all nodes, the longest, are built apart from the threads that Raft runs on, and few at a time; others
//! one at a time on one of these threads.

use std::sync::Arc;

use muster_messages::{ErrorBody, ErrorCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{spawn_blocking, yield_now};

const NEVER_CLOSED: &str = "the semaphore is never closed";

/// Built at the same time in one process. The others wait in their order, with their requests in progress.
const MAX_BUILT_AT_ONCE: usize = 2;

/// Clones count together.
#[derive(Clone)]
pub(crate) struct Builders {
    apart: Arc<Semaphore>,
    here: Arc<Semaphore>,
}

impl Default for Builders {
    fn default() -> Self {
        Self { apart: Arc::new(Semaphore::new(MAX_BUILT_AT_ONCE)), here: Arc::new(Semaphore::new(1)) }
    }
}

impl Builders {
    /// While it is held, this task alone builds an answer on the threads that Raft runs on. What else is to run there comes first.
    pub async fn turn(&self) -> OwnedSemaphorePermit {
        let permit = Arc::clone(&self.here).acquire_owned().await.expect(NEVER_CLOSED);
        yield_now().await;
        permit
    }

    /// What this makes. A caller that stops waiting does not make room before it is made.
    pub async fn build<T: Send + 'static>(&self, make: impl FnOnce() -> T + Send + 'static) -> Result<T, ErrorBody> {
        let permit = Arc::clone(&self.apart).acquire_owned().await.expect(NEVER_CLOSED);
        let made = spawn_blocking(move || {
            let made = make();
            drop(permit);
            made
        });
        made.await.map_err(|e| ErrorBody::new(ErrorCode::Internal, format!("building the answer failed: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn one_answer_at_a_time_is_built_on_the_threads_of_raft() {
        let builders = Builders::default();
        let first = builders.turn().await;
        let others = builders.clone();
        let second = tokio::spawn(async move { drop(others.turn().await) });
        for _ in 0..10 {
            yield_now().await;
        }
        assert!(!second.is_finished(), "the first one has the turn");
        drop(first);
        second.await.unwrap();
    }

    #[tokio::test]
    async fn cancelled_builds_make_no_room_for_others() {
        let builders = Builders::default();
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(std::sync::Mutex::new(ended));
        for _ in 0..MAX_BUILT_AT_ONCE {
            let (builders, ended) = (builders.clone(), Arc::clone(&ended));
            let waiting = tokio::spawn(async move { builders.build(move || ended.lock().unwrap().recv()).await });
            tokio::task::yield_now().await;
            waiting.abort();
        }
        assert_eq!(builders.apart.available_permits(), 0);
        for _ in 0..MAX_BUILT_AT_ONCE {
            end.send(()).unwrap();
        }
        assert_eq!(builders.build(|| 7).await.ok(), Some(7));
    }
}
