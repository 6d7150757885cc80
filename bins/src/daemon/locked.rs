//! A daemon that waits for its unlock key: the keyring of a manager has no clear slot.
//!
//! Owns        the time between a start and the moment at which the keys are open.
//! Inputs      `muster unlock` on the admin socket; a key file, a credential of the service manager, a command.
//! Outputs     the status of a locked daemon, `/livez` 200, `/readyz` 503, `muster_locked 1`; a TLS port that accepts connections and
//!             closes them, so that a peer notices a machine that is up.
//! The agent waits, too: a manager's certificate opens the whole state, and its key is sealed with the rest. A worker is never
//! locked (SEAL-4), and a wrong key changes nothing on disk (SEAL-5).

mod means;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_api::{AdminSocket, ApiPorts, ApiShell, LockedDaemon, NodeFacts, Service as Api};
use muster_audit::AuditLog;
use muster_gateway::Dialer;
use muster_kernel::{Address, Intensity, Spec, Supervisor, Tree};
use muster_messages::{
    AutoUnlock, Details, ErrorBody, ErrorCode, LockedView, Name, NodeId, Principal, Revision, Role, Secret,
    UnlockedView, WallTime, detail,
};
use muster_pki::IdentityStore;
use muster_sealing::{Keys, KeysStatus, UnlockKey, UnlockRefusal};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;

pub use self::means::Means;
use self::means::{Attempt, Source};
use super::boot::{Exit, say};
use super::config::Config;
use super::metrics;
use super::systemd;
use crate::unlock_text::GivenKey;

/// The time between two attempts without a person. A key service that is down is asked again in time; a wrong key costs little.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
/// How long a file may take before the socket shows a locked daemon. One that hangs must not hide it.
const FIRST_READ_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a file may take before the next means is tried.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the client that has unlocked may take to read its answer. Later it sees a closed connection, and asks for the status.
const ANSWER_GRACE: Duration = Duration::from_millis(200);

/// What a node did while it was locked, for the start that follows.
pub struct Unlocked {
    /// The admin socket, if the daemon was locked: it stays bound.
    pub socket: Option<Arc<AdminSocket>>,
    /// How it gets its key at the next start.
    pub means: AutoUnlock,
}

/// Returns once the keys of this node can be used: at once for a worker and for a manager without autolock.
pub async fn wait_for_key(
    config: &Config,
    store: &IdentityStore,
    listener: &TcpListener,
    metrics_listener: Option<&Arc<TcpListener>>,
) -> Result<Unlocked, Exit> {
    let means = Means::configured(config);
    let auto = means.first().map_or(AutoUnlock::None, Means::kind);
    let unlocked = |socket| Unlocked { socket, means: auto };
    if !is_locked(config, store) {
        return Ok(unlocked(None));
    }
    let waiting = Arc::new(Waiting::new(store));
    let mut sources: Vec<Source> = means.into_iter().map(Source::new).collect();
    // Before the socket shows a locked daemon: most starts end here.
    for source in sources.iter_mut().filter(|source| !source.means().takes_time()) {
        waiting.attempt(source, FIRST_READ_TIMEOUT).await;
    }
    if waiting.is_over() {
        return Ok(unlocked(None));
    }
    let socket =
        Arc::new(AdminSocket::bind(&config.socket).map_err(|e| Exit::new(1, muster_kernel::Fault::from(e).0))?);
    let serving = Serving::start(config, &waiting, Arc::clone(&socket), metrics_listener).await?;
    let LockedView { version, .. } = waiting.status();
    tracing::warn!(%version, "locked: waiting for the cluster's unlock key");
    say(format_args!(
        "locked: this manager needs version {version} of the cluster's unlock key: `muster unlock --socket {}`",
        config.socket.display()
    ));
    systemd::ready(format_args!("locked: needs version {version} of the cluster's unlock key (`muster unlock`)"));
    waiting.wait(&mut sources, listener, &serving.root).await?;
    tracing::info!(%version, "unlocked");
    tokio::time::sleep(ANSWER_GRACE).await;
    serving.stop().await;
    Ok(unlocked(Some(socket)))
}

/// The same without waiting, for a command that only reads: with what needs no person.
pub fn unlock_now(config: &Config, store: &IdentityStore) -> Result<(), Exit> {
    if !is_locked(config, store) {
        return Ok(());
    }
    let waiting = Waiting::new(store);
    for means in Means::configured(config) {
        if let Some(text) = means.read_now() {
            waiting.take(&means, text);
        }
        if waiting.is_over() {
            return Ok(());
        }
    }
    let LockedView { version, unattended, .. } = waiting.status();
    let why = unattended.map(|why| format!(" ({why})")).unwrap_or_default();
    Err(Exit::new(
        ErrorCode::Locked.exit_status(),
        format!(
            "this manager's data is sealed under version {version} of the cluster's unlock key{why}: give it with --unlock-key-file FILE"
        ),
    ))
}

