//! The daemon: reads its configuration, finds its identity, builds the supervision tree, runs until it is stopped.

mod audit;
mod boot;
mod check_config;
mod command_setup;
mod commands;
mod config;
mod feature_level;
mod leader;
mod lock;
mod locked;
mod logging;
mod manager;
mod metrics;
mod node;
mod own;
mod ready;
mod reconcilers;
mod recovery;
mod releases;
mod reload;
mod run_logs;
mod sealing;
mod settings;
mod startup_failure;
mod systemd;
mod upstream;
mod workloads;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::CommandFactory;
use muster_kernel::{Children, Fault};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::boot::Exit;
use self::config::{Args, BadConfig, Config};
use self::lock::DirLock;
use self::node::Node;
pub use self::own::Host;
use self::reload::Reload;
use crate::guard;

/// The contract gives an orderly stop 10 s.
const STOP_TIMEOUT: Duration = Duration::from_millis(9_500);

/// The daemon's arguments, for its manual page.
pub fn command() -> clap::Command {
    Args::command()
}

/// Runs the daemon with these arguments, the program's name first.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    run_program(args, None)
}

/// Runs a daemon that has a program's own actors, below `node/own`, where `muster actors` shows them. `start` starts them, and starts them
/// again after a failure of their group. However often they fail, the rest of the node continues (docs/embedding.md).
pub fn main_with(
    args: Vec<OsString>,
    start: impl Fn(&Host, &Children) -> Result<(), Fault> + Send + Sync + 'static,
) -> ExitCode {
    guard::hidden(&args).unwrap_or_else(|| run_program(args.into_iter(), Some(Arc::new(start))))
}

fn run_program(args: impl Iterator<Item = OsString>, own: Option<own::Start>) -> ExitCode {
    guard::become_daemon();
    let args = match Args::of(args) {
        Ok(args) => args,
        Err(error) => {
            let _closed = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    if let Some(format) = args.check_config() {
        return check_config::report(args, format);
    }
    let config = match config::load(args.clone()) {
        Ok(config) => config,
        Err(BadConfig(faults)) => {
            faults.iter().for_each(boot::say);
            return ExitCode::from(2);
        }
    };
    if args.prints_config() {
        return print_config(&config);
    }
    if let Some(format) = config.print_plan {
        leave_no_core_file();
        return recovery::print_plan(&config, format).unwrap_or_else(|exit| exit.report());
    }
    let installed = logging::parse(&config.log).and_then(|filter| logging::install(filter, config.log_format));
    let log = match installed {
        Ok(log) => log,
        Err(bad) => return Exit::new(2, bad).report(),
    };
    leave_no_core_file();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("musterd").build() {
        Ok(runtime) => runtime,
        Err(error) => return Exit::new(1, format!("cannot start the runtime: {error}")).report(),
    };
    let ended = runtime.block_on(run(config.clone(), own, Reload::new(args, config, log)));
    // Blocking work that hangs (a hung disk) must not delay the exit.
    runtime.shutdown_timeout(Duration::from_millis(200));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.report(),
    }
}

fn print_config(config: &Config) -> ExitCode {
    match toml::to_string(config) {
        Ok(text) => {
            boot::print(&text);
            ExitCode::SUCCESS
        }
        Err(error) => Exit::new(1, error.to_string()).report(),
    }
}

async fn run(config: Config, own: Option<own::Start>, mut reload: Reload) -> Result<(), Exit> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    muster_api::AdminSocket::check(&config.socket).map_err(|e| Exit::new(2, e.to_string()))?;
    if let Some(path) = &config.workload_socket {
        muster_workload_api::check_socket_path(path).map_err(|e| Exit::new(2, e.to_string()))?;
    }
    let _lock = DirLock::take(&config.data_dir).map_err(|e| Exit::new(1, e.to_string()))?;
    // It must not end a daemon that is starting, least of all a locked one, which may wait for days: it is carried out after that.
    let mut hangup = if reload.is_useful() { Some(signal(SignalKind::hangup())?) } else { None };
    let starting = Node::start(config, own);
    let stopped = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let node = tokio::select! {
        started = starting => started?,
        () = systemd::feed_watchdog(None, async || true) => return Ok(()),
        _ = stopped => {
            systemd::stopping();
            return Ok(());
        }
    };
    let ended = tokio::select! {
        () = reload_on_hangup(&node, &mut reload, hangup.as_mut()) => Ok(()),
        () = node.report_to_systemd() => Ok(()),
        exit = node.ended() => Err(exit),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    tracing::info!("stopping");
    systemd::stopping();
    tokio::select! {
        stopped = tokio::time::timeout(STOP_TIMEOUT, node.stop()) => {
            if stopped.is_err() {
                tracing::warn!(limit_s = STOP_TIMEOUT.as_secs(), "stop deadline reached; exiting before everything has stopped");
            }
        }
        // A second signal: stop at once.
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    ended
}

/// Never returns.
async fn reload_on_hangup(node: &Node, reload: &mut Reload, hangup: Option<&mut Signal>) {
    let Some(hangup) = hangup else { return std::future::pending().await };
    while hangup.recv().await.is_some() {
        systemd::reloading();
        reload.reload(node).await;
        systemd::reloaded();
    }
    std::future::pending().await
}

/// A core file would hold what is sealed on the disk: the root key, the unlock key, the state. For debugging, `prlimit` raises the limit of
/// a running process.
fn leave_no_core_file() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let none = Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "cannot switch core files off");
    }
}
