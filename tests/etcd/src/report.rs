//! The comparison as Markdown: each round, and the medians beside the goals. Reads a line of JSON for each run.

use std::collections::BTreeSet;
use std::io::BufRead;

use serde::Deserialize;

use crate::Outcome;

/// A run, as `tests/etcd/run` writes it down.
#[derive(Clone, Debug, Deserialize)]
struct Line {
    round: u32,
    system: String,
    /// Processor time of all daemons together and of the load generator.
    daemons_ms: f64,
    client_ms: f64,
    /// System calls of all daemons together, and those of them that wait for a disk; only of a run that counted them.
    syscalls: Option<u64>,
    syncs: Option<u64>,
    output: Output,
}

#[derive(Clone, Debug, Deserialize)]
struct Output {
    runs: Vec<Run>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Run {
    op: String,
    via: String,
    clients: u32,
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    ops: u64,
    errors: u64,
    leader_changes: u64,
}

/// What a ratio compares, and its goal.
#[derive(Clone, Copy)]
enum Goal {
    /// Muster's rate is at least so many times etcd's.
    Rate(f64),
    /// Muster's p50 is at most this part of etcd's.
    Latency(f64),
}

/// A row: an operation of both systems, etcd's over gRPC.
struct Case {
    name: &'static str,
    op: &'static str,
    /// Muster's protocol.
    via: &'static str,
    clients: u32,
    goal: Goal,
}

const fn case(name: &'static str, op: &'static str, via: &'static str, clients: u32, goal: Goal) -> Case {
    Case { name, op, via, clients, goal }
}

const CASES: [Case; 7] = [
    case("compare-and-swap", "cas", "native", 1, Goal::Latency(0.6)),
    case("compare-and-swap", "cas", "native", 64, Goal::Rate(4.0)),
    case("compare-and-swap", "cas", "native", 256, Goal::Rate(4.0)),
    case("linearizable read", "read", "native", 64, Goal::Rate(4.0)),
    case("linearizable read", "read", "native", 256, Goal::Rate(4.0)),
    case("compare-and-swap, Muster by REST", "cas", "rest", 64, Goal::Rate(1.0)),
    case("compare-and-swap, Muster by REST", "cas", "rest", 256, Goal::Rate(1.0)),
];

const ETCD: &str = "etcd";
const MUSTER: &str = "muster";

/// What is shown of one system in one row.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Processor time of an operation, in microseconds.
    daemons_us: f64,
    client_us: f64,
}

impl Figures {
    fn of(line: &Line, run: &Run) -> Self {
        let each = |ms: f64| ms * 1000.0 / run.ops.max(1) as f64;
        let (daemons_us, client_us) = (each(line.daemons_ms), each(line.client_ms));
        Self { per_s: run.per_s, p50_ms: run.p50_ms, p99_ms: run.p99_ms, daemons_us, client_us }
    }

    fn medians(all: &[Self]) -> Self {
        let of = |field: fn(&Self) -> f64| median(all.iter().map(field).collect());
        Self {
            per_s: of(|one| one.per_s),
            p50_ms: of(|one| one.p50_ms),
            p99_ms: of(|one| one.p99_ms),
            daemons_us: of(|one| one.daemons_us),
            client_us: of(|one| one.client_us),
        }
    }

    fn cells(&self) -> String {
        let Self { per_s, p50_ms, p99_ms, daemons_us, client_us } = self;
        format!("{per_s:.0} | {p50_ms:.2} | {p99_ms:.2} | {daemons_us:.0} + {client_us:.0}")
    }
}

/// The middle value, or between the two in the middle; 0 without values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = |at: usize| values.get(at).copied().unwrap_or_default();
    (middle(values.len().saturating_sub(1) / 2) + middle(values.len() / 2)) / 2.0
}

impl Case {
    /// The runs of this row in one round, etcd's and Muster's.
    fn pair(&self, lines: &[Line], round: u32) -> Option<[Figures; 2]> {
        let find = |system: &str, via: &str| {
            let of_round = lines.iter().filter(|line| line.round == round && line.system == system);
            let counted = of_round.filter(|line| line.syscalls.is_none());
            let mut runs = counted.flat_map(|line| line.output.runs.iter().map(move |run| (line, run)));
            let (line, run) =
                runs.find(|(_, run)| (run.op.as_str(), run.via.as_str(), run.clients) == (self.op, via, self.clients))?;
            (run.ops > 0).then(|| Figures::of(line, run))
        };
        Some([find(ETCD, "grpc")?, find(MUSTER, self.via)?])
    }

