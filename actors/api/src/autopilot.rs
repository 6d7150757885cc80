//! Requests about the declared number of managers. Only the leader knows what the autopilot observes and plans: both depend on its clock.

use std::time::Duration;

use muster_kernel::Clock;
use muster_messages::protocol::AutopilotMsg;
use muster_messages::wire::{AutopilotRequest, AutopilotSettings};
use muster_messages::{
    AutopilotChangedView, AutopilotPolicy, AutopilotPolicyView, AutopilotStep, AutopilotView, Change, Details,
    DrainView, DrainedView, ErrorBody, ErrorCode, Generation, Guard, NodeId, check_labels, detail,
};
use serde_json::json;

use crate::reads::to_text;
use crate::work::{Proposed, Work};

/// Longer than any maintenance. A drained manager that dies is not replaced before its drain ends.
const MAX_DRAIN: Duration = Duration::from_secs(7 * 24 * 3600);

/// A request about the autopilot, to the leader.
pub(crate) struct AutopilotRequests<'a> {
    pub work: Work<'a>,
    pub request: &'a AutopilotRequest,
}

impl AutopilotRequests<'_> {
    /// `node`: that of a `Prefer`, `Drain` or `Undrain`.
    pub async fn lead(&self, node: Option<NodeId>) -> Result<String, ErrorBody> {
        match self.request {
            AutopilotRequest::State => to_text(&self.state(None).await?),
            AutopilotRequest::Preview { settings, generation } => {
                let (policy, current) = self.policy_with(settings)?;
                self.expect(*generation, current)?;
                to_text(&self.state(Some(policy)).await?)
            }
            AutopilotRequest::Set { settings, generation } => self.set(settings, *generation).await,
            AutopilotRequest::Withdraw { generation } => {
                let current = self.generation();
                self.expect(*generation, current)?;
                self.change("declaration withdrawn", AutopilotStep::Withdraw { generation: *generation }).await
            }
            AutopilotRequest::Pause { why } => {
                self.declared("nothing to pause")?;
                self.change("autopilot paused", AutopilotStep::Pause { why: why.clone(), gave_up: false }).await
            }
            AutopilotRequest::Resume => {
                self.declared("nothing to resume")?;
                self.change("autopilot resumed", AutopilotStep::Resume).await
            }
            AutopilotRequest::Drain { for_ms, replace, .. } => {
                // Without a declaration the autopilot chooses no successor.
                if *replace {
                    self.declared("nothing would take its place")?;
                }
                if for_ms.is_some_and(|ms| ms == 0 || Duration::from_millis(ms) > MAX_DRAIN) {
                    return Err(ErrorBody::invalid(
                        "a drain may take up to 7 days; without a time it ends with `muster node undrain`",
                    ));
                }
                let until = for_ms.map(|ms| Clock.wall().plus(Duration::from_millis(ms)));
                let node = Self::resolved(node)?;
                self.drain(node, "drained", AutopilotStep::Drain { node, until, replace: *replace }).await
            }
            AutopilotRequest::Undrain { .. } => {
                let node = Self::resolved(node)?;
                self.drain(node, "drain ended", AutopilotStep::Undrain { node, ends: None }).await
            }
            AutopilotRequest::Prefer { preference, .. } => {
                let node = Self::resolved(node)?;
                let step = AutopilotStep::Prefer { node, preference: *preference };
                let command = self.work.command("manager preference changed").guard(Guard::NodeExists(node));
                let before = self.work.local().tables.autopilot.preference(node);
                self.work.propose(command.change(Change::Autopilot(Box::new(step)))).await?;
                to_text(&json!({"node": node, "preference": preference, "changed": before != *preference}))
            }
        }
    }

    fn resolved(node: Option<NodeId>) -> Result<NodeId, ErrorBody> {
        node.ok_or_else(|| ErrorBody::new(ErrorCode::Internal, "the node is not resolved"))
    }

    /// The autopilot acts on the record: it transfers leadership, and chooses another manager.
    async fn drain(&self, node: NodeId, reason: &str, step: AutopilotStep) -> Result<String, ErrorBody> {
        let before = self.work.local().tables.autopilot.drains.get(&node).cloned();
        let command = self.work.command(reason).guard(Guard::NodeExists(node));
        let replica = match self.work.try_propose(command.change(Change::Autopilot(Box::new(step)))).await? {
            Proposed::Applied(_, replica) => replica,
            Proposed::Refused(refusal) => return Err(refusal.into()),
        };
        let after = replica.tables.autopilot.drains.get(&node).cloned();
        let changed = before != after;
        to_text(&DrainedView { node, drain: after.as_deref().map(DrainView::from), changed })
    }

    async fn state(&self, policy: Option<AutopilotPolicy>) -> Result<AutopilotView, ErrorBody> {
        let policy = policy.map(Box::new);
        self.work.ask(&self.work.manager.leader.autopilot, |reply| AutopilotMsg::State { policy, reply }).await
    }

    fn generation(&self) -> Generation {
        self.work.local().tables.autopilot.policy.as_ref().map_or(Generation(0), |policy| policy.generation)
    }
    fn expect(&self, expected: Option<Generation>, current: Generation) -> Result<(), ErrorBody> {
        if expected.is_none_or(|expected| expected == current) {
            return Ok(());
        }
        let text = match current {
            Generation(0) => "no number of managers is declared".to_owned(),
            Generation(n) => {
                format!("the declaration has generation {n}; check `muster autopilot state` before you retry")
            }
        };
        Err(ErrorBody::new(ErrorCode::Conflict, text)
            .with_details(&Details::default().with(detail::GENERATION, &current.0)))
    }
    fn declared(&self, consequence: &str) -> Result<(), ErrorBody> {
        match self.work.local().tables.autopilot.policy {
            Some(_) => Ok(()),
            None => {
                let text = format!(
                    "{consequence}: no number of managers is declared; `muster cluster set managers=3` declares one"
                );
                Err(ErrorBody::new(ErrorCode::Conflict, text))
            }
        }
    }

    /// The declaration that these settings make, and the generation that they are based on.
    fn policy_with(&self, settings: &AutopilotSettings) -> Result<(AutopilotPolicy, Generation), ErrorBody> {
        let replica = self.work.local();
        let current = replica.tables.autopilot.policy.as_deref();
        let policy = settings.over(current).ok_or_else(|| {
            ErrorBody::invalid("nothing is declared yet: say how many managers, for example `managers=3`")
        })?;
        // In an experiment (`[debug] crash = true`) managers may be replaced within seconds.
        let experiment = self.work.service.ports.crash_allowed;
        if let Some(fault) = policy.fault().or_else(|| policy.outside_bounds(experiment)) {
            return Err(ErrorBody::invalid(fault));
        }
        let zone = policy.zone_label.as_ref().map(|label| (label.clone(), String::new()));
        let labels = policy.eligible.clone().into_iter().chain(zone).collect();
        check_labels(&labels).map_err(ErrorBody::invalid)?;
        let generation = policy.generation;
        Ok((policy, generation))
    }

    async fn set(&self, settings: &AutopilotSettings, expected: Option<Generation>) -> Result<String, ErrorBody> {
        let (policy, generation) = self.policy_with(settings)?;
        self.expect(expected, generation)?;
        self.change("number of managers declared", AutopilotStep::Declare(Box::new(policy))).await
    }

    /// The answer to a repeated request describes the declaration of its own moment.
    async fn change(&self, reason: &str, step: AutopilotStep) -> Result<String, ErrorBody> {
        let before = self.work.local().tables.autopilot.policy.clone();
        let command = self.work.command(reason).change(Change::Autopilot(Box::new(step)));
        let replica = match self.work.try_propose(command).await? {
            Proposed::Applied(_, replica) => replica,
            Proposed::Refused(refusal) => return Err(refusal.into()),
        };
        let after = replica.tables.autopilot.policy.clone();
        let changed = before != after;
        let next = self.state(None).await.ok().map(|state| state.next);
        to_text(&AutopilotChangedView { policy: after.as_deref().map(AutopilotPolicyView::from), changed, next })
    }
}
