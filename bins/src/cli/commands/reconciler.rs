//! `muster reconciler …`, `muster member …`, `muster object …`

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::{ReconcilerRequest, Request};
use muster_messages::{ErrorCode, ManagedKey, Revision};
use serde_json::Value;

use super::Asking;
use super::node::ids;
use crate::cli::args::{
    MemberCommand, MemberName, ObjectCommand, ObjectName, ReconcilerCommand, ReconcilerName as Named,
};
use crate::cli::definition;
use crate::cli::duration::millis;
use crate::cli::output::{cell, print, print_failure};
use crate::cli::render;

pub async fn run(asking: &mut Asking, command: ReconcilerCommand) -> Outcome<u8> {
    use ReconcilerCommand as C;
    let status_of = |name: String| ReconcilerRequest::Status { name, seen: Revision(0), wait_ms: 0 };
    match command {
        C::Apply { files, replace } => {
            let mut definitions = Vec::new();
            for file in files {
                definitions.extend(read(&file)?);
            }
            let request = ReconcilerRequest::Apply { definitions, replace };
            show(asking, request, |d| ids(&d["definitions"], "name"), render::applied).await
        }
        C::List => show(asking, ReconcilerRequest::List, |d| ids(&d["items"], "name"), render::reconcilers).await,
        C::Status { name: Named { name }, watch: false, until: None, .. } => {
            show(asking, status_of(name), |d| cell(&d["phase"]), render::reconciler).await
        }
        C::Status { name: Named { name }, until, within, .. } => {
            let mut last = format!("nothing is known of {name} yet");
            let watching = watch(asking, name, until.as_deref(), &mut last);
            match within {
                None => watching.await,
                Some(within) => tokio::time::timeout(within, watching).await.unwrap_or_else(|_| {
                    Err(Failure::new(ErrorCode::TimedOut, format!("gave up waiting, it goes on: {last}")))
                }),
            }
        }
        C::Plan { name: Named { name }, release } => {
            let request = ReconcilerRequest::Plan { name, release };
            show(asking, request, |d| cell(&d["path"]), render::plan).await
        }
        C::Blockers(Named { name }) => {
            let brief = |d: &Value| ids(&d["blockers"], "member");
            show(asking, status_of(name), brief, |d| render::blockers(&d["blockers"])).await
        }
        C::History(Named { name }) => {
            show(asking, ReconcilerRequest::History { name }, |_| String::new(), render::gate_history).await
        }
        C::Finalize { name: Named { name }, release } => {
            let said =
                |d: &Value| format!("{} {} may pass the point of no return", cell(&d["name"]), cell(&d["release"]));
            show(asking, ReconcilerRequest::Finalize { name, release }, |_| String::new(), said).await
        }
        C::Retry { name: Named { name }, release } => {
            let said = |d: &Value| format!("{} {} is tried again", cell(&d["name"]), cell(&d["release"]));
            show(asking, ReconcilerRequest::Retry { name, release }, |_| String::new(), said).await
        }
        C::Pause(Named { name }) => {
            done(asking, &name, "is paused", |name| ReconcilerRequest::Pause { name, paused: true }).await
        }
        C::Resume(Named { name }) => {
            done(asking, &name, "goes on", |name| ReconcilerRequest::Pause { name, paused: false }).await
        }
        C::Repair { name: Named { name }, from_history: epoch } => {
            let said = format!("says again what it said at epoch {epoch}");
            done(asking, &name, &said, |name| ReconcilerRequest::Repair { name, epoch }).await
        }
        C::ForceFloor { name: Named { name }, release: floor, yes_i_know } => {
            let request = ReconcilerRequest::ForceFloor { name, floor, dry_run: !yes_i_know };
            show(asking, request, |_| String::new(), render::forced).await
        }
        C::Delete { name: Named { name }, gate: true } => {
            done(asking, &name, "has no gate: nobody is admitted until a run has succeeded", |name| {
                ReconcilerRequest::DeleteGate { name }
            })
            .await
        }
        C::Delete { name: Named { name }, gate: false } => {
            done(asking, &name, "is forgotten", |name| ReconcilerRequest::Delete { name }).await
        }
    }
}

pub async fn member(asking: &mut Asking, command: MemberCommand) -> Outcome<u8> {
    match command {
        MemberCommand::List { scope } => {
            let request = ReconcilerRequest::MemberList { scope };
            show(asking, request, |d| ids(&d["items"], "member"), render::members).await
        }
        MemberCommand::Forget(MemberName { member: (scope, member) }) => {
            let sentence = format!("{scope}/{member} is forgotten");
            show(asking, ReconcilerRequest::MemberForget { scope, member }, |_| String::new(), |_| sentence).await
        }
        MemberCommand::Drain(MemberName { member: (scope, member) }) => {
            let sentence = format!("{scope}/{member} is told to stop");
            show(asking, ReconcilerRequest::MemberDrain { scope, member }, |_| String::new(), |_| sentence).await
        }
    }
}

