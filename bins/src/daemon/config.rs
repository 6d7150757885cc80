//! The daemon's configuration: flag, then `MUSTER_…` environment, then TOML file, then default.

mod file;
mod token;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser};
use muster_messages::Secret;
use serde::{Deserialize, Serialize};

pub use self::file::{BadConfig, ConfigFault, Faults};
pub use self::token::{CREDENTIAL, TokenSource};
use self::token::{Given, Pair, Token};
use super::settings::{self, Settings};

/// The daemon: one node of a Muster cluster.
#[derive(Clone, Debug, Parser)]
#[command(name = "musterd", version, about = "Runs one node of a Muster cluster.", after_help = AFTER_HELP)]
pub struct Args {
    /// Where this node keeps its identity and its replica of the cluster's state
    #[arg(long, env = "MUSTER_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The one TLS port [default: 127.0.0.1:4400]
    #[arg(long, env = "MUSTER_LISTEN", value_name = "HOST:PORT")]
    listen: Option<String>,
    /// The address at which others reach that port [default: the listen address]
    #[arg(long, env = "MUSTER_ADVERTISE", value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// This node's name when it joins [default: its earlier name, else the host name]
    #[arg(long, env = "MUSTER_NAME")]
    name: Option<String>,
    /// Found a new cluster with this node as its first manager
    #[arg(
        long,
        env = "MUSTER_INIT",
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_possible_values = true
    )]
    init: Option<bool>,
    /// The new cluster's name [default: default]
    #[arg(long, env = "MUSTER_CLUSTER_NAME", value_name = "NAME")]
    cluster_name: Option<String>,
    /// Join a cluster through these managers
    #[arg(long, env = "MUSTER_JOIN", value_name = "HOST:PORT,…", value_delimiter = ',')]
    join: Vec<String>,
    /// The join token: `muster token show worker` or `muster token show manager` on a manager prints one
    /// (every user of this machine can read a command line: prefer MUSTER_TOKEN or --token-file)
    #[arg(long, env = "MUSTER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A file with the join token, `-` for standard input
    /// [default: systemd's credential muster-join-token]
    #[arg(long, env = "MUSTER_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Where systemd put this service's credentials.
    #[arg(skip = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from))]
    credentials: Option<PathBuf>,
    /// The release that this node reports [default: musterd's own version]
    #[arg(long, env = "MUSTER_RELEASE", value_name = "X.Y.Z")]
    release: Option<String>,
    /// A label of this node; may be repeated. In the environment: K=V,K=V
    #[arg(long = "label", env = "MUSTER_LABEL", value_name = "K=V", value_delimiter = ',')]
    labels: Vec<String>,
    /// Plain HTTP for /metrics, /livez and /readyz, or `off` [default: 127.0.0.1:0]
    #[arg(long, env = "MUSTER_METRICS", value_name = "HOST:PORT|off")]
    metrics: Option<String>,
    /// The admin socket [default: DIR/muster.sock]
    #[arg(long, env = "MUSTER_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The SPIFFE Workload API for programs on this machine: a Unix socket for every user, or `off` [default: off]
    #[arg(long, env = "MUSTER_WORKLOAD_SOCKET", value_name = "PATH|off")]
    workload_socket: Option<String>,
    /// A TOML file; docs/configuration.md lists its keys
    #[arg(long, env = "MUSTER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the configuration in force as TOML, and exit
    #[arg(long)]
    print_config: bool,
    /// Check the configuration and what it names on this machine, and exit: 0, or 2 with every fault
    #[arg(
        long,
        value_name = "text|json",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "text",
        hide_possible_values = true
    )]
    check_config: Option<OutputFormat>,
    /// The quorum is lost for good: continue alone with this manager's data; all others become workers. Once, by hand
    #[arg(long)]
    force_new_cluster: bool,
    /// Only print what --force-new-cluster would do
    #[arg(
        long,
        value_name = "text|json",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "text",
        hide_possible_values = true,
        requires = "force_new_cluster"
    )]
    print_plan: Option<OutputFormat>,
    /// Found a cluster anew, in an empty directory, from a file of `muster backup`. Once, by hand
    #[arg(long, value_name = "FILE", conflicts_with_all = ["force_new_cluster", "init", "join"])]
    restore: Option<PathBuf>,
    /// A file with the cluster's unlock key, for a manager whose disk is sealed
    #[arg(long, env = "MUSTER_UNLOCK_KEY_FILE", value_name = "FILE")]
    unlock_key_file: Option<PathBuf>,
    /// Log filter in tracing's syntax: info, debug, muster_raft_member=debug,… [default: info]
    #[arg(long, env = "MUSTER_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// Log format [default: text]
    #[arg(long, env = "MUSTER_LOG_FORMAT", value_name = "text|json")]
    log_format: Option<LogFormat>,
    /// See [`Args::again`].
    #[arg(skip)]
    again: bool,
    /// Which of the token and its file were given as flags, not as variables.
    #[arg(skip)]
    token_flags: TokenFlags,
}

