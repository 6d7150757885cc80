//! Speed of a fault-free simulation compared with real time: five nodes, each with an agent whose session sends a heartbeat
//! every 100 ms, and a leader with the same interval. `cargo bench -p muster-simulation`; `MUSTER_MINUTES=600` runs longer.

use std::time::{Duration, Instant};

use muster_simulation::Simulation;

/// Processor time of this thread, which excludes other programs.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or_default())
}

fn main() {
    let minutes = std::env::var("MUSTER_MINUTES").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    for (managers, workers) in [(3, 2), (5, 0)] {
        let mut simulation = Simulation::calm(1, managers, workers, Duration::from_millis(100));
        let (began, idle, before) = (Instant::now(), cpu_time(), simulation.events());
        simulation.run_for(Duration::from_secs(60 * minutes));
        let (took, cpu_time) = (began.elapsed().as_secs_f64(), (cpu_time() - idle).as_secs_f64());
        let (events, simulated) = (simulation.events() - before, (60 * minutes) as f64);
        println!(
            "{managers} managers, {workers} workers: {minutes} minutes in {took:.2} s, {:.0} times real time; in {cpu_time:.2} s of \
             processor time, {:.0} times; {events} events",
            simulated / took,
            simulated / cpu_time
        );
    }
}
