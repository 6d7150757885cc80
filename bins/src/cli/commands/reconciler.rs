//! `muster reconciler …`, `muster member …`, `muster object …`

use std::io::Read;
use std::path::Path;

use muster_messages::wire::{ReconcilerRequest, Request};
use muster_messages::{ErrorCode, ManagedKey, Revision};
use serde_json::Value;

use super::Asking;
use super::node::ids;
use crate::cli::args::{MemberCommand, MemberName, ObjectCommand, ObjectName, ReconcilerCommand};
use crate::cli::client::parse;
use crate::cli::definition;
use crate::cli::duration::millis;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::output::{cell, print};
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
        C::Status { name, watch: false } => {
            show(asking, status_of(name), |d| cell(&d["phase"]), render::reconciler).await
        }
        C::Status { name, watch: true } => watch(asking, name).await,
        C::Plan { name, release } => {
            let request = ReconcilerRequest::Plan { name, release };
            show(asking, request, |d| cell(&d["path"]), render::plan).await
        }
        C::Blockers { name } => {
            let brief = |d: &Value| ids(&d["blockers"], "member");
            show(asking, status_of(name), brief, |d| render::blockers(&d["blockers"])).await
        }
        C::History { name } => {
            show(asking, ReconcilerRequest::History { name }, |_| String::new(), render::gate_history).await
        }
        C::Finalize { name } => {
            done(asking, &name, "may pass the point of no return", |name| ReconcilerRequest::Finalize { name }).await
        }
        C::Pause { name } => {
            done(asking, &name, "is paused", |name| ReconcilerRequest::Pause { name, paused: true }).await
        }
        C::Resume { name } => {
            done(asking, &name, "goes on", |name| ReconcilerRequest::Pause { name, paused: false }).await
        }
        C::Retry { name } => done(asking, &name, "is tried again", |name| ReconcilerRequest::Retry { name }).await,
        C::Repair { name, from_history: epoch } => {
            let said = format!("says again what it said at epoch {epoch}");
            done(asking, &name, &said, |name| ReconcilerRequest::Repair { name, epoch }).await
        }
        C::ForceFloor { name, release: floor, yes_i_know } => {
            let request = ReconcilerRequest::ForceFloor { name, floor, dry_run: !yes_i_know };
            show(asking, request, |_| String::new(), render::forced).await
        }
        C::Delete { name, gate: true } => {
            done(asking, &name, "has no gate: nobody is admitted until a run has succeeded", |name| {
                ReconcilerRequest::DeleteGate { name }
            })
            .await
        }
        C::Delete { name, gate: false } => {
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
    let mut text = String::new();
    let read = if name == "-" {
        std::io::stdin().take(definition::MOST_BYTES).read_to_string(&mut text)
    } else {
        let opened = std::fs::File::open(file);
        opened.and_then(|opened| opened.take(definition::MOST_BYTES).read_to_string(&mut text))
    };
    read.map_err(|e| Failure::new(ErrorCode::Invalid, format!("{name}: {e}")))?;
    definition::parse(&name, &text).map_err(|why| Failure::new(ErrorCode::Invalid, why))
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

async fn watch(asking: &mut Asking, name: String) -> Outcome<u8> {
    // Half of the time limit, so that a quiet cluster answers well before the call is given up.
    let wait_ms = millis(asking.client.timeout() / 2);
    let (mut seen, mut shown) = (Revision(0), String::new());
    loop {
        let request = ReconcilerRequest::Status { name: name.clone(), seen, wait_ms };
        let text = asking.client.call(Request::Reconciler(request)).await?;
        let document: Value = parse(&text)?;
        seen = Revision(document["revision"].as_u64().unwrap_or(seen.0));
        let (line, json) = (render::reconciler_line(&document), asking.out.is_json());
        if line != shown {
            print(if json { &text } else { &line });
            shown = line;
        }
    }
}
