//! `muster wait-ready`: serves only while every gate of a scope admits it.
//!
//! Invariants  READY-1  the command runs only between an admission and the margin before its lease ends, also when this process
//!                      is killed or frozen (its guardian does it); participation ends only when nothing of the command is left.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use muster_client::{Client, Failure, Outcome, Target, parse};
use muster_elector::BootTime;
use muster_gates::{MAX_LEASE_MS, MIN_LEASE_MS};
use muster_messages::wire::{ReconcilerRequest, Request};
use muster_messages::{
    CANDIDATES_SCOPE, DNS_LABEL, ErrorCode, ListView, ParticipantKey, ReconcilerView, Release, SessionId, Triple,
    is_dns_label,
};
use muster_reconciler::{
    Admission, AdmissionState, LeaseTiming, Link, Managers, Member, NotServing, Socket, StartError, Waiting,
};
use serde_json::json;
use tokio::sync::mpsc;

use super::args::Global;
use super::commands::release;
use super::discover;
use super::duration::parse_duration;
use super::elect::command::{End, Forwarded, Speaker, guard};
use super::elect::default_identity;
use super::output::{Out, print, printable};
use crate::guard::{Exit, Launch, Number, adopt};

#[derive(Debug, Args)]
#[command(
    after_help = "The command's environment has MUSTER_SCOPE, MUSTER_MEMBER, MUSTER_RELEASE and MUSTER_FENCING_TOKEN. When its admission is revoked, \
it gets TERM, then KILL before a run relies on its end, and muster exits 7. Otherwise muster exits with the command's status, \
128+n for signal n. Without --exec nothing is held: muster exits as soon as a member of this release would be admitted.

Examples:
  muster wait-ready db --release 2.0.0 --exec -- ./server
  muster wait-ready db --release 2.0.0 --reconciler schema --needs 2.0.0 --exec -- ./server --port 80
  muster wait-ready db --release 2.0.0 --timeout 1m     # would it be admitted? exit 3: not within a minute

A scope that no reconciler has is refused without --allow-undefined-scope, and so are reconcilers of other scopes."
)]
pub struct WaitReadyArgs {
    /// Scope to join: members that serve together and share what reconcilers apply
    #[arg(value_parser = parse_scope)]
    pub scope: String,
    /// A reconciler that must have been applied; can be repeated
    #[arg(long = "reconciler", value_name = "NAME", value_parser = parse_reconciler)]
    pub reconcilers: Vec<String>,
    /// Release of the command; not admitted below a gate's floor [default: what is declared for the scope on this machine, see `muster release`, else the node's own]
    #[arg(long)]
    pub release: Option<Release>,
    /// Lowest release of each --reconciler that must have been applied [default: any]
    #[arg(long, value_name = "RELEASE", requires = "reconcilers")]
    pub needs: Option<Triple>,
    /// Member name in the scope [default: host name, pid and a random number]
    #[arg(long, value_name = "NAME", value_parser = parse_member)]
    pub member: Option<String>,
    /// How long runs wait for this member when it dies, from 3s to 1m. The command gets TERM when two thirds of this have passed without
    /// a renewal
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_lease)]
    pub lease_duration: Duration,
    /// Give up waiting after this long (exit 3) [default: never]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Also join a scope that no reconciler has: nothing holds its members back
    #[arg(long)]
    pub allow_undefined_scope: bool,
    /// Run the command while admitted, instead of only checking the admission
    #[arg(long, requires = "command")]
    pub exec: bool,
    /// Command to run, after `--`
    #[arg(last = true, value_name = "CMD", requires = "exec")]
    pub command: Vec<OsString>,
}

fn parse_scope(text: &str) -> Result<String, String> {
    if text.starts_with(CANDIDATES_SCOPE) {
        return Err("scopes that begin with `candidates.` are reserved for nodes that run reconcilers".to_owned());
    }
    check_key(text, "member").map(|()| text.to_owned())
}

