//! Line: one accepted connection, from its arrival at a session to its end. A task of the session's incarnation.
//!
//! Invariants  SESSION-10  an agent that sends faster than its session handles is slowed down by its own connection: at most
//!                         [`UNHANDLED`] of its frames wait in the mailbox.

use std::sync::Arc;
use std::time::Duration;

use muster_gateway::{BoxStream, Connection, FrameError, Framed, FramedReader, FramedWriter};
use muster_kernel::Address;
use muster_messages::wire::{AgentFrame, HostFrame};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::core::session::ConnId;
use crate::session::Msg;

/// Frames of one agent that wait in the mailbox. An agent sends one heartbeat or request at a time.
const UNHANDLED: usize = 8;

/// A frame that passes through the mailbox.
pub struct Incoming {
    pub frame: Box<AgentFrame>,
    _room: OwnedSemaphorePermit,
}

/// The session's end of a line. Dropping it closes the connection after earlier frames have been sent.
pub(crate) struct Line {
    pub conn: ConnId,
    pub outbox: mpsc::Sender<Box<HostFrame>>,
    /// Resolves when the connection is closed. Taken by the caller that waits for it.
    pub closed: Option<oneshot::Receiver<()>>,
}

pub(crate) fn line(
    conn: ConnId,
    connection: Connection,
    me: Address<Msg>,
    outbox: usize,
    limit: Duration,
) -> (Line, impl Future<Output = ()> + Send + 'static) {
    let (sender, frames) = mpsc::channel(outbox);
    let (done, closed) = oneshot::channel();
    let line = Line { conn, outbox: sender, closed: Some(closed) };
    let task = async move {
        let Connection { stream, kill, permit, .. } = connection;
        let (reader, writer) = Framed::new(stream).split();
        let why = tokio::select! {
            why = read(reader, conn, &me) => Some(why),
            why = write(writer, frames, limit) => why,
        };
        drop((permit, done));
        if let Some(why) = why {
            let why = kill.disconnect_reason().map_or(why, |reason| format!("disconnected: {reason}"));
            let _ended = me.tell(Msg::Closed { conn, why });
        }
    };
    (line, task)
}

async fn read(mut reader: FramedReader<ReadHalf<BoxStream>>, conn: ConnId, me: &Address<Msg>) -> String {
    let room = Arc::new(Semaphore::new(UNHANDLED));
    loop {
        let permit = Arc::clone(&room).acquire_owned().await;
        let permit = permit.expect("the semaphore of a line is never closed");
        let frame = match reader.recv::<AgentFrame>().await {
            Ok(Some(frame)) => Box::new(frame),
            Ok(None) => return "the agent closed the connection".to_owned(),
            Err(error) => return error.to_string(),
        };
        let received = Incoming { frame, _room: permit };
        if me.tell(Msg::Received { conn, received }).is_err() {
            return "the session is restarting".to_owned();
        }
    }
}

/// `None`: everything was written and the session hung up.
async fn write(
    mut writer: FramedWriter<WriteHalf<BoxStream>>,
    mut frames: mpsc::Receiver<Box<HostFrame>>,
    limit: Duration,
) -> Option<String> {
    while let Some(frame) = frames.recv().await {
        match timeout(limit, writer.send(&*frame)).await {
            Ok(Ok(())) => {}
            // No part of it was written; the waiting caller has a deadline.
            Ok(Err(FrameError::Wire(error))) => tracing::warn!(%error, "frame not sent to the agent"),
            Ok(Err(error)) => return Some(error.to_string()),
            Err(_) => return Some("the agent stopped reading".to_owned()),
        }
    }
    let _broken = timeout(limit, writer.shutdown()).await;
    None
}

/// Sends one last frame on a connection that gets no session, and closes it.
pub(crate) async fn reject(connection: Connection, frame: HostFrame, limit: Duration) {
    let Connection { stream, permit, .. } = connection;
    let (_reader, mut writer) = Framed::new(stream).split();
    if let Ok(Ok(())) = timeout(limit, writer.send(&frame)).await {
        let _broken = timeout(limit, writer.shutdown()).await;
    }
    drop(permit);
}
