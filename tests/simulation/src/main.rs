//! Runs the simulation from a shell: one seed, or a range of seeds.

use std::process::ExitCode;

use clap::Parser;
use muster_simulation::{Bug, Kind, Run, sweep};

/// Deterministic simulation of a Muster cluster: one seed is one run, event by event.
#[derive(Parser)]
#[command(name = "muster-simulation")]
struct Args {
    /// What to simulate: roles, leases, gates, snapshots, upgrades, rotations, autolock or autopilot
    kind: Kind,
    /// A seed, or an inclusive range such as 1..2000
    #[arg(value_parser = seeds)]
    seeds: (u64, u64),
    /// Print every event of the run (one seed only)
    #[arg(long)]
    trace: bool,
    /// Inject a bug by its name (one seed only)
    #[arg(long, value_parser = bug)]
    bug: Option<Bug>,
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let number = |part: &str| part.parse::<u64>().map_err(|e| format!("{part:?}: {e}"));
    let (first, last) = (number(first)?, number(last.trim_start_matches('='))?);
    if first > last {
        return Err("the first seed is greater than the last".to_owned());
    }
    Ok((first, last))
}

fn bug(text: &str) -> Result<Bug, String> {
    let names = || Bug::ALL.map(|bug| format!("{bug:?}")).join(", ");
    Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == text).ok_or_else(|| format!("expected one of {}", names()))
}

fn main() -> ExitCode {
    let Args { kind, seeds: (first, last), trace, bug } = Args::parse();
    if first < last {
        if trace || bug.is_some() {
            eprintln!("--trace and --bug are for one seed");
            return ExitCode::from(2);
        }
        let summary = sweep(kind, first..=last);
        summary.print(kind);
        return ExitCode::from(u8::from(!summary.failures.is_empty()));
    }
    match (Run { kind, seed: first, bug, trace }).execute() {
        Ok(report) => {
            println!("{}seed {first} passed after {:.1} simulated seconds", report.totals, report.simulated_secs);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}
