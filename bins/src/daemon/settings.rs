//! The timings and bounds of the configuration file, section by section, and how they become the actors' configurations.
//! The actor that uses a setting defines its default; settings without a key keep that default.
//!
//! `docs/configuration.md` explains every key; a test compares the two.

mod checks;
mod span;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_agent::{AgentConfig, JoinConfig};
use muster_api::ApiLimits;
use muster_audit::FileConfig;
use muster_elections::ElectionsConfig;
use muster_gateway::{DialTimeouts, GatewayConfig};
use muster_join::JoinLimits;
use muster_kernel::{Backoff, Intensity};
use muster_mesh::MeshConfig;
use muster_messages::FEATURE_LEVEL;
use muster_raft_member::RaftConfig;
use muster_sessions::{DispatcherConfig, SessionsConfig};
use serde::{Deserialize, Serialize};

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
    pub joining: Joining,
    pub dial: Dial,
    pub gateway: Gateway,
    pub join_service: JoinService,
    pub raft: Raft,
    pub mesh: Mesh,
    pub roles: Roles,
    pub certificates: Certificates,
    pub sessions: Sessions,
    pub dispatcher: Dispatcher,
    pub elections: Elections,
    pub api: Api,
    pub reconcilers: Reconcilers,
    pub recovery: Recovery,
    pub audit: Audit,
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

/// This node's part in release-gated reconcilers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reconcilers {
    /// Commands of definitions that may run here.
    pub commands: Programs,
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
    pub fn any(&self) -> bool {
        match self {
            Programs::All(all) => *all,
            Programs::Listed(programs) => !programs.is_empty(),
        }
    }
    pub fn allow(&self, program: &str) -> bool {
        match self {
            Programs::All(all) => *all,
            Programs::Listed(programs) => programs.iter().any(|allowed| allowed == program),
        }
    }
}

impl Default for Reconcilers {
    fn default() -> Self {
        Self { commands: Programs::All(false) }
    }
}

/// When supervisors give up, and how the manager runtime is restarted.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Supervision {
    pub max_restarts: usize,
    pub window: Span,
    pub backoff_first: Span,
    pub backoff_cap: Span,
    pub stable_after: Span,
}

impl Default for Supervision {
    fn default() -> Self {
        let (Intensity { max, window }, slow) = (Intensity::default(), Backoff::SLOW);
        Self {
            max_restarts: max,
            window: window.into(),
            backoff_first: slow.first.into(),
            backoff_cap: slow.cap.into(),
            stable_after: slow.stable_after.into(),
        }
    }
}

section! {
    /// The agent of every node. Hosts use the same heartbeat and jitter.
    Agent of AgentConfig {
        heartbeat: Span = heartbeat,
        heartbeat_jitter: f64 = heartbeat_jitter,
        silent_beats: u32 = silent_beats,
        reconnect_first: Span = reconnect_first,
        reconnect_cap: Span = reconnect_cap,
        stable_after: Span = stable_after,
        forgive: Span = forgive,
        forget_views: Span = forget_views,
        first_view: Span = first_view,
        dial_deadline: Span = dial_deadline,
        sign_deadline: Span = sign_deadline,
        sign_retry_first: Span = sign_retry_first,
        sign_retry_cap: Span = sign_retry_cap,
        open_asks: usize = open_asks,
        open_questions: usize = open_questions,
        outbox: usize = outbox,
    }
}

section! {
    /// Joining a cluster, before the agent runs.
    Joining of JoinConfig {
        retry_first: Span = retry_first,
        retry_cap: Span = retry_cap,
        stage_deadline: Span = stage_deadline,
        answer_deadline: Span = answer_deadline,
    }
}

section! {
    /// Connections to others.
    Dial of DialTimeouts {
        connect: Span = connect,
        tls: Span = tls,
        greeting: Span = greeting,
    }
}

section! {
    /// The one port.
    Gateway of GatewayConfig {
        max_connections: usize = max_identified,
        max_per_principal: usize = max_per_principal,
        max_anonymous: usize = max_anonymous,
        max_waiting: usize = max_waiting,
        handshake_deadline: Span = handshake_deadline,
        first_byte_deadline: Span = first_byte_deadline,
        catch_up: Span = catch_up,
        joins_per_second: u32 = join_rate.per_second,
        log_window: Span = log_window,
    }
    derived {
        joins_burst: u32,
    }
}

section! {
    /// Limits of a manager's join service for unauthenticated clients.
    JoinService of JoinLimits {
        conversation: Span = conversation,
        conversations: usize = conversations,
    }
}

