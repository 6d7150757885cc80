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
    ($($kind:ident { $($(#[$tier:meta])? $test:ident: $bug:ident,)* })*) => {
        $($(#[test]
        $(#[$tier])?
        fn $test() {
            check(Kind::$kind, Bug::$bug);
        })*)*

        #[test]
        fn every_bug_has_a_test() {
            // A scenario tests the loss of a member's data.
            let tested = [$($(Bug::$bug,)*)* Bug::ReuseLostMemberId];
            let untested: Vec<Bug> = Bug::ALL.into_iter().filter(|bug| !tested.contains(bug)).collect();
            assert_eq!((untested, tested.len()), (Vec::new(), Bug::ALL.len()));
        }
    };
}

bugs_detected! {
    Roles {
        detects_writes_acknowledged_before_durable: AckBeforeSync,
        detects_votes_sent_before_durable: VoteBeforeSync,
        #[ignore = "full tier"]
        detects_double_votes: VoteTwice,
        detects_reads_without_quorum: ReadWithoutQuorum,
        #[ignore = "full tier"]
        detects_dropped_proposals: DropProposals,
        detects_reused_raft_ids: ReuseRaftId,
        detects_members_without_a_node: SkipNodeGuard,
        detects_certificates_recorded_for_any_role: RecordAnyCertificate,
        detects_nondeterministic_apply: ApplyNondeterministically,
        #[ignore = "full tier"]
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
    Leases {
        #[ignore = "full tier"]
        detects_unconfirmed_renewals: RenewUnconfirmed,
        detects_leases_taken_from_live_holders: TakeLiveLeases,
        detects_constant_revision_jumps_of_recoveries: ConstantRevisionJump,
        detects_leases_revived_by_recovery: ReviveLeases,
        detects_unknown_leases_acquired_after_recovery: AcquireUnknownLeases,
        detects_missing_clock_margin: NoClockMargin,
        detects_lease_events_evicting_others: ShareEventQuota,
    }
    Gates {
        detects_members_admitted_without_check: AdmitWithoutCheck,
        detects_gates_restricted_without_check: RestrictWithoutCheck,
        #[ignore = "full tier"]
        detects_runner_writes_after_its_term: WriteAfterTerm,
    }
    Snapshots {
        detects_log_compaction_during_snapshot_transfer: CompactDuringTransfer,
        detects_snapshots_resent_without_backoff: SnapshotsWithoutBackoff,
    }
    Upgrades {
        #[ignore = "full tier"]
        detects_levels_raised_without_check: RaiseWithoutCheck,
        #[ignore = "full tier"]
        detects_members_that_run_beyond_their_level: IgnoreLevel,
        detects_records_ahead_of_the_level: RecordAheadOfLevel,
    }
    Rotations {
        detects_roots_that_sign_before_they_are_known: ActivateUnacknowledged,
        detects_roots_retired_while_members_need_them: RetireWhileBehind,
        detects_two_roots_that_sign: KeepFormerActive,
        detects_keys_of_retired_roots_that_are_kept: KeepRetiredKey,
        detects_roots_without_a_path_from_earlier_ones: DropCrosses,
        detects_roots_deleted_while_certificates_are_valid: ForgetEarly,
        detects_rotations_that_a_new_leader_abandons: ContinueNothing,
        detects_certificates_of_a_root_that_no_longer_signs: RecordOfFormerRoot,
        detects_compromised_roots_that_sign_again: ActivateCompromised,
        detects_roots_acknowledged_before_they_are_on_disk: AcknowledgeUnwrittenRoots,
        detects_roots_trusted_without_a_voucher: AcceptUnvouchedRoots,
        detects_unrecorded_certificates_of_withdrawn_roots: CountUnrecordedOfWithdrawnRoot,
    }
    Autolock {
        deletion_of_former_unlock_keys_is_detected: DeleteFormerKeys,
        second_unlock_key_of_one_entry_is_detected: ChangeKeyTwice,
        report_of_an_unwritten_unlock_key_is_detected: ReportUnwrittenKey,
        #[ignore = "full tier"]
        keyring_that_follows_an_older_key_is_detected: FollowOlderKey,
    }
    Autopilot {
        detects_autopilot_that_acts_while_paused: ActWhilePaused,
        detects_autopilot_that_ends_a_pause: ResumeByItself,
        detects_successors_promoted_before_the_demotion: PromoteBeforeDemotion,
        detects_two_changes_of_the_autopilot_at_once: BeginTwice,
        detects_silent_managers_demoted: DemoteSilentManagers,
        detects_forgotten_requests_of_operators: ForgetPersons,
        detects_candidates_picked_by_chance: PickAnyCandidate,
        detects_trust_in_what_another_leader_observed: TrustRecordedLiveness,
        detects_managers_demoted_and_not_replaced: OnlyDemote,
    }
}
