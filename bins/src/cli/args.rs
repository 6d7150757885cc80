//! The arguments of `muster`. Help texts are what users read first: they say what happens, not how.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use muster_messages::{CrashHow, ManagerPreference, Name, Role};

use super::duration::{parse_duration, parse_lifetime};

mod autolock;
mod autopilot;
mod bench;
mod ca;
mod dashboard;
mod events;
mod lease;
mod reconciler;
mod workload;

pub use self::autolock::{AutolockCommand, SealWait, UNLOCK_HELP, UnlockArgs};
pub use self::autopilot::{AutopilotCommand, ClusterCommand, Declared, DrainArgs, SetArgs};
pub use self::bench::{BenchArgs, BenchCaller, BenchCommand, BenchFleet, BenchLeases, BenchOp, BenchSealing, Via};
pub use self::ca::{CaCommand, RootArg, RotateArgs};
pub use self::dashboard::DashboardArgs;
pub use self::events::EventsArgs;
pub use self::lease::{GuardCommand, KubeconfigArgs, LeaseArgs, LeaseCommand};
pub use self::reconciler::{
    Installed, MemberCommand, MemberName, ObjectCommand, ObjectName, ReconcilerCommand, ReconcilerName, ReleaseCommand,
};
use self::reconciler::{MEMBER_HELP, OBJECT_HELP, RECONCILER_HELP, RELEASE_HELP};
pub use self::workload::{WorkloadArgs, WorkloadCommand};

/// Muster: cluster membership, node roles, certificates and leader election.
#[derive(Debug, Parser)]
#[command(name = "muster", version, max_term_width = 100, after_help = EXIT_STATUS_HELP)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_STATUS_HELP: &str = "Exit status: 0 done · 1 unexpected failure · 2 usage error · 3 timed out waiting · 4 no such object · \
5 unreachable or no quorum · 6 refused, nothing changed · 7 lease or admission lost while the command ran · 8 conflict: the object changed

First steps: `muster dev up` starts a cluster on this machine, `muster status` shows its state, `muster dev tour` \
demonstrates role changes and failures.";

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Admin socket of the daemon [default: that of a running dev cluster, else /run/muster/muster.sock]
    #[arg(long, global = true, value_name = "PATH", env = "MUSTER_SOCKET")]
    pub socket: Option<PathBuf>,
    /// How long to wait for an answer [default: 30s]
    // No default in clap: `elect` and `wait-ready` have the same flag without a limit, and would inherit it.
    #[arg(long, global = true, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Print tables, or one JSON document
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table")]
    pub output: Format,
    /// Print only the requested value
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Connect over TLS with this identity file (from `muster user create`)
    #[arg(long, global = true, value_name = "FILE")]
    pub identity: Option<PathBuf>,
}

