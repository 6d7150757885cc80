//! `muster node …`

use std::collections::BTreeMap;
use std::time::Instant;

use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::{ListOf, Request};
use muster_messages::{ErrorCode, Generation, NodeView, Role, StatusView};
use serde_json::{Value, json};

use super::Context;
use crate::cli::args::{NodeCommand, RoleChange};
use crate::cli::output::{cell, printable};
use crate::cli::render;
use crate::cli::tally::Tally;
use crate::cli::waiting::{Settled, wait_until_settled};

pub async fn run(ctx: &mut Context, command: NodeCommand) -> Outcome<u8> {
    match command {
        NodeCommand::Ls(fresh) => ctx.show_list(ListOf::Nodes, fresh.fresh, "id", render::nodes).await,
        NodeCommand::Inspect { node, fresh } => {
            let request = Request::NodeInspect { node, fresh: fresh.fresh };
            ctx.show(request, |d| cell(&d["id"]), render::node).await
        }
        NodeCommand::Promote(change) => set_role(ctx, change, Role::Manager).await,
        NodeCommand::Demote(change) => set_role(ctx, change, Role::Worker).await,
        NodeCommand::Rm { nodes, force } => {
            let done = |d: &Value| format!("{} was removed", describe_node(d));
            each(ctx, nodes, done, |node| Request::NodeRemove { node, force }).await
        }
        NodeCommand::Rename { node, name } => {
            let sentence = |d: &Value| match d["changed"].as_bool() {
                Some(false) => format!("{} already has that name", cell(&d["name"])),
                _ => format!("{} ({}) was renamed to {}", cell(&d["before"]), cell(&d["node"]), cell(&d["name"])),
            };
            ctx.show(Request::NodeRename { node, name }, |_| String::new(), sentence).await
        }
        NodeCommand::Update { node, label_add, label_rm, generation } => {
            let add: BTreeMap<String, String> = label_add.into_iter().collect();
            let request = Request::NodeUpdate { node, add, remove: label_rm, generation: generation.map(Generation) };
            ctx.show(request, |_| String::new(), render::node).await
        }
    }
}

/// The ids in a list, one per line.
pub fn ids(items: &Value, key: &str) -> String {
    let items = items.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|item| cell(&item[key])).collect::<Vec<_>>().join("\n")
}

/// Sends the same request for each node. Prints one node's document, or `{"items":[…]}` for several.
pub async fn each(
    ctx: &mut Context,
    nodes: Vec<String>,
    sentence: impl Fn(&Value) -> String,
    request: impl Fn(String) -> Request,
) -> Outcome<u8> {
    let (several, mut tally, mut done) = (nodes.len() > 1, Tally::default(), Vec::new());
    for node in nodes {
        let answer = ctx.client.call(request(node.clone())).await.map_err(|f| with_node(&node, several, f));
        done.extend(tally.note(ctx.out.format, answer.and_then(|text| parse::<Value>(&text))));
    }
    print_done(ctx, several, done, sentence);
    Ok(tally.exit())
}

/// With several nodes, adds the node to the failure.
fn with_node(node: &str, several: bool, mut failure: Failure) -> Failure {
    if several {
        failure.message = format!("{node}: {}", failure.message);
        if let Some(details) = failure.details.as_object_mut() {
            details.entry("node").or_insert_with(|| json!(node));
        }
    }
    failure
}

fn print_done(ctx: &Context, several: bool, mut done: Vec<Value>, sentence: impl Fn(&Value) -> String) {
    let sentences = done.iter().map(sentence).collect::<Vec<_>>().join("\n");
    let document = match (several, done.pop()) {
        (false, None) => return,
        (false, Some(only)) => only,
        (true, last) => {
            done.extend(last);
            json!({"items": done})
        }
    };
    ctx.out.document(&document.to_string(), String::new, || sentences);
}

/// A node with its distinguishing facts: `n4 (<id>, 127.0.0.1:4404, member since 2024-…)`.
fn describe_node(document: &Value) -> String {
    let (id, addr, since) = (cell(&document["node"]), &document["addr"], &document["member_since"]);
    let addr = addr.as_str().map_or_else(String::new, |addr| format!(", {}", printable(addr)));
    let since = since.as_str().map_or_else(String::new, |_| format!(", member since {}", render::when(since)));
    format!("{} ({id}{addr}{since})", cell(&document["name"]))
}

