//! Switches: actors that keep a subtree running exactly while a level says so. The manager half runs while the
//! certificate says manager; the leader's subtree while this member leads.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_kernel::{Children, Cx, Fault, Shell, Spec};
use muster_messages::protocol::Named;
use serde_json::{Value, json};
use tokio::sync::watch;

/// What a switch hears: its level, and the end of a change it made.
pub enum SwitchMsg<L> {
    Level(L),
    Stopped,
}
impl<L> Named for SwitchMsg<L> {
    fn name(&self) -> &'static str {
        match self {
            SwitchMsg::Level(_) => "level",
            SwitchMsg::Stopped => "stopped",
        }
    }
}

/// What a switch does.
pub trait Plan<L>: Send + Sync + 'static {
    /// The child to run at this level, `None` for none. Another `key` is another child: the old one stops first.
    fn wanted(&self, level: &L) -> Option<u64>;
    /// Makes the child.
    fn child(&self, level: &L) -> Spec;
    /// Whether something must be put in order before a child of this level may run, or because none runs.
    fn disorder(&self, _level: &L) -> bool {
        false
    }
    /// Puts it in order, while no child runs. Tried again while there is still something. Runs outside the actor.
    fn tidy(&self, _level: L) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
    /// After a child has stopped because the level no longer wants it. Runs outside the actor.
    fn after_stop(&self, level: L) -> BoxFuture<'static, ()>;
    /// How the child is called.
    fn name(&self) -> &'static str;
}

/// A switch over siblings of its own.
pub struct Switch<L, P> {
    plan: Arc<P>,
    siblings: Children,
    levels: watch::Receiver<L>,
    running: Option<u64>,
    stopping: bool,
    latest: Option<L>,
}

impl<L: Clone + Send + Sync + 'static, P: Plan<L>> Switch<L, P> {
    pub fn new(plan: Arc<P>, siblings: Children, levels: watch::Receiver<L>) -> Self {
        Self { plan, siblings, levels, running: None, stopping: false, latest: None }
    }

    fn settle(&mut self, cx: &Cx<SwitchMsg<L>>) {
        let Some(level) = self.latest.clone() else { return };
        let wanted = self.plan.wanted(&level);
        let (runs, disorder) = (self.running.is_some(), self.plan.disorder(&level));
        if self.stopping || wanted == self.running && (runs || !disorder) {
            return;
        }
        if runs || disorder {
            self.stopping = true;
            let (children, plan, me) = (self.siblings.clone(), Arc::clone(&self.plan), cx.me().clone());
            cx.spawn(async move {
                if runs {
                    children.stop_and_wait(plan.name()).await;
                    plan.after_stop(level).await;
                } else {
                    plan.tidy(level).await;
                }
                let _stopping = me.tell(SwitchMsg::Stopped);
            });
            return;
        }
        self.running = wanted;
        self.siblings.start(self.plan.child(&level));
    }
}

impl<L: Clone + Send + Sync + 'static, P: Plan<L>> Shell for Switch<L, P> {
    type Msg = SwitchMsg<L>;
    const KIND: &'static str = "Switch";

    async fn started(&mut self, cx: &Cx<Self::Msg>) -> Result<(), Fault> {
        // What an earlier incarnation left running is stopped first: its key is unknown.
        self.stopping = true;
        let (children, plan, me) = (self.siblings.clone(), Arc::clone(&self.plan), cx.me().clone());
        let fresh = cx.incarnation() == 1;
        let mut levels = self.levels.clone();
        levels.mark_changed();
        cx.spawn(async move {
            if !fresh {
                children.stop_and_wait(plan.name()).await;
                // The earlier incarnation may have crashed between the stop and what follows it.
                let level = levels.borrow().clone();
                plan.after_stop(level).await;
            }
            let _stopping = me.tell(SwitchMsg::Stopped);
            while levels.changed().await.is_ok() {
                let level = levels.borrow_and_update().clone();
                if me.tell(SwitchMsg::Level(level)).is_err() {
                    break;
                }
            }
        });
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Self::Msg>, msg: Self::Msg) -> Result<(), Fault> {
        match msg {
            SwitchMsg::Level(level) => self.latest = Some(level),
            SwitchMsg::Stopped => {
                self.stopping = false;
                self.running = None;
            }
        }
        self.settle(cx);
        Ok(())
    }

    fn view(&self) -> Value {
        json!({"child": self.plan.name(), "running": self.running.is_some(), "stopping": self.stopping})
    }
}

#[cfg(test)]
mod tests;
