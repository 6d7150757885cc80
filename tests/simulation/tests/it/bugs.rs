//! Bug injection: the simulation detects a violation of every invariant.

use muster_simulation::{Bug, Kind, Run};

/// Each bug is detected within this many seeds. Runs of leases and gates are short, and some bugs appear in one run of a
/// hundred: a disconnected leader stays leader for a tenth of a second only.
fn seeds(kind: Kind) -> u64 {
    if kind == Kind::Roles { 200 } else { 1000 }
}

fn check(kind: Kind, bug: Bug) {
    let mut others = Vec::new();
    for seed in 1..=seeds(kind) {
        let run = Run { bug: Some(bug), ..Run::new(kind, seed) };
        match run.execute() {
            Ok(_) => {}
            Err(failure) if bug.violates().contains(&failure.name.as_str()) => {
                return println!("{bug:?}: seed {seed} detects a violation of {}", failure.name);
            }
            Err(failure) => others.push(failure.line()),
        }
    }
    panic!("{bug:?}: no violation of {:?} detected, only {others:#?}", bug.violates());
}

macro_rules! bugs_detected {
    ($($test:ident: $bug:ident,)*) => {
        $(#[test]
        fn $test() {
            check(Kind::Roles, Bug::$bug);
        })*

        #[test]
        fn every_bug_has_a_test() {
            // A scenario tests the loss of a member's data; the other kinds of runs have bugs of their own.
            let others = [
                Bug::ReuseLostMemberId,
                Bug::RenewUnconfirmed,
                Bug::TakeLiveLeases,
                Bug::AdmitWithoutCheck,
                Bug::RestrictWithoutCheck,
                Bug::WriteAfterTerm,
                Bug::ConstantRevisionJump,
                Bug::ReviveLeases,
                Bug::AcquireUnknownLeases,
                Bug::NoClockMargin,
                Bug::ShareEventQuota,
                Bug::CompactDuringTransfer,
                Bug::SnapshotsWithoutBackoff,
                Bug::RaiseWithoutCheck,
                Bug::IgnoreLevel,
                Bug::RecordAheadOfLevel,
                Bug::ActivateUnacknowledged,
                Bug::RetireWhileBehind,
                Bug::AcknowledgeUnwrittenRoots,
                Bug::AcceptUnvouchedRoots,
                Bug::CountUnrecordedOfWithdrawnRoot,
                Bug::DeleteFormerKeys,
                Bug::ReportUnwrittenKey,
                Bug::FollowOlderKey,
                Bug::ActWhilePaused,
                Bug::ResumeByItself,
                Bug::PromoteBeforeDemotion,
                Bug::BeginTwice,
                Bug::DemoteSilentManagers,
                Bug::ForgetPersons,
                Bug::PickAnyCandidate,
                Bug::TrustRecordedLiveness,
                Bug::OnlyDemote,
            ];
            assert_eq!([[$(Bug::$bug,)*].as_slice(), others.as_slice()].concat(), Bug::ALL.as_slice());
        }
    };
}

#[test]
fn detects_autopilot_that_acts_while_paused() {
    check(Kind::Autopilot, Bug::ActWhilePaused);
}

#[test]
fn detects_autopilot_that_ends_a_pause() {
    check(Kind::Autopilot, Bug::ResumeByItself);
}

#[test]
fn detects_successors_promoted_before_the_demotion() {
    check(Kind::Autopilot, Bug::PromoteBeforeDemotion);
}

#[test]
fn detects_two_changes_of_the_autopilot_at_once() {
    check(Kind::Autopilot, Bug::BeginTwice);
}

#[test]
fn detects_silent_managers_demoted() {
    check(Kind::Autopilot, Bug::DemoteSilentManagers);
}

#[test]
fn detects_forgotten_requests_of_operators() {
    check(Kind::Autopilot, Bug::ForgetPersons);
}

#[test]
fn detects_candidates_picked_by_chance() {
    check(Kind::Autopilot, Bug::PickAnyCandidate);
}

#[test]
fn detects_trust_in_what_another_leader_observed() {
    check(Kind::Autopilot, Bug::TrustRecordedLiveness);
}

#[test]
fn detects_managers_demoted_and_not_replaced() {
    check(Kind::Autopilot, Bug::OnlyDemote);
}

#[test]
fn detects_unconfirmed_renewals() {
    check(Kind::Leases, Bug::RenewUnconfirmed);
}

#[test]
fn detects_leases_taken_from_live_holders() {
    check(Kind::Leases, Bug::TakeLiveLeases);
}

#[test]
fn detects_members_admitted_without_check() {
    check(Kind::Gates, Bug::AdmitWithoutCheck);
}

