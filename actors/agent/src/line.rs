//! Line: one connection of the agent to a host, from the dial to its end. A task of the agent's incarnation.
//!
//! Invariants  AGENT-8  a host that sends faster than the agent handles is slowed down by its own connection: at most
//!                      [`UNHANDLED`] of its frames wait in the agent's mailbox.
//!             AGENT-9  a request about this process's actors is answered whatever the agent is doing: it bypasses the
//!                      agent's mailbox. The configuration limits how many are in progress; the others are refused.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_gateway::{BoxStream, DialError, Dialer, FrameError, Framed, FramedReader, FramedWriter};
use muster_kernel::{Address, AdminAction, Cx};
use muster_messages::protocol::Service;
use muster_messages::wire::{ActorsAsk, AgentFrame, HostFrame, MAX_FRAME};
use muster_messages::{ErrorBody, ErrorCode, Incarnation, NodeId};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::core::{Attempt, Loss};
use crate::ports::{AgentPorts, Inspector};
use crate::shell::Msg;

/// Frames of one host that wait in the mailbox. A host sends one view or answer at a time.
const UNHANDLED: usize = 16;

/// A welcomed connection to a manager's agent service.
pub struct Dialled {
    pub stream: Framed<BoxStream>,
    pub host: NodeId,
    /// The cluster's, according to the host's certificate.
    pub incarnation: Incarnation,
}

/// How the agent reaches a manager: TLS in production, in-memory pipes in tests.
pub trait Dial: Send + Sync + 'static {
    /// Dials `host:port`. Errors name stage and cause.
    fn dial(&self, addr: String) -> BoxFuture<'static, Result<Dialled, Loss>>;
}

