//! Switches: actors that keep a subtree running exactly while a watched value says so. The manager runtime runs while the
//! certificate says manager; the leader's subtree while this member leads.

mod core;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_kernel::{Children, Cx, Fault, Shell, Spec};
use muster_messages::protocol::Named;
use serde_json::{Value, json};
use tokio::sync::watch;

use self::core::{Step, SwitchCore};

/// Inputs of a switch: its watched value, and the end of a change it made.
pub enum SwitchMsg<L> {
    Changed(L),
    Stopped,
}
impl<L> Named for SwitchMsg<L> {
    fn name(&self) -> &'static str {
        match self {
            SwitchMsg::Changed(_) => "changed",
            SwitchMsg::Stopped => "stopped",
        }
    }
}

/// What a switch runs and when.
pub trait Plan<L>: Send + Sync + 'static {
    /// The child to run at this value, `None` for none. Another key is another child: the old one stops first.
    fn wanted(&self, value: &L) -> Option<u64>;
    /// Makes the child.
    fn child(&self, value: &L) -> Spec;
    /// Whether something must be prepared before a child of this value may run, or because none runs.
    fn needs_preparation(&self, _value: &L) -> bool {
        false
    }
    /// Prepares it while no child runs; retried until nothing is left to prepare. Runs outside the actor.
    fn prepare(&self, _value: L) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
    /// After a child has stopped because the value no longer wants it. Runs outside the actor.
    fn after_stop(&self, value: L) -> BoxFuture<'static, ()>;
    /// The child's name.
    fn name(&self) -> &'static str;
}

/// A switch over its own siblings.
pub struct Switch<L, P> {
    core: SwitchCore,
    plan: Arc<P>,
    siblings: Children,
    values: watch::Receiver<L>,
    latest: Option<L>,
}

impl<L: Clone + Send + Sync + 'static, P: Plan<L>> Switch<L, P> {
    pub fn new(plan: Arc<P>, siblings: Children, values: watch::Receiver<L>) -> Self {
        Self { core: SwitchCore::default(), plan, siblings, values, latest: None }
    }

    fn settle(&mut self, cx: &Cx<SwitchMsg<L>>) {
        let Some(value) = self.latest.clone() else { return };
        let step = self.core.next(self.plan.wanted(&value), self.plan.needs_preparation(&value));
        match step {
            None => {}
            Some(Step::Start) => {
                self.siblings.start(self.plan.child(&value));
            }
            Some(Step::Stop) => {
                let (children, plan, me) = (self.siblings.clone(), Arc::clone(&self.plan), cx.me().clone());
                cx.spawn(async move {
                    children.stop_and_wait(plan.name()).await;
                    plan.after_stop(value).await;
                    let _stopping = me.tell(SwitchMsg::Stopped);
                });
            }
            Some(Step::Prepare) => {
                let (plan, me) = (Arc::clone(&self.plan), cx.me().clone());
                cx.spawn(async move {
                    plan.prepare(value).await;
                    let _stopping = me.tell(SwitchMsg::Stopped);
                });
            }
        }
    }
}

impl<L: Clone + Send + Sync + 'static, P: Plan<L>> Shell for Switch<L, P> {
    type Msg = SwitchMsg<L>;
    const KIND: &'static str = "Switch";

    async fn started(&mut self, cx: &Cx<Self::Msg>) -> Result<(), Fault> {
        // A child left by an earlier incarnation is stopped first: its key is unknown.
        let (children, plan, me) = (self.siblings.clone(), Arc::clone(&self.plan), cx.me().clone());
        let fresh = cx.incarnation() == 1;
        let mut values = self.values.clone();
        values.mark_changed();
        cx.spawn(async move {
            if !fresh {
                children.stop_and_wait(plan.name()).await;
                // The earlier incarnation may have crashed between the stop and the steps after it.
                let value = values.borrow().clone();
                plan.after_stop(value).await;
            }
            let _stopping = me.tell(SwitchMsg::Stopped);
            while values.changed().await.is_ok() {
                let value = values.borrow_and_update().clone();
                if me.tell(SwitchMsg::Changed(value)).is_err() {
                    break;
                }
            }
        });
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Self::Msg>, msg: Self::Msg) -> Result<(), Fault> {
        match msg {
            SwitchMsg::Changed(value) => self.latest = Some(value),
            SwitchMsg::Stopped => self.core.stopped(),
        }
        self.settle(cx);
        Ok(())
    }

    fn view(&self) -> Value {
        json!({"child": self.plan.name(), "running": self.core.is_running(), "stopping": self.core.is_busy()})
    }
}

#[cfg(test)]
#[path = "switch_tests.rs"]
mod tests;