section! {
    /// Raft's timing and sizes.
    Raft of RaftConfig {
        heartbeat: Span = heartbeat,
        election_timeout: Span = election_timeout,
        hint_spread: Span = hint_spread,
        hint_again: Span = hint_again,
        hint_tries: u8 = hint_tries,
        max_proposals: usize = max_proposals,
        max_proposal_bytes: usize = max_proposal_bytes,
        max_reads: usize = max_reads,
        read_rounds: usize = read_rounds,
        max_inflight_msgs: usize = max_inflight_msgs,
        max_apply_bytes: u64 = max_apply_bytes,
        orphan_wait: Span = orphan_wait,
        transfer_wait: Span = transfer_wait,
        disk_limit: Span = disk_limit,
        snapshot_entries: u64 = snapshot_entries,
        snapshot_bytes: u64 = snapshot_bytes,
        keep_entries: u64 = keep_entries,
        keep_bytes: u64 = keep_bytes,
        keep_time: Span = keep_time,
        transfer_bytes: u64 = transfer_bytes,
        snapshot_deadline: Span = snapshot_limit,
        publish_every: Span = publish_every,
    }
    derived {
        read_retry: Span,
    }
}

section! {
    /// Manager to manager.
    Mesh of MeshConfig {
        idle: Span = idle,
        max_snapshot_bytes: u64 = snapshot_limit,
    }
}

section! {
    /// The role manager.
    Roles of muster_role_manager::Config {
        retry: Span = retry,
        conf_change_slow: Span = slow_change,
        learner_deadline: Span = learner_silence,
        catch_up_slack: u64 = catch_up_slack,
        propose_deadline: Span = propose_deadline,
        dial_back_counts: Span = dial_back_counts,
        membership_timeout: Span = membership_timeout,
        ask_again: Span = ask_again,
        waiters_per_removal: usize = waiters_per_removal,
    }
}

section! {
    /// Certificates, and the authority's deadlines.
    Certificates of muster_cert_authority::Config {
        lifetime: Span = node_lifetime,
        user_lifetime: Span = user_lifetime,
        rekey_within: Span = rekey_within,
        max_pending: usize = max_pending,
        max_joins: usize = max_joins,
        max_nodes: usize = max_nodes,
        deadline: Span = deadline,
    }
}

section! {
    /// The managers' side of agent sessions.
    Sessions of SessionsConfig {
        missed: u32 = missed,
        registrations_per_second: f64 = registrations_per_sec,
        leaderless_after: Span = leaderless_after,
        leaderless_retry: Span = leaderless_retry,
        digest_every: Span = digest_every,
        digest_batch: Span = digest_batch,
        digest_deadline: Span = digest_deadline,
        digest_retry: Span = digest_retry,
        digest_bytes: usize = digest_bytes,
        hello_deadline: Span = hello_deadline,
        write_deadline: Span = write_deadline,
        leader_deadline: Span = leader_deadline,
        stood_still: Span = stood_still,
        remember_down: Span = remember_down,
        warn_every: Span = warn_every,
        open_asks: usize = open_asks,
        open_questions: usize = open_questions,
        outbox: usize = outbox,
        mailbox: usize = mailbox,
        session_mailbox: usize = session_mailbox,
        arrivals: usize = arrivals,
    }
    derived {
        registration_burst: f64,
    }
}

section! {
    /// The leader's view of all sessions.
    Dispatcher of DispatcherConfig {
        batch: usize = batch,
        in_flight: usize = in_flight,
        propose_deadline: Span = propose_deadline,
        retry: Span = retry,
        quiet: Span = quiet,
        mailbox: usize = mailbox,
    }
    derived {
        grace: Span,
    }
}

section! {
    /// The clock over all leases, and coordinated election.
    Elections of ElectionsConfig {
        max_waiting: usize = keeper.max_waiting,
        gather: Span = keeper.gather,
        reads: usize = keeper.reads,
        read_deadline: Span = keeper.read_deadline,
        expiring: usize = keeper.expiring,
        propose_deadline: Span = keeper.propose_deadline,
        retry: Span = keeper.retry,
        stood_still: Span = keeper.stood_still,
        settle: Span = coordination.settle,
        ack_window: Span = coordination.ack_window,
        departed_window: Span = coordination.departed_window,
        fresh: Span = coordination.fresh,
        stale: Span = coordination.stale,
        elected_for: Span = coordination.elected_for,
        sit_out: Span = coordination.sit_out,
        candidate_lifetime: Span = coordination.candidate_lifetime,
        pings: usize = coordination.pings,
        requeue: Span = coordination.requeue,
        max_contests: usize = max_contests,
        mailbox: usize = mailbox,
    }
}

