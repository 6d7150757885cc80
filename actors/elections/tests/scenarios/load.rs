//! Ten thousand leases.

use std::time::Duration;

use muster_messages::*;

use crate::world::*;

#[test]
fn ten_thousand_leases_cost_a_few_reads_and_no_entry() {
    let mut w = World::new();
    let mut tokens = Vec::new();
    for n in 0..10_000 {
        tokens.push(w.acquire_unseen(&format!("l{n}"), "x", SessionId(n), 15_000));
    }
    w.show();
    let before = w.tables.clone();
    let mut asks = Vec::new();
    // One session each, spread over 2 s; each read takes 1 ms.
    for _ in 0..5 {
        for millisecond in 0..2000usize {
            w.pass(ms(1));
            w.confirm();
            for (n, token) in tokens.iter().enumerate().skip(millisecond * 5).take(5) {
                let key = lease(&format!("l{n}"));
                asks.push(w.renew_all(SessionId(n as u128), vec![(key, *token)]));
            }
        }
    }
    w.pass(ms(20));
    w.confirm();
    assert!(asks.iter().all(|ask| w.answers[ask] == renewed(15_000)));
    assert_eq!(w.tables, before);
    assert!(w.proposed.is_empty());
    assert!(w.reads_asked <= 1010, "{} reads for {} renewals", w.reads_asked, asks.len());
}

#[test]
fn newer_replica_costs_only_the_difference() {
    let mut w = World::new();
    for n in 0..10_000 {
        w.acquire_unseen(&format!("l{n}"), "x", SessionId(n), 15_000);
    }
    w.show();
    let before = worked();
    for _ in 0..10_000 {
        w.put("l7777", |s| s.renewed = Some(MicroTime(s.renewed.map_or(0, |t| t.0) + 1)));
    }
    // Checking all of them each time would cost 10,000 times 10,000.
    let took = worked() - before;
    assert!(took.as_secs() < 10, "{took:?}");
    assert_eq!(w.left("l7777"), Some(15_000));
}

/// Processor time of this thread so far, independent of other programs.
fn worked() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel accounts for each thread");
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.expect("the first field is the time on a processor"))
}
