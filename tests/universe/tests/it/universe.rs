//! Many simulated runs of each kind, one per seed.

use muster_universe::{Kind, ROLE_CHANGES, Run, Summary, sweep};

/// Seeds of each kind in the quick tier.
const SAMPLE: u64 = 50;

/// Fails unless every seed holds, and prints the command that reproduces each one that does not.
fn check(kind: Kind, seeds: u64) -> Summary {
    let summary = sweep(kind, 1..=seeds);
    summary.print(kind);
    assert!(summary.failures.is_empty(), "{} of {seeds} seeds failed", summary.failures.len());
    assert_eq!(summary.held, seeds);
    if kind == Kind::Roles {
        let changes = summary.totals.of("role changes accepted") + summary.totals.of("removals done");
        assert!(changes >= seeds * ROLE_CHANGES as u64 && summary.simulated_secs >= 60.0 * seeds as f64);
    }
    summary
}

/// [`check`] with as many seeds as it takes for everything that the kind is about to happen somewhere.
fn check_all(kind: Kind, seeds: u64) {
    let missing = check(kind, seeds).totals.missing(kind.must_see());
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn sampled_seeds_of_role_changes_hold() {
    check(Kind::Roles, SAMPLE);
}

#[test]
fn sampled_seeds_of_leases_hold() {
    check(Kind::Leases, SAMPLE);
}

#[test]
fn sampled_seeds_of_gates_hold() {
    check(Kind::Gates, SAMPLE);
}

#[test]
fn sampled_seeds_of_snapshots_hold() {
    check(Kind::Snapshots, SAMPLE);
}

#[test]
#[ignore = "full tier"]
fn no_seed_breaks_an_invariant_and_everything_happens() {
    check_all(Kind::Roles, 2000);
}

/// Twenty candidates for two leases: nobody holds one while another does, and every grant's token is greater than those
/// before it.
#[test]
#[ignore = "full tier"]
fn no_lease_is_held_twice_whatever_happens_to_managers_and_candidates() {
    check_all(Kind::Leases, 1000);
}

/// Fleets of five, whose members and runners read what is old and write what is judged anew: nobody serves or applies
/// what they must not, and once nobody disturbs any more the newest release is applied.
#[test]
#[ignore = "full tier"]
fn no_gate_is_passed_wrongly_and_in_the_end_the_newest_release_is_applied() {
    check_all(Kind::Gates, 1000);
}

/// A follower that was away is brought up however long a snapshot takes, whoever refuses one, and nobody stops writing for that.
#[test]
#[ignore = "full tier"]
fn snapshots_bring_a_follower_up_however_long_they_take() {
    check_all(Kind::Snapshots, 1000);
}

#[test]
fn a_seed_is_the_same_universe_every_time() {
    for seed in [1, 2, 3] {
        for kind in Kind::ALL {
            let run = || Run::new(kind, seed).execute().map_err(|failure| failure.tail);
            assert_eq!(run(), run(), "{kind} {seed}");
        }
    }
}

/// The command is what a reader copies: it names the kind, the seed and the injected bug.
#[test]
fn a_failed_run_prints_the_command_that_reproduces_it() {
    use muster_universe::Break;
    for (kind, bug) in [(Kind::Roles, Break::ForgetProposals), (Kind::Leases, Break::TakeLiveLeases)] {
        let run = |seed| Run { bug: Some(bug), ..Run::new(kind, seed) }.execute();
        let failure = (1..=200).find_map(|seed| run(seed).err()).expect("some seed notices");
        let seed = failure.seed;
        let command = format!("cargo run -p muster-universe -- {kind} {seed} --bug {bug:?} --trace");
        assert_eq!(failure.to_string().lines().last(), Some(format!("reproduce: {command}").as_str()));
        let again = run(seed).expect_err("the same run fails again");
        assert_eq!((again.name, again.detail, again.tail), (failure.name, failure.detail, failure.tail));
    }
}
