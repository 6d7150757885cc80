//! What `muster` accepts. Help texts are the users' first manual: they say what happens, not how.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use muster_messages::{CrashHow, Name, Role};

use super::duration::{parse_duration, parse_lifetime};

mod bench;
mod lease;
mod reconciler;

pub use self::bench::{BenchArgs, BenchCommand, BenchLeases, BenchOp, Via};
pub use self::lease::{GuardCommand, KubeconfigArgs, LeaseArgs, LeaseCommand};
use self::reconciler::{MEMBER_HELP, OBJECT_HELP, RECONCILER_HELP};
pub use self::reconciler::{MemberCommand, MemberName, ObjectCommand, ObjectName, ReconcilerCommand, ReconcilerName};

/// Muster: who is a member, which role each node holds, who may talk to whom, and who leads.
#[derive(Debug, Parser)]
#[command(name = "muster", version, max_term_width = 100, after_help = EXITS)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

const EXITS: &str = "Exit status: 0 done · 1 unexpected failure · 2 usage · 3 gave up waiting · 4 no such object · \
5 unreachable or no quorum · 6 refused, nothing changed · 7 the lease or the admission was lost while the command ran · 8 changed meanwhile

First steps: `muster dev up` starts a real cluster on this machine, `muster status` shows it, `muster dev tour` \
tells its story.";

/// Flags of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// Admin socket of the daemon to talk to [default: a running dev cluster's, else /run/muster/muster.sock]
    #[arg(long, global = true, value_name = "PATH", env = "MUSTER_SOCKET")]
    pub socket: Option<PathBuf>,
    /// How long to wait for an answer [default: 30s]
    // Without a default of its own: commands that may wait for ever have the same flag, and would be handed it.
    #[arg(long, global = true, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Tables for people or one JSON document for programs
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table")]
    pub output: Format,
    /// Print only what was asked for
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Speak over TLS as this identity (a file made by `muster user create`)
    #[arg(long, global = true, value_name = "FILE")]
    pub identity: Option<PathBuf>,
}

impl Global {
    /// How long an answer may take.
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
    /// The cluster at a glance
    Status(FreshArg),
    /// Nodes and their roles
    #[command(subcommand)]
    Node(NodeCommand),
    /// Join tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// Certificates of the nodes
    #[command(subcommand)]
    Cert(CertCommand),
    /// The certificate authority
    #[command(subcommand)]
    Ca(CaCommand),
    /// Identity files for people and programs
    #[command(subcommand)]
    User(UserCommand),
    /// Nodes that no manager talks to
    #[command(subcommand)]
    Blocklist(BlocklistCommand),
    /// Leases: who holds what, until when, under which fencing token
    Lease(LeaseArgs),
    /// Run a command only while holding a lease
    Elect(super::elect::ElectArgs),
    /// Wait until every gate of a scope lets this release serve, and run a command only while they do
    WaitReady(super::wait_ready::WaitReadyArgs),
    /// Print a kubeconfig: unmodified clients of Kubernetes use this cluster as their lock server
    Kubeconfig(KubeconfigArgs),
    /// Desired state that one node of the newest release applies, gated by who serves
    #[command(subcommand, after_help = RECONCILER_HELP)]
    Reconciler(ReconcilerCommand),
    /// Who takes part in a scope: announced, serving, draining
    #[command(subcommand, after_help = MEMBER_HELP)]
    Member(MemberCommand),
    /// Objects of Muster's own store
    #[command(subcommand, after_help = OBJECT_HELP)]
    Object(ObjectCommand),
    /// The managers' consensus
    #[command(subcommand)]
    Raft(RaftCommand),
    /// The live tree of actors
    Actors(ActorsArgs),
    /// What happened, in order
    Events(EventsArgs),
    /// The whole state in a file, from which `musterd --restore FILE` founds the cluster anew. It holds the root key
    Backup {
        /// A file that does not exist yet, or `-` for stdout
        file: PathBuf,
    },
    /// After `musterd --restore`: let nodes, joins and users in again
    #[command(subcommand)]
    Recovery(RecoveryCommand),
    /// A real cluster of processes on this machine
    #[command(subcommand)]
    Dev(DevCommand),
    /// Load on a running cluster, or times of role changes
    Bench(BenchArgs),
}