impl Global {
    /// The time limit of one answer.
    pub fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(30))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Table,
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show an overview of the cluster
    Status(WatchedArgs),
    /// Manage nodes and their roles
    #[command(subcommand)]
    Node(NodeCommand),
    /// Declare the number of managers
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Show and pause the autopilot, which keeps the declared number of managers
    #[command(subcommand)]
    Autopilot(AutopilotCommand),
    /// Manage join tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// List and renew node certificates
    #[command(subcommand)]
    Cert(CertCommand),
    /// Show and replace the roots of the certificate authority
    #[command(subcommand)]
    Ca(CaCommand),
    /// Seal managers' disks under a key that each of them needs to start
    #[command(subcommand)]
    Autolock(AutolockCommand),
    /// Give a locked daemon its unlock key
    #[command(after_help = UNLOCK_HELP)]
    Unlock(UnlockArgs),
    /// Manage identity files for people and programs
    #[command(subcommand)]
    User(UserCommand),
    /// Manage workloads: programs on nodes that get SPIFFE identities of the cluster
    #[command(subcommand)]
    Workload(WorkloadCommand),
    /// List blocked nodes
    #[command(subcommand)]
    Blocklist(BlocklistCommand),
    /// Manage leases: holder, expiry, fencing token
    Lease(LeaseArgs),
    /// Run a command only while holding a lease
    Elect(super::elect::ElectArgs),
    /// Wait until every gate of a scope admits this release, and run a command only while admitted
    WaitReady(super::wait_ready::WaitReadyArgs),
    /// Print a kubeconfig with which unmodified Kubernetes clients use this cluster for their leases
    Kubeconfig(KubeconfigArgs),
    /// Manage desired state that one node of the newest release applies, gated on serving members
    #[command(subcommand, after_help = RECONCILER_HELP)]
    Reconciler(ReconcilerCommand),
    /// Declare which release of each application this machine can run
    #[command(subcommand, after_help = RELEASE_HELP)]
    Release(ReleaseCommand),
    /// Manage members of scopes: announced, serving, draining
    #[command(subcommand, after_help = MEMBER_HELP)]
    Member(MemberCommand),
    /// Manage objects in Muster's own store
    #[command(subcommand, after_help = OBJECT_HELP)]
    Object(ObjectCommand),
    /// Show the Raft status, transfer leadership
    #[command(subcommand)]
    Raft(RaftCommand),
    /// Show the live actor tree
    Actors(ActorsArgs),
    /// List events in order
    Events(EventsArgs),
    /// Show the cluster in a browser on this machine, until Ctrl-C
    Dashboard(DashboardArgs),
    /// Write the whole state, root key included, to a file for `musterd --restore FILE`
    Backup {
        /// A new file, or `-` for stdout
        file: PathBuf,
    },
    /// Reopen a cluster after `musterd --restore`
    #[command(subcommand)]
    Recovery(RecoveryCommand),
    /// Run a cluster of real processes on this machine
    #[command(subcommand)]
    Dev(DevCommand),
    /// Load a running cluster, or measure role changes and leases
    Bench(BenchArgs),
    /// Print completions for a shell: source them, or install them where the shell looks for them
    Completion { shell: clap_complete::Shell },
    /// Write manual pages of muster and musterd into a directory, for packages
    #[command(hide = true)]
    Man { dir: PathBuf },
}

#[derive(Clone, Copy, Debug, Args)]
pub struct FreshArg {
    /// Fail without a quorum instead of answering from the local replica
    #[arg(long)]
    pub fresh: bool,
}

#[derive(Clone, Copy, Debug, Args)]
pub struct WatchedArgs {
    #[command(flatten)]
    pub fresh: FreshArg,
    /// Refresh every second, in place on a terminal; Ctrl-C stops
    #[arg(long)]
    pub watch: bool,
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List nodes
    Ls(WatchedArgs),
    /// Show all details of one node
    Inspect {
        /// Id, unique prefix of an id, or unique name
        node: String,
        #[command(flatten)]
        fresh: FreshArg,
    },
    /// Promote worker nodes to manager
    Promote(RoleChange),
    /// Demote managers to worker
    Demote(RoleChange),
    /// Remove nodes and block their identities
    Rm {
        /// Id, at least 8 characters of it, or name
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
        /// Remove even a node that is up, or a manager that is down
        #[arg(long)]
        force: bool,
    },
    /// Check that the others keep a quorum while a node is stopped, as for an upgrade (else exit 6, and why)
    MayStop {
        /// Id, unique prefix of an id, or unique name
        node: String,
        /// Wait until it may be stopped [default when given: 10m]
        #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "10m", value_parser = parse_duration)]
        wait: Option<Duration>,
    },
    /// Rename a node. Once it has joined, the name that it reports itself is only a hint
    Rename {
        /// Id, at least 8 characters of it, or name
        node: String,
        /// 1 to 63 of [a-z0-9._-], not a prefix of another node's id
        name: Name,
    },
    /// Announce maintenance of a node: it gives up leadership, and is neither promoted nor replaced before the drain ends
    Drain(DrainArgs),
    /// Announce that a node is back
    Undrain {
        /// Id, unique prefix of an id, or unique name
        node: String,
    },
    /// Change a node's labels, and whether the autopilot may make it a manager
    Update {
        node: String,
        /// Add or replace a label
        #[arg(long, value_name = "K=V", value_parser = parse_label)]
        label_add: Vec<(String, String)>,
        /// Remove a label
        #[arg(long, value_name = "K")]
        label_rm: Vec<String>,
        /// Update only if the node is at this generation (else exit 8)
        #[arg(long, value_name = "N")]
        generation: Option<u64>,
        /// Where a number of managers is declared: whether this node is chosen before others, like others, or never
        #[arg(long, value_name = "prefer|allow|never")]
        manager: Option<ManagerPreference>,
    },
}