    fn ratio(&self, [etcd, muster]: &[Figures; 2]) -> f64 {
        match self.goal {
            Goal::Rate(_) => muster.per_s / etcd.per_s,
            Goal::Latency(_) => muster.p50_ms / etcd.p50_ms,
        }
    }

    /// The goal, and whether the ratio reaches it.
    fn goal(&self, ratio: f64) -> (String, bool) {
        match self.goal {
            Goal::Rate(least) => (format!("at least {least:.1}"), ratio >= least),
            Goal::Latency(most) => (format!("p50, at most {most:.1}"), ratio <= most),
        }
    }
}

/// A table's head: the named columns around those of both systems.
fn head(first: &str, last: &[&str]) -> String {
    let systems = "etcd, per s | p50, ms | p99, ms | processor, µs | Muster, per s | p50, ms | p99, ms | processor, µs";
    let columns = format!("{first} | {systems} | {}", last.join(" | "));
    format!("| {columns} |\n{}|\n", "|---".repeat(columns.matches(" | ").count() + 1))
}

fn tables(lines: &[Line]) -> String {
    let rounds: BTreeSet<u32> = lines.iter().map(|line| line.round).collect();
    let (mut each, mut medians) = (head("round | operation | clients", &["ratio"]), String::new());
    for case in &CASES {
        let pairs: Vec<(u32, [Figures; 2])> =
            rounds.iter().filter_map(|round| Some((*round, case.pair(lines, *round)?))).collect();
        for (round, pair) in &pairs {
            let (etcd, muster, ratio) = (pair[0].cells(), pair[1].cells(), case.ratio(pair));
            each += &format!("| {round} | {} | {} | {etcd} | {muster} | {ratio:.2} |\n", case.name, case.clients);
        }
        let of = |system: usize| Figures::medians(&pairs.iter().map(|(_, pair)| pair[system]).collect::<Vec<_>>());
        let mut ratios: Vec<f64> = pairs.iter().map(|(_, pair)| case.ratio(pair)).collect();
        ratios.sort_by(f64::total_cmp);
        let [Some(least), Some(most)] = [ratios.first(), ratios.last()] else {
            medians += &format!("| {} | {} | not measured |\n", case.name, case.clients);
            continue;
        };
        let shown = format!("**{:.2}** ({least:.2} to {most:.2})", median(ratios.clone()));
        let (goal, reached) = case.goal(median(ratios.clone()));
        let reached = if reached { "yes" } else { "no" };
        let (etcd, muster) = (of(0).cells(), of(1).cells());
        medians +=
            &format!("| {} | {} | {etcd} | {muster} | {shown} | {goal} | {reached} |\n", case.name, case.clients);
    }
    let head = head("operation | clients", &["ratio", "goal", "reached"]);
    format!("Rounds:\n\n{each}\nMedians:\n\n{head}{medians}")
}

fn notes() -> &'static str {
    "Ratio: Muster's rate to etcd's of the same round, with one client its p50 to etcd's; in the second table the median of the rounds' \
     ratios (smallest to largest). Processor: time per operation of all three daemons + of the load generator, with connecting all \
     clients. Muster by REST is beside etcd over gRPC.\n"
}

fn syscalls(lines: &[Line]) -> String {
    let mut text = String::new();
    for line in lines {
        let (Some(syscalls), Some(run)) = (line.syscalls, line.output.runs.first()) else { continue };
        let each = |count: u64| count as f64 / run.ops.max(1) as f64;
        text += &format!(
            "System calls per {} of {}, {} clients, all daemons, under perf: {:.1}, of them {:.3} that sync a disk.\n",
            run.op,
            line.system,
            run.clients,
            each(syscalls),
            each(line.syncs.unwrap_or_default())
        );
    }
    text
}

