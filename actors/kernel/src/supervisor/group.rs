//! A supervisor as a child of another.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_messages::ActorState;
use ractor::ActorCell;

use super::shell::{Children, GroupHandle};
use crate::host::{Launch, Start, panic_text};
use crate::{Fault, Intensity};

struct GroupLaunch<F> {
    intensity: Intensity,
    fill: Arc<F>,
}

pub(crate) fn launch_group(
    intensity: Intensity,
    fill: impl Fn(&Children) -> Result<(), Fault> + Send + Sync + 'static,
) -> Arc<dyn Launch> {
    Arc::new(GroupLaunch { intensity, fill: Arc::new(fill) })
}

impl<F: Fn(&Children) -> Result<(), Fault> + Send + Sync + 'static> Launch for GroupLaunch<F> {
    fn launch(&self, start: Start) -> BoxFuture<'static, Result<ActorCell, Fault>> {
        let (intensity, fill) = (self.intensity, Arc::clone(&self.fill));
        Box::pin(async move {
            let children = Children::spawn(start.path, start.tree, intensity, Some(start.supervisor)).await?;
            let handle = GroupHandle { children: children.clone(), siblings: start.siblings, name: start.name };
            start.vitals.set_handle(Arc::new(handle));
            let filled = catch_unwind(AssertUnwindSafe(|| fill(&children)))
                .unwrap_or_else(|panic| Err(Fault::new(format!("panicked while starting: {}", panic_text(&*panic)))));
            if let Err(fault) = filled {
                children.shut_down().await;
                return Err(fault);
            }
            start.vitals.enter(ActorState::Healthy);
            Ok(children.cell())
        })
    }
}