/// See [`Args::of`].
#[derive(Clone, Copy, Debug, Default)]
struct TokenFlags {
    token: bool,
    token_file: bool,
}

const AFTER_HELP: &str = "\
Found a cluster:  musterd --data-dir /var/lib/muster --listen 10.0.0.1:4400 --init
Join it:          musterd --data-dir /var/lib/muster --listen 10.0.0.2:4400 --join 10.0.0.1:4400 --token-file FILE
Restart:          musterd --data-dir /var/lib/muster --listen 10.0.0.2:4400

Each node listens on an address that the others can reach. Without --listen only its own machine can reach it.
Run one manager, or three or five: with two, the loss of either stops the cluster.

Precedence: flag, then MUSTER_… environment, then the file of --config, then the default.";

impl Args {
    /// The arguments of a command line, the program's name first. To be used instead of [`Parser::try_parse_from`], which does not tell a
    /// flag from a variable.
    ///
    /// # Errors
    /// What clap has to say, also where that is the help.
    pub fn of<T: Into<OsString> + Clone>(line: impl IntoIterator<Item = T>) -> Result<Self, clap::Error> {
        let given = Self::command().try_get_matches_from(line)?;
        let is_flag = |name: &str| given.value_source(name) == Some(ValueSource::CommandLine);
        let token_flags = TokenFlags { token: is_flag("token"), token_file: is_flag("token_file") };
        Ok(Self { token_flags, ..Self::from_arg_matches(&given)? })
    }
    /// Whether a file is read, which can change while the daemon runs.
    pub fn has_file(&self) -> bool {
        self.config.is_some()
    }
    /// `--print-config`
    pub fn prints_config(&self) -> bool {
        self.print_config
    }
    /// For reading the configuration again: without the token, which only a start needs and which must not stay in memory.
    pub fn again(mut self) -> Self {
        (self.token, self.token_file, self.credentials, self.again) = (None, None, None, true);
        self
    }
    /// `--check-config`
    pub fn check_config(&self) -> Option<OutputFormat> {
        self.check_config
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Format of what is printed instead of running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    Text,
    Json,
}

/// The file of `--config`. Unknown keys are rejected: a misspelt one must not be silently ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    data_dir: Option<PathBuf>,
    listen: Option<String>,
    advertise: Option<String>,
    name: Option<String>,
    init: Option<bool>,
    cluster_name: Option<String>,
    join: Option<Vec<String>>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    unlock_key_file: Option<PathBuf>,
    release: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    metrics: Option<String>,
    socket: Option<PathBuf>,
    workload_socket: Option<String>,
    log: Option<String>,
    log_format: Option<LogFormat>,
    // One field per section: serde cannot reject unknown keys behind `flatten`.
    debug: settings::Debug,
    supervision: settings::Supervision,
    agent: settings::Agent,
    gateway: settings::Gateway,
    raft: settings::Raft,
    mesh: settings::Mesh,
    certificates: settings::Certificates,
    roots: settings::Roots,
    authority: settings::AuthorityAbove,
    sessions: settings::Sessions,
    dispatcher: settings::Dispatcher,
    elections: settings::Elections,
    api: settings::Api,
    reconcilers: settings::Reconcilers,
    recovery: settings::Recovery,
    audit: settings::Audit,
    unlock: settings::Unlock,
}