/// SEAL-4. A recovery by force reads a former manager's data, too.
fn is_locked(config: &Config, store: &IdentityStore) -> bool {
    let recovers = config.force_new_cluster || config.print_plan.is_some();
    let is_manager = || own_node(store).is_none_or(|(_, role)| role == Role::Manager);
    matches!(store.keys().status(), KeysStatus::Locked { .. }) && (recovers || is_manager())
}

/// `None`: without a certificate, or it cannot be read.
fn own_node(store: &IdentityStore) -> Option<(NodeId, Role)> {
    store.node_on_disk().ok().flatten()
}

/// The keys, while they are locked.
struct Waiting {
    keys: Keys,
    version: Revision,
    node: Option<NodeId>,
    since: Option<WallTime>,
    /// Why the last attempt of each means without a person failed.
    unattended: Mutex<BTreeMap<String, String>>,
    /// The key that opened them: a request that is repeated after a lost answer gets the same answer.
    opened_with: Mutex<Option<UnlockKey>>,
    opened: Notify,
}

impl Waiting {
    fn new(store: &IdentityStore) -> Self {
        let keys = store.keys().clone();
        let version = match keys.status() {
            KeysStatus::Locked { version } | KeysStatus::Open { version, .. } => Revision(version),
            KeysStatus::Absent => Revision(0),
        };
        let since = std::fs::metadata(keys.path()).and_then(|file| file.modified()).ok();
        let since = since.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        let since = since.and_then(|at| i64::try_from(at.as_millis()).ok()).map(WallTime);
        let node = own_node(store).map(|(node, _)| node);
        Self {
            keys,
            version,
            node,
            since,
            unattended: Mutex::default(),
            opened_with: Mutex::default(),
            opened: Notify::new(),
        }
    }

    fn is_over(&self) -> bool {
        !matches!(self.keys.status(), KeysStatus::Locked { .. })
    }

    async fn over(&self) {
        loop {
            let opened = self.opened.notified();
            if self.is_over() {
                return;
            }
            opened.await;
        }
    }

    /// Until the keys are open. Fails if that would be without the admin socket: a restart by the service manager serves it again.
    async fn wait(&self, sources: &mut [Source], listener: &TcpListener, serving: &Supervisor) -> Result<(), Exit> {
        tokio::select! {
            biased;
            () = self.over() => Ok(()),
            () = self.attempt_forever(sources) => Ok(()),
            () = close_connections(listener) => Ok(()),
            () = serving.ended() => {
                Err(Exit::new(1, "the root supervisor of the locked daemon gave up; the log says why its admin socket kept failing"))
            }
        }
    }

