//! The arguments of `muster bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::duration::{parse_duration, parse_lifetime};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// Operation: replicated label writes, lease updates guarded by the revision (cas), linearizable reads, or reads of
    /// the whole actor tree [default: write and read]
    #[arg(long)]
    pub op: Option<BenchOp>,
    /// Protocol: muster-api/1, or HTTP (leases as Kubernetes clients do, labels in `/v1`)
    #[arg(long, default_value = "native")]
    pub via: Via,
    /// Whose requests they are: an operator's, or those of a user, who changes its leases (`cas`) or reads them (`read`). It is created for the run
    #[arg(long = "as", value_name = "KIND", default_value = "operator")]
    pub caller: BenchCaller,
    /// Concurrent clients, one run per number
    #[arg(long, value_delimiter = ',', default_value = "1,64,256", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub clients: Vec<u32>,
    /// Operations per run
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: u64,
    /// Duration of a run, instead of a number of operations
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with = "ops")]
    pub lasting: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure join, promotion, demotion and leader loss on a temporary cluster
    Roles {
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: u32,
    },
    /// Hold many leases on a temporary cluster; show latency and cost of renewals, and lost leases
    Leases(BenchLeases),
    /// Run many agents in this process against a temporary cluster of three managers; show what they cost, and how long they take to join,
    /// to learn of a change, and to return when managers end
    Fleet(BenchFleet),
    /// Measure what sealing costs on a disk, without a cluster: a manager's writes in clear and sealed in turn, and the pause while its data
    /// key is replaced
    Sealing(BenchSealing),
}

#[derive(Debug, Args)]
pub struct BenchSealing {
    /// Folder on the disk to measure, for temporary files [default: that of temporary files, which may be in memory]
    #[arg(long, value_name = "FOLDER")]
    pub dir: Option<PathBuf>,
    /// Number of rounds; in each a new directory in clear is written, and a sealed one
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Number of batches of 64 entries of 1 KiB in each directory, one sync each
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    pub batches: u32,
    /// Size of the state whose data key is replaced, in MiB
    #[arg(long, default_value_t = 64, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub state: u32,
}

/// The most agents of a fleet: while one of its three managers is down, the other two have all sessions.
const MAX_AGENTS: u32 = 16_000;

fn parse_agents(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(agents @ 1..=MAX_AGENTS) => Ok(agents),
        Ok(0) => Err("a fleet has at least one agent".to_owned()),
        Ok(_) => Err(format!(
            "the maximum is {MAX_AGENTS}: while one of the three managers is down, the other two accept 8192 sessions each ([gateway] \
             max_connections)"
        )),
        Err(error) => Err(format!("not a number of agents: {error}")),
    }
}

#[derive(Debug, Args)]
pub struct BenchFleet {
    /// Number of agents, each with its own identity and session
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = parse_agents)]
    pub agents: u32,
    /// Number of agents that join at once [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub joining: Option<u32>,
    /// Duration of the measurement of idle agents
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = parse_lifetime)]
    pub idle: Duration,
    /// Number of role changes of one node, one after the other
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub changes: u32,
    /// Time limit of each step
    #[arg(long, default_value = "10m", value_name = "DURATION", value_parser = parse_lifetime)]
    pub limit: Duration,
    /// Each agent's node also waits for definitions of reconcilers, over a second connection, as `musterd` does
    #[arg(long)]
    pub reconcilers: bool,
}

#[derive(Debug, Args)]
pub struct BenchLeases {
    /// Number of leases
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub leases: u32,
    /// Number of sessions that hold them, each with its own connection
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub sessions: u32,
    /// Renewal period of each lease
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = parse_duration)]
    pub every: Duration,
    /// Validity of a renewal; a holder steps down after two thirds of it
    #[arg(long, default_value = "15s", value_name = "DURATION", value_parser = parse_duration)]
    pub lease_duration: Duration,
    /// Duration of the measurement, once all leases are held
    #[arg(long = "for", default_value = "60s", value_name = "DURATION", value_parser = parse_duration)]
    pub lasting: Duration,
    /// Kill the leader (kill -9) this long into the measurement
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub kill_leader: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchOp {
    Write,
    Cas,
    Read,
    Actors,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchCaller {
    Operator,
    User,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Via {
    Native,
    Rest,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::{Cli, Command};

    fn fleet(flags: &str) -> Result<BenchFleet, clap::Error> {
        let words = ["muster", "bench", "fleet"].into_iter().chain(flags.split_whitespace());
        let Command::Bench(args) = Cli::try_parse_from(words)?.command else { panic!("another command") };
        let Some(BenchCommand::Fleet(fleet)) = args.command else { panic!("another benchmark") };
        Ok(fleet)
    }

    #[test]
    fn fleet_fits_on_two_managers_and_the_refusal_says_so() {
        let limit = muster_gateway::GatewayConfig::default().max_identified;
        assert!(MAX_AGENTS as usize <= 2 * limit);
        assert_eq!(fleet("--agents 16000").unwrap().agents, 16_000);
        for (agents, why) in [
            (
                "16001",
                format!(
                    "the maximum is 16000: while one of the three managers is down, the other two accept {limit} sessions"
                ),
            ),
            ("0", "a fleet has at least one agent".to_owned()),
            ("many", "not a number of agents".to_owned()),
        ] {
            let refused = fleet(&format!("--agents {agents}")).unwrap_err().to_string();
            assert!(refused.contains(&why), "{refused}");
        }
    }

    #[test]
    fn sealing_is_measured_on_a_disk_of_choice() {
        let sealing = |flags: &str| -> Result<BenchSealing, clap::Error> {
            let words = ["muster", "bench", "sealing"].into_iter().chain(flags.split_whitespace());
            let Command::Bench(args) = Cli::try_parse_from(words)?.command else { panic!("another command") };
            let Some(BenchCommand::Sealing(sealing)) = args.command else { panic!("another benchmark") };
            Ok(sealing)
        };
        let plain = sealing("").unwrap();
        assert_eq!((plain.rounds, plain.batches, plain.state, plain.dir), (10, 200, 64, None));
        let given = sealing("--dir /srv --rounds 1 --batches 500 --state 256").unwrap();
        assert_eq!((given.batches, given.state, given.dir), (500, 256, Some(PathBuf::from("/srv"))));
        for wrong in ["--rounds 0", "--batches 0", "--state 0", "--state 64MiB"] {
            assert!(sealing(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn fleet_has_agents_and_bounded_steps() {
        let plain = fleet("").unwrap();
        assert_eq!((plain.agents, plain.changes, plain.joining, plain.reconcilers), (1000, 100, None, false));
        assert_eq!((plain.idle.as_secs(), plain.limit.as_secs()), (30, 600));
        let given = fleet("--agents 10000 --joining 500 --idle 5s --changes 0 --limit 1m --reconcilers").unwrap();
        assert_eq!((given.agents, given.changes, given.joining), (10_000, 0, Some(500)));
        assert!(given.reconcilers);
        for wrong in ["--agents -1", "--joining 0", "--idle 0s", "--limit 0s", "--clients 4"] {
            assert!(fleet(wrong).is_err(), "{wrong}");
        }
    }
}
