//! `muster dev`: a cluster of real processes on this machine.
//!
//! Invariants  DEV-1  a cluster in the foreground leaves no process behind, however this process ends.
//!             DEV-2  one folder, one cluster: a second `dev up` leaves what runs as it is. In the background it starts the nodes that
//!                    have ended, otherwise it changes nothing.

pub mod cluster;
mod handover;
pub mod state;
pub mod steps;
mod tour;

use std::path::Path;
use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome};
use muster_local_cluster::{Lifetime, free_address, stop_all};
use serde_json::{Value, json};

use self::cluster::{LocalCluster, News};
use self::state::{FolderLock, NodeState, State};
use super::args::{DevCommand, Global};
use super::duration::format_duration;
use super::output::{Out, Table, print};
use super::signals::Interrupts;

pub(super) async fn run(command: DevCommand, out: Out, global: &Global) -> Outcome<u8> {
    if global.identity.is_some() {
        out.say("note: `muster dev` ignores --identity");
    }
    match command {
        DevCommand::Up { managers, workers, dir, detach } => up(&dir.dir, (managers, workers), detach, out).await,
        DevCommand::Down { dir } => down(&dir.dir, out).await,
        DevCommand::Tour => tour::run(out).await,
    }
}

async fn up(dir: &Path, (managers, workers): (u16, u16), detach: bool, out: Out) -> Outcome<u8> {
    let mut interrupts = Interrupts::listen()?;
    state::make_folder(dir)?;
    state::check(dir)?;
    let _lock = lock_folder(dir, detach).await?;
    let begun = Instant::now();
    let state = resume_or_plan(dir, managers, workers, out)?;
    let lifetime = if detach { Lifetime::Detached } else { Lifetime::Tied };
    let mut cluster = LocalCluster::prepare(dir, state, lifetime)?;
    let mut report = |node: &NodeState, news: News| out.say(started(node, news, dir));
    let started = tokio::select! {
        outcome = cluster.up(&mut report) => outcome,
        word = interrupts.next() => Err(Failure::internal(format!("{word} before the cluster was up"))),
    };
    if let Err(failure) = started {
        cluster.kill_all().await;
        return Err(failure);
    }
    announce(dir, cluster.state(), begun.elapsed(), detach, out);
    if detach {
        return Ok(0);
    }
    run_in_foreground(&mut cluster, &mut interrupts, dir, out).await;
    Ok(0)
}

/// A line about a node that is started.
fn started(node: &NodeState, news: News, dir: &Path) -> String {
    let news = match news {
        News::Ready(took) => format!("ready after {}", format_duration(took)),
        News::Locked(version) => format!(
            "locked: needs version {version} of the unlock key; unlock it from another terminal: `muster unlock --socket {}`",
            dir.join(&node.name).join("muster.sock").display()
        ),
    };
    format!("{:<4} {:<8} {:<16} {news}", node.name, node.role.to_string(), node.listen)
}