fn parse_member(text: &str) -> Result<String, String> {
    check_key("scope", text).map(|()| text.to_owned())
}

/// The limits of a runner's lease.
fn parse_lease(text: &str) -> Result<Duration, String> {
    let lease = parse_duration(text)?;
    let allowed = Duration::from_millis(MIN_LEASE_MS)..=Duration::from_millis(MAX_LEASE_MS);
    allowed.contains(&lease).then_some(lease).ok_or_else(|| "a member's lease lasts from 3s to 1m".to_owned())
}

fn parse_reconciler(text: &str) -> Result<String, String> {
    let rule = || format!("a reconciler's name is {DNS_LABEL}");
    is_dns_label(text).then(|| text.to_owned()).ok_or_else(rule)
}

/// Checks the cluster's rule before a request is sent.
fn check_key(scope: &str, member: &str) -> Result<(), String> {
    let key = ParticipantKey { scope: scope.to_owned(), member: member.to_owned(), incarnation: SessionId(1) };
    key.fault().map_or(Ok(()), |why| Err(why.to_owned()))
}

/// Host name, pid and a random number, as a legal member name.
fn default_member() -> String {
    default_identity().replace(['.', '_'], "-")
}

/// The exit status of a command whose admission was revoked while it ran.
const EXIT_ADMISSION_REVOKED: u8 = 7;

pub async fn run(args: WaitReadyArgs, out: Out, global: &Global) -> Outcome<u8> {
    let mut signals = Forwarded::listen()?;
    // Orphans of a killed guardian become children of this process.
    adopt().map_err(|e| Failure::io("cannot become a subreaper", &e.into()))?;
    let mut client = discover::client(global).await?;
    let release = match args.release.clone() {
        Some(release) => release,
        None => release_here(&mut client, &args, &mut signals).await?,
    };
    let link = match client.target() {
        Target::Socket(path) => Link::new(Socket(path.clone())),
        Target::Managers { dialer, managers } => Link::new(Managers::new((**dialer).clone(), managers.clone())),
    };
    if let Err(gone) = scope_is_defined(&link, &args, &mut signals).await {
        return gone;
    }
    let name = args.member.clone().unwrap_or_else(default_member);
    let bare = Member::new(&args.scope, &name, release.clone());
    let needs = args.needs.unwrap_or(Triple::new(0, 0, 0));
    let member = args.reconcilers.iter().fold(bare, |member, reconciler| member.needs(reconciler, needs));
    let lease = LeaseTiming::of(args.lease_duration);
    let announced = Admission::announce_with(Arc::new(link), member, lease, Arc::new(BootTime)).await;
    let waiting = announced.map_err(|error| match error {
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
            print(&json!({"scope": args.scope, "release": release, "ready": true}).to_string());
        } else {
            out.say(format!("{} {} would be admitted", args.scope, release));
        }
        return Ok(0);
    }
    let token = serving.token().map(|token| token.to_string()).unwrap_or_default();
    speaker.say(&format!("serving in {} as {name}", args.scope));
    let environment = [
        ("MUSTER_SCOPE", args.scope.clone()),
        ("MUSTER_MEMBER", name),
        ("MUSTER_RELEASE", release.to_string()),
        ("MUSTER_FENCING_TOKEN", token),
    ];
    let environment = environment.map(|(key, value)| (key.to_owned(), value)).to_vec();
    let launch = Launch::new(args.command, environment);
    let (signal_sender, signal_receiver) = mpsc::channel(16);
    let mut why = None;
    let end = {
        let revoked = async { why = Some(serving.revoked().await) };
        let command = guard(&launch, serving.hold(), revoked, Some(signal_receiver));
        let mut command = std::pin::pin!(command);
        loop {
            tokio::select! {
                end = &mut command => break end,
                // A closed channel means that the command has ended.
                number = signals.next() => drop(signal_sender.try_send(number)),
            }
        }
    };
    serving.drain().await;
    match (end, why) {
        (End::Failed(failure), _) => Err(failure),
        (_, Some(why)) => Err(revoked_while_running(&args.scope, &why)),
        (End::Lapsed, None) => Err(revoked_while_running(&args.scope, "it expired")),
        (End::Exited(exit), None) => Ok(exit.status()),
    }
}

