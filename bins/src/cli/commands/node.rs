//! `muster node …`

use std::collections::BTreeMap;
use std::time::Instant;

use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::{ListOf, Request};
use muster_messages::{ErrorCode, Generation, NodeView, Role, StatusView};
use serde_json::{Value, json};

use super::Asking;
use crate::cli::args::{NodeCommand, RoleChange};
use crate::cli::output::{cell, printable};
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
            let done = |d: &Value| format!("{} was removed", known_as(d));
            each(asking, nodes, done, |node| Request::NodeRemove { node, force }).await
        }
        NodeCommand::Rename { node, name } => {
            let sentence = |d: &Value| match d["changed"].as_bool() {
                Some(false) => format!("{} has that name already", cell(&d["name"])),
                _ => format!("{} ({}) is now called {}", cell(&d["before"]), cell(&d["node"]), cell(&d["name"])),
            };
            asking.show(Request::NodeRename { node, name }, |_| String::new(), sentence).await
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

/// A node with what distinguishes it from others: `n4 (<id>, 127.0.0.1:4404, member since 2024-…)`.
fn known_as(document: &Value) -> String {
    let (id, addr, since) = (cell(&document["node"]), &document["addr"], &document["member_since"]);
    let addr = addr.as_str().map_or_else(String::new, |addr| format!(", {}", printable(addr)));
    let since = since.as_str().map_or_else(String::new, |_| format!(", member since {}", render::when(since)));
    format!("{} ({id}{addr}{since})", cell(&document["name"]))
}

async fn set_role(asking: &mut Asking, change: RoleChange, role: Role) -> Outcome<u8> {
    if let Some(time) = change.misplaced_time() {
        let text = format!("{time:?} is a time and not a node: write --wait={time} (a node of that name: give its id)");
        return Err(Failure::new(ErrorCode::Invalid, text));
    }
    let RoleChange { mut nodes, wait } = change;
    if role == Role::Worker && nodes.len() > 1 {
        own_node_last(asking, &mut nodes).await;
    }
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

/// The socket of a node that is a worker by then may not ask for the others: its own part comes last.
async fn own_node_last(asking: &mut Asking, nodes: &mut [String]) {
    let Ok(status) = asking.client.ask::<StatusView>(Request::Status { fresh: false }).await else { return };
    let mut own = Vec::with_capacity(nodes.len());
    for node in nodes.iter() {
        let request = Request::NodeInspect { node: node.clone(), fresh: false };
        own.push(asking.client.ask::<NodeView>(request).await.is_ok_and(|seen| seen.id == status.this.id));
    }
    if let Some(at) = own.iter().position(|own| *own) {
        nodes[at..].rotate_left(1);
    }
}

fn accepted(document: &Value, role: Role) -> String {
    let name = known_as(document);
    match (document["changed"].as_bool(), document["settled"].as_bool()) {
        (_, Some(true)) => format!("{name} is a {role}"),
        _ if document["pending"].is_string() => {
            format!("{name} will be a {role} when it returns ({})", cell(&document["pending"]))
        }
        (Some(false), _) if document["role"].as_str().is_some_and(|now| now != role.to_string()) => {
            format!("{name} is on its way to being a {role} already")
        }
        (Some(false), _) => format!("{name} is a {role} already"),
        _ => format!("{name} will be a {role}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_name_the_node_by_more_than_its_name() {
        let answer = |changed: bool, role: &str| {
            json!({"node": "0000000000000000000000001", "name": "n4", "addr": "10.0.0.4:4400",
                "member_since": "2024-01-01T00:00:00.5Z", "role": role, "desired_role": "manager", "changed": changed})
        };
        let known = "n4 (0000000000000000000000001, 10.0.0.4:4400, member since 2024-01-01T00:00:00Z)";
        let says = |changed, role| accepted(&answer(changed, role), Role::Manager);
        assert_eq!(says(true, "worker"), format!("{known} will be a manager"));
        assert_eq!(says(false, "manager"), format!("{known} is a manager already"));
        assert_eq!(says(false, "worker"), format!("{known} is on its way to being a manager already"));
        let old = json!({"node": "1", "name": "n4", "changed": true});
        assert_eq!(accepted(&old, Role::Worker), "n4 (1) will be a worker", "of an earlier release");
    }
}