#[derive(Debug, Args)]
pub struct RoleChange {
    /// Id, at least 8 characters of it, or name
    #[arg(required = true, value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Wait until the change has settled [default when given: 30s]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "30s", value_parser = parse_duration)]
    pub wait: Option<Duration>,
}
impl RoleChange {
    /// An argument that is a duration instead of a node: `--wait 5s n4` means `--wait=5s n4`.
    pub fn misplaced_duration(&self) -> Option<&str> {
        let time = |text: &&String| parse_duration(text).is_ok();
        self.nodes.iter().find(time).filter(|_| self.wait.is_some()).map(String::as_str)
    }
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a join token
    Create {
        #[arg(long)]
        role: Role,
        /// Validity [default: unlimited]
        #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
        ttl: Option<Duration>,
        /// Number of joins [default: unlimited]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        uses: Option<u32>,
    },
    /// List tokens, without their secrets. Default tokens never expire
    Ls,
    /// Revoke a token
    Revoke { id: String },
    /// Replace a role's default token; the old one admits no more nodes
    Rotate { role: Role },
    /// Show a role's default token (-q: only the token)
    Show { role: Role },
}

#[derive(Debug, Subcommand)]
pub enum CertCommand {
    /// List node certificates
    Ls,
    /// Ask nodes to renew their certificates now
    Rotate {
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
        /// Revoke earlier certificates as soon as the node has connected with its new one
        #[arg(long)]
        revoke: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum RecoveryCommand {
    /// Admit nodes, joins and users to a restored cluster. First repeat the removals made after the backup. Needs the socket
    /// of the node that restored it
    Open,
}

#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Create an identity file; its key never leaves this machine
    Create {
        name: Name,
        /// An operator with all rights
        #[arg(long)]
        admin: bool,
        /// A read-only operator: everything except secrets, in every namespace
        #[arg(long, conflicts_with_all = ["admin", "namespace"])]
        read_only: bool,
        /// A namespace whose leases the user may hold
        #[arg(long, value_name = "NS")]
        namespace: Vec<String>,
        /// Validity of the certificate
        #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
        ttl: Option<Duration>,
        /// Output file, or `-` for stdout [default: NAME.identity.json]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Replace a user's key and valid certificate, which ends the old one; rights and bearer tokens stay
    Renew {
        name: Name,
        /// Validity of the new certificate
        #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
        ttl: Option<Duration>,
        /// Output file, or `-` for stdout. Replaces an identity of the same user [default: NAME.identity.json]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// List users
    Ls,
    /// Revoke a user's certificate
    Revoke { name: Name },
}

#[derive(Debug, Subcommand)]
pub enum BlocklistCommand {
    /// List blocked node ids
    Ls(FreshArg),
}

#[derive(Debug, Subcommand)]
pub enum RaftCommand {
    /// Show members, term and replication progress
    Status(FreshArg),
    /// Transfer leadership to NODE, or to the most up-to-date voter
    TransferLeader { node: Option<String> },
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ActorsArgs {
    #[command(subcommand)]
    pub command: Option<ActorsCommand>,
    /// Show the tree of every node
    #[arg(long)]
    pub all: bool,
    /// Refresh every second, in place on a terminal; Ctrl-C stops
    #[arg(long)]
    pub watch: bool,
    /// Show the tree of a node, or of the leader [default: the node that answers; its name is shown]
    #[arg(long, value_name = "NODE|leader", conflicts_with = "all")]
    pub node: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum ActorsCommand {
    /// Show one actor and its state
    Inspect(ActorTarget),
    /// Stop an actor; its supervisor restarts it
    Restart(ActorTarget),
    /// Make an actor fail (needs `[debug] crash = true` in that daemon's configuration)
    Crash {
        #[command(flatten)]
        at: ActorTarget,
        #[arg(long, default_value = "panic")]
        how: CrashMode,
        /// With `--how start`: consecutive failed starts. The default is one more than a supervisor tolerates
        #[arg(long, value_name = "N", default_value_t = CrashHow::STARTS)]
        times: u32,
    },
}

#[derive(Debug, Args)]
pub struct ActorTarget {
    /// As shown by `muster actors`, such as node/manager/leader/role-manager
    pub path: String,
    /// Ask this node, or the leader [default: the leader for node/manager/leader and below, else the node that answers]
    #[arg(long, value_name = "NODE|leader")]
    pub node: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum CrashMode {
    Panic,
    Error,
    Kill,
    /// The handler hangs for 30 s: a restart then reaches the stop deadline
    Hang,
    /// The actor is restarted, and its next starts fail
    Start,
}
impl CrashMode {
    pub fn times(self, times: u32) -> CrashHow {
        match self {
            Self::Panic => CrashHow::Panic,
            Self::Error => CrashHow::Error,
            Self::Kill => CrashHow::Kill,
            Self::Hang => CrashHow::Hang,
            Self::Start => CrashHow::Start { times },
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum DevCommand {
    /// Start a cluster; Ctrl-C stops it
    Up {
        #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=9))]
        managers: u16,
        #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=50))]
        workers: u16,
        #[command(flatten)]
        dir: DevDir,
        /// Run in the background; `muster dev down` stops the cluster. Run again, it starts the nodes that have ended
        #[arg(long)]
        detach: bool,
    },
    /// Stop the cluster; keep its data
    Down {
        #[command(flatten)]
        dir: DevDir,
    },
    /// Demonstrate role changes, failures and recovery on a temporary cluster
    Tour,
}

#[derive(Clone, Debug, Args)]
pub struct DevDir {
    /// Data folder of the nodes
    #[arg(long, default_value = "./.muster")]
    pub dir: PathBuf,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn clap_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wait_flag_never_takes_a_node_as_its_duration() {
        let change = |line: &str| match parse(line).unwrap().command {
            Command::Node(NodeCommand::Promote(change)) => (change.nodes, change.wait),
            other => panic!("{other:?}"),
        };
        assert_eq!(change("muster node promote a b").1, None);
        let (nodes, wait) = change("muster node promote --wait n4");
        assert_eq!((nodes, wait), (vec!["n4".into()], Some(Duration::from_secs(30))));
        let (_, wait) = change("muster node promote n4 --wait=500ms");
        assert_eq!(wait, Some(Duration::from_millis(500)));
    }

    #[test]
    fn duration_after_wait_is_not_a_node() {
        let change = |line: &str| match parse(line).unwrap().command {
            Command::Node(NodeCommand::Promote(change)) => change,
            other => panic!("{other:?}"),
        };
        assert_eq!(change("muster node promote --wait 5s n4").misplaced_duration(), Some("5s"));
        assert_eq!(change("muster node promote --wait=5s n4").misplaced_duration(), None);
        assert_eq!(change("muster node promote 5s").misplaced_duration(), None, "a node may have that name");
    }

    #[test]
    fn tokens_and_users_with_zero_validity_are_refused() {
        for line in
            ["token create --role worker --uses 0", "token create --role worker --ttl 0s", "user create ann --ttl 0ms"]
        {
            assert!(parse(&format!("muster {line}")).is_err(), "{line}");
        }
        assert!(parse("muster token create --role worker --uses 1 --ttl 1s").is_ok());
    }

    #[test]
    fn global_flags_are_accepted_anywhere() {
        let cli = parse("muster node ls -o json -q --socket a.sock").unwrap();
        assert_eq!(cli.global.output, Format::Json);
        assert!(cli.global.quiet && cli.global.socket.is_some());
    }

    #[test]
    fn unimplemented_commands_do_not_exist() {
        for line in ["autolock rotate --data", "wait-ready"] {
            assert!(parse(&format!("muster {line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn rotation_flags_are_read() {
        let rotate = |line: &str| match parse(line).unwrap().command {
            Command::Ca(CaCommand::Rotate(args)) => args,
            other => panic!("{other:?}"),
        };
        assert_eq!(rotate("muster ca rotate").wait, None);
        assert_eq!(rotate("muster ca rotate --wait --compromised").wait, Some(Duration::from_secs(600)));
        let prepared = rotate("muster ca rotate --prepare --wait=5s");
        assert!(prepared.prepare && !prepared.compromised && prepared.wait == Some(Duration::from_secs(5)));
        for line in
            ["ca ls -q", "ca status", "ca abort", "ca activate 4be3", "ca retire 4be3 --force", "ca revoke 4be3"]
        {
            assert!(parse(&format!("muster {line}")).is_ok(), "{line}");
        }
        for line in ["ca activate", "ca retire", "ca rotate 5s", "ca revoke 4be3 --force"] {
            assert!(parse(&format!("muster {line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn autolock_ends_only_with_confirmation() {
        assert!(parse("muster autolock off").is_err() && parse("muster autolock off --yes --wait").is_ok());
        let Command::Autolock(AutolockCommand::Key { version }) =
            parse("muster autolock key --version 418").unwrap().command
        else {
            panic!("another command")
        };
        assert_eq!(version, Some(muster_messages::Revision(418)));
        for line in ["autolock on", "autolock rotate --wait=1m", "autolock status -q", "unlock", "unlock --key-file -"]
        {
            assert!(parse(&format!("muster {line}")).is_ok(), "{line}");
        }
        for line in ["autolock on 5s", "unlock MSTR-UNLOCK-1-x", "autolock key --version x"] {
            assert!(parse(&format!("muster {line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn every_ca_command_has_an_example() {
        let command = Cli::command();
        let ca = command.get_subcommands().find(|c| c.get_name() == "ca").unwrap();
        for command in ca.get_subcommands().filter(|c| c.get_name() != "show") {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("Example: muster ca {}", command.get_name())), "{}", command.get_name());
        }
    }

    #[test]
    fn guarded_command_after_two_dashes_keeps_its_flags() {
        let Command::Elect(args) =
            parse("muster elect job -n blue --lease-duration 1s -- run -o json -n 3").unwrap().command
        else {
            panic!("another command")
        };
        assert_eq!((args.lease.as_str(), args.namespace.as_str()), ("job", "blue"));
        assert_eq!(args.command, ["run", "-o", "json", "-n", "3"]);
        assert!(parse("muster elect job run").is_err() && parse("muster elect job").is_err());
    }

    #[test]
    fn actors_without_subcommand_lists_actors() {
        assert!(parse("muster actors").is_ok() && parse("muster actors --all -o json").is_ok());
        assert!(parse("muster actors crash node/agent --how kill --node leader").is_ok());
        assert!(parse("muster actors --all --node n1").is_err());
        assert!(parse("muster bench roles --rounds 3").is_ok());
        assert!(parse("muster bench --op read --clients 1,64 --via rest").is_ok());
        assert!(parse("muster bench leases --leases 1000 --for 30s --kill-leader 5s").is_ok());
    }
}
