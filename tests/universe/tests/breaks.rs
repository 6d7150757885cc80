//! Every promise can be broken, and the universe notices each within 200 seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use muster_universe::{Break, Failure, Report, run, run_gates, run_leases};

/// More of them show how rarely something is found.
fn seeds() -> std::ops::RangeInclusive<u64> {
    1..=std::env::var("MUSTER_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

/// The first seed that finds it, and what else the seeds before it found.
fn finds(broken: Break) -> Result<u64, Vec<String>> {
    let mut others = Vec::new();
    for seed in seeds() {
        match catch_unwind(AssertUnwindSafe(|| run(seed, Some(broken), false))) {
            Ok(Ok(_)) => {}
            Ok(Err(failure)) if broken.breaks().contains(&failure.name.as_str()) => return Ok(seed),
            Ok(Err(failure)) => others.push(format!("seed {seed}: {}: {}", failure.name, failure.detail)),
            Err(_) => others.push(format!("seed {seed}: a core panics")),
        }
    }
    Err(others)
}

fn check(broken: Break) {
    match finds(broken) {
        Ok(seed) => println!("{broken:?}: seed {seed} finds that {:?} is broken", broken.breaks()),
        Err(others) => {
            panic!("{broken:?}: {:?} is not found broken; found were {others:#?}", broken.breaks())
        }
    }
}

macro_rules! each_is_noticed {
    ($($test:ident: $broken:ident,)*) => {
        $(#[test]
        fn $test() {
            check(Break::$broken);
        })*

        #[test]
        fn every_break_is_tried() {
            // Losing a seat's data is told as a story; leases and gates have universes of their own.
            let others = [
                Break::TakeLostSeat,
                Break::RenewUnconfirmed,
                Break::TakeLiveLeases,
                Break::AdmitUnseen,
                Break::RestrictUnseen,
                Break::RunWithoutTerm,
            ];
            assert_eq!([[$(Break::$broken,)*].as_slice(), others.as_slice()].concat(), Break::ALL.as_slice());
        }
    };
}

/// Leases are contended for, and gates passed, in universes of their own.
fn check_in(run: fn(u64, Option<Break>, bool) -> Result<Report, Failure>, broken: Break) {
    let found = seeds().find(|seed| match run(*seed, Some(broken), false) {
        Ok(_) => false,
        Err(failure) => broken.breaks().contains(&failure.name.as_str()),
    });
    let seed = found.unwrap_or_else(|| panic!("{broken:?}: {:?} is not found broken", broken.breaks()));
    println!("{broken:?}: seed {seed} finds that {:?} is broken", broken.breaks());
}

#[test]
fn renewals_by_a_leader_that_asks_nobody() {
    check_in(run_leases, Break::RenewUnconfirmed);
}

#[test]
fn leases_that_pass_while_their_holder_lives() {
    check_in(run_leases, Break::TakeLiveLeases);
}

#[test]
fn members_admitted_by_what_they_have_read() {
    check_in(run_gates, Break::AdmitUnseen);
}

#[test]
fn gates_restricted_by_what_was_read_of_who_serves() {
    check_in(run_gates, Break::RestrictUnseen);
}

#[test]
fn runners_that_write_after_their_term() {
    check_in(run_gates, Break::RunWithoutTerm);
}

each_is_noticed! {
    writes_acknowledged_before_they_are_durable: AckBeforeSync,
    votes_that_leave_before_they_are_durable: VoteBeforeSync,
    votes_given_twice: VoteAgain,
    reads_that_ask_nobody: ReadWithoutAsking,
    proposals_that_are_forgotten: ForgetProposals,
    a_raft_id_handed_out_again: ReuseRaftId,
    seats_without_a_node: SkipNodeGuard,
    certificates_recorded_for_any_role: RecordAnyCertificate,
    members_that_apply_differently: ApplyByMood,
    certificates_for_the_wished_role: SignDesiredRole,
    membership_changes_without_a_quorum: SkipQuorumGate,
    wishes_answered_before_they_are_written: AnswerBeforeWritten,
    refusals_by_copies_that_are_too_old: JudgeOnOldCopies,
    writes_asked_for_again_under_another_id: RetryUnderAnotherId,
    reads_answered_from_the_copy_at_hand: AnswerFromTheCopy,
    blocks_swept_before_they_are_over: SweepEarly,
    blocked_nodes_that_are_let_stay: LetTheBlockedStay,
}
