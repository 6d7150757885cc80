//! Attacks on a cluster that it starts. With `musterd` as first argument the process is the attacked daemon.

use std::time::Duration;

use clap::{Parser, Subcommand};
use muster_attacks::cluster::Cluster;
use muster_attacks::flood::{self, Door, Flood, HonestLoad, Kind, Row, Who};
use muster_attacks::rush::{self, Rush};
use muster_client::Outcome;

#[derive(Parser)]
#[command(name = "muster-attack", about = "Attacks a Muster cluster that it starts on this machine.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Floods the leader, service by service, and prints a table.
    Flood {
        /// How long each flood lasts
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Only these kinds
        #[arg(long, value_enum, value_delimiter = ',')]
        kind: Vec<Kind>,
        /// Only these endpoints
        #[arg(long, value_enum, value_delimiter = ',')]
        door: Vec<Door>,
        /// Only with these identities
        #[arg(long, value_enum, value_delimiter = ',')]
        who: Vec<Who>,
        /// All endpoints of one kind at the same time, instead of one after the other
        #[arg(long)]
        together: bool,
        /// Managers of the cluster
        #[arg(long, default_value_t = 3)]
        managers: usize,
        /// Between two joins of honest nodes
        #[arg(long, default_value_t = 2000)]
        join_every_ms: u64,
    },
    /// Sends well-formed requests from one client at full speed, endpoint by endpoint, and prints a table
    Rush {
        /// Requests of each run
        #[arg(long, default_value_t = 100_000)]
        requests: usize,
        /// Connections of the client
        #[arg(long, default_value_t = 64)]
        connections: usize,
        /// Only these endpoints
        #[arg(long, value_enum, value_delimiter = ',')]
        door: Vec<rush::Door>,
        /// Only these requests
        #[arg(long, value_enum, value_delimiter = ',')]
        say: Vec<rush::Say>,
        /// Managers of the cluster
        #[arg(long, default_value_t = 3)]
        managers: usize,
    },
}

fn main() -> std::process::ExitCode {
    muster_local_cluster::parent::die_with_parent();
    let args: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if args.get(1).is_some_and(|first| first == "musterd") {
        return muster::daemon::main(args.into_iter().skip(1));
    }
    if args.get(1).is_some_and(|first| first == "muster") {
        return muster::cli::main(args.into_iter().skip(1));
    }
    let cli = Cli::parse_from(args);
    // If it cannot be raised, the floods hold fewer connections, and the table shows how many.
    let _refused = muster::open_files::raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    match runtime.block_on(run(cli.command)) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Outcome {
    let (seconds, kind, door, who, together, managers, join_every_ms) = match command {
        Command::Rush { requests, connections, door, say, managers } => {
            let wanted = |(d, s): &(rush::Door, rush::Say)| {
                (door.is_empty() || door.contains(d)) && (say.is_empty() || say.contains(s))
            };
            let rushes = rush::every().filter(wanted);
            return all_rushes(rushes.map(|(door, say)| Rush { door, say, requests, connections }), managers).await;
        }
        Command::Flood { seconds, kind, door, who, together, managers, join_every_ms } => {
            (seconds, kind, door, who, together, managers, join_every_ms)
        }
    };
    let program = std::env::current_exe().expect("this program has a path");
    let cluster = Cluster::with_shipped_timing(&program, managers, 1).await?;
    let (victim, _) = cluster.leader("n1").await?;
    let wanted = |(k, d, w): &(Kind, Door, Who)| {
        (kind.is_empty() || kind.contains(k))
            && (door.is_empty() || door.contains(d))
            && (who.is_empty() || who.contains(w))
    };
    let mut groups: Vec<Vec<(Kind, Door, Who)>> = Vec::new();
    for one in flood::every().filter(wanted) {
        match groups.last_mut() {
            Some(group) if together && group[0].0 == one.0 => group.push(one),
            _ => groups.push(vec![one]),
        }
    }
    println!("{}", flood::header());
    let meanwhile = HonestLoad { join_every: Duration::from_millis(join_every_ms) };
    for group in groups {
        let floods: Vec<Flood> = group
            .iter()
            .map(|(kind, door, who)| {
                let (kind, door, who) = (*kind, *door, *who);
                Flood { kind, door, who, connections: kind.connections(), lasts: Duration::from_secs(seconds) }
            })
            .collect();
        let what = match group.as_slice() {
            [(kind, door, who)] => format!("{kind:?} {door:?} {who:?}"),
            many => format!("{:?} on {} endpoints at once", many[0].0, many.len()),
        };
        let seen = flood::flood(&cluster, &victim, &floods, meanwhile).await?;
        println!("{}", Row { what, seen: &seen });
        let slow = seen.slow_joins.iter().take(2);
        for line in seen.failed_joins.iter().chain(slow).chain(seen.logged.errors.iter().take(3)) {
            println!("<!-- {line} -->");
        }
        if seen.logged.worst.0 > 1 {
            println!("<!-- most often: {} -->", seen.logged.worst.1);
        }
    }
    Ok(())
}

/// Each against its own cluster, so that costs are not mixed.
async fn all_rushes(rushes: impl Iterator<Item = Rush>, managers: usize) -> Outcome {
    let program = std::env::current_exe().expect("this program has a path");
    println!("{}", rush::header());
    for rush in rushes {
        let cluster = Cluster::with_shipped_timing(&program, managers, 0).await?;
        let (victim, _) = cluster.leader("n1").await?;
        let seen = rush::rush(&cluster, &victim, rush).await?;
        println!("{}", rush::Row(rush, &seen));
        for line in seen.failed.iter().chain(seen.answers.other.keys()).take(5) {
            println!("<!-- {line} -->");
        }
    }
    Ok(())
}
