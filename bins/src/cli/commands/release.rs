//! `muster release`: which release of each application the machine can run. The daemon reads it from one directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_client::{Client, Failure, Outcome, Target};
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use muster_messages::{ActorNode, ErrorCode, Release};
use muster_reconciler::NOT_INSTALLED;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::Context;
use crate::cli::args::{Installed, ReleaseCommand};
use crate::cli::output::{Table, printable};

/// The daemon looks twice a second.
const TAKE_UP_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// What the daemon on this machine knows of the releases.
#[derive(Debug, Deserialize)]
pub(in crate::cli) struct Declarations {
    directory: PathBuf,
    /// The node's own, for scopes without a declaration.
    release: Release,
    /// `None`: nothing of the scope can be run here.
    declared: BTreeMap<String, Option<Release>>,
    /// The directory could not be read: any scope may be declared in it.
    incomplete: bool,
    faults: Vec<String>,
    /// Scopes whose declaration has a fault.
    faulty: BTreeSet<String>,
    /// How often the daemon has looked.
    looks: u64,
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

    /// Refused while it is in doubt: a process that announced an earlier release than it has would block its own gate, and one that
    /// announced a later one would pass a floor that is meant for it.
    fn of_scope(&self, scope: &str) -> Outcome<Release> {
        let named = "name one with --release";
        if self.incomplete || self.faulty.contains(scope) {
            let why = self.faults.join("; ");
            return Err(Failure::new(
                ErrorCode::Invalid,
                format!("the declared release is in doubt, so {named}: {why}"),
            ));
        }
        match self.declared.get(scope) {
            Some(Some(release)) => Ok(release.clone()),
            Some(None) => {
                let file = file_of(&self.directory, scope);
                let text = format!("{} says that nothing of {scope} is on this machine; {named}", file.display());
                Err(Failure::new(ErrorCode::Invalid, text))
            }
            None => Ok(self.release.clone()),
        }
    }
}

/// The release that the machine of this daemon can run for a scope, as it is declared now: a deployment tool may write
/// its file and start it at once.
pub(in crate::cli) async fn of_scope(client: &mut Client, scope: &str) -> Outcome<Release> {
    let (known, _) = Declarations::of(client).await?;
    // The first look may have begun before.
    let known =
        wait_until(client, |now| now.incomplete || now.looks >= known.looks + 2 || now.looks < known.looks).await?;
    known.of_scope(scope)
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
    let brief = || {
        known
            .declared
            .iter()
            .map(|(scope, of)| format!("{scope} {}", text_of(of.as_ref())))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let table = || {
        let mut table = Table::new(&["SCOPE", "RELEASE"]);
        for (scope, release) in &known.declared {
            table.row([scope.clone(), text_of(release.as_ref())]);
        }
        table.row(["(any other)".to_owned(), format!("{}, the node's own", known.release)]);
        let faults: String = known.faults.iter().map(|fault| format!("\nfault: {}", printable(fault))).collect();
        format!("{}{faults}", table.render().trim_end())
    };
    ctx.out.document(&view.to_string(), brief, table);
    Ok(0)
}

fn text_of(release: Option<&Release>) -> String {
    release.map_or_else(|| NOT_INSTALLED.to_owned(), Release::to_string)
}

async fn declare(ctx: &mut Context, scope: &str, of: &Installed) -> Outcome<u8> {
    let (Installed(release), (known, _)) = (of, Declarations::of(&mut ctx.client).await?);
    let text = text_of(release.as_ref());
    write(&known.directory, scope, &text)
        .map_err(|error| Failure::io(format_args!("cannot declare it in {}", known.directory.display()), &error))?;
    wait_until(&mut ctx.client, |known| known.declared.get(scope) == Some(release)).await?;
    let document = json!({"scope": scope, "release": release, "directory": known.directory}).to_string();
    let sentence = || match release {
        Some(release) => format!("this machine runs {release} of {scope}"),
        None => format!("this machine runs nothing of {scope}"),
    };
    ctx.out.document(&document, || text.clone(), sentence);
    Ok(0)
}

/// The daemon never sees a part of it, also after a crash, and may run as another user. The owner of the directory cannot lead the write to
/// another file: the new one must not exist.
fn write(directory: &Path, scope: &str, release: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let new = directory.join(format!(".{scope}.{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&new)?;
    let written = file
        .set_permissions(Permissions::from_mode(0o644))
        .and_then(|()| file.write_all(format!("scope = \"{scope}\"\nrelease = \"{release}\"\n").as_bytes()))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&new, file_of(directory, scope)));
    if written.is_err() {
        let _absent = std::fs::remove_file(&new);
    }
    written.and_then(|()| File::open(directory)?.sync_all())
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
    let known = wait_until(&mut ctx.client, |known| !known.declared.contains_key(scope)).await?;
    let text = json!({"scope": scope, "release": known.release}).to_string();
    let sentence = || format!("this machine runs {} of {scope}, the node's own release", known.release);
    ctx.out.document(&text, || known.release.to_string(), sentence);
    Ok(0)
}

/// Until the daemon has read the directory.
async fn wait_until(client: &mut Client, done: impl Fn(&Declarations) -> bool) -> Outcome<Declarations> {
    let limit = Instant::now() + TAKE_UP_TIMEOUT;
    loop {
        let (known, _) = Declarations::of(client).await?;
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