#[derive(Clone, Copy, Debug, Args)]
pub struct FreshArg {
    /// Fail instead of answering from the local copy when there is no quorum
    #[arg(long)]
    pub fresh: bool,
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List the nodes
    Ls(FreshArg),
    /// Everything known of one node
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
        /// Id, at least 8 digits of it, or name
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
        /// Also when the node is up, or is a manager that is down
        #[arg(long)]
        force: bool,
    },
    /// Give a node another name. What a node calls itself is only a hint once it has joined
    Rename {
        /// Id, at least 8 digits of it, or name
        node: String,
        /// 1 to 63 of [a-z0-9._-], not the beginning of another node's id
        name: Name,
    },
    /// Change a node's labels
    Update {
        node: String,
        /// Add or replace a label
        #[arg(long, value_name = "K=V", value_parser = parse_label)]
        label_add: Vec<(String, String)>,
        /// Remove a label
        #[arg(long, value_name = "K")]
        label_rm: Vec<String>,
        /// Only if the node's generation is still this one (exit 8 if not)
        #[arg(long, value_name = "N")]
        generation: Option<u64>,
    },
}

#[derive(Debug, Args)]
pub struct RoleChange {
    /// Id, at least 8 digits of it, or name
    #[arg(required = true, value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Wait until the change is in force everywhere [default when given: 30s]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "30s", value_parser = parse_duration)]
    pub wait: Option<Duration>,
}
impl RoleChange {
    /// An argument that is a duration instead of a node: `--wait 5s n4` means `--wait=5s n4`.
    pub fn misplaced_time(&self) -> Option<&str> {
        let time = |text: &&String| parse_duration(text).is_ok();
        self.nodes.iter().find(time).filter(|_| self.wait.is_some()).map(String::as_str)
    }
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a join token
    Create {
        #[arg(long)]
        role: Role,
        /// How long it is valid [default: for ever]
        #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
        ttl: Option<Duration>,
        /// How often it can be used [default: any number of times]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        uses: Option<u32>,
    },
    /// List the tokens, without their secrets. Default tokens never expire
    Ls,
    /// Make a token useless
    Revoke { id: String },
    /// Replace the default token of a role: the old one admits no node from now on
    Rotate { role: Role },
    /// Show the default token of a role (-q: the token alone)
    Show { role: Role },
}