impl File {
    fn take_settings(&mut self) -> Settings {
        use std::mem::take;
        Settings {
            debug: take(&mut self.debug),
            supervision: take(&mut self.supervision),
            agent: take(&mut self.agent),
            gateway: take(&mut self.gateway),
            raft: take(&mut self.raft),
            mesh: take(&mut self.mesh),
            certificates: take(&mut self.certificates),
            roots: take(&mut self.roots),
            authority: take(&mut self.authority),
            sessions: take(&mut self.sessions),
            dispatcher: take(&mut self.dispatcher),
            elections: take(&mut self.elections),
            api: take(&mut self.api),
            reconcilers: take(&mut self.reconcilers),
            recovery: take(&mut self.recovery),
            audit: take(&mut self.audit),
            unlock: take(&mut self.unlock),
        }
    }
}

/// The configuration in force.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    pub data_dir: PathBuf,
    pub listen: String,
    pub advertise: String,
    pub name: String,
    /// Not configured: the host name is used, and a node that already has a name keeps it.
    #[serde(skip)]
    pub name_is_the_hosts: bool,
    pub init: bool,
    pub cluster_name: String,
    pub join: Vec<String>,
    /// The join token, or why its file cannot be read. A directory with an identity needs neither.
    #[serde(skip)]
    pub token: Option<Result<Secret, String>>,
    #[serde(skip)]
    pub token_from: TokenSource,
    /// Where other users of this machine can read it.
    #[serde(skip)]
    pub token_is_exposed: Option<String>,
    pub release: String,
    pub labels: BTreeMap<String, String>,
    pub metrics: String,
    pub socket: PathBuf,
    /// `None`: off.
    #[serde(serialize_with = "path_or_off")]
    pub workload_socket: Option<PathBuf>,
    /// Where a sealed manager finds its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unlock_key_file: Option<PathBuf>,
    pub log: String,
    pub log_format: LogFormat,
    /// Only by a flag: a file or the environment would repeat it at the next start.
    #[serde(skip)]
    pub force_new_cluster: bool,
    #[serde(skip)]
    pub restore: Option<PathBuf>,
    #[serde(skip)]
    pub print_plan: Option<OutputFormat>,
    #[serde(flatten)]
    pub settings: Settings,
}

/// The configuration in force.
///
/// # Errors
/// Every fault of it, not the first one alone.
pub fn load(args: Args) -> Result<Config, BadConfig> {
    let (config, faults) = read(args);
    faults.into_result(config)
}

/// The configuration as far as it could be read, and its faults.
pub fn read(args: Args) -> (Config, Faults) {
    let mut faults = Faults::default();
    let mut file = args.config.as_deref().map(|path| faults.read(path, args.again)).unwrap_or_default();
    faults.set_elsewhere(set_elsewhere(&args));
    let settings = file.take_settings();
    let given_token = given_token(&args, &file);
    let data_dir = absolute_data_dir(args.data_dir.or(file.data_dir), &mut faults);
    let listen = args.listen.or(file.listen).unwrap_or_else(|| "127.0.0.1:4400".to_owned());
    faults.check("listen", host_and_port("--listen", &listen));
    let advertise = args.advertise.or(file.advertise);
    if let Some(advertise) = &advertise {
        faults.check("advertise", host_and_port("--advertise", advertise));
    }
    let advertise = advertise.unwrap_or_else(|| listen.clone());
    let given = args.name.or(file.name);
    let name_is_the_hosts = given.is_none();
    let name = given.unwrap_or_else(|| muster_messages::Name::sanitized(&hostname()).to_string());
    faults.check("name", legal_name("--name", &name));
    let cluster_name = args.cluster_name.or(file.cluster_name).unwrap_or_else(|| "default".to_owned());
    faults.check("cluster_name", legal_name("--cluster-name", &cluster_name));
    let release = args.release.or(file.release).unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned());
    faults.check("release", release_triple(&release));
    let join = if args.join.is_empty() { file.join.unwrap_or_default() } else { args.join };
    for addr in &join {
        faults.check("join", host_and_port("--join", addr));
    }
    let labels = labels(file.labels.unwrap_or_default(), &args.labels, &mut faults);
    if given_token.flags.token.is_some() && given_token.flags.file.is_some() {
        faults.add("token", "--token and --token-file: give one of them");
    }
    // It is needed for the start alone.
    let token = if args.again { Token::default() } else { given_token.found() };
    let init = args.init.or(file.init).unwrap_or(false);
    if init && !join.is_empty() {
        faults.add("init", "--init founds a cluster and --join joins one: give one of them");
    }
    let (settings, wrong) = settings.checked();
    for fault in wrong {
        faults.add(&fault.path(), fault.to_string());
    }
    let config = Config {
        socket: args.socket.or(file.socket).unwrap_or_else(|| data_dir.join("muster.sock")),
        workload_socket: args.workload_socket.or(file.workload_socket).filter(|path| path != OFF).map(PathBuf::from),
        data_dir,
        listen,
        advertise,
        name,
        name_is_the_hosts,
        init,
        cluster_name,
        join,
        token: token.text,
        token_from: token.from,
        token_is_exposed: token.is_exposed,
        release,
        labels,
        metrics: args.metrics.or(file.metrics).unwrap_or_else(|| "127.0.0.1:0".to_owned()),
        unlock_key_file: args.unlock_key_file.or(file.unlock_key_file),
        log: args.log.or(file.log).unwrap_or_else(|| "info".to_owned()),
        log_format: args.log_format.or(file.log_format).unwrap_or_default(),
        force_new_cluster: args.force_new_cluster,
        restore: args.restore,
        print_plan: args.print_plan,
        settings,
    };
    check_paths(&config, &mut faults);
    (config, faults)
}

