//! `muster reconciler …`, `muster member …`

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::{ReconcilerRequest, Request};
use muster_messages::{
    AppliedView, DefinitionView, ErrorCode, ListView, ParticipantView, PlanView, ReconcilerPhase, ReconcilerStatusView,
    ReconcilerView, Revision, RunView,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Context;
use crate::cli::args::{MemberCommand, MemberName, ReconcilerCommand, ReconcilerName as Named};
use crate::cli::definition;
use crate::cli::duration::millis;
use crate::cli::output::{lines, or_dash, print, print_failure, printable};
use crate::cli::render;

pub async fn run(ctx: &mut Context, command: ReconcilerCommand) -> Outcome<u8> {
    use ReconcilerCommand as C;
    let status_of = |name: String| ReconcilerRequest::Status { name, seen: Revision(0), wait_ms: 0 };
    match command {
        C::Apply { files, replace } => {
            let mut definitions = Vec::new();
            for file in files {
                definitions.extend(read(&file)?);
            }
            let request = ReconcilerRequest::Apply { definitions, replace };
            let names =
                |applied: &AppliedView| lines(applied.definitions.iter().map(|applied| &applied.definition.name));
            show(ctx, request, names, render::applied).await
        }
        C::List => {
            let names = |list: &ListView<ReconcilerView>| lines(list.items.iter().map(|reconciler| &reconciler.name));
            show(ctx, ReconcilerRequest::List, names, render::reconcilers).await
        }
        C::Status { name: Named { name }, watch: false, until: None, .. } => {
            let phase = |status: &ReconcilerStatusView| printable(status.brief.phase.text());
            show(ctx, status_of(name), phase, render::reconciler).await
        }
        C::Status { name: Named { name }, until, within, .. } => {
            let mut last = format!("no status of {name} yet");
            let watching = watch(ctx, name, until, &mut last);
            match within {
                None => watching.await,
                Some(within) => tokio::time::timeout(within, watching).await.unwrap_or_else(|_| {
                    Err(Failure::new(
                        ErrorCode::TimedOut,
                        format!("timed out waiting; the reconciler continues: {last}"),
                    ))
                }),
            }
        }
        C::Plan { name: Named { name }, release } => {
            let request = ReconcilerRequest::Plan { name, release };
            show(ctx, request, |plan: &PlanView| or_dash(plan.path.as_ref()), render::plan).await
        }
        C::Blockers(Named { name }) => {
            let members = |status: &ReconcilerStatusView| lines(status.blockers.iter().map(|b| &b.blocker.member));
            show(ctx, status_of(name), members, |status| render::blockers(&status.blockers)).await
        }
        C::History(Named { name }) => {
            show(ctx, ReconcilerRequest::History { name }, |_| String::new(), render::gate_history).await
        }
        C::Runs(Named { name }) => {
            let numbers = |runs: &ListView<RunView>| lines(runs.items.iter().map(|run| run.number));
            show(ctx, ReconcilerRequest::Runs { name }, numbers, render::runs).await
        }
        C::Logs { name: Named { name }, run, follow } => super::run_logs::print_log(ctx, name, run, follow).await,
        C::Finalize { name: Named { name }, release } => {
            let message =
                |d: &DefinitionView| format!("{} {} may pass the point of no return", printable(&d.name), d.release);
            show(ctx, ReconcilerRequest::Finalize { name, release }, |_| String::new(), message).await
        }
        C::Retry { name: Named { name }, release } => {
            let message = |d: &DefinitionView| format!("{} {} will be retried", printable(&d.name), d.release);
            show(ctx, ReconcilerRequest::Retry { name, release }, |_| String::new(), message).await
        }
        C::Pause(Named { name }) => {
            done(ctx, &name, "is paused", |name| ReconcilerRequest::Pause { name, paused: true }).await
        }
        C::Resume(Named { name }) => {
            done(ctx, &name, "is resumed", |name| ReconcilerRequest::Pause { name, paused: false }).await
        }
        C::Repair { name: Named { name }, from_history: epoch } => {
            let message = format!("has its gate of epoch {epoch} again");
            done(ctx, &name, &message, |name| ReconcilerRequest::Repair { name, epoch }).await
        }
        C::ForceFloor { name: Named { name }, release: floor, yes_i_know } => {
            let request = ReconcilerRequest::ForceFloor { name, floor, dry_run: !yes_i_know };
            show(ctx, request, |_| String::new(), render::forced_floor).await
        }
        C::Delete { name: Named { name }, gate: true, yes: false } => {
            let request = Request::Reconciler(ReconcilerRequest::Plan { name: name.clone(), release: None });
            let plan: PlanView = parse(&ctx.client.call(request).await?)?;
            Err(Failure::refused("needs_confirmation", runs_again(&name, &plan)))
        }
        C::Delete { name: Named { name }, gate: true, yes: true } => {
            let message = "has no gate: no member is admitted until a run has succeeded; its history is kept, and \
                           `muster reconciler repair` restores the gate from it";
            done(ctx, &name, message, |name| ReconcilerRequest::DeleteGate { name }).await
        }
        C::Delete { name: Named { name }, gate: false, yes } => {
            if !yes {
                let request = Request::Reconciler(status_of(name.clone()));
                let status: ReconcilerStatusView = parse(&ctx.client.call(request).await?)?;
                if let Some(loses) = would_lose(&status) {
                    return Err(Failure::refused("needs_confirmation", loses));
                }
            }
            done(ctx, &name, "is deleted", |name| ReconcilerRequest::Delete { name }).await
        }
    }
}

/// What the deletion of a reconciler causes, if anything of it has been applied.
fn would_lose(status: &ReconcilerStatusView) -> Option<String> {
    let ReconcilerView { name, scope, gate, participants, .. } = &status.brief;
    let steps = status.steps.iter().filter(|step| step.at.is_some()).count();
    if gate.is_none() && steps == 0 {
        return None;
    }
    let (name, scope) = (printable(name), printable(scope));
    let of_chain = if steps == 0 { String::new() } else { format!(" (steps that have run: {steps})") };
    Some(format!(
        "{name} would lose its gate with the history, and what is on record of its runs{of_chain}: its floor would exclude \
         no member of scope {scope} any more (serving now: {}), and once it is applied again, everything would run again, even if it was \
         to run once; to do that: `muster reconciler delete {name} --yes`",
        participants.serving
    ))
}

/// What the deletion of a gate causes: everything that its reconciler has done is done again, also what was to be done once.
fn runs_again(name: &str, plan: &PlanView) -> String {
    let (name, release) = (printable(name), &plan.release);
    let what = match &plan.command {
        Some(argv) => format!("runs `{}` again, even if it was to run once", printable(&argv.join(" "))),
        None => "is applied again".to_owned(),
    };
    format!(
        "without its gate, {name} {release} {what}, on one of the nodes of that release, and no member of its scope is admitted \
         until that has succeeded; to do that: `muster reconciler delete {name} --gate --yes`; to only apply it again: \
         `muster reconciler retry {name}`"
    )
}

pub async fn member(ctx: &mut Context, command: MemberCommand) -> Outcome<u8> {
    match command {
        MemberCommand::List { scope } => {
            let request = ReconcilerRequest::MemberList { scope };
            let members = |list: &ListView<ParticipantView>| lines(list.items.iter().map(|member| &member.member));
            show(ctx, request, members, render::members).await
        }
        MemberCommand::Announce {
            member: MemberName { member: (scope, member) },
            release,
            needs,
            allow_undefined_scope,
        } => {
            let needs = needs.into_iter().collect();
            let request = ReconcilerRequest::MemberAnnounce { scope, member, release, needs, allow_undefined_scope };
            show(ctx, request, |member: &ParticipantView| member.member.clone(), render::announced).await
        }
        MemberCommand::Forget(MemberName { member: (scope, member) }) => {
            let sentence = format!("{scope}/{member} is forgotten");
            ctx.done(Request::Reconciler(ReconcilerRequest::MemberForget { scope, member }), &sentence).await
        }
        MemberCommand::Drain(MemberName { member: (scope, member) }) => {
            let sentence = format!("{scope}/{member} was asked to stop");
            ctx.done(Request::Reconciler(ReconcilerRequest::MemberDrain { scope, member }), &sentence).await
        }
    }
}

fn read(file: &Path) -> Outcome<Vec<muster_messages::Definition>> {
    let name = file.display().to_string();
    let text = if name == "-" { read_all(std::io::stdin()) } else { std::fs::File::open(file).and_then(read_all) };
    let invalid = |why: String| Failure::new(ErrorCode::Invalid, why);
    let text = text.map_err(|e| invalid(format!("{name}: {e}")))?;
    definition::parse(&name, &text).map_err(invalid)
}

/// Reads everything or fails: a file that is too long does not lose its last documents silently.
fn read_all(from: impl Read) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    from.take(definition::MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > definition::MAX_FILE_BYTES {
        return Err(std::io::Error::other(format!("larger than {} MiB", definition::MAX_FILE_BYTES >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| std::io::Error::other("not UTF-8 text"))
}

pub(super) async fn show<T: DeserializeOwned>(
    ctx: &mut Context,
    request: ReconcilerRequest,
    brief: impl FnOnce(&T) -> String,
    table: impl FnOnce(&T) -> String,
) -> Outcome<u8> {
    ctx.show(Request::Reconciler(request), brief, table).await
}

async fn done(
    ctx: &mut Context,
    name: &str,
    message: &str,
    request: impl FnOnce(String) -> ReconcilerRequest,
) -> Outcome<u8> {
    ctx.done(Request::Reconciler(request(name.to_owned())), &format!("{name} {message}")).await
}

/// The pause between two attempts while the cluster does not answer: short enough for a person who watches.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Prints the status whenever it changes. A cluster temporarily without a quorum, or a daemon that restarts, is waited for and
/// reported once: before the first status only if a phase is waited for, so that a person learns at once that nothing answers.
/// Ends in the phase `until`, if given; `last` receives the last status.
async fn watch(ctx: &mut Context, name: String, until: Option<ReconcilerPhase>, last: &mut String) -> Outcome<u8> {
    // Half of the time limit: a quiet cluster answers well before the call times out.
    let wait_ms = millis(ctx.client.timeout() / 2);
    let (mut seen, mut shown, mut trouble) = (Revision(0), None, None);
    loop {
        let request = ReconcilerRequest::Status { name: name.clone(), seen, wait_ms };
        let text = match ctx.client.call(Request::Reconciler(request)).await {
            Ok(text) => text,
            Err(failure) if (shown.is_some() || until.is_some()) && failure.is_transient() => {
                if trouble.is_none() {
                    print_failure(&failure, ctx.out.format);
                }
                trouble = Some(failure);
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let status: ReconcilerStatusView = parse(&text)?;
        seen = status.revision;
        *last = render::reconciler_line(&status.brief);
        let reached = until.is_some_and(|phase| status.brief.phase == phase);
        let json = ctx.out.is_json();
        let now = if json { without_revision(parse(&text)?) } else { last.clone() };
        // Printed again after a failure, to show that it has passed.
        let changed = shown.as_ref() != Some(&now) || (trouble.is_some() && !json);
        if changed {
            print(if json { &text } else { &now });
            shown = Some(now);
        }
        trouble = None;
        if reached {
            return Ok(0);
        }
    }
}

/// The document, with fields of newer daemons, without its revision, which is the cluster's and not the reconciler's.
fn without_revision(mut document: Map<String, Value>) -> String {
    document.remove("revision");
    Value::Object(document).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_completely_or_not_at_all() {
        let most = definition::MAX_FILE_BYTES;
        assert_eq!(read_all(std::io::repeat(b'#').take(most)).unwrap().len() as u64, most);
        let long = read_all(std::io::repeat(b'#').take(most + 1)).unwrap_err();
        assert_eq!(long.to_string(), "larger than 4 MiB");
        // The error is the size, not a character split by the limit.
        let umlauts = std::io::Cursor::new("#ä".repeat(most as usize));
        assert_eq!(read_all(umlauts).unwrap_err().to_string(), "larger than 4 MiB");
        assert_eq!(read_all(&b"\xff"[..]).unwrap_err().to_string(), "not UTF-8 text");
    }

    #[test]
    fn deletion_of_what_was_applied_says_what_is_lost() {
        let status = |gate: Value, at: Value| {
            let counts = serde_json::json!({"serving": 2, "announced": 0, "draining": 0});
            let step = serde_json::json!({"name": "one", "digest": "ab", "release": null, "at": at, "node": null});
            let status = serde_json::json!({"name": "people", "scope": "shop", "gate": gate, "phase": "idle", "reason": "done",
                "message": "", "participants": counts, "steps": [step], "revision": 7});
            would_lose(&serde_json::from_value(status).unwrap())
        };
        assert_eq!(status(Value::Null, Value::Null), None);
        let unreadable = serde_json::json!({"epoch": 1, "state": "unreadable"});
        let of_gate = status(unreadable, Value::Null).unwrap();
        assert!(of_gate.contains("serving now: 2") && of_gate.contains("delete people --yes"), "{of_gate}");
        let of_steps = status(Value::Null, "2026-11-22T00:28:47Z".into()).unwrap();
        assert!(of_steps.contains("runs (steps that have run: 1)"), "{of_steps}");
    }

    #[test]
    fn deletion_of_a_gate_says_what_runs_again() {
        let plan = |command: Option<Vec<String>>| {
            let gate = serde_json::json!({"state": "done", "reconciled": "2.0.0", "floor": "2.0.0", "digest": "ab"});
            let plan = serde_json::json!({"name": "people", "release": "2.0.0", "path": "reached", "objects": [],
                "command": command, "blockers": [], "gate": gate});
            runs_again("people", &serde_json::from_value(plan).unwrap())
        };
        let command = plan(Some(vec!["/opt/migrate".to_owned(), "up".to_owned()]));
        assert!(command.contains("people 2.0.0 runs `/opt/migrate up` again, even if it was to run once"), "{command}");
        assert!(plan(None).contains("is applied again") && command.contains("--gate --yes"));
    }

    #[test]
    fn json_watch_prints_every_change_and_nothing_else() {
        let at = |revision: u64, wave: u64| {
            parse(&serde_json::json!({"name": "s", "wave": wave, "revision": revision}).to_string()).unwrap()
        };
        assert_eq!(without_revision(at(1, 1)), without_revision(at(2, 1)));
        assert_ne!(without_revision(at(1, 1)), without_revision(at(1, 2)));
    }
}