/// Errors and changes of the leader: with one of them a run is not comparable.
fn disturbances(lines: &[Line]) -> Vec<String> {
    let runs = lines.iter().flat_map(|line| line.output.runs.iter().map(move |run| (line, run)));
    let disturbed = runs.filter(|(_, run)| run.errors + run.leader_changes > 0);
    let shown = disturbed.map(|(line, run)| {
        let Run { op, via, clients, errors, leader_changes, .. } = run;
        let (round, system) = (line.round, &line.system);
        format!(
            "Round {round}, {system} {op} {via}, {clients} clients: {errors} errors, {leader_changes} leader changes.\n"
        )
    });
    shown.collect()
}

/// Prints the comparison of the runs on standard input.
pub fn run() -> Outcome<()> {
    let mut lines = Vec::new();
    for text in std::io::stdin().lock().lines() {
        let text = text.map_err(|error| error.to_string())?;
        lines.push(serde_json::from_str::<Line>(&text).map_err(|error| format!("{error}: {text}"))?);
    }
    let disturbed = disturbances(&lines);
    println!("{}\n{}{}{}", tables(&lines), notes(), syscalls(&lines), disturbed.concat());
    match disturbed.len() {
        0 => Ok(()),
        runs => Err(format!("{runs} runs had errors or another leader: not comparable")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(round: u32, system: &str, (op, via, clients): (&str, &str, u32), (per_s, p50_ms): (f64, f64)) -> Line {
        let run = Run { op: op.into(), via: via.into(), clients, per_s, p50_ms, ops: 1000, ..Run::default() };
        let (daemons_ms, client_ms, output) = (200.0, 50.0, Output { runs: vec![run] });
        Line { round, system: system.into(), daemons_ms, client_ms, syscalls: None, syncs: None, output }
    }

    #[test]
    fn median_is_in_the_middle() {
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![4.0, 1.0]), median(Vec::new())), (2.0, 2.5, 0.0));
    }

    #[test]
    fn ratios_are_of_the_same_round_and_meet_their_goals() {
        let (many, one, rest) = (("cas", "native", 64), ("cas", "native", 1), ("cas", "rest", 64));
        let mut lines = Vec::new();
        for (round, etcd, muster) in [(1, 100.0, 300.0), (2, 200.0, 900.0), (3, 50.0, 210.0)] {
            lines.push(line(round, ETCD, ("cas", "grpc", 64), (etcd, 1.0)));
            lines.push(line(round, MUSTER, many, (muster, 1.0)));
            lines.push(line(round, MUSTER, rest, (etcd / 2.0, 1.0)));
            lines.push(line(round, ETCD, ("cas", "grpc", 1), (1.0, 1.0)));
            lines.push(line(round, MUSTER, one, (1.0, 0.7)));
        }
        // A run under perf is slower, and no part of the tables.
        lines.insert(0, Line { syscalls: Some(30_000), syncs: Some(1), ..line(1, MUSTER, many, (1.0, 9.0)) });
        let text = tables(&lines);
        for row in [
            "| 2 | compare-and-swap | 64 | 200 | 1.00 | 0.00 | 200 + 50 | 900 | 1.00 | 0.00 | 200 + 50 | 4.50 |",
            "| 300 | 1.00 | 0.00 | 200 + 50 | **4.20** (3.00 to 4.50) | at least 4.0 | yes |",
            "| compare-and-swap, Muster by REST | 64 | 100 | 1.00 | 0.00 | 200 + 50 | 50 |",
            "| **0.50** (0.50 to 0.50) | at least 1.0 | no |",
            "| **0.70** (0.70 to 0.70) | p50, at most 0.6 | no |",
            "| linearizable read | 256 | not measured |",
        ] {
            assert!(text.contains(row), "{row} in\n{text}");
        }
        let columns: BTreeSet<usize> = text.lines().map(|row| row.matches('|').count()).collect();
        assert_eq!(columns, BTreeSet::from([0, 4, 13, 14]), "rows have their head's columns");
        let counted = "System calls per cas of muster, 64 clients, all daemons, under perf: 30.0, of them 0.001 that sync a disk.\n";
        assert_eq!(syscalls(&lines), counted);
    }

    #[test]
    fn disturbed_runs_are_listed() {
        let mut lines = vec![line(1, ETCD, ("cas", "grpc", 64), (1.0, 1.0))];
        assert!(disturbances(&lines).is_empty());
        lines[0].output.runs[0].leader_changes = 1;
        assert_eq!(disturbances(&lines), ["Round 1, etcd cas grpc, 64 clients: 0 errors, 1 leader changes.\n"]);
    }
}