async fn set_role(ctx: &mut Context, change: RoleChange, role: Role) -> Outcome<u8> {
    if let Some(time) = change.misplaced_duration() {
        let text =
            format!("{time:?} is a duration, not a node: write --wait={time} (for a node of that name, use its id)");
        return Err(Failure::new(ErrorCode::Invalid, text));
    }
    let RoleChange { mut nodes, wait } = change;
    if role == Role::Worker && nodes.len() > 1 {
        own_node_last(ctx, &mut nodes).await;
    }
    let (several, mut tally, mut results) = (nodes.len() > 1, Tally::default(), Vec::new());
    let until = wait.map(|wait| Instant::now() + wait);
    for node in nodes {
        let request = Request::SetRole { node: node.clone(), role };
        let answer = ctx.client.call(request).await.map_err(|f| with_node(&node, several, f));
        if let Some(document) = tally.note(ctx.out.format, answer.and_then(|text| parse::<Value>(&text))) {
            // By id from here on: another node could take the name.
            let id = document["node"].as_str().map_or(node, str::to_owned);
            results.push(RoleChangeResult { id, document });
        }
    }
    if let Some(until) = until {
        for result in &mut results {
            let name = cell(&result.document["name"]);
            let say = |reason: &str| ctx.out.note(format!("{name}: {reason}"));
            let outcome = wait_until_settled(&mut ctx.client, &result.id, role, until, say).await;
            result.record(tally.note(ctx.out.format, outcome.map_err(|f| with_node(&name, several, f))));
        }
    }
    let documents = results.into_iter().map(|result| result.document).collect();
    print_done(ctx, several, documents, |document| role_change_sentence(document, role));
    Ok(tally.exit())
}

/// An accepted role change of one node.
struct RoleChangeResult {
    id: String,
    /// What is printed of it.
    document: Value,
}

impl RoleChangeResult {
    /// How waiting for it ended; `None`: it failed, which is reported already.
    fn record(&mut self, settled: Option<Settled>) {
        self.document["settled"] = (settled == Some(Settled::Fully)).into();
        if let Some(Settled::PendingReturn(left)) = settled {
            self.document["pending"] = left.into();
        }
    }
}

/// Puts the socket's own node last: the socket of a node that has become a worker may not demote others.
async fn own_node_last(ctx: &mut Context, nodes: &mut [String]) {
    let Ok(status) = ctx.client.ask::<StatusView>(Request::Status { fresh: false }).await else { return };
    let mut own = Vec::with_capacity(nodes.len());
    for node in nodes.iter() {
        let request = Request::NodeInspect { node: node.clone(), fresh: false };
        own.push(ctx.client.ask::<NodeView>(request).await.is_ok_and(|seen| seen.id == status.this.id));
    }
    if let Some(at) = own.iter().position(|own| *own) {
        nodes[at..].rotate_left(1);
    }
}

fn role_change_sentence(document: &Value, role: Role) -> String {
    let name = describe_node(document);
    match (document["changed"].as_bool(), document["settled"].as_bool()) {
        (_, Some(true)) => format!("{name} is a {role}"),
        _ if document["pending"].is_string() => {
            format!("{name} will be a {role} when it returns ({})", cell(&document["pending"]))
        }
        (Some(false), _) if document["role"].as_str().is_some_and(|now| now != role.to_string()) => {
            format!("{name} is already becoming a {role}")
        }
        (Some(false), _) => format!("{name} is already a {role}"),
        _ => format!("{name} will be a {role}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_identify_the_node_by_more_than_its_name() {
        let answer = |changed: bool, role: &str| {
            json!({"node": "0000000000000000000000001", "name": "n4", "addr": "10.0.0.4:4400",
                "member_since": "2024-01-01T00:00:00.5Z", "role": role, "desired_role": "manager", "changed": changed})
        };
        let known = "n4 (0000000000000000000000001, 10.0.0.4:4400, member since 2024-01-01T00:00:00Z)";
        let sentence_of = |changed, role| role_change_sentence(&answer(changed, role), Role::Manager);
        assert_eq!(sentence_of(true, "worker"), format!("{known} will be a manager"));
        assert_eq!(sentence_of(false, "manager"), format!("{known} is already a manager"));
        assert_eq!(sentence_of(false, "worker"), format!("{known} is already becoming a manager"));
        let old = json!({"node": "1", "name": "n4", "changed": true});
        assert_eq!(role_change_sentence(&old, Role::Worker), "n4 (1) will be a worker", "of an earlier release");
    }
}