/// Pause between two attempts while the cluster does not answer.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time limit for one attempt.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Scopes that a refusal names.
const MAX_NAMED_SCOPES: usize = 10;

/// The release that is declared for the scope on this machine, or the node's own. A daemon that does not answer yet is asked again.
async fn release_here(client: &mut Client, args: &WaitReadyArgs, signals: &mut Forwarded) -> Outcome<Release> {
    let limit = args.timeout.map(|limit| tokio::time::Instant::now() + limit);
    loop {
        let failure = match release::of_scope(client, &args.scope).await {
            Ok(release) => return Ok(release),
            Err(failure) => failure,
        };
        let over = limit.is_some_and(|limit| limit <= tokio::time::Instant::now() + RETRY_PAUSE);
        if over || !failure.may_pass() {
            let message = format!("the release is not known, so name one with --release: {}", failure.message);
            return Err(Failure { message, ..failure });
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY_PAUSE) => {}
            number = signals.next() => if signals.ends(number) { return Err(failure) },
        }
    }
}

/// Refuses a scope that no reconciler has, most likely a mistyped one: its members would serve whatever is applied. A member that names
/// reconcilers needs no such check: it waits for them, and the cluster refuses it if they belong to other scopes.
async fn scope_is_defined(link: &Link, args: &WaitReadyArgs, signals: &mut Forwarded) -> Result<(), Outcome<u8>> {
    if args.allow_undefined_scope || !args.reconcilers.is_empty() {
        return Ok(());
    }
    let limit = args.timeout.map(|limit| tokio::time::Instant::now() + limit);
    let list = loop {
        let asked = link.request(Request::Reconciler(ReconcilerRequest::List), ANSWER_TIMEOUT).await;
        let why = match asked {
            Ok(text) => break parse::<ListView<ReconcilerView>>(&text).map_err(Err)?,
            Err(body) => Failure::from(body),
        };
        if !why.may_pass() {
            return Err(Err(why));
        }
        let over = limit.is_some_and(|limit| limit <= tokio::time::Instant::now() + RETRY_PAUSE);
        if over {
            let text = format!("not admitted in time: the cluster has not answered: {}", why.message);
            return Err(Err(Failure::new(ErrorCode::TimedOut, text)));
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY_PAUSE) => {}
            number = signals.next() => if signals.ends(number) { return Err(Ok(interrupted(number))) },
        }
    };
    let mut scopes: Vec<&str> = list.items.iter().map(|reconciler| reconciler.scope.as_str()).collect();
    scopes.sort_unstable();
    scopes.dedup();
    if scopes.contains(&args.scope.as_str()) { Ok(()) } else { Err(Err(undefined(&args.scope, &scopes))) }
}

fn undefined(scope: &str, scopes: &[&str]) -> Failure {
    let known = match scopes {
        [] => "no scope is defined".to_owned(),
        _ => {
            let more = if scopes.len() > MAX_NAMED_SCOPES { ", …" } else { "" };
            let named: Vec<&str> = scopes.iter().copied().take(MAX_NAMED_SCOPES).collect();
            format!("defined are {}{more}", printable(&named.join(", ")))
        }
    };
    let text = format!(
        "no reconciler has scope {scope}, so nothing would hold this member back; {known}; name a --reconciler to wait for, or join \
         the scope nevertheless with --allow-undefined-scope"
    );
    Failure::refused("undefined_scope", text)
}