section! {
    /// Limits of requests.
    Api of ApiLimits {
        longest_request: Span = longest,
        max_in_progress: u64 = in_progress,
        max_watches: u64 = watches,
        max_in_flight: usize = in_flight,
        max_body: usize = body,
        max_socket_connections: usize = socket_connections,
    }
    derived {
        node_namespaces: Vec<String>,
    }
}

impl Settings {
    /// Fills in derived keys and rejects values that cannot work.
    pub fn checked(mut self) -> Result<Self, String> {
        self.within_range()?;
        self.gateway.joins_burst.get_or_insert(self.gateway.joins_per_second.saturating_mul(5));
        self.sessions.registration_burst.get_or_insert(self.sessions.registrations_per_second * 2.0);
        self.raft.read_retry.get_or_insert(Span(self.raft.heartbeat.0 * 2));
        self.api.node_namespaces.get_or_insert_with(|| ApiLimits::default().node_namespaces);
        let grace = self.default_grace();
        self.dispatcher.grace.get_or_insert(Span(grace));
        self.consistent()?;
        Ok(self)
    }

    /// Missed heartbeats, the agent's longest pause between connections, and time for the digest. At least two digest intervals:
    /// a host between two digests is not silent.
    fn default_grace(&self) -> Duration {
        let silence = self.sessions().down_after() + self.agent.reconnect_cap.0 + Duration::from_millis(1500);
        silence.max(self.sessions.digest_every.0 * 2)
    }

    pub fn intensity(&self) -> Intensity {
        Intensity { max: self.supervision.max_restarts, window: self.supervision.window.0 }
    }

    /// Between restarts of the manager runtime.
    pub fn backoff(&self) -> Backoff {
        let Supervision { backoff_first, backoff_cap, stable_after, .. } = &self.supervision;
        Backoff { first: backoff_first.0, cap: backoff_cap.0, stable_after: stable_after.0 }
    }

    pub fn agent(&self) -> AgentConfig {
        self.agent.within(AgentConfig::default())
    }

    pub fn joining(&self) -> JoinConfig {
        self.joining.within(JoinConfig::default())
    }

    pub fn dial(&self) -> DialTimeouts {
        self.dial.within(DialTimeouts::default())
    }

    pub fn gateway(&self) -> GatewayConfig {
        let mut config = self.gateway.within(GatewayConfig::default());
        config.join_rate.burst = self.gateway.joins_burst.unwrap_or(config.join_rate.burst);
        config
    }

    pub fn join_service(&self) -> JoinLimits {
        self.join_service.within(JoinLimits::default())
    }

    pub fn raft(&self) -> RaftConfig {
        let mut config = self.raft.within(RaftConfig::default());
        config.feature_level = self.debug.feature_level;
        config.read_retry = self.raft.read_retry.map_or(config.read_retry, |s| s.0);
        // Raft's own bound stays above this one, so that this one answers `Busy` first.
        config.max_snapshot_bytes = self.mesh.max_snapshot_bytes;
        config.max_uncommitted = (config.max_proposal_bytes as u64).saturating_mul(2);
        config
    }

    pub fn mesh(&self) -> MeshConfig {
        self.mesh.within(MeshConfig::default())
    }

    pub fn roles(&self) -> muster_role_manager::Config {
        let mut config = self.roles.within(muster_role_manager::Config::default());
        config.election_timeout = self.raft.election_timeout.0;
        config
    }

    pub fn certificates(&self) -> muster_cert_authority::Config {
        self.certificates.within(muster_cert_authority::Config::default())
    }

    pub fn sessions(&self) -> SessionsConfig {
        let mut config = self.sessions.within(SessionsConfig::default());
        config.heartbeat = self.agent.heartbeat.0;
        config.heartbeat_jitter = self.agent.heartbeat_jitter;
        config.registration_burst = self.sessions.registration_burst.unwrap_or(config.registration_burst);
        config
    }

    pub fn dispatcher(&self) -> DispatcherConfig {
        let mut config = self.dispatcher.within(DispatcherConfig::default());
        config.grace = self.dispatcher.grace.map_or(config.grace, |s| s.0);
        // By then a dead session is down, and its host's digest has arrived.
        config.overlap = config.grace + self.sessions.digest_every.0;
        // Without any digest for this long, this process itself had stopped.
        config.stood_still = self.sessions.digest_every.0 + Duration::from_secs(3);
        config
    }

    pub fn elections(&self) -> ElectionsConfig {
        let mut config = self.elections.within(ElectionsConfig::default());
        config.coordination.propose_deadline = config.keeper.propose_deadline;
        config.coordination.retry = config.keeper.retry;
        config
    }

    pub fn api(&self) -> ApiLimits {
        let mut limits = self.api.within(ApiLimits::default());
        if let Some(granted) = &self.api.node_namespaces {
            limits.node_namespaces.clone_from(granted);
        }
        limits
    }
}
