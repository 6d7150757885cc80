//! Many universes, one per seed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use muster_universe::{
    Break, Failure, GATES_MUST_SEE, MUST_HAPPEN, ROLE_CHANGES, Report, Totals, run, run_gates, run_leases,
};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

/// One seed; a panic of a core is a failure like any other.
fn one(seed: u64, broken: Option<Break>) -> Result<Report, Failure> {
    one_of(|| run(seed, broken, false), seed)
}

fn one_of(run: impl FnOnce() -> Result<Report, Failure>, seed: u64) -> Result<Report, Failure> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let detail = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default();
        Err(Failure { seed, name: "PANIC".to_owned(), detail, tail: String::new() })
    })
}

/// All seeds of a range, on all processors.
fn each(seeds: std::ops::Range<u64>, job: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(seeds.start);
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    job(seed);
                }
            });
        }
    });
}

#[test]
fn no_seed_breaks_an_invariant_and_everything_happens() {
    let (first, count) = (number("MUSTER_FIRST_SEED").unwrap_or(1), number("MUSTER_SEEDS").unwrap_or(2000));
    let (began, all) = (Instant::now(), Mutex::new((Totals::default(), 0.0, 0, Vec::new())));
    each(first..first + count, |seed| {
        let outcome = one(seed, None);
        let mut all = all.lock().unwrap();
        match outcome {
            Ok(report) => {
                let changes = report.totals.of("role changes accepted") + report.totals.of("removals done");
                assert!(report.simulated_secs >= 60.0 && changes >= ROLE_CHANGES as u64, "seed {seed}: {report:?}");
                all.0.merge(&report.totals);
                all.1 += report.simulated_secs;
                all.2 += 1;
            }
            Err(failure) => all.3.push(failure),
        }
    });
    let (totals, simulated, whole, failures) = all.into_inner().unwrap();
    let wall = began.elapsed().as_secs_f64();
    println!(
        "{whole} universes, {simulated:.0} simulated seconds in {wall:.1} s: {:.0} times real time\n{totals}",
        simulated / wall
    );
    for failure in failures.iter().take(3) {
        println!("{failure}\n");
    }
    for failure in failures.iter().skip(3) {
        println!("seed {}: {}: {}", failure.seed, failure.name, failure.detail);
    }
    assert!(failures.is_empty(), "{} of {count} seeds failed", failures.len());
    if count >= 100 {
        let missing = totals.missing(&MUST_HAPPEN);
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

/// Twenty candidates for two leases: nobody holds one while another does, and every grant's token is greater than those
/// before it.
#[test]
fn no_lease_is_held_twice_whatever_happens_to_managers_and_candidates() {
    let (first, count) = (number("MUSTER_FIRST_SEED").unwrap_or(1), number("MUSTER_LEASE_SEEDS").unwrap_or(1000));
    let (began, all) = (Instant::now(), Mutex::new((Totals::default(), 0.0, Vec::new())));
    each(first..first + count, |seed| {
        let outcome = one_of(|| run_leases(seed, None, false), seed);
        let mut all = all.lock().unwrap();
        match outcome {
            Ok(report) => {
                all.0.merge(&report.totals);
                all.1 += report.simulated_secs;
            }
            Err(failure) => all.2.push(failure),
        }
    });
    let (totals, simulated, failures) = all.into_inner().unwrap();
    let wall = began.elapsed().as_secs_f64();
    println!("{count} contests, {simulated:.0} simulated seconds in {wall:.1} s\n{totals}");
    for failure in failures.iter().take(3) {
        println!("{failure}\n");
    }
    assert!(failures.is_empty(), "{} of {count} seeds failed", failures.len());
    if count >= 100 {
        for what in
            ["leases acquired", "leases renewed", "leases expired", "leases given up", "fault: elections crashed"]
        {
            assert!(totals.of(what) > 0, "never happened: {what}");
        }
    }
}

/// Fleets of five, whose members and runners read what is old and write what is judged anew: nobody serves or applies
/// what they must not, and once nobody disturbs any more the newest release is applied.
#[test]
fn no_gate_is_passed_wrongly_and_in_the_end_the_newest_release_is_applied() {
    let (first, count) = (number("MUSTER_FIRST_SEED").unwrap_or(1), number("MUSTER_GATE_SEEDS").unwrap_or(1000));
    let (began, all) = (Instant::now(), Mutex::new((Totals::default(), 0.0, 0.0f64, Vec::new())));
    each(first..first + count, |seed| {
        let outcome = one_of(|| run_gates(seed, None, false), seed);
        let mut all = all.lock().unwrap();
        match outcome {
            Ok(report) => {
                all.0.merge(&report.totals);
                all.1 += report.simulated_secs;
                all.2 = all.2.max(report.simulated_secs);
            }
            Err(failure) => all.3.push(failure),
        }
    });
    let (totals, simulated, longest, failures) = all.into_inner().unwrap();
    let wall = began.elapsed().as_secs_f64();
    println!("{count} fleets, {simulated:.0} simulated seconds, {longest:.1} at most, in {wall:.1} s\n{totals}");
    for failure in failures.iter().take(3) {
        println!("{failure}\n");
    }
    for failure in failures.iter().skip(3) {
        println!("seed {}: {}: {}", failure.seed, failure.name, failure.detail);
    }
    assert!(failures.is_empty(), "{} of {count} seeds failed", failures.len());
    if count >= 1000 {
        let missing = totals.missing(&GATES_MUST_SEE);
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

/// `MUSTER_SEED=7 cargo test -p muster-universe --test universe replay_gates -- --nocapture`
#[test]
fn replay_gates() {
    let Some(seed) = number("MUSTER_SEED") else { return };
    match run_gates(seed, None, std::env::var("MUSTER_ALOUD").is_ok()) {
        Ok(report) => println!("{}seed {seed} holds after {:.1} s", report.totals, report.simulated_secs),
        Err(failure) => panic!("{failure}"),
    }
}

/// `MUSTER_SEED=7 cargo test -p muster-universe --test universe replay_leases -- --nocapture`
#[test]
fn replay_leases() {
    let Some(seed) = number("MUSTER_SEED") else { return };
    match run_leases(seed, None, std::env::var("MUSTER_ALOUD").is_ok()) {
        Ok(report) => println!("{}seed {seed} holds after {:.1} s", report.totals, report.simulated_secs),
        Err(failure) => panic!("{failure}"),
    }
}

/// `MUSTER_SEED=7 cargo test -p muster-universe --test universe replay -- --nocapture`
#[test]
fn replay() {
    let Some(seed) = number("MUSTER_SEED") else { return };
    match run(seed, None, std::env::var("MUSTER_ALOUD").is_ok()) {
        Ok(report) => println!("{}seed {seed} holds after {:.1} s", report.totals, report.simulated_secs),
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn a_seed_is_the_same_universe_every_time() {
    for seed in [1, 2, 3] {
        let fleet = || one_of(|| run_gates(seed, None, false), seed).map_err(|f| f.tail);
        assert_eq!(fleet(), fleet());
        let (first, second) = (one(seed, None), one(seed, None));
        match (first, second) {
            (Ok(first), Ok(second)) => assert_eq!(first, second),
            (first, second) => assert_eq!(first.map_err(|f| f.tail), second.map_err(|f| f.tail)),
        }
    }
}