/// Locks the folder, or reports what runs in it. With `detach`, nodes in the background may run: the others are started beside them.
async fn lock_folder(dir: &Path, detach: bool) -> Outcome<FolderLock> {
    let running = |state: &State| {
        let ended = state.ended().join(", ");
        let next = match ended.as_str() {
            "" => String::new(),
            _ if state.can_be_completed() => format!("; `muster dev up --detach` starts {ended}"),
            _ => format!("; to start {ended}, stop all nodes, and run `muster dev up`"),
        };
        let message = format!(
            "a cluster is already running in {} ({} of {} nodes); `muster status` shows it, `muster dev down` stops it{next}:\n{}",
            dir.display(),
            state.running(),
            state.nodes.len(),
            state.describe()
        );
        Failure::refused("already_running", message).with_details(document(dir, state))
    };
    // A `dev up` in the foreground needs a moment to notice that `dev down` has stopped its nodes.
    let until = Instant::now() + Duration::from_secs(1);
    loop {
        let lock = FolderLock::take(dir)?;
        let state = State::read(dir)?;
        match lock {
            Some(lock) if state.running() == 0 || (detach && state.can_be_completed()) => return Ok(lock),
            _ if state.running() > 0 => return Err(running(&state)),
            Some(lock) => return Ok(lock),
            None if Instant::now() >= until => {
                let message = format!("another `muster dev up` is running in {}", dir.display());
                return Err(Failure::refused("already_running", message));
            }
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

fn resume_or_plan(dir: &Path, managers: u16, workers: u16, out: Out) -> Outcome<State> {
    let state = State::read(dir)?;
    if !state.nodes.iter().any(|node| node.joined) {
        return State::plan(managers, workers, free_address);
    }
    let (all, dir) = (state.nodes.len(), dir.display());
    out.say(match state.running() {
        0 => format!("resuming the cluster of {all} nodes in {dir}; remove that folder to create a new one"),
        running => format!("{running} of {all} nodes are running in {dir}; starting {}", state.ended().join(", ")),
    });
    Ok(state)
}

fn document(dir: &Path, state: &State) -> Value {
    let node = |node: &NodeState| {
        json!({"name": node.name, "role": node.role, "addr": node.listen.to_string(),
            "socket": dir.join(&node.name).join("muster.sock").display().to_string(),
            "pid": node.running().map(|process| process.pid)})
    };
    json!({"dir": dir.display().to_string(), "nodes": state.nodes.iter().map(node).collect::<Vec<_>>()})
}

fn announce(dir: &Path, state: &State, took: Duration, detach: bool, out: Out) {
    if out.is_json() {
        print(&document(dir, state).to_string());
        return;
    }
    let mut table = Table::bare();
    table.row(["muster status".to_owned(), "show an overview of the cluster".to_owned()]);
    table.row(["muster node ls".to_owned(), "list its nodes".to_owned()]);
    table.row(["muster actors".to_owned(), "show the live actor tree".to_owned()]);
    if let Some(worker) = state.nodes.iter().find(|node| node.role == muster_messages::Role::Worker) {
        table.row([format!("muster node promote {} --wait", worker.name), "promote a worker to manager".to_owned()]);
    }
    let end = if detach { "it runs in the background; `muster dev down` stops it" } else { "Ctrl-C stops it" };
    let (nodes, took) = (state.running(), format_duration(took));
    let removed = match state.ended().join(", ").as_str() {
        "" => String::new(),
        names => format!("\nremoved from the cluster, and not running: {names}"),
    };
    out.say(format!(
        "\n{nodes} nodes are up after {took}, logs and data in {}. Try, from this folder:\n{}\n{end}{removed}",
        dir.display(),
        table.render()
    ));
}

/// Stays in the foreground until interrupted, or until every node has ended.
async fn run_in_foreground(cluster: &mut LocalCluster, interrupts: &mut Interrupts, dir: &Path, out: Out) {
    loop {
        tokio::select! {
            _ = interrupts.next() => break,
            end = cluster.next_exit() => match end {
                Some((name, how)) => out.say(format!("{name} ended: {how}")),
                None => {
                    out.say("every node has ended");
                    return;
                }
            },
        }
    }
    out.say("stopping");
    tokio::select! {
        unresponsive = cluster.stop() => {
            for name in unresponsive {
                out.say(format!("{name} did not end in time and was killed"));
            }
        }
        _ = interrupts.next() => {}
    }
    cluster.kill_all().await; // the nodes left running after a second signal
    out.say(format!("stopped; the data stays in {}, `muster dev up` resumes it", dir.display()));
}

async fn down(dir: &Path, out: Out) -> Outcome<u8> {
    if dir.exists() {
        state::check(dir)?;
    }
    let state = State::read(dir)?;
    let running: Vec<_> = state.nodes.iter().filter_map(NodeState::running).collect();
    let killed = stop_all(&running).await;
    if out.is_json() {
        print(&json!({"dir": dir.display().to_string(), "stopped": running.len(), "killed": killed}).to_string());
    } else if running.is_empty() {
        out.say(format!("no node is running in {}", dir.display()));
    } else {
        out.say(format!(
            "stopped {} nodes; the data stays in {}, `muster dev up` resumes it",
            running.len(),
            dir.display()
        ));
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_node_comes_with_the_command_that_unlocks_it() {
        let state = State::plan(1, 0, free_address).unwrap();
        let line = started(&state.nodes[0], News::Locked(muster_messages::Revision(418)), Path::new("/c"));
        assert!(line.starts_with("n1 ") && line.contains("version 418"), "{line}");
        assert!(line.contains("`muster unlock --socket /c/n1/muster.sock`"), "{line}");
        let line = started(&state.nodes[0], News::Ready(Duration::from_secs(2)), Path::new("/c"));
        assert!(line.contains("ready after 2"), "{line}");
    }
}
