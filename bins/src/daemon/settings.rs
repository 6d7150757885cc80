//! The timings and bounds that an operator may have a reason to set, section by section, and how they become the actors'
//! configurations. The actor that uses a setting defines its default; a bound without a key always has it.
//!
//! `docs/configuration.md` explains every key; a test compares the two.

mod checks;
mod span;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_agent::AgentConfig;
use muster_api::ApiLimits;
use muster_audit::FileConfig;
use muster_elections::ElectionsConfig;
use muster_gateway::GatewayConfig;
use muster_kernel::Backoff;
use muster_mesh::MeshConfig;
use muster_messages::FEATURE_LEVEL;
use muster_raft_member::RaftConfig;
use muster_sessions::{DispatcherConfig, SessionsConfig};
use serde::{Deserialize, Serialize};

pub use self::checks::SettingFault;
pub use self::span::Span;

/// A section: its keys, and the fields of an actor's configuration that they set. A derived key follows other keys until it is
/// set itself.
macro_rules! section {
    (
        $(#[$doc:meta])*
        $name:ident of $config:ty { $($key:ident: $kind:ty = $($field:ident).+),* $(,)? }
        $(derived { $($derived:ident: $derived_kind:ty),* $(,)? })?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $(pub $key: $kind,)*
            $($(pub $derived: Option<$derived_kind>,)*)?
        }
        impl Default for $name {
            fn default() -> Self {
                let of = <$config>::default();
                Self { $($key: of.$($field).+.into(),)* $($($derived: None,)*)? }
            }
        }
        impl $name {
            /// The actor's configuration with these values.
            fn within(&self, mut config: $config) -> $config {
                $(config.$($field).+ = self.$key.into();)*
                config
            }
        }
    };
}

/// The sections.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Settings {
    pub debug: Debug,
    pub supervision: Supervision,
    pub agent: Agent,
    pub gateway: Gateway,
    pub raft: Raft,
    pub mesh: Mesh,
    pub certificates: Certificates,
    pub roots: Roots,
    pub authority: AuthorityAbove,
    pub sessions: Sessions,
    pub dispatcher: Dispatcher,
    pub elections: Elections,
    pub api: Api,
    pub reconcilers: Reconcilers,
    pub recovery: Recovery,
    pub audit: Audit,
    pub unlock: Unlock,
}

/// Switches for tests and development clusters.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Debug {
    /// Allows `muster actors crash`.
    pub crash: bool,
    /// Pretends to be a build that supports this feature level. Changes only the number.
    pub feature_level: u32,
    /// While this file exists, the Raft log's disk hangs. Empty: it never does.
    pub disk_hangs_while: String,
}

impl Default for Debug {
    fn default() -> Self {
        Self { crash: false, feature_level: FEATURE_LEVEL, disk_hangs_while: String::new() }
    }
}

impl Debug {
    pub fn disk_hangs_while(&self) -> Option<PathBuf> {
        (!self.disk_hangs_while.is_empty()).then(|| PathBuf::from(&self.disk_hangs_while))
    }
}

/// Disaster recovery.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recovery {
    /// How long a worker keeps Raft data that was set aside. That data holds the root key.
    pub keep_set_aside: Span,
}

impl Default for Recovery {
    /// Long enough to notice on Monday a wrong choice made on Friday evening.
    fn default() -> Self {
        Self { keep_set_aside: Span(Duration::from_secs(3 * 86_400)) }
    }
}

/// The audit log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Audit {
    /// Relative to the data directory unless absolute. `-`: stderr. Empty: no log.
    pub file: String,
    pub required: bool,
    pub reads: bool,
    pub max_bytes: u64,
    pub keep: u32,
}

impl Default for Audit {
    /// Room for some 2.5 million lines.
    fn default() -> Self {
        Self { file: String::new(), required: false, reads: false, max_bytes: 256 * 1024 * 1024, keep: 4 }
    }
}

impl Audit {
    /// The destination of the lines, if configured.
    pub fn target(&self, data_dir: &Path) -> Option<FileConfig> {
        let path = match self.file.as_str() {
            "" => return None,
            "-" => PathBuf::from("-"),
            file => data_dir.join(file),
        };
        Some(FileConfig { path, max_bytes: self.max_bytes, keep: self.keep })
    }
}

/// How a sealed manager gets its key without a person.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Unlock {
    /// A program and its arguments. Empty: none.
    pub command: Vec<String>,
}

