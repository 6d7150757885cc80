//! Open sessions: from a stream whose hello both sides accepted to the session's end.
//!
//! Owns        the session server; the sessions and their numbers; the peers' RPC endpoints behind them; the counts of ends.
//! Inputs      streams; sessions that are ready or ended; reasons to end one.
//! Outputs     sessions; `ReadyBy`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use muster_kernel::{Cx, Fault};
use muster_messages::NodeId;
use muster_messages::wire::StartId;
use ractor::{Actor, ActorRef};
use ractor_cluster::NodeServerMessage;

use crate::core::filter::Side;
use crate::core::links::SessionNumber;
use crate::endpoint::EndpointMsg;
use crate::greeting::Opened;
use crate::msg::Msg;
use crate::peer_call::Link;
use crate::session::{EndReason, Facts, Session, Sessions};
use crate::session_server::SessionServer;
use crate::stream::Guarded;

/// From the hello until both RPC endpoints are known: a few frames.
const READY_DEADLINE: Duration = Duration::from_secs(5);

pub struct OpenSessions {
    sessions: Sessions,
    /// Silence that ends a session.
    idle: Duration,
    server: Option<Server>,
    next: SessionNumber,
    /// The peers' RPC endpoints of sessions that are ready.
    endpoints: BTreeMap<SessionNumber, ActorRef<EndpointMsg>>,
    end_reasons: BTreeMap<String, u64>,
}

/// The session server of this incarnation, which stops it when it ends.
struct Server(ActorRef<NodeServerMessage>, Sessions);
impl Drop for Server {
    fn drop(&mut self) {
        for session in self.1.all() {
            session.end(EndReason::Cut("the mesh stopped".to_owned()));
        }
        self.0.stop(None);
    }
}

impl OpenSessions {
    pub fn new(sessions: Sessions, idle: Duration) -> Self {
        Self { sessions, idle, server: None, next: 1, endpoints: BTreeMap::new(), end_reasons: BTreeMap::new() }
    }

    pub async fn start_server(&mut self, cx: &Cx<Msg>, own_name: String) -> Result<(), Fault> {
        let me = cx.me().clone();
        let tell = Arc::new(move |event| {
            let _gone = me.tell(Msg::Session(event));
        });
        let (server, joined) = Actor::spawn(None, SessionServer { own_name, tell }, ()).await?;
        self.server = Some(Server(server, self.sessions.clone()));
        cx.report(joined.map(|_how| Msg::ServerEnded));
        Ok(())
    }

    /// Whether the session server runs: without it no session opens.
    pub fn can_open(&self) -> bool {
        self.server.is_some()
    }

    /// Passes the stream of the process `start` to the session server. It must be ready in time, and ends with its certificate.
    pub fn open(&mut self, cx: &Cx<Msg>, dialed: bool, start: StartId, opened: Opened) -> Option<SessionNumber> {
        let server = self.server.as_ref()?;
        let (agreed, number) = (opened.agreed, self.next);
        self.next += 1;
        let session = Session::new(Facts {
            number,
            node: agreed.node,
            start,
            member_id: agreed.member_id,
            own_member: opened.own.member_id,
            side: if dialed { Side::Dialed } else { Side::Accepted },
            remote: opened.remote,
            since: cx.wall(),
            own_tag: agreed.own_tag,
            peer_tag: agreed.peer_tag,
            peer_endpoint: agreed.peer_endpoint,
            own_endpoint: agreed.own_endpoint,
            kill: opened.kill,
            permit: opened.permit,
        });
        self.sessions.add(&session);
        let stream = Box::new(Guarded::new(opened.stream, Arc::clone(&session), self.idle));
        let _gone = server.0.cast(NodeServerMessage::ConnectionOpenedExternal { stream, is_server: !dialed });
        cx.after(READY_DEADLINE, Msg::ReadyBy(number));
        let valid = opened.identity.not_after.0.saturating_sub(cx.wall().0);
        let valid = Duration::from_millis(u64::try_from(valid).unwrap_or(0));
        cx.spawn(async move {
            tokio::select! {
                () = session.ended().cancelled() => {}
                () = tokio::time::sleep(valid) => session.end(EndReason::Expired),
            }
        });
        Some(number)
    }

    pub fn get(&self, number: SessionNumber) -> Option<Arc<Session>> {
        self.sessions.get(number)
    }
    /// What a peer actor needs to use the session; `None` until it is ready.
    pub fn link(&self, number: SessionNumber) -> Option<Link> {
        let session = self.sessions.get(number)?;
        let endpoint = self.endpoints.get(&number)?.clone();
        Some(Link { session, endpoint })
    }
    /// How many sessions ended, by reason.
    pub fn end_reasons(&self) -> &BTreeMap<String, u64> {
        &self.end_reasons
    }

    pub fn ready(&mut self, number: SessionNumber, endpoint: ActorRef<EndpointMsg>) {
        self.endpoints.insert(number, endpoint);
    }
    /// The ready deadline of the session has passed.
    pub fn ready_by(&self, number: SessionNumber) {
        if !self.endpoints.contains_key(&number) {
            self.end(number, EndReason::NotReady);
        }
    }

    pub fn end(&self, number: SessionNumber, why: EndReason) {
        if let Some(session) = self.sessions.get(number) {
            session.end(why);
        }
    }
    /// Ends the sessions of the node's other processes (MESH-22).
    pub fn end_other_processes(&self, node: NodeId, start: StartId) {
        for session in self.sessions.all().iter().filter(|s| s.node == node && s.start != start) {
            session.end(EndReason::Duplicate);
        }
    }
    pub fn end_process(&self, start: StartId) {
        for session in self.sessions.all().iter().filter(|s| s.start == start) {
            session.end(EndReason::Duplicate);
        }
    }

    /// The session server reported the end of a session: the session, and why it ended. `None`: it was reported before.
    pub fn ended(&mut self, number: SessionNumber) -> Option<(Arc<Session>, EndReason)> {
        self.endpoints.remove(&number);
        let session = self.sessions.remove(number)?;
        let why = session.end_reason();
        session.end(why.clone());
        *self.end_reasons.entry(why.counter_key().to_owned()).or_default() += 1;
        Some((session, why))
    }
}
