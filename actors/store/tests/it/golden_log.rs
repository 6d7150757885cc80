//! A recorded log, and the digests of the states that it leads to.
//!
//! Two builds of one feature level must decide every entry alike: otherwise members differ unnoticed after a rolling upgrade. A
//! build that fails here decides differently from the one that recorded the log. A changed decision needs its own feature
//! level, and a log of that level, written by `UPDATE=1`.

use muster_messages::wire::{decode, decode_stored, encode, encode_stored};
use muster_messages::*;
use muster_store::{LogPosition, apply, apply_empty, apply_membership, snapshot};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde::{Deserialize, Serialize};

use crate::properties::{Entry, aimed, entry};
use crate::world::*;

/// Entries in each log.
const ENTRIES: usize = 1500;
/// Entries between two digests.
const DIGEST_EVERY: usize = 50;

#[derive(Serialize, Deserialize)]
struct Log {
    /// As in a log. Empty: an entry without content.
    entries: Vec<Recorded>,
    digests: Vec<u64>,
}

#[derive(PartialEq, Serialize, Deserialize)]
enum Recorded {
    Nothing,
    Command(Vec<u8>),
    Membership(Vec<u8>),
}

/// FNV-1a of the canonical bytes.
fn digest(tables: &Tables) -> u64 {
    let bytes = snapshot::encode(tables);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Terms change, as leaders do.
fn replay(tables: &mut Tables, recorded: &Recorded) {
    let revision = tables.revision.next();
    let position = LogPosition { revision, term: Term(1 + revision.0 / 200) };
    let _outcome = match recorded {
        Recorded::Nothing => {
            apply_empty(tables, revision);
            Ok(())
        }
        Recorded::Command(bytes) => apply(tables, position, &decode::<Command>(bytes).unwrap()),
        Recorded::Membership(bytes) => apply_membership(tables, revision, &decode(bytes).unwrap()),
    };
}

fn founding(level: u32) -> Recorded {
    let cluster = Box::new(ClusterRecord { feature_level: level, ..cluster() });
    let founder = Box::new(node(1, Role::Manager));
    Recorded::Command(encode(&command([Change::Found { cluster, founder, tokens: vec![] }])).unwrap())
}

fn record(level: u32) -> Log {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[level as u8; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let (mut tables, strategy) = (Tables::default(), entry());
    let mut log = Log { entries: vec![founding(level)], digests: vec![] };
    replay(&mut tables, &log.entries[0]);
    while log.entries.len() < ENTRIES {
        let recorded = match strategy.new_tree(&mut runner).unwrap().current() {
            Entry::Nothing => Recorded::Nothing,
            Entry::Command(mut command) => {
                // Some are retries. With a history as short as in the other tests, most would be.
                if command.request.0 % 4 != 1 {
                    command.request = RequestId(1000 + log.entries.len() as u128);
                }
                Recorded::Command(encode(&command).unwrap())
            }
            Entry::Membership(change) => Recorded::Membership(encode(&aimed(&tables, &change)).unwrap()),
        };
        replay(&mut tables, &recorded);
        log.entries.push(recorded);
    }
    if level >= DEFINITIONS_LEVEL {
        log.entries
            .extend(crate::gates::records::commands(tables).iter().map(|c| Recorded::Command(encode(c).unwrap())));
    }
    log.digests = digests(&log);
    log
}

fn digests(log: &Log) -> Vec<u64> {
    let mut tables = Tables::default();
    let mut digests = Vec::new();
    for (n, recorded) in log.entries.iter().enumerate() {
        replay(&mut tables, recorded);
        if (n + 1).is_multiple_of(DIGEST_EVERY) || n >= ENTRIES {
            digests.push(digest(&tables));
        }
    }
    // Enough of it was applied to be meaningful.
    let several = digests.iter().collect::<std::collections::BTreeSet<_>>().len();
    assert!(several > ENTRIES / DIGEST_EVERY / 2 && tables.events.len() > 20, "{several} states");
    assert!(tables.outcomes.len() > 20 || tables.requests != Requests::default(), "requests are remembered");
    if log.entries[0] == founding(IDENTITY_LEVEL) {
        let Autolock { version, seals, .. } = &tables.autolock;
        assert!(*version > Revision(0) && !seals.is_empty(), "an unlock key, and reports of it");
        assert!(tables.workloads.changed > Revision(0), "a workload");
    }
    if log.entries[0] == founding(DEFINITIONS_LEVEL) {
        assert!(!tables.records.chains.is_empty() && tables.records.run_bytes() > 0, "a step of a chain, and a run");
    }
    digests
}

fn golden(level: u32) {
    let path = format!("{}/tests/it/log-level{level}.bin", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, encode_stored(&record(level)).unwrap()).unwrap();
    }
    let log: Log = decode_stored(&std::fs::read(&path).unwrap()).unwrap();
    let now = digests(&log);
    let differs = now.iter().zip(&log.digests).position(|(now, then)| now != then);
    assert_eq!(
        differs.map(|n| format!(
            "entries {} to {} are decided differently",
            n * DIGEST_EVERY + 1,
            (n + 1) * DIGEST_EVERY
        )),
        None,
        "feature level {level}"
    );
    assert_eq!(now.len(), log.digests.len());
}

/// `before`, with what changes with every command and the objects of `after`.
fn with_objects_of(before: &Tables, after: &Tables) -> Tables {
    let Tables { revision, objects, outcomes, outcome_order, requests, frequent_events, .. } = after.clone();
    Tables { revision, objects, outcomes, outcome_order, requests, frequent_events, ..before.clone() }
}

/// Readers of the cluster's replica see commands about objects later than others. (Below `IDENTITY_LEVEL` their events are among those of
/// everything else, which these readers do not read.)
#[test]
fn commands_about_objects_change_nothing_else() {
    let mut effective = 0;
    for level in IDENTITY_LEVEL..=FEATURE_LEVEL {
        let (log, mut tables) = (record(level), Tables::default());
        for recorded in &log.entries {
            let before = tables.clone();
            replay(&mut tables, recorded);
            let Recorded::Command(bytes) = recorded else { continue };
            let command = decode::<Command>(bytes).unwrap();
            if command.is_of_objects() {
                assert_eq!(with_objects_of(&before, &tables), tables, "{command:?}");
                effective += u32::from(tables.objects != before.objects);
            }
        }
    }
    assert!(effective > 20, "{effective} changed an object");
}

#[test]
fn a_log_of_level_two_leads_to_the_recorded_states() {
    golden(2);
}

#[test]
fn a_log_of_level_three_leads_to_the_recorded_states() {
    golden(3);
}

#[test]
fn a_log_of_level_five_leads_to_the_recorded_states() {
    golden(5);
}

#[test]
fn a_log_of_level_four_leads_to_the_recorded_states() {
    golden(4);
}
