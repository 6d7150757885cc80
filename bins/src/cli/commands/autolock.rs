//! `muster autolock …` and `muster unlock`

use std::io::{IsTerminal as _, Read as _};
use std::path::Path;
use std::time::Instant;

use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::Request;
use muster_messages::{AutolockOffView, AutolockView, ErrorCode, LockedView, Revision, UnlockKeyView, UnlockedView};

use super::Context;
use crate::cli::args::{AutolockCommand, SealWait, UnlockArgs};
use crate::cli::output::printable;
use crate::cli::render;
use crate::cli::terminal::without_echo;
use crate::unlock_text::{GivenKey, MAX_KEY_TEXT_BYTES, key_buffer};

pub async fn run(ctx: &mut Context, command: AutolockCommand) -> Outcome<u8> {
    match command {
        AutolockCommand::On(wait) => change(ctx, Request::AutolockOn, wait).await,
        AutolockCommand::Rotate(wait) => change(ctx, Request::AutolockRotate, wait).await,
        AutolockCommand::Off { yes: _, wait } => off(ctx, wait).await,
        AutolockCommand::Key { version } => {
            let key = |view: &UnlockKeyView| printable(&view.key);
            ctx.show(Request::AutolockKey { version }, key, render::unlock_key).await
        }
        AutolockCommand::Status => {
            let word = |view: &AutolockView| if view.enabled { "on" } else { "off" }.to_owned();
            ctx.show(Request::AutolockStatus, word, render::autolock).await
        }
    }
}

/// The key is printed before the wait: it is in force, and a command that is interrupted while it waits must not hide it. What the wait
/// finds is in the exit status, so that a script still gets one document.
async fn change(ctx: &mut Context, request: Request, SealWait { wait }: SealWait) -> Outcome<u8> {
    let until = wait.map(|wait| Instant::now() + wait);
    let rotates = request == Request::AutolockRotate;
    let text = ctx.client.call(request).await?;
    let view: UnlockKeyView = parse(&text)?;
    ctx.out.document(&text, || printable(&view.key), || sentences(&view, rotates));
    settle(ctx, view.version, until, "every manager that is ready has sealed its keyring with it").await
}

async fn off(ctx: &mut Context, SealWait { wait }: SealWait) -> Outcome<u8> {
    let until = wait.map(|wait| Instant::now() + wait);
    let text = ctx.client.call(Request::AutolockOff).await?;
    let view: AutolockOffView = parse(&text)?;
    let sentence = match view.changed {
        true => {
            "autolock is off: managers start without a key. One that is down needs its key once more: `muster autolock status`"
        }
        false => "autolock is off already",
    };
    ctx.out.document(&text, String::new, || sentence.to_owned());
    settle(ctx, view.version, until, "every manager that is ready starts without a key").await
}

/// Waits, if that was asked for, until the managers that are ready have written this version.
async fn settle(ctx: &mut Context, version: Revision, until: Option<Instant>, settled: &str) -> Outcome<u8> {
    if let Some(until) = until.filter(|_| version > Revision(0)) {
        let out = ctx.out;
        ctx.client.wait_for_seals(version, until, |reason| out.note(reason)).await?;
        out.note(settled);
    }
    Ok(0)
}

fn sentences(view: &UnlockKeyView, rotates: bool) -> String {
    let (version, key) = (view.version, printable(&view.key));
    let first = match (view.changed, rotates) {
        (Some(false), _) => "autolock is on already",
        (_, true) => "the unlock key was replaced",
        (_, false) => "autolock is on",
    };
    let warning = match rotates {
        false => {
            "Keep it in a safe place that does not depend on this cluster: each manager asks for it when it starts (`muster unlock`).\n\
             If all managers are locked and the key is lost, the cluster's data is lost for good.\n"
        }
        true => {
            "The former key opens no manager that has taken this one. A manager that is down needs a former key once:\n\
             `muster autolock status`, or `muster status` at that manager, names the version; `muster autolock key --version N` prints the key.\n"
        }
    };
    format!("{first}. Unlock key, version {version}:\n\n    {key}\n\n{warning}")
}

pub async fn unlock(ctx: &mut Context, args: UnlockArgs) -> Outcome<u8> {
    let given = given_key(ctx, args.key_file.as_deref()).await?;
    let request = Request::Unlock { key: given.text(), version: given.version };
    let sentence =
        |done: &UnlockedView| format!("unlocked with version {} of the key; the daemon starts", done.version);
    ctx.show(request, |_| String::new(), sentence).await
}

async fn given_key(ctx: &mut Context, file: Option<&Path>) -> Outcome<GivenKey> {
    let invalid = |why: String| Failure::new(ErrorCode::Invalid, why);
    let text = match file {
        None if std::io::stdin().is_terminal() => {
            let version = needed(ctx).await?;
            without_echo(&format!("unlock key, version {version}: ")).await?
        }
        None => {
            let text = "no terminal to ask for the key: give it with --key-file FILE, or --key-file - for stdin";
            return Err(invalid(text.to_owned()));
        }
        Some(file) => read(file)?,
    };
    GivenKey::parse(&text).map_err(invalid)
}

/// The version that the daemon needs. A person does not type a key for a daemon that takes none.
async fn needed(ctx: &mut Context) -> Outcome<Revision> {
    needed_by(&ctx.client.call(Request::Status { fresh: false }).await?)
}

fn needed_by(status: &str) -> Outcome<Revision> {
    match parse::<LockedView>(status) {
        Ok(locked) if locked.locked => Ok(locked.version),
        _ => Err(Failure::new(ErrorCode::NotLocked, "this daemon is not locked")),
    }
}

fn read(file: &Path) -> Outcome<zeroize::Zeroizing<String>> {
    let mut text = key_buffer();
    let done = match file.to_str() {
        Some("-") => std::io::stdin().take(MAX_KEY_TEXT_BYTES).read_to_string(&mut text),
        _ => std::fs::File::open(file).and_then(|file| file.take(MAX_KEY_TEXT_BYTES).read_to_string(&mut text)),
    };
    let failed = |error| {
        let why = format!("cannot read the unlock key from {}: {error}", file.display());
        Failure::new(ErrorCode::Invalid, why)
    };
    done.map_err(failed)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_locked_daemon_needs_a_key() {
        let locked =
            |locked| format!(r#"{{"locked":{locked},"node":null,"version":5,"since":null,"unattended":null}}"#);
        assert_eq!(needed_by(&locked(true)).unwrap(), Revision(5));
        for other in [locked(false).as_str(), r#"{"cluster":"c"}"#, "{}"] {
            assert!(needed_by(other).unwrap_err().is(ErrorCode::NotLocked), "{other}");
        }
    }
}
