//! `muster bench sealing`: what sealing costs on a disk, without a cluster. Directories in clear and sealed are written in turn, so that what
//! else the machine does affects both; then the data key of a large state is replaced beside writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_client::{Failure, Outcome};
use muster_local_cluster::temporary_folder;
use muster_raft_member::disk::trial::{self, Batches};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::stats::{Times, per_second, rounded};
use super::temporary::removed;
use crate::cli::args::BenchSealing;
use crate::cli::duration::millis;
use crate::cli::output::{Out, Table};
use crate::cli::signals::Interrupts;

/// Of a batch: what a manager under load writes with one sync.
const ENTRIES: u32 = 64;
const ENTRY_BYTES: u32 = 1024;
/// The log behind the state whose key is replaced has 31 MiB: managers take a snapshot every 32 MiB at the latest.
const BATCHES_BEHIND_STATE: u32 = 496;

pub async fn run(args: BenchSealing, out: Out) -> Outcome<u8> {
    let mut interrupts = Interrupts::listen()?;
    let folder = folder_in(args.dir.as_deref())?;
    let (path, stop) = (folder.path().to_owned(), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    let mut work = tokio::task::spawn_blocking(move || measured(&args, &path, &stopped, out));
    let outcome = tokio::select! {
        done = &mut work => done.unwrap_or_else(|failed| Err(Failure::internal(failed))),
        word = interrupts.next() => {
            stop.store(true, Ordering::Relaxed);
            // It must not write into the folder that is being removed.
            let _interrupted = work.await;
            Err(Failure::internal(word))
        }
    };
    let document = removed(folder, outcome)?;
    out.document(&document.to_string(), String::new, || table(&document));
    Ok(0)
}

fn folder_in(dir: Option<&Path>) -> Outcome<TempDir> {
    let Some(dir) = dir else { return temporary_folder("sealing") };
    let made = tempfile::Builder::new().prefix("muster-sealing-").tempdir_in(dir);
    made.map_err(|e| Failure::io(format!("cannot create a folder in {}", dir.display()), &e))
}

/// Blocks. Once `stop` is true it ends soon, with whatever outcome.
fn measured(args: &BenchSealing, folder: &Path, stop: &AtomicBool, out: Out) -> Outcome<Value> {
    let continues = || !stop.load(Ordering::Relaxed);
    let batches = Batches { count: args.batches, entries: ENTRIES, bytes: ENTRY_BYTES };
    let mut times = [Vec::new(), Vec::new()];
    for round in (1..=args.rounds).take_while(|_| continues()) {
        // Neither is always first.
        for sealed in [round % 2 == 0, round % 2 == 1] {
            let took =
                within(folder, |folder| trial::writes(folder, sealed, batches, &continues).map_err(Failure::internal))?;
            times[usize::from(sealed)].extend(took);
        }
        out.say(format!("round {round} of {} done", args.rounds));
    }
    let state = args.state as usize * (1 << 20);
    let behind = Batches { count: BATCHES_BEHIND_STATE, ..batches };
    let change =
        within(folder, |folder| trial::key_change(folder, state, behind, &continues).map_err(Failure::internal))?;
    let ratio = sum(&times[1]).as_secs_f64() / sum(&times[0]).as_secs_f64().max(1e-9);
    let pause = change.meanwhile.iter().max().copied().unwrap_or_default();
    let [clear, sealed] = times.map(document);
    Ok(json!({
        "rounds": args.rounds, "batches": args.batches, "entries": ENTRIES, "entry_bytes": ENTRY_BYTES,
        "clear": clear, "sealed": sealed, "ratio": rounded(ratio),
        "key_change": {
            "state_mib": args.state,
            "log_mib": rounded(f64::from(BATCHES_BEHIND_STATE * ENTRIES * (ENTRY_BYTES / 1024)) / 1024.0),
            "before": document(change.before),
            "longest_pause_ms": millis(pause),
            "took_ms": millis(change.took),
        },
    }))
}

/// Measures in a folder that is removed at once: the disk may have no room for all rounds together.
fn within<T>(folder: &Path, measure: impl FnOnce(&Path) -> Outcome<T>) -> Outcome<T> {
    let here: PathBuf = folder.join("round");
    let outcome = measure(&here);
    let removed = std::fs::remove_dir_all(&here).map_err(|e| Failure::io("cannot remove the files of a round", &e));
    outcome.and_then(|value| removed.map(|()| value))
}

fn sum(times: &[Duration]) -> Duration {
    times.iter().sum()
}

fn document(times: Vec<Duration>) -> Value {
    let entries = times.len() as f64 * f64::from(ENTRIES);
    let rate = per_second(entries, sum(&times)).round();
    let mut all = Times::default();
    times.into_iter().for_each(|time| all.add(time));
    let summary = all.summary();
    json!({
        "entries_per_s": rate, "p50_ms": summary.p50_ms, "p99_ms": summary.p99_ms, "min_ms": summary.min_ms, "max_ms": summary.max_ms,
    })
}

fn table(document: &Value) -> String {
    let mut table = Table::new(&["BATCHES", "ENTRIES PER SECOND", "MEDIAN MS", "99 % MS", "MAX MS"]);
    for (name, times) in [
        ("in clear", &document["clear"]),
        ("sealed", &document["sealed"]),
        ("sealed, before the change of the key", &document["key_change"]["before"]),
    ] {
        let number = |key: &str, digits: usize| format!("{:.digits$}", times[key].as_f64().unwrap_or(0.0));
        table.row([
            name.to_owned(),
            number("entries_per_s", 0),
            number("p50_ms", 2),
            number("p99_ms", 2),
            number("max_ms", 2),
        ]);
    }
    let change = &document["key_change"];
    format!(
        "{}\nSealed batches take {} times as long. Another data key for a state of {} MiB, with a log of {} MiB, takes {} ms; the longest \
         pause of the disk is {} ms.",
        table.render(),
        document["ratio"],
        change["state_mib"],
        change["log_mib"],
        change["took_ms"],
        change["longest_pause_ms"],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Format;

    const SMALL: BenchSealing = BenchSealing { dir: None, rounds: 2, batches: 3, state: 1 };

    fn small(stop: bool) -> Outcome<Value> {
        let folder = folder_in(None).unwrap();
        let document =
            measured(&SMALL, folder.path(), &AtomicBool::new(stop), Out { format: Format::Json, quiet: true });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
        document
    }

    #[test]
    fn a_small_trial_has_every_figure() {
        let document = small(false).unwrap();
        for figure in [
            "/clear/entries_per_s",
            "/clear/p99_ms",
            "/sealed/entries_per_s",
            "/sealed/max_ms",
            "/ratio",
            "/key_change/before/p50_ms",
        ] {
            assert!(document.pointer(figure).and_then(Value::as_f64).is_some_and(|n| n > 0.0), "{figure}: {document}");
        }
        let change = &document["key_change"];
        assert!(change["longest_pause_ms"].as_u64() <= change["took_ms"].as_u64(), "{document}");
        assert!(change["before"]["max_ms"].as_f64() > Some(0.0) && change["log_mib"] == 31.0, "{document}");
        let table = table(&document);
        assert!(table.contains("in clear") && table.contains("the longest pause of the disk is"), "{table}");
    }

    #[test]
    fn an_interrupted_trial_ends_and_leaves_nothing() {
        let document = small(true).unwrap();
        assert_eq!(document["clear"]["entries_per_s"], 0.0);
    }

    #[test]
    fn folder_of_a_trial_can_be_chosen() {
        let disk = tempfile::tempdir().unwrap();
        let folder = folder_in(Some(disk.path())).unwrap();
        assert_eq!(folder.path().parent(), Some(disk.path()));
        let missing = folder_in(Some(&disk.path().join("missing"))).unwrap_err();
        assert!(missing.message.contains("missing"), "{missing:?}");
    }
}
