//! The bodies of one connection.
//!
//! Owns        the share of memory in which bodies of several requests arrive at once, and the place of the one body beyond it.
//! Inputs      bodies, each with its limit.
//! Outputs     their bytes, or why they are refused.
//! Invariants  HTTP-1 and HTTP-2; see `http.rs`.
//! Why no body waits until another one has been read: all streams of an HTTP/2 connection share one window. What has arrived for
//! the waiting requests fills it, so the body that they wait for cannot arrive, and the connection stands still until all are
//! given up. Therefore what arrives is taken at once, or its request is refused.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::BodyExt;
use muster_messages::{ErrorBody, ErrorCode};
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The deadline for a body, which is at most as large as a few packets.
const BODY_DEADLINE: Duration = Duration::from_secs(10);
/// Bytes of unfinished bodies besides the one that may exceed them: as many as fit the connection's window. A body that
/// arrives whole, as those of leases do, occupies them for a moment.
const SHARED_BYTES: usize = super::HTTP2_WINDOW_BYTES as usize;
/// Bytes of a body read and dropped beyond its limit. A client that is still writing when its connection closes never
/// reads the reason. This is several times the largest object, and costs a connection some time.
const MAX_DROPPED_BYTES: usize = 8 * 1024 * 1024;
/// A client that has sent too much and then nothing for this long is waiting for its answer.
const DROP_IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Clones belong to one connection.
#[derive(Clone)]
pub(super) struct Bodies {
    shared: Arc<Semaphore>,
    large: Arc<Mutex<()>>,
}

impl Default for Bodies {
    fn default() -> Self {
        Self { shared: Arc::new(Semaphore::new(SHARED_BYTES)), large: Arc::default() }
    }
}

/// The room that an unfinished body takes.
#[derive(Default)]
struct Room {
    shared: Option<OwnedSemaphorePermit>,
    large: Option<OwnedMutexGuard<()>>,
}

impl Bodies {
    /// Reads a body within a limit and a time. Bytes beyond the limit are read as well, and dropped, so that the client can
    /// read the refusal.
    pub async fn read(&self, limit: usize, body: Body) -> Result<Bytes, ErrorBody> {
        match timeout(BODY_DEADLINE, self.read_within(limit, body)).await {
            Ok(read) => read,
            Err(_) => Err(ErrorBody::new(ErrorCode::TimedOut, "the body did not arrive in time")),
        }
    }

    async fn read_within(&self, limit: usize, mut body: Body) -> Result<Bytes, ErrorBody> {
        let (mut kept, mut length, mut room) = (Vec::new(), 0_usize, Room::default());
        loop {
            let next =
                if length > limit { timeout(DROP_IDLE_TIMEOUT, body.frame()).await } else { Ok(body.frame().await) };
            let Ok(Some(frame)) = next else { break };
            let frame = frame.map_err(|_| ErrorBody::invalid("the body ended early"))?;
            let Ok(data) = frame.into_data() else { continue };
            length = length.saturating_add(data.len());
            if length <= limit {
                self.take(&mut room, data.len())?;
                kept.extend_from_slice(&data);
            } else if length > limit.saturating_add(MAX_DROPPED_BYTES) {
                break;
            } else {
                (kept, room) = (Vec::new(), Room::default());
            }
        }
        if length <= limit {
            return Ok(kept.into());
        }
        Err(ErrorBody::new(ErrorCode::TooLarge, format!("the body is larger than {limit} bytes")))
    }

    /// Room for more bytes of a body, until the body has been read: in the common share, or beyond it for one body.
    fn take(&self, room: &mut Room, bytes: usize) -> Result<(), ErrorBody> {
        if room.large.is_some() {
            return Ok(());
        }
        let shared =
            u32::try_from(bytes).ok().and_then(|bytes| Arc::clone(&self.shared).try_acquire_many_owned(bytes).ok());
        if let Some(more) = shared {
            match &mut room.shared {
                Some(held) => held.merge(more),
                none => *none = Some(more),
            }
            return Ok(());
        }
        let large = Arc::clone(&self.large).try_lock_owned().map_err(|_| {
            let text = "too many large bodies are being sent on this connection at once; retry later";
            ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(Duration::from_secs(1))
        })?;
        *room = Room { shared: None, large: Some(large) };
        Ok(())
    }
}