/// An authority above the cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthorityAbove {
    /// The program that asks it, and its arguments. Empty: an operator does.
    pub upstream_command: Vec<String>,
    /// Its answers sign as soon as the nodes trust them.
    pub auto: bool,
}

/// This node's part in release-gated reconcilers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reconcilers {
    /// Commands of definitions that may run here.
    pub commands: Programs,
    /// Users of this machine as which they may run, beside the one that runs musterd.
    pub users: Vec<String>,
    /// Files whose `NAME=VALUE` lines a command may get as its environment.
    pub env_files: Vec<String>,
    /// Where applications declare their releases. Relative to the data directory unless absolute. Empty: nowhere.
    pub releases: String,
}

impl Reconcilers {
    /// Where applications declare their releases, if anywhere.
    pub fn releases_in(&self, data_dir: &Path) -> Option<PathBuf> {
        (!self.releases.is_empty()).then(|| data_dir.join(&self.releases))
    }
}

/// The programs that this node runs for definitions. None by default (docs/decisions/0033).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Programs {
    /// All, or none.
    All(bool),
    /// Only these: compared with the first word of a command.
    Listed(Vec<String>),
}

impl Programs {
    pub fn allow(&self, program: &str) -> bool {
        match self {
            Programs::All(all) => *all,
            Programs::Listed(programs) => programs.iter().any(|allowed| allowed == program),
        }
    }
}

impl Default for Reconcilers {
    fn default() -> Self {
        let (users, env_files) = (Vec::new(), Vec::new());
        Self { commands: Programs::All(false), users, env_files, releases: "releases.d".to_owned() }
    }
}

/// How the manager runtime is restarted.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Supervision {
    pub backoff_first: Span,
    pub backoff_cap: Span,
}

impl Default for Supervision {
    fn default() -> Self {
        Self { backoff_first: Backoff::SLOW.first.into(), backoff_cap: Backoff::SLOW.cap.into() }
    }
}

section! {
    /// The agent of every node. Hosts use the same heartbeat.
    Agent of AgentConfig {
        heartbeat: Span = heartbeat,
    }
}

section! {
    /// The one port.
    Gateway of GatewayConfig {
        max_connections: usize = max_identified,
        max_per_principal: usize = max_per_principal,
        max_anonymous: usize = max_anonymous,
        joins_per_second: u32 = join_rate.per_second,
    }
}

section! {
    /// Raft's timing and sizes.
    Raft of RaftConfig {
        heartbeat: Span = heartbeat,
        election_timeout: Span = election_timeout,
        disk_limit: Span = disk_limit,
        snapshot_entries: u64 = snapshot_entries,
        snapshot_bytes: u64 = snapshot_bytes,
        keep_entries: u64 = keep_entries,
        keep_bytes: u64 = keep_bytes,
        keep_time: Span = keep_time,
    }
}

section! {
    /// Manager to manager.
    Mesh of MeshConfig {
        max_snapshot_bytes: u64 = snapshot_limit,
    }
}

section! {
    /// Certificates, and the authority's deadlines.
    Certificates of muster_cert_authority::Config {
        lifetime: Span = node_lifetime,
        user_lifetime: Span = user_lifetime,
        rekey_within: Span = rekey_within,
        max_nodes: usize = max_nodes,
    }
}

section! {
    /// Root rotation.
    Roots of muster_root_rotation::Config {
        publish: Span = publish,
        retire_after: Span = retire_after,
    }
}

section! {
    /// The managers' side of agent sessions.
    Sessions of SessionsConfig {
        missed: u32 = missed,
        registrations_per_second: f64 = registrations_per_sec,
        warn_every: Span = warn_every,
    }
}

section! {
    /// The leader's view of all sessions.
    Dispatcher of DispatcherConfig {
        quiet: Span = quiet,
    }
    derived {
        grace: Span,
    }
}

section! {
    /// Coordinated election.
    Elections of ElectionsConfig {
        settle: Span = coordination.settle,
    }
}

section! {
    /// Limits of requests.
    Api of ApiLimits {
        max_in_progress: u64 = in_progress,
        max_watches: u64 = watches,
        max_body: usize = body,
    }
    derived {
        node_namespaces: Vec<String>,
    }
}

