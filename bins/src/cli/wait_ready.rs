//! `muster wait-ready`: serves only while every gate of a scope lets it.
//!
//! Keeps  READY-1  the command runs only between an admission and the margin before its lease ends, also when this process
//!                 is killed or frozen (its guardian does it); the place is given up only when nothing of it is left.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use muster_messages::{ErrorCode, Release, Triple};
use muster_reconciler::{Admission, Link, Managers, Member, NotServing, Socket, Standing, StartError, Waiting};
use serde_json::json;
use tokio::sync::mpsc;

use super::args::Global;
use super::client::{Client, Target};
use super::duration::parse_duration;
use super::elect::command::{End, Forwarded, Speaker, guard};
use super::elect::default_identity;
use super::failure::{Failure, Outcome};
use super::output::{Out, print};
use crate::guard::{Exit, Launch, Number, adopt};

#[derive(Debug, Args)]
#[command(
    after_help = "The command sees MUSTER_SCOPE, MUSTER_MEMBER and MUSTER_FENCING_TOKEN. When it may serve no longer it gets \
TERM, then KILL before anybody relies on its being gone, and muster exits 7; otherwise muster exits as the command does, 128+n \
for a signal. Without --exec nothing is held: it ends as soon as a member of this release would be admitted."
)]
pub struct WaitReadyArgs {
    /// The scope to take part in
    pub scope: String,
    /// A reconciler that must have been applied; may be given several times
    #[arg(long = "reconciler", value_name = "NAME")]
    pub reconcilers: Vec<String>,
    /// What we are: releases below a gate's floor are not admitted
    #[arg(long)]
    pub release: Release,
    /// What must have been applied at least, of each reconciler named
    #[arg(long, value_name = "RELEASE", default_value = "0.0.0")]
    pub needs: Triple,
    /// Our name in the scope [default: host name, pid and a random number]
    #[arg(long, value_name = "NAME")]
    pub member: Option<String>,
    /// Give up waiting after this long (exit 3) [default: never]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Run the command while admitted
    #[arg(long, requires = "command")]
    pub exec: bool,
    /// What to run
    #[arg(last = true, value_name = "CMD", requires = "exec")]
    pub command: Vec<OsString>,
}

/// The exit status of a command whose admission was revoked while it ran.
const REVOKED: u8 = 7;

pub async fn run(args: WaitReadyArgs, out: Out, global: &Global) -> Outcome<u8> {
    let mut signals = Forwarded::listen()?;
    // What a killed guardian leaves behind becomes ours.
    adopt().map_err(|e| Failure::io("cannot become a subreaper", &e.into()))?;
    let link = match Client::from_flags(global).await?.target() {
        Target::Socket(path) => Link::new(Socket(path.clone())),
        Target::Managers { dialer, managers } => Link::new(Managers::new((**dialer).clone(), managers.clone())),
    };
    let name = args.member.clone().unwrap_or_else(default_identity);
    let bare = Member::new(&args.scope, &name, args.release.clone());
    let member = args.reconcilers.iter().fold(bare, |member, reconciler| member.needs(reconciler, args.needs));
    let waiting = Admission::announce(Arc::new(link), member).await.map_err(|error| match error {
        StartError::Config(refusal) => Failure::new(ErrorCode::Invalid, refusal.to_string()),
        StartError::Fault(_) => Failure::internal(error),
    })?;
    let speaker = Speaker::new(out);
    if let Err(gone) = admitted(&waiting, args.timeout, speaker, &mut signals).await {
        waiting.leave().await;
        return gone;
    }
    let serving = waiting.ready().await.map_err(|NotServing::Refused(why)| refused(&why))?;
    if !args.exec {
        serving.drain().await;
        if out.is_json() {
            print(&json!({"scope": args.scope, "release": args.release, "ready": true}).to_string());
        } else {
            out.say(format!("{} {} would be admitted", args.scope, args.release));
        }
        return Ok(0);
    }
    let token = serving.token().map(|token| token.to_string()).unwrap_or_default();
    speaker.say(&format!("serving in {} as {name}", args.scope));
    let environment = [("MUSTER_SCOPE", args.scope.clone()), ("MUSTER_MEMBER", name), ("MUSTER_FENCING_TOKEN", token)];
    let environment = environment.map(|(key, value)| (key.to_owned(), value)).to_vec();
    let launch = Launch::new(args.command, environment);
    let (pass_on, passed_on) = mpsc::channel(16);
    let mut why = None;
    let end = {
        let revoked = async { why = Some(serving.revoked().await) };
        let command = guard(&launch, serving.hold(), revoked, Some(passed_on));
        let mut command = std::pin::pin!(command);
        loop {
            tokio::select! {
                end = &mut command => break end,
                // A command that takes no signals any more has ended.
                number = signals.next() => drop(pass_on.try_send(number)),
            }
        }
    };
    serving.drain().await;
    match (end, why) {
        (End::Failed(failure), _) => Err(failure),
        (_, Some(why)) => Err(revoked_while_running(&args.scope, &why)),
        (End::Lapsed, None) => Err(revoked_while_running(&args.scope, "its time ran out")),
        (End::Exited(exit), None) => Ok(exit.status()),
    }
}

/// Waits until it is admitted. `Err`: how it ends instead.
async fn admitted(
    waiting: &Waiting,
    timeout: Option<Duration>,
    speaker: Speaker,
    signals: &mut Forwarded,
) -> Result<(), Outcome<u8>> {
    let limit = timeout.map(|limit| tokio::time::Instant::now() + limit);
    let mut standing = waiting.standing();
    let mut said = String::new();
    loop {
        let now = standing.borrow_and_update().standing.clone();
        match &now {
            Standing::Serving => return Ok(()),
            Standing::Revoked { why } | Standing::Refused { why } => return Err(Err(refused(why))),
            Standing::Left => return Err(Err(refused("it has left"))),
            Standing::Announcing { .. } | Standing::Waiting { .. } => {}
        }
        if let Some(why) = waits_for(&now).filter(|why| *why != said) {
            speaker.say(&format!("waiting: {why}"));
            said = why;
        }
        let over = async {
            match limit {
                Some(limit) => tokio::time::sleep_until(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = standing.changed() => if changed.is_err() { return Err(Err(refused("it was stopped"))) },
            () = over => {
                let last = if said.is_empty() { "the cluster has not answered".to_owned() } else { said };
                return Err(Err(Failure::new(ErrorCode::TimedOut, format!("not admitted in time: {last}"))));
            }
            number = signals.next() => if signals.ends(number) { return Err(Ok(interrupted(number))) },
        }
    }
}

/// What it waits for, as far as it is known.
fn waits_for(standing: &Standing) -> Option<String> {
    match standing {
        Standing::Announcing { trouble } => trouble.clone(),
        Standing::Waiting { reason, message } => Some(format!("{reason}: {message}")),
        _ => None,
    }
}

fn interrupted(number: Number) -> u8 {
    Exit::Signal(number).status()
}

fn refused(why: &str) -> Failure {
    Failure::refused("not_admitted", format!("not admitted: {why}"))
}

fn revoked_while_running(scope: &str, why: &str) -> Failure {
    let message = format!("may serve in {scope} no longer: {why}; the command was ended");
    Failure { code: "admission_revoked".to_owned(), exit: REVOKED, message, details: json!({}) }
}