pub async fn object(asking: &mut Asking, command: ObjectCommand) -> Outcome<u8> {
    let key = |name: ObjectName| ManagedKey { kind: name.kind, namespace: name.namespace, name: name.name };
    match command {
        ObjectCommand::Ls { kind } => {
            let request = ReconcilerRequest::ObjectList { kind, namespace: None };
            show(asking, request, |_| String::new(), render::objects).await
        }
        ObjectCommand::Get(name) => {
            show(asking, ReconcilerRequest::ObjectGet { key: key(name) }, |d| d["body"].to_string(), render::object)
                .await
        }
        ObjectCommand::Put { name, body, label } => {
            let labels = label.into_iter().collect();
            let request = ReconcilerRequest::ObjectPut { key: key(name), labels, body };
            show(asking, request, |_| String::new(), render::object).await
        }
        ObjectCommand::Delete(name) => {
            let key = key(name);
            let sentence = format!("{key} is deleted");
            show(asking, ReconcilerRequest::ObjectDelete { key }, |_| String::new(), |_| sentence).await
        }
    }
}

fn read(file: &Path) -> Outcome<Vec<muster_messages::Definition>> {
    let name = file.display().to_string();
    let text = if name == "-" { whole(std::io::stdin()) } else { std::fs::File::open(file).and_then(whole) };
    let invalid = |why: String| Failure::new(ErrorCode::Invalid, why);
    let text = text.map_err(|e| invalid(format!("{name}: {e}")))?;
    definition::parse(&name, &text).map_err(invalid)
}

/// All of it, or nothing: the documents at the end of a file that is too long are not left out silently.
fn whole(from: impl Read) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    from.take(definition::MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > definition::MOST_BYTES {
        return Err(std::io::Error::other(format!("larger than {} MiB", definition::MOST_BYTES >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| std::io::Error::other("no UTF-8 text"))
}

async fn show(
    asking: &mut Asking,
    request: ReconcilerRequest,
    brief: impl FnOnce(&Value) -> String,
    table: impl FnOnce(&Value) -> String,
) -> Outcome<u8> {
    asking.show(Request::Reconciler(request), brief, table).await
}

async fn done(
    asking: &mut Asking,
    name: &str,
    said: &str,
    request: impl FnOnce(String) -> ReconcilerRequest,
) -> Outcome<u8> {
    let sentence = format!("{name} {said}");
    show(asking, request(name.to_owned()), |_| String::new(), |_| sentence).await
}

/// Between two attempts while the cluster does not answer: soon enough for whoever looks on.
const AGAIN: Duration = Duration::from_secs(1);

/// Shows where it is, whenever that changes. A cluster that is without quorum for a while, or a daemon that starts again, is
/// waited for, and said once. Ends when it is in the phase that is waited for, if any; `last`: where it was last.
async fn watch(asking: &mut Asking, name: String, until: Option<&str>, last: &mut String) -> Outcome<u8> {
    // Half of the time limit, so that a quiet cluster answers well before the call is given up.
    let wait_ms = millis(asking.client.timeout() / 2);
    let (mut seen, mut shown, mut trouble) = (Revision(0), None, None);
    loop {
        let request = ReconcilerRequest::Status { name: name.clone(), seen, wait_ms };
        let text = match asking.client.call(Request::Reconciler(request)).await {
            Ok(text) => text,
            Err(failure) if shown.is_some() && failure.passes() => {
                if trouble.is_none() {
                    print_failure(&failure, asking.out.format);
                }
                trouble = Some(failure);
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let document: Value = parse(&text)?;
        seen = Revision(document["revision"].as_u64().unwrap_or(seen.0));
        *last = render::reconciler_line(&document);
        let there = until.is_some_and(|phase| document["phase"] == phase);
        let json = asking.out.is_json();
        let now = if json { but_for_its_revision(document) } else { render::reconciler_line(&document) };
        // After trouble once more, so that one sees that it has passed.
        let news = shown.as_ref() != Some(&now) || (trouble.is_some() && !json);
        if news {
            print(if json { &text } else { &now });
            shown = Some(now);
        }
        trouble = None;
        if there {
            return Ok(0);
        }
    }
}

/// The revision is the whole cluster's: it says nothing of this reconciler.
fn but_for_its_revision(mut document: Value) -> String {
    if let Some(fields) = document.as_object_mut() {
        fields.remove("revision");
    }
    document.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_whole_or_not_at_all() {
        let most = definition::MOST_BYTES;
        assert_eq!(whole(std::io::repeat(b'#').take(most)).unwrap().len() as u64, most);
        let long = whole(std::io::repeat(b'#').take(most + 1)).unwrap_err();
        assert_eq!(long.to_string(), "larger than 4 MiB");
        // A character that the limit would have cut in two is not what is wrong with it.
        let umlauts = std::io::Cursor::new("#ä".repeat(most as usize));
        assert_eq!(whole(umlauts).unwrap_err().to_string(), "larger than 4 MiB");
        assert_eq!(whole(&b"\xff"[..]).unwrap_err().to_string(), "no UTF-8 text");
    }

    #[test]
    fn a_program_sees_every_change_and_no_other() {
        let at = |revision: u64, wave: u64| serde_json::json!({"name": "s", "wave": wave, "revision": revision});
        assert_eq!(but_for_its_revision(at(1, 1)), but_for_its_revision(at(2, 1)));
        assert_ne!(but_for_its_revision(at(1, 1)), but_for_its_revision(at(1, 2)));
    }
}
