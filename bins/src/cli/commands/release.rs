//! `muster release`: which release of each application the machine can run. The daemon reads it from one directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_client::{Client, Failure, Outcome, Target};
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use muster_messages::{ActorNode, ErrorCode, MANAGERS_SCOPE, Release};
use muster_reconciler::NOT_INSTALLED;
use muster_sealing::files::write_atomic_as;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Context;
use crate::cli::args::{Installed, ReleaseCommand};
use crate::cli::output::{Table, printable};

/// In the tree of every daemon: it is started after [`RELEASES`].
const RECONCILERS: &str = "node/reconcilers";
const RELEASES: &str = "node/releases";

/// The daemon looks twice a second. A daemon that has not looked in this time is waited for as long as for an answer (`--timeout`).
const TAKE_UP_TIMEOUT: Duration = Duration::from_secs(10);
/// Often enough that a person does not notice the wait, and a daemon does not notice the questions.
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
    /// Looks that the daemon has completed.
    looks: u64,
}

/// What is read of the actor that runs reconcilers.
#[derive(Debug, Deserialize)]
struct OwnRelease {
    release: Release,
}

async fn inspect<T: DeserializeOwned>(client: &mut Client, path: &str) -> Outcome<(T, Value)> {
    let ask = ActorsAsk::Inspect { path: path.to_owned() };
    let actor: ActorNode = client.ask(Request::Actors { node: ActorsOf::Here, ask }).await?;
    let view = serde_json::from_value(actor.view.clone())
        .map_err(|error| Failure::internal(format!("the daemon's answer cannot be read: {error}")))?;
    Ok((view, actor.view))
}

impl Declarations {
    /// Asks the daemon on this machine.
    async fn of(client: &mut Client) -> Outcome<(Self, Value)> {
        let Target::Socket(_) = client.target() else {
            return Err(Failure::new(
                ErrorCode::Invalid,
                "the releases of a machine are declared on it: use the socket of its daemon, without --identity",
            ));
        };
        inspect(client, RELEASES).await.map_err(|failure| match failure.is(ErrorCode::NotFound) {
            true => Failure::new(
                ErrorCode::NotFound,
                "this daemon reads no declared releases: `[reconcilers] releases` of its configuration is empty, or its build is too old",
            ),
            false => failure,
        })
    }

    /// Refused while it is in doubt: a process that announced an earlier release than it has would block its own gate, and one that
    /// announced a later one would pass a floor that is meant for it.
    fn of_scope(&self, scope: &str) -> Outcome<Release> {
        if self.incomplete || self.faulty.contains(scope) {
            let why = self.faults.join("; ");
            return Err(Failure::new(ErrorCode::Invalid, format!("the declaration cannot be used: {why}")));
        }
        match self.declared.get(scope) {
            Some(Some(release)) => Ok(release.clone()),
            Some(None) => {
                let file = file_of(&self.directory, scope);
                let text = format!("{} declares that nothing of {scope} is installed on this machine", file.display());
                Err(Failure::new(ErrorCode::Invalid, text))
            }
            None => Ok(self.release.clone()),
        }
    }
}

