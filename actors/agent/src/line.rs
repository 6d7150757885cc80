//! Line: one connection of the agent to a host, from the dial to its end. A task of the agent's incarnation.
//!
//! Keeps  AGENT-8  a host that sends faster than the agent handles is slowed down by its own connection: at most
//!                 [`UNHANDLED`] of its frames wait in the agent's mailbox.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_gateway::{BoxStream, DialError, Dialer, FrameError, Framed, FramedReader, FramedWriter};
use muster_kernel::Address;
use muster_messages::NodeId;
use muster_messages::protocol::Service;
use muster_messages::wire::{AgentFrame, HostFrame};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::core::{Attempt, Loss};
use crate::shell::Msg;

/// Frames of one host that wait in the mailbox. A host sends a view or an answer at a time.
const UNHANDLED: usize = 16;

/// A welcomed connection to a manager's agent service.
pub struct Dialled {
    pub stream: Framed<BoxStream>,
    pub host: NodeId,
}

/// How the agent reaches a manager: TLS in use, in-memory pipes in tests.
pub trait Dial: Send + Sync + 'static {
    /// Dials `host:port`. Errors name stage and cause.
    fn dial(&self, addr: String) -> BoxFuture<'static, Result<Dialled, Loss>>;
}

impl Dial for Dialer {
    fn dial(&self, addr: String) -> BoxFuture<'static, Result<Dialled, Loss>> {
        let dialer = self.clone();
        Box::pin(async move {
            match dialer.dial(&addr, Service::Agent, None).await {
                Ok(dialed) => Ok(Dialled { stream: dialed.stream, host: dialed.node }),
                Err(DialError::Refused { refusal, .. }) => Err(Loss::Refused(refusal)),
                Err(error) => Err(Loss::Broken(chain(&error))),
            }
        })
    }
}

/// An error with its causes, once each.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// A frame that is on its way through the agent's mailbox.
pub struct Heard {
    pub frame: Box<HostFrame>,
    _room: OwnedSemaphorePermit,
}

/// The agent's end of a line. Dropped: what was sent leaves, then the connection is closed.
pub(crate) struct Line {
    pub attempt: Attempt,
    pub outbox: mpsc::Sender<Box<AgentFrame>>,
    /// Resolves when the connection is closed. Taken by whoever waits for that.
    pub closed: Option<oneshot::Receiver<()>>,
}

/// What a line needs.
pub(crate) struct LineArgs {
    pub attempt: Attempt,
    pub addr: String,
    pub dial: Arc<dyn Dial>,
    pub deadline: Duration,
    pub outbox: usize,
    pub me: Address<Msg>,
}

/// A line and the task that is it.
pub(crate) fn line(args: LineArgs) -> (Line, impl Future<Output = ()> + Send + 'static) {
    let (outbox, frames) = mpsc::channel(args.outbox);
    let (done, closed) = oneshot::channel();
    let line = Line { attempt: args.attempt, outbox, closed: Some(closed) };
    let task = async move {
        let (attempt, me) = (args.attempt, args.me.clone());
        let why = run(args, frames).await;
        drop(done);
        if let Some(why) = why {
            let _ended = me.tell(Msg::Lost { attempt, why });
        }
    };
    (line, task)
}

/// Dials and carries frames both ways. `None`: we hung up.
async fn run(args: LineArgs, frames: mpsc::Receiver<Box<AgentFrame>>) -> Option<Loss> {
    let dialling = timeout(args.deadline, args.dial.dial(args.addr.clone())).await;
    let dialled = match dialling {
        Ok(Ok(dialled)) => dialled,
        Ok(Err(loss)) => return Some(loss),
        Err(_) => {
            let limit = args.deadline.as_secs();
            return Some(Loss::Broken(format!("{} did not welcome us within {limit} s", args.addr)));
        }
    };
    let (attempt, host) = (args.attempt, dialled.host);
    args.me.tell(Msg::Connected { attempt, host }).ok()?;
    let (reader, writer) = dialled.stream.split();
    tokio::select! {
        why = read(reader, attempt, &args.me) => Some(Loss::Broken(why)),
        why = write(writer, frames, args.deadline) => why.map(Loss::Broken),
    }
}

async fn read(mut reader: FramedReader<ReadHalf<BoxStream>>, attempt: Attempt, me: &Address<Msg>) -> String {
    let room = Arc::new(Semaphore::new(UNHANDLED));
    loop {
        let permit = Arc::clone(&room).acquire_owned().await;
        let permit = permit.expect("the semaphore of a line is never closed");
        let frame = match reader.recv::<HostFrame>().await {
            Ok(Some(frame)) => Box::new(frame),
            Ok(None) => return "the host closed the connection".to_owned(),
            Err(error) => return chain(&error),
        };
        let heard = Heard { frame, _room: permit };
        if me.tell(Msg::Heard { attempt, heard }).is_err() {
            return "the agent is restarting".to_owned();
        }
    }
}

/// `None`: everything was written and the agent hung up.
async fn write(
    mut writer: FramedWriter<WriteHalf<BoxStream>>,
    mut frames: mpsc::Receiver<Box<AgentFrame>>,
    limit: Duration,
) -> Option<String> {
    while let Some(frame) = frames.recv().await {
        match timeout(limit, writer.send(&*frame)).await {
            Ok(Ok(())) => {}
            // Nothing of it was written; whoever waits for it has a deadline.
            Ok(Err(FrameError::Wire(error))) => tracing::warn!(%error, "a frame was not sent"),
            Ok(Err(error)) => return Some(chain(&error)),
            Err(_) => return Some("the host reads nothing".to_owned()),
        }
    }
    let _broken = timeout(limit, writer.shutdown()).await;
    None
}