    async fn attempt_forever(&self, sources: &mut [Source]) {
        if sources.is_empty() {
            return std::future::pending().await;
        }
        loop {
            for source in sources.iter_mut() {
                self.attempt(source, READ_TIMEOUT).await;
                if self.is_over() {
                    return;
                }
            }
            // A read that hangs was waited for, and the next attempt continues with it.
            if !sources.iter().any(Source::is_running) {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    async fn attempt(&self, source: &mut Source, limit: Duration) {
        let text = source.attempt(limit).await;
        self.take(source.means(), text);
    }

    /// Tries what the means gave.
    fn take(&self, means: &Means, text: Attempt) {
        let failed = match text.and_then(|text| GivenKey::parse(&text)) {
            Ok(given) => self.open(&given.key, given.version).err().map(|error| error.message),
            Err(why) => Some(why),
        };
        // Another way was faster, and this one has not failed.
        if self.is_over() {
            return;
        }
        let Some(why) = failed else { return };
        let mut shown = self.unattended.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.insert(means.to_string(), why.clone()).as_ref() != Some(&why) {
            tracing::warn!(%means, why, "cannot unlock without a person");
        }
    }

    /// Opens the keys. `version`: which key it is, if known.
    fn open(&self, key: &UnlockKey, version: Option<Revision>) -> Result<(), ErrorBody> {
        let needs = self.version;
        let details = Details::default().with(detail::VERSION, &needs).with(detail::SINCE, &self.since);
        let mut opened_with = self.opened_with.lock().unwrap_or_else(PoisonError::into_inner);
        match self.keys.unlock(key) {
            Ok(()) => {
                *opened_with = Some(key.clone());
                self.opened.notify_waiters();
                Ok(())
            }
            Err(UnlockRefusal::NotLocked) if opened_with.as_ref() == Some(key) => Ok(()),
            Err(UnlockRefusal::WrongKey { .. }) if version.is_some_and(|given| given > needs) => {
                let text = format!(
                    "this daemon was sealed before the key of version {} was made: it needs version {needs} once \
                     (`muster autolock key --version {needs}` on another manager)",
                    version.unwrap_or_default()
                );
                Err(ErrorBody::new(ErrorCode::OldKeyNeeded, text).with_details(&details))
            }
            Err(UnlockRefusal::WrongKey { .. }) => {
                let text = format!(
                    "this key opens nothing here: the daemon needs version {needs} of its cluster's unlock key. After a rotation that \
                     it has missed, an earlier key is needed: `muster autolock key --version {needs}` on another manager"
                );
                Err(ErrorBody::new(ErrorCode::BadUnlockKey, text).with_details(&details))
            }
            Err(UnlockRefusal::NotLocked) => {
                Err(ErrorBody::new(ErrorCode::NotLocked, "this daemon was unlocked already, and starts"))
            }
            Err(UnlockRefusal::Fault(fault)) => Err(ErrorBody::new(ErrorCode::Internal, fault.to_string())),
        }
    }
}

impl LockedDaemon for Waiting {
    fn status(&self) -> LockedView {
        let shown = self.unattended.lock().unwrap_or_else(PoisonError::into_inner);
        let failed: Vec<String> = shown.iter().map(|(means, why)| format!("{means}: {why}")).collect();
        let unattended = (!failed.is_empty()).then(|| failed.join("; "));
        LockedView { locked: !self.is_over(), node: self.node, version: self.version, since: self.since, unattended }
    }
    fn unlock(&self, key: &Secret, version: Option<Revision>) -> Result<UnlockedView, ErrorBody> {
        let key = UnlockKey::parse(key.expose()).map_err(|bad| ErrorBody::invalid(bad.to_string()))?;
        let refused = |refused: &ErrorBody| tracing::warn!(code = %refused.code, "unlock refused");
        self.open(&key, version).inspect_err(refused)?;
        Ok(UnlockedView { unlocked: true, version: self.version })
    }
}

/// The admin socket and the metrics port of a locked daemon.
struct Serving {
    root: Supervisor,
    metrics: Option<AbortHandle>,
}

impl Serving {
    async fn start(
        config: &Config,
        waiting: &Arc<Waiting>,
        socket: Arc<AdminSocket>,
        metrics_listener: Option<&Arc<TcpListener>>,
    ) -> Result<Self, Exit> {
        let tree = Tree::new();
        let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.map_err(|f| Exit::new(1, f.0))?;
        let node = waiting.node.unwrap_or_else(|| NodeId::from_entropy(0));
        let name = Name::sanitized(&config.name);
        let facts = move || NodeFacts {
            id: node,
            name: name.clone(),
            role: Role::Manager,
            managers: Vec::new(),
            cluster: String::new(),
            root_pem: String::new(),
            trouble: None,
        };
        let api = Api::new(ApiPorts {
            facts: Arc::new(facts),
            open_admission: Arc::new(|| Err("the daemon is locked".to_owned())),
            manager: watch::channel(None).1,
            tree,
            dialer: Dialer::anonymous(""),
            crash_allowed: false,
            audit: AuditLog::default(),
            limits: config.settings.api(),
            metrics: metrics::locked_port(),
            explain_workloads: None,
            certificate_lifetime: None,
            run_logs: None,
            locked: Some(Arc::clone(waiting) as Arc<dyn LockedDaemon>),
        });
        // Nothing comes through the TLS port.
        let (sink, incoming) = mpsc::channel(1);
        let incoming = Arc::new(tokio::sync::Mutex::new(incoming));
        root.children().start(Spec::actor("api", Address::new(64), move || {
            let _open = &sink;
            Ok(ApiShell::new(
                api.clone(),
                Arc::clone(&incoming),
                Some(Arc::clone(&socket)),
                Arc::new(|| Principal::Operator),
            ))
        }));
        Ok(Self { root, metrics: metrics_listener.map(|listener| metrics::serve_locked(Arc::clone(listener))) })
    }

    async fn stop(self) {
        if let Some(metrics) = self.metrics {
            metrics.abort();
        }
        self.root.shut_down().await;
    }
}

/// Accepts and closes: a peer learns that the machine is up, and nothing else.
async fn close_connections(listener: &TcpListener) {
    loop {
        if listener.accept().await.is_err() {
            // Most likely out of files; that passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[cfg(test)]
mod tests;
