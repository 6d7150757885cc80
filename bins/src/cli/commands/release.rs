//! `muster release`: which release of each application the machine can run. The daemon reads it from one directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_client::{Client, Failure, Outcome, Target};
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use muster_messages::{ActorNode, ErrorCode, Release};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::Context;
use crate::cli::args::ReleaseCommand;
use crate::cli::output::{Table, printable};

/// The daemon looks every second.
const TAKE_UP_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// What the daemon on this machine knows of the releases.
#[derive(Debug, Deserialize)]
pub(in crate::cli) struct Declarations {
    directory: PathBuf,
    /// The node's own, for scopes without a declaration.
    release: Release,
    declared: BTreeMap<String, Release>,
    faults: Vec<String>,
}

impl Declarations {
    /// Asks the daemon on this machine.
    async fn of(client: &mut Client) -> Outcome<(Self, serde_json::Value)> {
        let Target::Socket(_) = client.target() else {
            return Err(Failure::new(
                ErrorCode::Invalid,
                "the releases of a machine are declared on it: use the socket of its daemon, without --identity",
            ));
        };
        let ask = ActorsAsk::Inspect { path: "node/releases".to_owned() };
        let actor: ActorNode = client.ask(Request::Actors { node: ActorsOf::Here, ask }).await?;
        let declarations = serde_json::from_value(actor.view.clone())
            .map_err(|error| Failure::internal(format!("the daemon's answer cannot be read: {error}")))?;
        Ok((declarations, actor.view))
    }

    fn of_scope(&self, scope: &str) -> &Release {
        self.declared.get(scope).unwrap_or(&self.release)
    }
}

/// The release that the machine of this daemon can run for a scope.
pub(in crate::cli) async fn of_scope(client: &mut Client, scope: &str) -> Outcome<Release> {
    Ok(Declarations::of(client).await?.0.of_scope(scope).clone())
}

pub(super) async fn run(ctx: &mut Context, command: ReleaseCommand) -> Outcome<u8> {
    match command {
        ReleaseCommand::Ls => list(ctx).await,
        ReleaseCommand::Declare { scope, release } => declare(ctx, &scope, &release).await,
        ReleaseCommand::Withdraw { scope } => withdraw(ctx, &scope).await,
    }
}

async fn list(ctx: &mut Context) -> Outcome<u8> {
    let (known, view) = Declarations::of(&mut ctx.client).await?;
    let brief = || known.declared.iter().map(|(scope, of)| format!("{scope} {of}")).collect::<Vec<_>>().join("\n");
    let table = || {
        let mut table = Table::new(&["SCOPE", "RELEASE"]);
        for (scope, release) in &known.declared {
            table.row([scope.clone(), release.to_string()]);
        }
        table.row(["(any other)".to_owned(), format!("{}, the node's own", known.release)]);
        let faults: String = known.faults.iter().map(|fault| format!("\nfault: {}", printable(fault))).collect();
        format!("{}{faults}", table.render().trim_end())
    };
    ctx.out.document(&view.to_string(), brief, table);
    Ok(0)
}

async fn declare(ctx: &mut Context, scope: &str, release: &Release) -> Outcome<u8> {
    let (known, _) = Declarations::of(&mut ctx.client).await?;
    write(&known.directory, scope, release)
        .map_err(|error| Failure::io(format_args!("cannot declare it in {}", known.directory.display()), &error))?;
    wait_until(ctx, |known| known.declared.get(scope) == Some(release)).await?;
    let text = json!({"scope": scope, "release": release, "directory": known.directory}).to_string();
    ctx.out.document(&text, || release.to_string(), || format!("this machine runs {release} of {scope}"));
    Ok(0)
}

/// The daemon never sees a part of it.
fn write(directory: &Path, scope: &str, release: &Release) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let complete = file_of(directory, scope);
    let new = directory.join(format!(".{scope}.{}", std::process::id()));
    std::fs::write(&new, format!("scope = \"{scope}\"\nrelease = \"{release}\"\n"))?;
    std::fs::rename(new, complete)
}

fn file_of(directory: &Path, scope: &str) -> PathBuf {
    directory.join(format!("{scope}.toml"))
}

async fn withdraw(ctx: &mut Context, scope: &str) -> Outcome<u8> {
    let (known, _) = Declarations::of(&mut ctx.client).await?;
    let file = file_of(&known.directory, scope);
    match std::fs::remove_file(&file) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = format!("{} does not exist; `muster release ls` lists what is declared", file.display());
            return Err(Failure::new(ErrorCode::NotFound, text));
        }
        Err(error) => return Err(Failure::io(format_args!("cannot delete {}", file.display()), &error)),
    }
    let known = wait_until(ctx, |known| !known.declared.contains_key(scope)).await?;
    let text = json!({"scope": scope, "release": known.release}).to_string();
    let sentence = || format!("this machine runs {} of {scope}, the node's own release", known.release);
    ctx.out.document(&text, || known.release.to_string(), sentence);
    Ok(0)
}

/// Until the daemon has read the directory.
async fn wait_until(ctx: &mut Context, done: impl Fn(&Declarations) -> bool) -> Outcome<Declarations> {
    let limit = Instant::now() + TAKE_UP_TIMEOUT;
    loop {
        let (known, _) = Declarations::of(&mut ctx.client).await?;
        if done(&known) {
            return Ok(known);
        }
        if Instant::now() >= limit {
            let why = if known.faults.is_empty() { String::new() } else { format!(": {}", known.faults.join("; ")) };
            let text = format!("the daemon has not taken it up from {}{why}", known.directory.display());
            return Err(Failure::new(ErrorCode::TimedOut, text));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
