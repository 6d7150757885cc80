//! How many times faster than real time a universe in which nothing goes wrong is: five nodes, each with an agent whose session beats
//! every 100 ms, and a leader that beats as often: `cargo bench -p muster-universe`, `MUSTER_MINUTES=600` for longer.

use std::time::{Duration, Instant};

use muster_universe::Universe;

/// Processor time of this thread so far: other programs take turns with it.
fn worked() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or_default())
}

fn main() {
    let minutes = std::env::var("MUSTER_MINUTES").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    for (managers, workers) in [(3, 2), (5, 0)] {
        let mut universe = Universe::calm(1, managers, workers, Duration::from_millis(100));
        let (began, idle, before) = (Instant::now(), worked(), universe.events());
        universe.run_for(Duration::from_secs(60 * minutes));
        let (took, worked) = (began.elapsed().as_secs_f64(), (worked() - idle).as_secs_f64());
        let (events, simulated) = (universe.events() - before, (60 * minutes) as f64);
        println!(
            "{managers} managers, {workers} workers: {minutes} minutes in {took:.2} s, {:.0} times real time; in {worked:.2} s of \
             processor time, {:.0} times; {events} events",
            simulated / took,
            simulated / worked
        );
    }
}
