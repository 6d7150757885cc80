//! The actor: takes the calls of other managers and answers each in a task, as many at a time as it has permits.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Cx, Fault, Shell};
use muster_messages::protocol::IncomingCall;
use muster_messages::{ErrorBody, ErrorCode};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore, mpsc};

use super::{Router, RouterMsg};

/// Calls of other managers that may be in progress here.
pub(super) const MAX_CALLS_IN_PROGRESS: usize = 1024;

/// See the module.
pub struct RouterShell {
    router: Router,
    incoming: Arc<Mutex<mpsc::Receiver<IncomingCall>>>,
    permits: Arc<Semaphore>,
}

impl RouterShell {
    /// `incoming`: shared by the incarnations.
    pub fn new(router: Router, incoming: Arc<Mutex<mpsc::Receiver<IncomingCall>>>) -> Self {
        Self { router, incoming, permits: Arc::new(Semaphore::new(MAX_CALLS_IN_PROGRESS)) }
    }
}

impl Shell for RouterShell {
    type Msg = RouterMsg;
    const KIND: &'static str = "Router";

    async fn started(&mut self, cx: &Cx<RouterMsg>) -> Result<(), Fault> {
        let (incoming, me) = (Arc::clone(&self.incoming), cx.me().clone());
        cx.spawn(async move {
            let mut incoming = incoming.lock().await;
            while let Some(call) = incoming.recv().await {
                if me.tell(RouterMsg::Call(Box::new(call))).is_err() {
                    break;
                }
            }
        });
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<RouterMsg>, msg: RouterMsg) -> Result<(), Fault> {
        let RouterMsg::Call(call) = msg;
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let router = self.router.clone();
        cx.spawn(async move {
            let IncomingCall { forwarder, call, reply } = *call;
            let answer = match &permit {
                Ok(_) => router.answer_peer(forwarder, call).await,
                Err(_) => {
                    let busy = ErrorBody::new(
                        ErrorCode::TooManyRequests,
                        "too many calls from other managers are in progress; retry",
                    );
                    Err(busy.retry_after(Duration::from_millis(200)))
                }
            };
            let _gave_up = reply.send(answer);
            drop(permit);
        });
        Ok(())
    }

    fn view(&self) -> Value {
        json!({"in_progress": MAX_CALLS_IN_PROGRESS - self.permits.available_permits()})
    }
}