#[derive(Debug, Subcommand)]
pub enum CertCommand {
    /// List the nodes' certificates
    Ls,
    /// Ask nodes to renew their certificates now
    Rotate {
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
        /// Refuse the certificates issued before, as soon as the node is connected with its new one
        #[arg(long)]
        revoke: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum CaCommand {
    /// The root certificate and its digest
    Show,
}

#[derive(Debug, Subcommand)]
pub enum RecoveryCommand {
    /// Open a restored cluster, once everything that was removed after the backup is removed again. On the socket of
    /// the node that restored it
    Open,
}

#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Make an identity file; its key never leaves this machine
    Create {
        name: Name,
        /// An operator, who may do everything
        #[arg(long)]
        admin: bool,
        /// An operator who only reads: everything but secrets, in every namespace
        #[arg(long, conflicts_with_all = ["admin", "namespace"])]
        read_only: bool,
        /// A namespace whose leases the user may hold
        #[arg(long, value_name = "NS")]
        namespace: Vec<String>,
        /// How long the certificate is valid
        #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
        ttl: Option<Duration>,
        /// Where the identity goes; `-` prints it [default: NAME.identity.json]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Replace a user's valid certificate, which ends with that; rights and bearer tokens stay. For a new key, made here
    Renew {
        name: Name,
        /// How long the new certificate is valid
        #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
        ttl: Option<Duration>,
        /// Where the identity goes; `-` prints it. An identity of the same user there is replaced [default:
        /// NAME.identity.json]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// List the users
    Ls,
    /// Make a user's certificate useless
    Revoke { name: Name },
}

#[derive(Debug, Subcommand)]
pub enum BlocklistCommand {
    /// List the blocked node ids
    Ls(FreshArg),
}

#[derive(Debug, Subcommand)]
pub enum RaftCommand {
    /// Members, terms and progress
    Status(FreshArg),
    /// Hand leadership over, to NODE or to the most caught-up voter
    TransferLeader { node: Option<String> },
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ActorsArgs {
    #[command(subcommand)]
    pub command: Option<ActorsCommand>,
    /// Every node's tree
    #[arg(long)]
    pub all: bool,
    /// Show it again every second, in place on a terminal; Ctrl-C ends
    #[arg(long)]
    pub watch: bool,
    /// A node's tree, or the leader's [default: the node that answers, whose name is shown]
    #[arg(long, value_name = "NODE|leader", conflicts_with = "all")]
    pub node: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum ActorsCommand {
    /// One actor and its own view of its state
    Inspect(ActorAt),
    /// Stop an actor and let its supervisor start it again
    Restart(ActorAt),
    /// Make an actor fail (needs `[debug] crash = true` in that daemon's configuration)
    Crash {
        #[command(flatten)]
        at: ActorAt,
        #[arg(long, default_value = "panic")]
        how: How,
        /// With `--how start`: how many starts in a row fail. One more than a supervisor takes by default
        #[arg(long, value_name = "N", default_value_t = CrashHow::STARTS)]
        times: u32,
    },
}

#[derive(Debug, Args)]
pub struct ActorAt {
    /// As `muster actors` prints it, such as node/manager/leader/role-manager
    pub path: String,
    /// On a node, or on the leader [default: the leader for node/manager/leader and below, else the node that answers]
    #[arg(long, value_name = "NODE|leader")]
    pub node: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum How {
    Panic,
    Error,
    Kill,
    /// Its handler hangs for 30 s: a restart then meets the stop deadline
    Hang,
    /// It is restarted, and its next starts fail
    Start,
}
impl How {
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

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Only what happened after this revision
    #[arg(long, value_name = "REV", default_value_t = 0)]
    pub since: u64,
    /// Go on as things happen
    #[arg(long)]
    pub watch: bool,
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
        /// Leave it running in the background; `muster dev down` stops it
        #[arg(long)]
        detach: bool,
    },
    /// Stop the cluster; its data stays
    Down {
        #[command(flatten)]
        dir: DevDir,
    },
    /// Found a cluster in a temporary folder, change roles, kill things, and show what happens
    Tour,
}

#[derive(Clone, Debug, Args)]
pub struct DevDir {
    /// Where the nodes keep their data
    #[arg(long, default_value = "./.muster")]
    pub dir: PathBuf,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label is KEY=VALUE".to_owned()),
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
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn waiting_takes_an_optional_duration_that_never_eats_a_node() {
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
    fn a_time_behind_wait_is_not_a_node() {
        let change = |line: &str| match parse(line).unwrap().command {
            Command::Node(NodeCommand::Promote(change)) => change,
            other => panic!("{other:?}"),
        };
        assert_eq!(change("muster node promote --wait 5s n4").misplaced_time(), Some("5s"));
        assert_eq!(change("muster node promote --wait=5s n4").misplaced_time(), None);
        assert_eq!(change("muster node promote 5s").misplaced_time(), None, "a node may be called that");
    }

    #[test]
    fn tokens_and_users_that_would_be_over_at_once_are_refused() {
        for line in
            ["token create --role worker --uses 0", "token create --role worker --ttl 0s", "user create ann --ttl 0ms"]
        {
            assert!(parse(&format!("muster {line}")).is_err(), "{line}");
        }
        assert!(parse("muster token create --role worker --uses 1 --ttl 1s").is_ok());
    }

    #[test]
    fn global_flags_stand_anywhere() {
        let cli = parse("muster node ls -o json -q --socket a.sock").unwrap();
        assert_eq!(cli.global.output, Format::Json);
        assert!(cli.global.quiet && cli.global.socket.is_some());
    }

    #[test]
    fn commands_of_later_issues_do_not_exist() {
        for line in ["autolock on", "unlock", "ca rotate", "wait-ready"] {
            assert!(parse(&format!("muster {line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn a_guarded_command_follows_two_dashes_and_keeps_its_own_flags() {
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
    fn actors_lists_unless_told_what_to_do() {
        assert!(parse("muster actors").is_ok() && parse("muster actors --all -o json").is_ok());
        assert!(parse("muster actors crash node/agent --how kill --node leader").is_ok());
        assert!(parse("muster actors --all --node n1").is_err());
        assert!(parse("muster bench roles --rounds 3").is_ok());
        assert!(parse("muster bench --op read --clients 1,64 --via rest").is_ok());
        assert!(parse("muster bench leases --leases 1000 --for 30s --kill-leader 5s").is_ok());
    }
}
