//! Long answers are built apart from the threads that Raft runs on, and few at a time: each takes milliseconds of a processor, and one
//! caller may ask for hundreds at once.

use std::sync::Arc;

use muster_messages::{ErrorBody, ErrorCode};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Built at the same time in one process. The others wait in their order, with their requests in progress.
const MAX_BUILT_AT_ONCE: usize = 2;

/// Clones count together.
#[derive(Clone)]
pub(crate) struct Builders(Arc<Semaphore>);

impl Default for Builders {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_BUILT_AT_ONCE)))
    }
}

impl Builders {
    /// What this makes. A caller that stops waiting does not make room before it is made.
    pub async fn build<T: Send + 'static>(&self, make: impl FnOnce() -> T + Send + 'static) -> Result<T, ErrorBody> {
        let permit = Arc::clone(&self.0).acquire_owned().await.expect("the semaphore is never closed");
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
        assert_eq!(builders.0.available_permits(), 0);
        for _ in 0..MAX_BUILT_AT_ONCE {
            end.send(()).unwrap();
        }
        assert_eq!(builders.build(|| 7).await.ok(), Some(7));
    }
}