impl Dial for Dialer {
    fn dial(&self, addr: String) -> BoxFuture<'static, Result<Dialled, Loss>> {
        let dialer = self.clone();
        Box::pin(async move {
            match dialer.dial(&addr, Service::Agent, None).await {
                Ok(dialed) => {
                    let incarnation = dialed.identity.incarnation;
                    Ok(Dialled { stream: dialed.stream, host: dialed.node, incarnation })
                }
                Err(DialError::Refused { refusal, .. }) => Err(Loss::Refused(refusal)),
                Err(error) => Err(Loss::Broken(error.full_text())),
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

/// A frame that passes through the agent's mailbox.
pub struct Incoming {
    pub frame: Box<HostFrame>,
    _room: OwnedSemaphorePermit,
}

/// An outgoing frame, and the admin action to carry out once it has been sent.
type Outgoing = (Box<AgentFrame>, Option<AdminAction>);

/// The agent's end of a line. Dropping it closes the connection after earlier frames have been sent.
struct Line {
    attempt: Attempt,
    outbox: mpsc::Sender<Outgoing>,
    /// Resolves when the connection is closed. Taken by the caller that waits for it.
    closed: Option<oneshot::Receiver<()>>,
}

/// The open lines. At most two: the session's, and that of the former one (AGENT-12).
#[derive(Default)]
pub(crate) struct Lines(Vec<Line>);

impl Lines {
    pub fn dial(&mut self, cx: &Cx<Msg>, ports: &AgentPorts, attempt: Attempt, addr: String) {
        let (line, task) = line(LineArgs { attempt, addr, ports: ports.clone(), me: cx.me().clone() });
        self.0.push(line);
        cx.spawn(task);
    }

    pub fn send(&mut self, cx: &Cx<Msg>, attempt: Attempt, frame: Box<AgentFrame>) {
        let Some(line) = self.0.iter().find(|line| line.attempt == attempt) else {
            return;
        };
        if line.outbox.try_send((frame, None)).is_err() {
            self.hang_up(attempt);
            let why = Loss::Broken("the host reads too slowly".to_owned());
            let _ended = cx.me().tell(Msg::Lost { attempt, why });
        }
    }

    pub fn hang_up(&mut self, attempt: Attempt) {
        self.0.retain(|line| line.attempt != attempt);
    }

    /// Each resolves once its connection is closed.
    pub fn closing(&mut self) -> Vec<oneshot::Receiver<()>> {
        self.0.iter_mut().filter_map(|line| line.closed.take()).collect()
    }
}

struct LineArgs {
    attempt: Attempt,
    addr: String,
    ports: AgentPorts,
    me: Address<Msg>,
}

fn line(args: LineArgs) -> (Line, impl Future<Output = ()> + Send + 'static) {
    let (outbox, frames) = mpsc::channel(args.ports.config.outbox);
    let (done, closed) = oneshot::channel();
    // Weak: the agent hangs up by dropping its own.
    let answers = outbox.downgrade();
    let line = Line { attempt: args.attempt, outbox, closed: Some(closed) };
    let task = async move {
        let (attempt, me) = (args.attempt, args.me.clone());
        let why = run(args, answers, frames).await;
        drop(done);
        if let Some(why) = why {
            let _ended = me.tell(Msg::Lost { attempt, why });
        }
    };
    (line, task)
}

/// Dials and carries frames both ways. `None`: the agent hung up.
async fn run(args: LineArgs, answers: Answers, frames: mpsc::Receiver<Outgoing>) -> Option<Loss> {
    let deadline = args.ports.config.dial_deadline;
    let dialling = timeout(deadline, args.ports.dial.dial(args.addr.clone())).await;
    let dialled = match dialling {
        Ok(Ok(dialled)) => dialled,
        Ok(Err(loss)) => return Some(loss),
        Err(_) => {
            let limit = deadline.as_secs();
            return Some(Loss::Broken(format!("{} did not send its greeting within {limit} s", args.addr)));
        }
    };
    let (attempt, host, incarnation) = (args.attempt, dialled.host, dialled.incarnation);
    args.me.tell(Msg::Connected { attempt, host, incarnation }).ok()?;
    let (reader, writer) = dialled.stream.split();
    tokio::select! {
        why = read(reader, &args, &answers) => Some(Loss::Broken(why)),
        why = write(writer, frames, deadline) => why.map(Loss::Broken),
    }
}

/// Where answers go.
type Answers = mpsc::WeakSender<Outgoing>;

async fn read(mut reader: FramedReader<ReadHalf<BoxStream>>, args: &LineArgs, answers: &Answers) -> String {
    let LineArgs { attempt, ref me, .. } = *args;
    // `open_questions`: requests that may be in progress at once.
    let questions = Arc::new(Semaphore::new(args.ports.config.open_questions));
    let room = Arc::new(Semaphore::new(UNHANDLED));
    // They end with the line.
    let mut asked = JoinSet::new();
    loop {
        while let Some(done) = asked.try_join_next() {
            if let Err(error) = done {
                tracing::error!(%error, "the task that answers a request about this process's actors failed");
            }
        }
        let frame = match reader.recv::<HostFrame>().await {
            Ok(Some(HostFrame::Ask { id, ask })) => {
                let permit = Arc::clone(&questions).try_acquire_owned().ok();
                asked.spawn(answer(Arc::clone(&args.ports.inspector), answers.clone(), id, ask, permit));
                continue;
            }
            Ok(Some(frame)) => Box::new(frame),
            Ok(None) => return "the host closed the connection".to_owned(),
            Err(error) => return chain(&error),
        };
        let permit = Arc::clone(&room).acquire_owned().await;
        let permit = permit.expect("the semaphore of a line is never closed");
        let received = Incoming { frame, _room: permit };
        if me.tell(Msg::Received { attempt, received }).is_err() {
            return "the agent is restarting".to_owned();
        }
    }
}

/// Answers one request about this process's actors, if the limit allows it.
async fn answer(inspector: Inspector, answers: Answers, id: u64, ask: ActorsAsk, room: Option<OwnedSemaphorePermit>) {
    let result = match &room {
        Some(_) => inspector(ask).await,
        None => {
            let error = ErrorBody::new(ErrorCode::TooManyRequests, "too many actor requests; retry later");
            Err(error.retry_after(Duration::from_millis(200)))
        }
    };
    let fits = |text: &String| text.len() + 64 <= MAX_FRAME;
    let (result, admin_action) = match result {
        Ok((text, _)) if !fits(&text) => {
            let text = "the answer is larger than a frame; ask for one actor with `inspect`";
            (Err(ErrorBody::new(ErrorCode::TooLarge, text)), None)
        }
        Ok((text, admin_action)) => (Ok(text), admin_action),
        Err(error) => (Err(error), None),
    };
    // A host that reads too slowly loses the answer; its caller has a deadline.
    if let Some(outbox) = answers.upgrade() {
        let _full = outbox.try_send((Box::new(AgentFrame::Answer { id, result }), admin_action));
    }
}

/// `None`: everything was written and the agent hung up.
async fn write(
    mut writer: FramedWriter<WriteHalf<BoxStream>>,
    mut frames: mpsc::Receiver<Outgoing>,
    limit: Duration,
) -> Option<String> {
    while let Some((frame, admin_action)) = frames.recv().await {
        let sent = timeout(limit, writer.send(&*frame)).await;
        drop(admin_action);
        match sent {
            Ok(Ok(())) => {}
            // No part of it was written; the waiting caller has a deadline.
            Ok(Err(FrameError::Wire(error))) => tracing::warn!(%error, "frame not sent to the host"),
            Ok(Err(error)) => return Some(chain(&error)),
            Err(_) => return Some("the host stopped reading".to_owned()),
        }
    }
    let _broken = timeout(limit, writer.shutdown()).await;
    None
}
