//! The session server, which replaces the cluster library's node server. It listens on no port, publishes no list of
//! sessions, and runs sessions only on streams that the mesh passes to it after their hello.
//!
//! Inputs      streams (labelled with their session's number), and the library's events of each session.
//! Outputs     `Ready` with the peer's RPC endpoint, `Ended`.
//! Why not the library's: it binds a port, trusts any name that a peer gives, and of two sessions keeps the one with
//! the smaller random number.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use ractor_cluster::node::{NodeConnectionMode, SessionCheckReply};
use ractor_cluster::{NetworkStream, NodeServerMessage, NodeSession, NodeSessionMessage};

use crate::core::frames::MAX_INBOUND;
use crate::core::links::SessionNumber;
use crate::endpoint::EndpointMsg;

/// For the library's second handshake, inside TLS. It is not the security boundary.
const COOKIE: &str = "muster-mesh";

pub enum SessionEvent {
    /// The peer's RPC endpoint can be reached.
    Ready {
        number: SessionNumber,
        endpoint: ActorRef<EndpointMsg>,
    },
    Ended {
        number: SessionNumber,
    },
}

pub type Tell = Arc<dyn Fn(SessionEvent) + Send + Sync>;

pub struct SessionServer {
    pub own_name: String,
    pub tell: Tell,
}

pub struct State {
    running: BTreeMap<ActorId, (SessionNumber, ActorRef<NodeSessionMessage>)>,
    /// Distinguishes the remote actors of different sessions within this process.
    next_node: u64,
}

impl Actor for SessionServer {
    type Msg = NodeServerMessage;
    type State = State;
    type Arguments = ();

    async fn pre_start(&self, _me: ActorRef<Self::Msg>, (): ()) -> Result<State, ActorProcessingErr> {
        Ok(State { running: BTreeMap::new(), next_node: 1 })
    }

    async fn handle(
        &self,
        me: ActorRef<Self::Msg>,
        msg: Self::Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match msg {
            NodeServerMessage::ConnectionOpenedExternal { stream, is_server } => {
                let label = stream.peer_label().and_then(|l| l.parse().ok());
                let Some(number) = label else { return Ok(()) };
                let (reader, writer) = stream.split();
                let stream = NetworkStream::External { peer_label: None, local_label: None, reader, writer };
                let session = self.session(&me, state.next_node, is_server);
                state.next_node += 1;
                match Actor::spawn_linked(None, session, stream, me.get_cell()).await {
                    Ok((actor, _joined)) => {
                        state.running.insert(actor.get_id(), (number, actor));
                    }
                    Err(_) => (self.tell)(SessionEvent::Ended { number }),
                }
            }
            // The filter passes only the name in the peer's certificate, and the mesh decides which session of a node
            // stays: no election is needed here.
            NodeServerMessage::CheckSession { reply, .. } => {
                let _gone = reply.send(SessionCheckReply::NoOtherConnection);
            }
            NodeServerMessage::ConnectionReady(actor) => self.ready(state, actor),
            // No peer may list our sessions; the filter refuses the request.
            NodeServerMessage::GetSessions(reply) => {
                let _gone = reply.send(HashMap::new());
            }
            _ => {}
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _me: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let gone = match event {
            SupervisionEvent::ActorTerminated(actor, ..) => actor.get_id(),
            SupervisionEvent::ActorFailed(actor, _) => actor.get_id(),
            _ => return Ok(()),
        };
        if let Some((number, _)) = state.running.remove(&gone) {
            (self.tell)(SessionEvent::Ended { number });
        }
        Ok(())
    }
}

impl SessionServer {
    fn session(&self, me: &ActorRef<NodeServerMessage>, node: u64, is_server: bool) -> NodeSession {
        // The type of a name is private to the library; a message that contains one is not.
        let blank = NodeServerMessage::UpdateSession { actor_id: ActorId::Local(0), name: Default::default() };
        let NodeServerMessage::UpdateSession { mut name, .. } = blank else {
            unreachable!("built one line above");
        };
        name.name.clone_from(&self.own_name);
        name.connection_string.clone_from(&self.own_name);
        let mode = NodeConnectionMode::Isolated;
        NodeSession::new(node, is_server, COOKIE.to_owned(), me.clone(), name, mode)
            .with_max_inbound_frame_size(MAX_INBOUND as u64)
    }

    /// The peer has announced its RPC endpoint, the session's only remote child. No other peer can add one.
    fn ready(&self, state: &State, actor: ActorId) {
        let Some((number, session)) = state.running.get(&actor) else {
            return;
        };
        let children = session.get_cell().get_children();
        let Some(endpoint) = children.into_iter().find(|c| !c.get_id().is_local()) else {
            session.stop(Some("ready without an RPC endpoint".to_owned()));
            return;
        };
        (self.tell)(SessionEvent::Ready { number: *number, endpoint: ActorRef::from(endpoint) });
    }
}
