//! Real time that passes because that is the scenario itself: the rate of an attack or of honest clients, the time for which something is
//! held, the interval of samples. A wait for a condition is [`until`](crate::cluster::until).

use std::time::Duration;

/// Lets real time pass. `_why` is for readers: an attack pauses too often for a log.
pub async fn scenario_pause(_why: &str, time: Duration) {
    tokio::time::sleep(time).await;
}
