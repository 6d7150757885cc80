//! The actor `node/audit`: passes one write at a time to a thread that may block, and answers the callers that wait for it.

use std::time::Duration;

use muster_kernel::{Cx, Fault, Parked, Shell};
use muster_messages::protocol::{AuditFault, AuditMsg, Reply};
use serde_json::{Value, json};

use crate::core::{AuditState, Effect, Input, Job, Queue};
use crate::file::Sink;
use crate::msg::Msg;
use crate::ports::AuditPorts;

/// The interval of syncs, and of retries of a failed file.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// For the last write when the process stops. The stop deadline of an actor is 5 s.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct AuditShell {
    ports: AuditPorts,
    queue: Queue,
    /// `None` while a thread uses it.
    sink: Option<Box<dyn Sink>>,
    asks: Parked<Reply<Result<(), AuditFault>>>,
}

impl AuditShell {
    pub fn new(ports: AuditPorts) -> Self {
        let queue = ports.slot.get().unwrap_or_default().resume();
        let sink = Some((ports.open)());
        Self { ports, queue, sink, asks: Parked::default() }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let mut effects = Vec::new();
        self.queue.step(cx.now(), input, &mut effects);
        self.ports.slot.set(self.queue.clone()); // before any effect: after a crash, lines that may not be written are written again
        let state = self.queue.state();
        self.ports.state.send_if_modified(|known| {
            let changed = *known != state;
            *known = state;
            changed
        });
        for effect in effects {
            self.apply(cx, effect);
        }
    }

    fn apply(&mut self, cx: &Cx<Msg>, effect: Effect) {
        match effect {
            Effect::Run(job) => self.run(cx, job),
            Effect::Answer(ask, result) => {
                if let Some(reply) = self.asks.take(ask) {
                    let _gave_up = reply.send(result.map_err(AuditFault));
                }
            }
            Effect::Failing { why, waiting, dropped } => {
                tracing::error!(%why, waiting, dropped, "audit log cannot be written; retrying every second");
            }
            Effect::Recovered { dropped } => tracing::info!(dropped, "audit log recovered"),
        }
    }

    fn run(&mut self, cx: &Cx<Msg>, job: Job) {
        let mut sink = self.sink.take().unwrap_or_else(|| (self.ports.open)());
        let me = cx.me().clone();
        cx.spawn(async move {
            let ran = tokio::task::spawn_blocking(move || {
                let result = sink.run(&job).map_err(|error| error.to_string());
                (sink, result)
            });
            let (sink, result) = match ran.await {
                Ok((sink, result)) => (Some(sink), result),
                Err(panicked) => (None, Err(panicked.to_string())),
            };
            let _gone = me.tell(Msg::Ended { sink, result });
        });
    }
}

impl Shell for AuditShell {
    type Msg = Msg;
    const KIND: &'static str = "Audit";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        // Lines of an earlier incarnation are written, and an unwritable file is detected before the first request.
        self.step(cx, Input::Reopen);
        cx.after(TICK_INTERVAL, Msg::Tick);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        let input = match msg {
            Msg::Protocol(AuditMsg::Record { line, reply }) => {
                let ask = reply.map(|reply| self.asks.park(reply));
                Input::Record { line, ask, unauthenticated: false }
            }
            Msg::Protocol(AuditMsg::RecordUnauthenticated { line }) => {
                Input::Record { line, ask: None, unauthenticated: true }
            }
            Msg::Protocol(AuditMsg::Check { reply }) => Input::Check(self.asks.park(reply)),
            Msg::Protocol(AuditMsg::Reopen) => Input::Reopen,
            Msg::Tick => {
                cx.after(TICK_INTERVAL, Msg::Tick);
                Input::Tick
            }
            Msg::Ended { sink, result } => {
                self.sink = sink;
                Input::Ended(result)
            }
        };
        self.step(cx, input);
        Ok(())
    }

    fn view(&self) -> Value {
        let AuditState { failing, written, failed, dropped, suppressed, waiting } = self.queue.state();
        json!({
            "failing": failing, "written": written, "failed": failed, "dropped": dropped, "suppressed": suppressed,
            "waiting": waiting,
        })
    }

    /// The process stops: waiting lines are written now or never. A write in progress ends by itself.
    async fn stopping(&mut self, _cx: &Cx<Msg>) {
        let job = self.queue.rest();
        let mut sink = self.sink.take().unwrap_or_else(|| (self.ports.open)());
        let last = tokio::task::spawn_blocking(move || sink.run(&job));
        match tokio::time::timeout(LAST_WRITE_TIMEOUT, last).await {
            Ok(Ok(Ok(()))) => self.ports.slot.set(self.queue.clone()),
            Ok(Ok(Err(why))) => tracing::error!(%why, "audit log lost its last lines at shutdown"),
            Ok(Err(why)) => tracing::error!(%why, "audit log lost its last lines at shutdown"),
            Err(why) => tracing::error!(%why, "audit log lost its last lines at shutdown"),
        }
    }
}