#[test]
fn detects_gates_restricted_without_check() {
    check(Kind::Gates, Bug::RestrictWithoutCheck);
}

#[test]
fn detects_runner_writes_after_its_term() {
    check(Kind::Gates, Bug::WriteAfterTerm);
}

#[test]
fn detects_constant_revision_jumps_of_recoveries() {
    check(Kind::Leases, Bug::ConstantRevisionJump);
}

#[test]
fn detects_leases_revived_by_recovery() {
    check(Kind::Leases, Bug::ReviveLeases);
}

#[test]
fn detects_unknown_leases_acquired_after_recovery() {
    check(Kind::Leases, Bug::AcquireUnknownLeases);
}

#[test]
fn detects_missing_clock_margin() {
    check(Kind::Leases, Bug::NoClockMargin);
}

#[test]
fn detects_lease_events_evicting_others() {
    check(Kind::Leases, Bug::ShareEventQuota);
}

#[test]
fn detects_log_compaction_during_snapshot_transfer() {
    check(Kind::Snapshots, Bug::CompactDuringTransfer);
}

#[test]
fn detects_snapshots_resent_without_backoff() {
    check(Kind::Snapshots, Bug::SnapshotsWithoutBackoff);
}

#[test]
fn detects_levels_raised_without_check() {
    check(Kind::Upgrades, Bug::RaiseWithoutCheck);
}

#[test]
fn detects_members_that_run_beyond_their_level() {
    check(Kind::Upgrades, Bug::IgnoreLevel);
}

#[test]
fn detects_records_ahead_of_the_level() {
    check(Kind::Upgrades, Bug::RecordAheadOfLevel);
}

#[test]
fn detects_roots_that_sign_before_they_are_known() {
    check(Kind::Rotations, Bug::ActivateUnacknowledged);
}

#[test]
fn detects_roots_retired_while_members_need_them() {
    check(Kind::Rotations, Bug::RetireWhileBehind);
}

#[test]
fn detects_roots_acknowledged_before_they_are_on_disk() {
    check(Kind::Rotations, Bug::AcknowledgeUnwrittenRoots);
}

#[test]
fn detects_roots_trusted_without_a_voucher() {
    check(Kind::Rotations, Bug::AcceptUnvouchedRoots);
}

#[test]
fn detects_unrecorded_certificates_of_withdrawn_roots() {
    check(Kind::Rotations, Bug::CountUnrecordedOfWithdrawnRoot);
}

bugs_detected! {
    detects_writes_acknowledged_before_durable: AckBeforeSync,
    detects_votes_sent_before_durable: VoteBeforeSync,
    detects_double_votes: VoteTwice,
    detects_reads_without_quorum: ReadWithoutQuorum,
    detects_dropped_proposals: DropProposals,
    detects_reused_raft_ids: ReuseRaftId,
    detects_members_without_a_node: SkipNodeGuard,
    detects_certificates_recorded_for_any_role: RecordAnyCertificate,
    detects_nondeterministic_apply: ApplyNondeterministically,
    detects_certificates_for_the_desired_role: SignDesiredRole,
    detects_membership_changes_without_quorum: SkipQuorumCheck,
    detects_requests_answered_before_commit: AnswerBeforeCommit,
    detects_refusals_by_stale_replicas: RefuseOnStaleReplica,
    detects_retries_under_another_request_id: RetryWithNewId,
    detects_reads_from_the_local_replica: ReadLocalReplica,
    detects_blocks_deleted_too_early: SweepEarly,
    detects_blocked_nodes_left_connected: AllowBlocked,
    detects_membership_changes_on_recent_acks: TrustRecentAcks,
    detects_forgotten_retries_applied_again: ReapplyForgotten,
    detects_failed_syncs_that_are_trusted: TrustFailedSyncs,
    detects_shared_request_id_space: ShareRequestIds,
    detects_unbounded_reported_labels: AcceptAnyLabels,
    detects_names_taken_from_node_reports: AcceptReportedNames,
    detects_superseded_certificates_admitted: AdmitSuperseded,
    detects_forged_grants_admitted: AdmitForged,
    detects_superseded_certificates_renewed: RenewSuperseded,
}

#[test]
fn deletion_of_former_unlock_keys_is_detected() {
    check(Kind::Autolock, Bug::DeleteFormerKeys);
}

#[test]
fn report_of_an_unwritten_unlock_key_is_detected() {
    check(Kind::Autolock, Bug::ReportUnwrittenKey);
}

#[test]
fn keyring_that_follows_an_older_key_is_detected() {
    check(Kind::Autolock, Bug::FollowOlderKey);
}
