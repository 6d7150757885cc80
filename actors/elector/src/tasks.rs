//! The tasks that wake the elector's actor: its alarm, and the changes of its lock.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::Address;
use muster_messages::Moment;
use tokio::sync::watch;

use crate::clock::Timekeeper;
use crate::msg::Msg;
use crate::ports::Lock;

/// Minimum pause between two reads of a changing lock: a lease that is written all the time must not keep us busy.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(100);

/// One alarm at a time, always the newest.
pub async fn run_alarm(clock: Arc<dyn Timekeeper>, mut wake_at: watch::Receiver<Option<Moment>>, me: Address<Msg>) {
    loop {
        let at = *wake_at.borrow_and_update();
        let alarm = async {
            match at {
                Some(at) => clock.until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = wake_at.changed() => if changed.is_err() { return },
            () = alarm => {
                if me.tell(Msg::Woke).is_err() || wake_at.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Has the lock read whenever it may have changed.
pub async fn watch_lock(lock: Arc<dyn Lock>, me: Address<Msg>) {
    loop {
        lock.changed().await;
        if me.tell(Msg::Changed).is_err() {
            return;
        }
        tokio::time::sleep(MIN_READ_INTERVAL).await;
    }
}
