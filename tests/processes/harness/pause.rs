//! Real time that passes because that is the scenario itself (HARNESS-2): part of a fault, the span of a measurement, or a time in which
//! nothing may happen. A wait for a condition is `eventually`.

use std::time::Duration;

/// Lets real time pass. `why` is printed with it.
pub fn scenario_pause(why: &str, time: Duration) {
    println!("{time:?}: {why}");
    std::thread::sleep(time);
}

/// [`scenario_pause`] in async code.
pub async fn scenario_pause_async(why: &str, time: Duration) {
    println!("{time:?}: {why}");
    tokio::time::sleep(time).await;
}