impl Settings {
    /// Fills in derived keys, and names the values that cannot work.
    pub fn checked(mut self) -> (Self, Vec<SettingFault>) {
        let mut faults = self.out_of_range();
        self.api.node_namespaces.get_or_insert_with(|| ApiLimits::default().node_namespaces);
        // What is derived from values out of range would only repeat that.
        if faults.is_empty() {
            let grace = self.default_grace();
            self.dispatcher.grace.get_or_insert(Span(grace));
            faults = self.inconsistent();
        }
        (self, faults)
    }

    /// Missed heartbeats, the agent's longest pause between connections, and time for the digest. At least two digest intervals:
    /// a host between two digests is not silent.
    fn default_grace(&self) -> Duration {
        let sessions = self.sessions();
        let silence = sessions.down_after() + self.agent().reconnect_cap + Duration::from_millis(1500);
        silence.max(sessions.digest_every * 2)
    }

    /// Between restarts of the manager runtime.
    pub fn backoff(&self) -> Backoff {
        let Supervision { backoff_first, backoff_cap } = &self.supervision;
        Backoff { first: backoff_first.0, cap: backoff_cap.0, ..Backoff::SLOW }
    }

    pub fn agent(&self) -> AgentConfig {
        self.agent.within(AgentConfig::default())
    }

    /// Five seconds' worth of joins may come at once.
    pub fn gateway(&self) -> GatewayConfig {
        let mut config = self.gateway.within(GatewayConfig::default());
        config.join_rate.burst = config.join_rate.per_second.saturating_mul(5);
        config
    }

    /// What depends on the two timings keeps its proportion to them.
    pub fn raft(&self) -> RaftConfig {
        let (default, mut config) = (RaftConfig::default(), self.raft.within(RaftConfig::default()));
        config.feature_level = self.debug.feature_level;
        config.read_retry = config.heartbeat * 2;
        let slower = config.election_timeout.div_duration_f64(default.election_timeout).max(1.0);
        config.transfer_wait = default.transfer_wait.mul_f64(slower);
        // Raft's own bound stays above this one, so that this one answers `Busy` first.
        config.max_snapshot_bytes = self.mesh.max_snapshot_bytes;
        config.max_uncommitted = (config.max_proposal_bytes as u64).saturating_mul(2);
        config
    }

    pub fn mesh(&self) -> MeshConfig {
        self.mesh.within(MeshConfig::default())
    }

    pub fn roles(&self) -> muster_role_manager::Config {
        muster_role_manager::Config { election_timeout: self.raft.election_timeout.0, ..Default::default() }
    }

    pub fn autopilot(&self) -> muster_autopilot::Config {
        muster_autopilot::Config {
            election_timeout: self.raft.election_timeout.0,
            session_timeout: self.sessions().down_after(),
            ..Default::default()
        }
    }

    pub fn certificates(&self) -> muster_cert_authority::Config {
        self.certificates.within(muster_cert_authority::Config::default())
    }

    pub fn rotation(&self) -> muster_root_rotation::Config {
        let certificates = self.certificates();
        muster_root_rotation::Config {
            longest_certificate: certificates.node_lifetime.max(certificates.user_lifetime),
            auto: self.authority.auto,
            ..self.roots.within(muster_root_rotation::Config::default())
        }
    }

    /// Two seconds' worth of sessions may be opened at once.
    pub fn sessions(&self) -> SessionsConfig {
        let mut config = self.sessions.within(SessionsConfig::default());
        config.heartbeat = self.agent.heartbeat.0;
        config.heartbeat_jitter = self.agent().heartbeat_jitter;
        config.registration_burst = config.registrations_per_sec * 2.0;
        // Far above an election: twice the longest one.
        config.leaderless_after = config.leaderless_after.max(self.raft.election_timeout.0 * 4);
        config
    }

    pub fn dispatcher(&self) -> DispatcherConfig {
        let (mut config, digest_every) =
            (self.dispatcher.within(DispatcherConfig::default()), self.sessions().digest_every);
        config.grace = self.dispatcher.grace.map_or(config.grace, |s| s.0);
        // By then a dead session is down, and its host's digest has arrived.
        config.overlap = config.grace + digest_every;
        // Without any digest for this long, this process itself had stopped.
        config.stood_still = digest_every + Duration::from_secs(3);
        config
    }

    pub fn elections(&self) -> ElectionsConfig {
        self.elections.within(ElectionsConfig::default())
    }

    pub fn api(&self) -> ApiLimits {
        let mut limits = self.api.within(ApiLimits::default());
        if let Some(granted) = &self.api.node_namespaces {
            limits.node_namespaces.clone_from(granted);
        }
        limits
    }
}
