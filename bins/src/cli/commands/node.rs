//! `muster node …`

use std::collections::BTreeMap;
use std::time::Instant;

use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::{ListOf, Request};
use muster_messages::{Generation, Role};
use serde_json::{Value, json};

use super::Asking;
use crate::cli::args::{NodeCommand, RoleChange};
use crate::cli::output::cell;
use crate::cli::render;
use crate::cli::tally::Tally;
use crate::cli::waiting::wait_until_settled;

pub async fn run(asking: &mut Asking, command: NodeCommand) -> Outcome<u8> {
    match command {
        NodeCommand::Ls(fresh) => asking.show_list(ListOf::Nodes, fresh.fresh, "id", render::nodes).await,
        NodeCommand::Inspect { node, fresh } => {
            let request = Request::NodeInspect { node, fresh: fresh.fresh };
            asking.show(request, |d| cell(&d["id"]), render::node).await
        }
        NodeCommand::Promote(change) => set_role(asking, change, Role::Manager).await,
        NodeCommand::Demote(change) => set_role(asking, change, Role::Worker).await,
        NodeCommand::Rm { nodes, force } => {
            let done = |d: &Value| format!("{} removed", cell(&d["node"]));
            each(asking, nodes, done, |node| Request::NodeRemove { node, force }).await
        }
        NodeCommand::Update { node, label_add, label_rm, generation } => {
            let add: BTreeMap<String, String> = label_add.into_iter().collect();
            let request = Request::NodeUpdate { node, add, remove: label_rm, generation: generation.map(Generation) };
            asking.show(request, |_| String::new(), render::node).await
        }
    }
}

/// The ids in a list, one per line.
pub fn ids(items: &Value, key: &str) -> String {
    let items = items.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|item| cell(&item[key])).collect::<Vec<_>>().join("\n")
}

/// Asks the same for each node. One node: its document. Several: `{"items":[…]}`.
pub async fn each(
    asking: &mut Asking,
    nodes: Vec<String>,
    sentence: impl Fn(&Value) -> String,
    request: impl Fn(String) -> Request,
) -> Outcome<u8> {
    let (several, mut tally, mut done) = (nodes.len() > 1, Tally::default(), Vec::new());
    for node in nodes {
        let answer = asking.client.call(request(node.clone())).await.map_err(|f| about(&node, several, f));
        done.extend(tally.note(asking.out.format, answer.and_then(|text| parse::<Value>(&text))));
    }
    print_done(asking, several, done, sentence);
    Ok(tally.exit())
}

/// Of several nodes a failure says which one it is about.
fn about(node: &str, several: bool, mut failure: Failure) -> Failure {
    if several {
        failure.message = format!("{node}: {}", failure.message);
        if let Some(details) = failure.details.as_object_mut() {
            details.entry("node").or_insert_with(|| json!(node));
        }
    }
    failure
}

fn print_done(asking: &Asking, several: bool, mut done: Vec<Value>, sentence: impl Fn(&Value) -> String) {
    let sentences = done.iter().map(sentence).collect::<Vec<_>>().join("\n");
    let document = match (several, done.pop()) {
        (false, None) => return,
        (false, Some(only)) => only,
        (true, last) => {
            done.extend(last);
            json!({"items": done})
        }
    };
    asking.out.document(&document.to_string(), String::new, || sentences);
}

async fn set_role(asking: &mut Asking, change: RoleChange, role: Role) -> Outcome<u8> {
    let RoleChange { nodes, wait } = change;
    let (several, mut tally, mut done, mut waiting) = (nodes.len() > 1, Tally::default(), Vec::new(), Vec::new());
    let until = wait.map(|wait| Instant::now() + wait);
    for node in nodes {
        let request = Request::SetRole { node: node.clone(), role };
        let answer = asking.client.call(request).await.map_err(|f| about(&node, several, f));
        if let Some(document) = tally.note(asking.out.format, answer.and_then(|text| parse::<Value>(&text))) {
            // By id from here on: a name could come to mean another node.
            let id = document["node"].as_str().map_or(node, str::to_owned);
            waiting.push(id);
            done.push(document);
        }
    }
    if let Some(until) = until {
        for (id, document) in waiting.iter().zip(&mut done) {
            let name = cell(&document["name"]);
            let say = |reason: &str| asking.out.note(format!("{name}: {reason}"));
            let outcome = wait_until_settled(&mut asking.client, id, role, until, say).await;
            let waited = tally.note(asking.out.format, outcome.map_err(|f| about(&name, several, f)));
            document["settled"] = (waited == Some(None)).into();
            if let Some(Some(left)) = waited {
                document["pending"] = left.into();
            }
        }
    }
    print_done(asking, several, done, |document| accepted(document, role));
    Ok(tally.exit())
}

fn accepted(document: &Value, role: Role) -> String {
    let name = cell(&document["name"]);
    match (document["changed"].as_bool(), document["settled"].as_bool()) {
        (_, Some(true)) => format!("{name} is a {role}"),
        _ if document["pending"].is_string() => {
            format!("{name} will be a {role} when it returns ({})", cell(&document["pending"]))
        }
        (Some(false), _) => format!("{name} was to be a {role} already"),
        _ => format!("{name} will be a {role}"),
    }
}
