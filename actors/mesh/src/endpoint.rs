//! The RPC endpoint: the only actor of a manager that its peers can reach.
//!
//! Owns        the actor that the cluster library knows, and its pid.
//! Inputs      bytes, in calls.
//! Outputs     what [`EndpointContext`] does with them; `Opened`, `Closed`.
//! Invariants  MESH-20  no bytes make it panic: neither its message (`msg`) nor what it does with them.

use std::sync::Arc;

use futures_util::FutureExt;
use muster_kernel::{Cx, Fault, Recipient, Shell};
use muster_messages::protocol::Named;
use muster_messages::wire::{IdentityBinding, StartId};
use muster_messages::{NodeId, RaftId};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use serde_json::{Value, json};

pub use self::msg::EndpointMsg;
use crate::incoming::EndpointContext;

mod msg;

struct EndpointActor;

impl Actor for EndpointActor {
    type Msg = EndpointMsg;
    type State = Arc<EndpointContext>;
    type Arguments = Arc<EndpointContext>;

    async fn pre_start(
        &self,
        _me: ActorRef<EndpointMsg>,
        context: Arc<EndpointContext>,
    ) -> Result<Arc<EndpointContext>, ActorProcessingErr> {
        Ok(context)
    }
    async fn handle(
        &self,
        _me: ActorRef<EndpointMsg>,
        msg: EndpointMsg,
        context: &mut Arc<EndpointContext>,
    ) -> Result<(), ActorProcessingErr> {
        match msg {
            EndpointMsg::Call(bytes, reply) => context.take(bytes, reply),
            EndpointMsg::Unreadable => context.unreadable(),
        }
        Ok(())
    }
}

pub enum EndpointEvent {
    /// It is open, under this pid.
    Opened(u64),
    /// It is gone: hellos and sessions that named it are void.
    Closed(u64),
    BindingsReported {
        by: NodeId,
        bindings: Vec<IdentityBinding>,
    },
    /// This process of a node speaks for a member id that its hello did not name.
    MemberIdAnnounced {
        node: NodeId,
        start: StartId,
        member_id: RaftId,
    },
}

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum EndpointShellMsg {
    /// The actor behind it ended.
    Ended,
}

/// Keeps the RPC endpoint in the supervision tree. Each incarnation is a new actor with a new pid, so the mesh opens new
/// sessions: a peer may announce only the endpoint that its hello named.
pub struct EndpointShell {
    context: Arc<EndpointContext>,
    news: Recipient<EndpointEvent>,
    running: Option<Running>,
}

/// Stops the actor when dropped, on every way out.
struct Running {
    actor: ActorRef<EndpointMsg>,
    news: Recipient<EndpointEvent>,
}
impl Running {
    fn pid(&self) -> u64 {
        self.actor.get_id().pid()
    }
}
impl Drop for Running {
    fn drop(&mut self) {
        let _stopping = self.news.tell(EndpointEvent::Closed(self.pid()));
        self.actor.stop(None);
    }
}

impl EndpointShell {
    pub fn new(context: Arc<EndpointContext>, news: Recipient<EndpointEvent>) -> Self {
        Self { context, news, running: None }
    }
}

impl Shell for EndpointShell {
    type Msg = EndpointShellMsg;
    const KIND: &'static str = "RpcEndpoint";

    async fn started(&mut self, cx: &Cx<EndpointShellMsg>) -> Result<(), Fault> {
        let (actor, joined) = Actor::spawn(None, EndpointActor, Arc::clone(&self.context)).await?;
        cx.report(joined.map(|_how| EndpointShellMsg::Ended));
        let running = Running { actor, news: self.news.clone() };
        self.news.tell(EndpointEvent::Opened(running.pid()))?;
        self.running = Some(running);
        Ok(())
    }
    async fn handle(&mut self, _cx: &Cx<EndpointShellMsg>, msg: EndpointShellMsg) -> Result<(), Fault> {
        match msg {
            EndpointShellMsg::Ended => Err(Fault::new("the RPC endpoint ended")),
        }
    }
    fn view(&self) -> Value {
        let pid = self.running.as_ref().map(Running::pid);
        let mut view = json!(self.context.counts());
        view["pid"] = json!(pid);
        view
    }
}