/// The keys that flags or the environment set.
fn set_elsewhere(args: &Args) -> [(&'static str, bool); 15] {
    [
        ("data_dir", args.data_dir.is_some()),
        ("listen", args.listen.is_some()),
        ("advertise", args.advertise.is_some()),
        ("name", args.name.is_some()),
        ("init", args.init.is_some()),
        ("cluster_name", args.cluster_name.is_some()),
        ("join", !args.join.is_empty()),
        ("token", args.token.is_some() || args.token_file.is_some()),
        ("token_file", args.token.is_some() || args.token_file.is_some()),
        ("release", args.release.is_some()),
        ("metrics", args.metrics.is_some()),
        ("socket", args.socket.is_some()),
        ("workload_socket", args.workload_socket.is_some()),
        ("unlock_key_file", args.unlock_key_file.is_some()),
        ("log", args.log.is_some()),
    ]
}

/// Relative to where the daemon starts. A command that gets a path of it may run elsewhere.
fn absolute_data_dir(given: Option<PathBuf>, faults: &mut Faults) -> PathBuf {
    if given.is_none() && faults.may_be_missing("data_dir") {
        faults.add("data_dir", "--data-dir DIR is required: where this node keeps its data");
    }
    match given.as_deref().map(std::path::absolute) {
        Some(Ok(absolute)) => absolute,
        Some(Err(why)) => {
            faults.add("data_dir", format!("--data-dir {}: {why}", given.unwrap_or_default().display()));
            PathBuf::new()
        }
        None => PathBuf::new(),
    }
}

/// Those of the file, and of the flags: a flag counts.
fn labels(mut labels: BTreeMap<String, String>, flags: &[String], faults: &mut Faults) -> BTreeMap<String, String> {
    for label in flags {
        match label.split_once('=') {
            Some((key, value)) => drop(labels.insert(key.to_owned(), value.to_owned())),
            None => faults.add_flag("labels", format!("--label {label:?}: write it as K=V")),
        }
    }
    labels
}

fn given_token(args: &Args, file: &File) -> Given {
    let token = |flag: bool| args.token.clone().filter(|_| args.token_flags.token == flag);
    let token_file = |flag: bool| args.token_file.clone().filter(|_| args.token_flags.token_file == flag);
    Given {
        flags: Pair { token: token(true), file: token_file(true) },
        environment: Pair { token: token(false), file: token_file(false) },
        file: Pair { token: file.token.clone(), file: file.token_file.clone() },
        credentials: args.credentials.clone(),
    }
}

/// They are printed, logged and handed to commands as text.
fn check_paths(config: &Config, faults: &mut Faults) {
    let paths = [("data_dir", Some(&config.data_dir)), ("socket", Some(&config.socket))];
    let optional =
        [("workload_socket", config.workload_socket.as_ref()), ("unlock_key_file", config.unlock_key_file.as_ref())];
    for (key, path) in paths.into_iter().chain(optional) {
        if let Some(path) = path.filter(|path| path.to_str().is_none()) {
            faults.add(key, format!("{key} {}: a path must be UTF-8", path.display()));
        }
    }
}

const OFF: &str = "off";

fn path_or_off<S: serde::Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => path.serialize(serializer),
        None => serializer.serialize_str(OFF),
    }
}