/// Waits for the admission. `Err` is the command's outcome without one.
async fn admitted(
    waiting: &Waiting,
    timeout: Option<Duration>,
    speaker: Speaker,
    signals: &mut Forwarded,
) -> Result<(), Outcome<u8>> {
    let limit = timeout.map(|limit| tokio::time::Instant::now() + limit);
    let mut admission_state = waiting.admission_state();
    let mut reported = String::new();
    loop {
        let now = admission_state.borrow_and_update().admission_state.clone();
        match &now {
            AdmissionState::Serving => return Ok(()),
            AdmissionState::Revoked { why } | AdmissionState::Refused { why } => return Err(Err(refused(why))),
            AdmissionState::Left => return Err(Err(refused("the member has left the scope"))),
            AdmissionState::Announcing { .. } | AdmissionState::Waiting { .. } => {}
        }
        if let Some(why) = waiting_reason(&now).filter(|why| *why != reported) {
            speaker.say(&format!("waiting: {why}"));
            reported = why;
        }
        let deadline = async {
            match limit {
                Some(limit) => tokio::time::sleep_until(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = admission_state.changed() => if changed.is_err() { return Err(Err(refused("the member was stopped"))) },
            () = deadline => {
                let last = if reported.is_empty() { "the cluster has not answered".to_owned() } else { reported };
                return Err(Err(Failure::new(ErrorCode::TimedOut, format!("not admitted in time: {last}"))));
            }
            number = signals.next() => if signals.ends(number) { return Err(Ok(interrupted(number))) },
        }
    }
}

/// The reason for waiting, if known.
fn waiting_reason(admission_state: &AdmissionState) -> Option<String> {
    match admission_state {
        AdmissionState::Announcing { trouble } => trouble.clone(),
        AdmissionState::Waiting { reason, message } => Some(format!("{reason}: {message}")),
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
    let message = format!("admission to {scope} was revoked: {why}; the command was ended");
    Failure { code: "admission_revoked".into(), exit: EXIT_ADMISSION_REVOKED, message, details: json!({}) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: WaitReadyArgs,
    }

    fn refusal(line: &str) -> Option<String> {
        let words = format!("wait-ready {line}");
        Line::try_parse_from(words.split_whitespace()).err().map(|error| error.to_string())
    }

    #[test]
    fn invalid_arguments_are_refused_locally_with_the_rule() {
        let long = "m".repeat(141);
        for (line, word) in [
            ("db.eu --release 1.0.0", "a scope is"),
            ("Db --release 1.0.0", "a scope is"),
            ("candidates.schema --release 1.0.0", "reserved for nodes that run reconcilers"),
            ("db --release 1.0.0 --member host_1", "a member's name is"),
            (&format!("db --release 1.0.0 --member {long}"), "a member's name is"),
            ("db --release 1.0.0 --reconciler db/schema", "a reconciler's name is"),
            ("db --release 1.0.0 --needs 2.0.0", "--reconciler <NAME>"),
            ("db --release 1.0.0 -- ls", "--exec"),
            ("db --release 1.0.0 --exec", "<CMD>"),
            ("db --release 1.0.0 --lease-duration 2s", "from 3s to 1m"),
            ("db --release 1.0.0 --lease-duration 61s", "from 3s to 1m"),
            ("db --release 1.0.0 --timeout 200000000000000d", "36500d"),
        ] {
            let why = refusal(line).unwrap_or_else(|| panic!("{line} is accepted"));
            assert!(why.contains(word), "{line}: {why}");
        }
        let all = "db --release 1.0.0 --reconciler a --reconciler b --needs 2.0.0 --member n1.eu --exec -- ls -l";
        assert_eq!(refusal(all), None);
        assert_eq!(refusal("db --release 1.0.0"), None);
        assert_eq!(refusal("db --exec -- ls"), None, "as the release that is declared on the machine");
        assert_eq!(refusal("db --release 1.0.0 --allow-undefined-scope"), None);
        assert_eq!(refusal("db --release 1.0.0 --lease-duration 1m"), None);
    }

    #[test]
    fn default_member_name_is_valid() {
        assert_eq!(check_key("db", &default_member()), Ok(()));
    }
}
