//! A supervisor as a child of another supervisor.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_messages::CrashHow;

use super::Children;
use crate::launch::{Launch, Start};
use crate::panicked::panic_text;
use crate::vitals::{Handle, Mailbox};
use crate::{Fault, Group};

struct GroupLaunch<F> {
    group: Group,
    fill: Arc<F>,
}

pub(crate) fn launch_group(
    group: Group,
    fill: impl Fn(&Children) -> Result<(), Fault> + Send + Sync + 'static,
) -> Arc<dyn Launch> {
    Arc::new(GroupLaunch { group, fill: Arc::new(fill) })
}

impl<F: Fn(&Children) -> Result<(), Fault> + Send + Sync + 'static> Launch for GroupLaunch<F> {
    fn launch(&self, start: Start) -> BoxFuture<'static, Result<(), Fault>> {
        let (group, fill) = (self.group, Arc::clone(&self.fill));
        Box::pin(async move {
            let (pulse, parent) = (start.pulse.clone(), Some(start.supervisor));
            let children = Children::spawn(start.path, start.tree, group, start.fence, pulse, parent).await?;
            let handle = GroupHandle { children: children.clone(), siblings: start.siblings, name: start.name };
            start.pulse.set_handle(Arc::new(handle));
            let filled = catch_unwind(AssertUnwindSafe(|| fill(&children)))
                .unwrap_or_else(|panic| Err(Fault::new(format!("panicked while starting: {}", panic_text(&*panic)))));
            if let Err(fault) = filled {
                children.shut_down().await;
                return Err(fault);
            }
            if start.reports_ready {
                children.filled(start.report);
            } else {
                start.report.healthy();
            }
            Ok(())
        })
    }
}

struct GroupHandle {
    children: Children,
    siblings: Children,
    name: String,
}
impl Handle for GroupHandle {
    fn refresh(&self) -> bool {
        false
    }
    fn crash(&self, how: CrashHow) {
        match how {
            CrashHow::Start { times } => self.siblings.fail_to_start(&self.name, times),
            how => self.children.crash(how),
        }
    }
    fn restart(&self) {
        self.siblings.restart(&self.name);
    }
    fn mailbox(&self) -> Option<Mailbox> {
        None
    }
}
