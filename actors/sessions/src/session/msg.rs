//! The messages of a session: from its host, from the lines of its connections, its calls to the leader and its timer.

use std::time::Duration;

use muster_messages::ErrorBody;
use muster_messages::protocol::{Named, Reply};
use muster_messages::wire::{ActorsAsk, AgentAnswer, AgentFrame};

use crate::core::session::ConnId;
use crate::line::Incoming;

/// The first three are the host's. One of them is lost if the mailbox is full or the session restarts; the others are lost only with
/// the session's incarnation and its connection.
pub enum Msg {
    /// The inbox holds a newer connection or update. Lost: both stay in the inbox, which is read at the next such message, at the
    /// agent's next heartbeat and on a restart. Repeated: no effect. Late: the newest content is found.
    InboxChanged,
    /// Asks the agent about its node's actors. Without a live session: `not_found`. Lost: the reply port closes; if the session had
    /// taken it, it may have been carried out. Repeated: another question, see [`ActorsAsk`]. Late: its deadline counts from here,
    /// and the asker has its own.
    AskNode { ask: ActorsAsk, deadline: Duration, reply: Reply<Result<String, ErrorBody>> },
    /// The agent should use another manager. Lost: it stays; the host counts its sessions anew and asks again. Repeated or late: the
    /// connection of that time is closed, also a newer one; without any, no effect.
    Move { reason: String },
    /// A frame of the agent. Never repeated. Late, from a replaced connection: ignored by `conn`.
    Received { conn: ConnId, received: Incoming },
    /// A connection ended. Repeated or late: by `conn` it counts for no other.
    Closed { conn: ConnId, why: String },
    /// The leader's answer to a request of the agent, or the lack of one. Never repeated. Late, after that connection: dropped by
    /// `conn`, and the agent asks again.
    LeaderAnswered { conn: ConnId, id: u64, result: Result<AgentAnswer, ErrorBody> },
    /// The time that the core named has come. Repeated or early: no effect. Late by more than `stood_still`: the agent
    /// gets one more heartbeat.
    Wake,
}

impl Named for Msg {
    fn name(&self) -> &'static str {
        match self {
            Msg::InboxChanged => "inbox_changed",
            Msg::AskNode { .. } => "ask_node",
            Msg::Move { .. } => "move",
            Msg::Received { received, .. } => match &*received.frame {
                AgentFrame::Hello(_) => "hello",
                AgentFrame::Heartbeat { .. } => "heartbeat",
                AgentFrame::Ask { .. } => "ask",
                AgentFrame::Answer { .. } => "answer",
                AgentFrame::Bye { .. } => "bye",
            },
            Msg::Closed { .. } => "closed",
            Msg::LeaderAnswered { .. } => "leader_answered",
            Msg::Wake => "wake",
        }
    }
}