fn host_and_port(flag: &str, text: &str) -> Result<(), String> {
    let legal = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if legal { Ok(()) } else { Err(format!("{flag} {text:?}: write it as HOST:PORT")) }
}

fn legal_name(flag: &str, name: &str) -> Result<(), String> {
    name.parse::<muster_messages::Name>().map(drop).map_err(|why| format!("{flag} {name:?}: {why}"))
}

fn release_triple(text: &str) -> Result<(), String> {
    text.parse::<muster_messages::Triple>().map(drop).map_err(|why| format!("--release {text:?}: {why}"))
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(args: &[&str]) -> Result<Config, BadConfig> {
        let all = std::iter::once(&"musterd").chain(args);
        load(Args::of(all).unwrap())
    }

    #[test]
    fn socket_and_advertise_address_have_defaults() {
        let c = config(&["--data-dir", "/d", "--listen", "10.0.0.1:44", "--name", "n1"]).unwrap();
        assert_eq!((c.socket.to_str(), c.advertise.as_str()), (Some("/d/muster.sock"), "10.0.0.1:44"));
    }

    #[test]
    fn token_comes_from_flag_or_file_and_is_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let file = path.to_str().unwrap();
        let given = |args: &[&str]| config(&[&["--data-dir", "/d"], args].concat()).unwrap();
        std::fs::write(&path, "MSTR-1-a-b\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        for (args, public) in [(["--token", "MSTR-1-a-b"], true), (["--token-file", file], false)] {
            let config = given(&args);
            assert_eq!(
                (&config.token, config.token_is_exposed.is_some()),
                (&Some(Ok(Secret::new("MSTR-1-a-b"))), public)
            );
            assert!(!format!("{config:?}{}", toml::to_string(&config).unwrap()).contains("MSTR"));
        }
        std::fs::write(&path, "\n").unwrap();
        assert!(given(&["--token-file", file]).token.unwrap().unwrap_err().contains("it is empty"));
        assert!(given(&["--token-file", "/nowhere"]).token.unwrap().unwrap_err().contains("/nowhere"));
        assert_eq!(given(&[]).token, None);
        let both = config(&["--data-dir", "/d", "--token", "MSTR-1-a-b", "--token-file", file]).unwrap_err();
        assert!(both.to_string().contains("give one of them"), "{both}");

        for broken in ["data_dir = \"/d\"\ntoken = \"MSTR-1-a-b", "token = [\"MSTR-1-a-b\"]", "tokken = \"MSTR-1-a-b\""]
        {
            std::fs::write(&path, broken).unwrap();
            let found = config(&["--config", file]).unwrap_err().to_string();
            assert!(found.contains("line ") && !found.contains("MSTR"), "{found}");
        }
    }

    #[test]
    fn configuration_mistakes_name_the_flag() {
        for (args, word) in [
            (&[][..], "--data-dir"),
            (&["--data-dir", "/d", "--listen", "4400"], "HOST:PORT"),
            (&["--data-dir", "/d", "--name", "Ü"], "--name"),
            (&["--data-dir", "/d", "--release", "1.2"], "MAJOR.MINOR.PATCH"),
            (&["--data-dir", "/d", "--label", "zone"], "K=V"),
        ] {
            assert!(config(args).unwrap_err().to_string().contains(word), "{args:?}");
        }
    }

    #[test]
    fn a_misspelt_key_of_the_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.toml");
        std::fs::write(&path, "data_dir = \"/d\"\n[agent]\nheartbeet = \"5s\"\n").unwrap();
        let refused = config(&["--config", path.to_str().unwrap()]).unwrap_err().to_string();
        assert!(refused.contains("heartbeet"), "{refused}");
        std::fs::write(&path, "data_dir = \"/d\"\nlissen = \"x\"\n").unwrap();
        assert!(config(&["--config", path.to_str().unwrap()]).is_err());
    }
}