/// The release that the machine of this daemon can run for a scope, as it is declared now: a deployment tool may write
/// its file and start it at once.
pub(in crate::cli) async fn of_scope(client: &mut Client, scope: &str) -> Outcome<Release> {
    let known = match Declarations::of(client).await {
        Ok((known, _)) => known,
        // Without declarations the node's own release counts. A daemon that is starting has neither actor, and is asked again.
        Err(failure) if failure.is(ErrorCode::NotFound) => match inspect::<OwnRelease>(client, RECONCILERS).await {
            Ok((own, _)) => return Ok(own.release),
            Err(error) if error.is(ErrorCode::NotFound) => {
                return Err(Failure::new(ErrorCode::Unreachable, "the daemon is still starting"));
            }
            Err(_) => return Err(failure),
        },
        Err(failure) => return Err(failure),
    };
    // The first look may have begun before. An actor that was started again counts anew.
    let (mut before, mut least) = (known.looks, known.looks + 2);
    let has_looked = |now: &Declarations| {
        if now.looks < before {
            least = now.looks + 2;
        }
        before = now.looks;
        now.looks >= least
    };
    wait_until(client, has_looked).await?.of_scope(scope)
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
    if scope == MANAGERS_SCOPE {
        let why = format!("the release of scope {MANAGERS_SCOPE} is that of the managers themselves");
        return Err(Failure::new(ErrorCode::Invalid, why));
    }
    let (Installed(release), (known, _)) = (of, Declarations::of(&mut ctx.client).await?);
    let text = text_of(release.as_ref());
    write(&known.directory, scope, &text)
        .map_err(|error| Failure::io(format_args!("cannot declare it in {}", known.directory.display()), &error))?;
    wait_until(&mut ctx.client, |known| known.declared.get(scope) == Some(release)).await?;
    let document = json!({"scope": scope, "release": release, "directory": known.directory}).to_string();
    let sentence = || match release {
        Some(release) => format!("declared: this machine can run {release} of {scope}"),
        None => format!("declared: this machine can run nothing of {scope}"),
    };
    ctx.out.document(&document, || text.clone(), sentence);
    Ok(0)
}

/// The daemon never sees a part of it, also after a crash, and may run as another user. The owner of the directory cannot lead the write to
/// another file: the temporary one, whose name the daemon leaves out, must not exist.
fn write(directory: &Path, scope: &str, release: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let text = format!("scope = \"{scope}\"\nrelease = \"{release}\"\n");
    write_atomic_as(&file_of(directory, scope), text.as_bytes(), 0o644)
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
    let sentence = || format!("declaration withdrawn: {scope} follows the node's own release, {}", known.release);
    ctx.out.document(&text, || known.release.to_string(), sentence);
    Ok(0)
}

/// Until the daemon has read the directory.
async fn wait_until(client: &mut Client, mut done: impl FnMut(&Declarations) -> bool) -> Outcome<Declarations> {
    let began = Instant::now();
    let longest = client.timeout().max(TAKE_UP_TIMEOUT);
    let mut looks_before = None;
    loop {
        let (known, _) = Declarations::of(client).await?;
        if done(&known) {
            return Ok(known);
        }
        // An actor that was started again counts anew.
        let before = known.looks.min(looks_before.unwrap_or(known.looks));
        looks_before = Some(before);
        let (lasts, has_looked) = (began.elapsed(), known.looks >= before + 2);
        if lasts >= longest || lasts >= TAKE_UP_TIMEOUT && has_looked {
            let why = if known.faults.is_empty() { String::new() } else { format!(": {}", known.faults.join("; ")) };
            let (directory, limit) = (known.directory.display(), lasts.as_secs());
            let text = match has_looked {
                false => format!(
                    "the daemon has not read {directory} again within {limit} s{why}; if `muster actors inspect {RELEASES}` shows the \
                     same number of looks, its file system hangs"
                ),
                true => {
                    format!("the daemon has read {directory}, but has not taken over the change within {limit} s{why}")
                }
            };
            return Err(Failure::new(ErrorCode::TimedOut, text));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_of_a_scope_is_the_declared_one_or_the_nodes_own() {
        let known: Declarations = serde_json::from_value(json!({
            "directory": "/etc/releases", "release": "9.0.0", "declared": {"shop": "1.2.0", "mail": null, "chat": "3.0.0"},
            "incomplete": false, "faults": ["chat.toml: not UTF-8"], "faulty": ["chat"], "looks": 7,
        }))
        .unwrap();
        let of = |known: &Declarations, scope: &str| match known.of_scope(scope) {
            Ok(release) => release.to_string(),
            Err(failure) => failure.message,
        };
        for (scope, expected) in [
            ("shop", "1.2.0"),
            ("other", "9.0.0"),
            ("mail", "/etc/releases/mail.toml declares that nothing of mail is installed on this machine"),
            ("chat", "the declaration cannot be used: chat.toml: not UTF-8"),
        ] {
            assert_eq!(of(&known, scope), expected);
        }
        let in_doubt = Declarations { incomplete: true, ..known };
        for scope in ["shop", "other"] {
            assert!(of(&in_doubt, scope).starts_with("the declaration cannot be used"), "{scope}");
        }
    }
}
