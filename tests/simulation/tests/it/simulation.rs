//! Many simulated runs of each kind, one per seed.

use muster_simulation::{Kind, ROLE_CHANGES, Run, Summary, sweep};

/// Seeds of each kind in the quick tier.
const SAMPLED_SEEDS: u64 = 15;
/// Seeds of each kind in the full tier, in which each required event happens; more of them are one command away
/// (`tests/OVERVIEW.md`).
const ALL_SEEDS: u64 = 400;
/// In 400 runs the autopilot is refused no change.
const ALL_AUTOPILOT_SEEDS: u64 = 1000;

/// Fails unless every seed passes, and prints the replay command of each failed one.
fn check(kind: Kind, seeds: u64) -> Summary {
    let summary = sweep(kind, 1..=seeds);
    summary.print(kind);
    assert!(summary.failures.is_empty(), "{} of {seeds} seeds failed", summary.failures.len());
    assert_eq!(summary.passed, seeds);
    if kind == Kind::Roles {
        let changes = summary.totals.of("role changes accepted") + summary.totals.of("removals done");
        assert!(changes >= seeds * ROLE_CHANGES as u64 && summary.simulated_secs >= 60.0 * seeds as f64);
    }
    summary
}

/// [`check`] with enough seeds for every required event of the kind.
fn check_all(kind: Kind, seeds: u64) {
    let missing = check(kind, seeds).totals.missing(kind.required_events());
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn sampled_seeds_of_role_changes_hold() {
    check(Kind::Roles, SAMPLED_SEEDS);
}

#[test]
fn sampled_seeds_of_leases_hold() {
    check(Kind::Leases, SAMPLED_SEEDS);
}

#[test]
fn sampled_seeds_of_gates_hold() {
    let summary = check(Kind::Gates, SAMPLED_SEEDS);
    assert!(summary.totals.of("steps of chains recorded") > 0);
}

#[test]
fn sampled_seeds_of_snapshots_hold() {
    check(Kind::Snapshots, SAMPLED_SEEDS);
}

#[test]
fn sampled_seeds_of_upgrades_hold() {
    check(Kind::Upgrades, SAMPLED_SEEDS);
}

#[test]
fn sampled_seeds_of_rotations_hold() {
    check(Kind::Rotations, SAMPLED_SEEDS);
}

#[test]
fn sampled_seeds_of_autolock_hold() {
    check(Kind::Autolock, SAMPLED_SEEDS);
}

#[test]
fn sampled_seeds_of_the_autopilot_hold() {
    check(Kind::Autopilot, SAMPLED_SEEDS);
}

/// Managers die for long, return, are drained and demoted by hand: the quorum is never lost to the autopilot, and in the end as many
/// managers answer as declared.
#[test]
#[ignore = "full tier"]
fn all_autopilot_seeds_hold_and_cover_every_event() {
    check_all(Kind::Autopilot, ALL_AUTOPILOT_SEEDS);
}

#[test]
#[ignore = "full tier"]
fn all_autolock_seeds_hold_and_cover_every_event() {
    check_all(Kind::Autolock, ALL_SEEDS);
}

#[test]
#[ignore = "full tier"]
fn all_role_seeds_hold_and_cover_every_event() {
    check_all(Kind::Roles, ALL_SEEDS);
}

/// Twenty candidates for two leases: no two hold one at the same time, and each token is greater than those
/// before it.
#[test]
#[ignore = "full tier"]
fn all_lease_seeds_hold_and_cover_every_event() {
    check_all(Kind::Leases, ALL_SEEDS);
}

/// Fleets of five whose members and runners act on stale reads: no member serves and no runner applies
/// against the gates, and once faults end the newest release is applied.
#[test]
#[ignore = "full tier"]
fn all_gate_seeds_hold_and_cover_every_event() {
    check_all(Kind::Gates, ALL_SEEDS);
}

/// A follower that was away catches up, however slow or refused its snapshots, while clients write.
#[test]
#[ignore = "full tier"]
fn all_snapshot_seeds_hold_and_cover_every_event() {
    check_all(Kind::Snapshots, ALL_SEEDS);
}

/// Managers are restarted with the newer build and back, one by one: the level rises once all have it, and no build runs
/// beyond the level that it supports.
#[test]
#[ignore = "full tier"]
fn all_upgrade_seeds_hold_and_cover_every_event() {
    check_all(Kind::Upgrades, ALL_SEEDS);
}

/// The root is replaced while nodes join, change roles, crash and are away: no node is locked out, and in the end all have a
/// certificate of the active root.
#[test]
#[ignore = "full tier"]
fn all_rotation_seeds_hold_and_cover_every_event() {
    check_all(Kind::Rotations, ALL_SEEDS);
}

#[test]
fn seed_reproduces_the_same_run() {
    for seed in [1, 2] {
        for kind in Kind::ALL {
            let run = || Run::new(kind, seed).execute().map_err(|failure| failure.tail);
            assert_eq!(run(), run(), "{kind} {seed}");
        }
    }
}

/// The command names the kind, the seed and the injected bug.
#[test]
fn failed_run_prints_its_replay_command() {
    use muster_simulation::Bug;
    for (kind, bug) in [(Kind::Roles, Bug::ReadWithoutQuorum), (Kind::Leases, Bug::TakeLiveLeases)] {
        let run = |seed| Run { bug: Some(bug), ..Run::new(kind, seed) }.execute();
        let failure = (1..=200).find_map(|seed| run(seed).err()).expect("some seed detects the bug");
        let seed = failure.seed;
        let command = format!("cargo run -p muster-simulation -- {kind} {seed} --bug {bug:?} --trace");
        assert_eq!(failure.to_string().lines().last(), Some(format!("reproduce: {command}").as_str()));
        let again = run(seed).expect_err("the same run fails again");
        assert_eq!((again.name, again.detail, again.tail), (failure.name, failure.detail, failure.tail));
    }
}
