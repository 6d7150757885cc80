//! The phases of an agent's one session.

use std::time::Duration;

use muster_messages::wire::AgentFrame;
use muster_messages::{Incarnation, Moment, NodeId, WallTime};

use super::{Attempt, Effect, SessionStatus};
use crate::config::AgentConfig;

#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// No connection; the next one is dialled at this time.
    Resting {
        until: Moment,
    },
    Connecting {
        attempt: Attempt,
        addr: String,
    },
    Live(Live),
    /// Blocked, removed or stopped: the agent dials no more.
    Over,
}

impl Phase {
    pub(super) fn attempt(&self) -> Option<Attempt> {
        match self {
            Phase::Connecting { attempt, .. } => Some(*attempt),
            Phase::Live(live) => Some(live.attempt),
            Phase::Resting { .. } | Phase::Over => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Live {
    pub attempt: Attempt,
    pub addr: String,
    pub host: NodeId,
    pub opened: Moment,
    pub since: WallTime,
    /// When the host's last frame of any kind arrived.
    pub received: Moment,
    pub beat_at: Moment,
    /// The first view has arrived: the host knows this node.
    pub viewed: bool,
    /// The cluster's, according to the host's last view.
    pub incarnation: Incarnation,
    /// The cluster's, according to the host's certificate: the host's views cannot be of a later one.
    pub vouched: Incarnation,
}

impl Live {
    /// The host answers every heartbeat, so silence over several of the longest periods means that it is gone.
    fn silent_at(&self, config: &AgentConfig) -> Moment {
        self.received + longest_period(config) * config.silent_beats
    }

    pub(super) fn overdue(&self, now: Moment, config: &AgentConfig) -> Option<String> {
        if now >= self.silent_at(config) {
            return Some(format!("no frame from the host for {} s", now.since(self.received).as_secs()));
        }
        let late = !self.viewed && now >= self.opened + config.first_view;
        late.then(|| "the host sent no view of this node".to_owned())
    }

    /// The host still serves the cluster as it was before a recovery that this node knows of.
    pub(super) fn outdated(&self, newest: Incarnation) -> Option<String> {
        let outdated = self.viewed && self.incarnation < newest;
        outdated.then(|| format!("the host is of incarnation {} of the cluster, before its recovery", self.incarnation))
    }

    pub(super) fn wake_at(&self, config: &AgentConfig) -> Moment {
        let view = if self.viewed { self.beat_at } else { self.opened + config.first_view };
        self.beat_at.min(self.silent_at(config)).min(view)
    }

    pub(super) fn status(&self) -> SessionStatus {
        SessionStatus { host: self.host, addr: self.addr.clone(), since: self.since }
    }
}

fn longest_period(config: &AgentConfig) -> Duration {
    config.heartbeat.mul_f64(1.0 + config.heartbeat_jitter)
}

/// Ends a connection, with the reason for the host.
pub(super) fn hang_up(attempt: Attempt, reason: &str, out: &mut Vec<Effect>) {
    let frame = Box::new(AgentFrame::Bye { reason: reason.to_owned() });
    out.push(Effect::Send { attempt, frame });
    out.push(Effect::HangUp { attempt });
}
