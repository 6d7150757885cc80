//! `muster node …`

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome, Settled, parse};
use muster_messages::wire::{AutopilotRequest, ListOf, Request};
use muster_messages::{
    Details, ErrorCode, Generation, NodeListView, NodeMayStopView, NodeRemovedView, NodeRenamedView, NodeView, Role,
    RoleChangeView, StatusView, WallTime, detail, word,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Context;
use crate::cli::args::{DrainArgs, NodeCommand, RoleChange};
use crate::cli::duration::millis;
use crate::cli::output::{Out, lines, printable, without_fraction};
use crate::cli::render;
use crate::cli::tally::Tally;

pub async fn run(ctx: &mut Context, command: NodeCommand) -> Outcome<u8> {
    match command {
        NodeCommand::Ls(args) => {
            let ids = |list: &NodeListView| lines(list.items.iter().map(|node| node.id));
            let ask = async |ctx: &mut Context| ctx.client.list(ListOf::Nodes, args.fresh.fresh).await;
            let narrow = |list: &NodeListView| Some(render::nodes_at_a_glance(list));
            ctx.show_or_watch("nodes", args.watch, ask, ids, (render::nodes, narrow)).await
        }
        NodeCommand::Inspect { node, fresh } => {
            let request = Request::NodeInspect { node, fresh: fresh.fresh };
            ctx.show(request, |node: &NodeView| node.id.to_string(), render::node).await
        }
        NodeCommand::Promote(change) => set_role(ctx, change, Role::Manager).await,
        NodeCommand::Demote(change) => set_role(ctx, change, Role::Worker).await,
        NodeCommand::Rm { nodes, force } => {
            let done = |removed: &NodeRemovedView| {
                let NodeRemovedView { node, name, addr, member_since, knew_root_key, workloads_until, .. } = removed;
                let name = describe_node(node, name, addr.as_deref(), *member_since);
                let next = match knew_root_key {
                    Some(true) => ROOT_KEY_KNOWN,
                    Some(false) => "",
                    None => ROOT_KEY_PERHAPS_KNOWN,
                };
                let workloads = workloads_until.map(|until| {
                    let until = without_fraction(&until.to_string());
                    format!("\ncertificates of workloads that it took out are valid until {until} at the latest")
                });
                format!("{name} was removed{next}{}", workloads.unwrap_or_default())
            };
            each(ctx, nodes, done, |node| Request::NodeRemove { node, force }).await
        }
        NodeCommand::MayStop { node, wait } => may_stop(ctx, node, wait).await,
        NodeCommand::Rename { node, name } => {
            let sentence = |renamed: &NodeRenamedView| {
                let NodeRenamedView { node, name, before, changed } = renamed;
                if *changed {
                    format!("{before} ({node}) was renamed to {name}")
                } else {
                    format!("{name} already has that name")
                }
            };
            ctx.show(Request::NodeRename { node, name }, |_| String::new(), sentence).await
        }
        NodeCommand::Drain(DrainArgs { node, duration, replace }) => {
            let request = AutopilotRequest::Drain { node: node.clone(), for_ms: duration.map(millis), replace };
            ctx.show(Request::Autopilot(request), |_| String::new(), |view| render::drained(&node, view)).await
        }
        NodeCommand::Undrain { node } => {
            let request = AutopilotRequest::Undrain { node: node.clone() };
            ctx.show(Request::Autopilot(request), |_| String::new(), |view| render::drained(&node, view)).await
        }
        NodeCommand::Update { node, label_add, label_rm, generation, manager } => {
            let prefer = manager.map(|preference| {
                let sentence = format!("{}: manager {}", printable(&node), word(preference));
                (Request::Autopilot(AutopilotRequest::Prefer { node: node.clone(), preference }), sentence)
            });
            let is_labelled = !label_add.is_empty() || !label_rm.is_empty() || prefer.is_none();
            if is_labelled {
                let add: BTreeMap<String, String> = label_add.into_iter().collect();
                let generation = generation.map(Generation);
                let request = Request::NodeUpdate { node, add, remove: label_rm, generation };
                // First, because it is refused if the node has another generation.
                ctx.show(request, |_| String::new(), render::node).await?;
            } else if generation.is_some() {
                let text = "--generation applies only to labels";
                return Err(Failure::new(ErrorCode::Invalid, text));
            }
            match prefer {
                Some((request, sentence)) if !is_labelled => ctx.done(request, &sentence).await,
                Some((request, _)) => ctx.client.call(request).await.map(|_| 0),
                None => Ok(0),
            }
        }
    }
}

async fn may_stop(ctx: &mut Context, node: String, wait: Option<Duration>) -> Outcome<u8> {
    let text = match wait {
        None => ctx.client.call(Request::NodeMayStop { node }).await?,
        Some(wait) => {
            let out = ctx.out;
            let say = |why: &str| out.note(format!("waiting: {why}"));
            ctx.client.wait_until_it_may_stop(&node, Instant::now() + wait, say).await?
        }
    };
    ctx.print(&text, |_| "yes".to_owned(), |view: &NodeMayStopView| render::may_stop(view))
}

/// After the removal of a manager.
const ROOT_KEY_KNOWN: &str =
    "\nas a manager it knew the root key; if others may have its disk: `muster ca rotate --compromised --wait`";
/// An earlier attempt removed it, and its record is gone.
const ROOT_KEY_PERHAPS_KNOWN: &str =
    "\nif it was a manager, it knew the root key; if others may have its disk: `muster ca rotate --compromised --wait`";

/// Sends the same request for each node. Prints one node's document, or `{"items":[…]}` for several.
pub async fn each<T: DeserializeOwned>(
    ctx: &mut Context,
    nodes: Vec<String>,
    sentence: impl Fn(&T) -> String,
    request: impl Fn(String) -> Request,
) -> Outcome<u8> {
    let (mut batch, mut done) = (Batch::of(&nodes, ctx.out), Vec::new());
    for node in nodes {
        let answer = ctx.client.call(request(node.clone())).await.map_err(|f| batch.with_node(&node, f));
        done.extend(batch.note(answer.and_then(|text| Ok((sentence(&parse(&text)?), text)))));
    }
    Ok(batch.finish(done))
}

/// One command for one node or several: each is tried.
struct Batch {
    several: bool,
    out: Out,
    tally: Tally,
}

impl Batch {
    fn of(nodes: &[String], out: Out) -> Self {
        Self { several: nodes.len() > 1, out, tally: Tally::default() }
    }

    /// With several nodes, adds the node to the failure.
    fn with_node(&self, node: &str, mut failure: Failure) -> Failure {
        if self.several {
            failure.message = format!("{node}: {}", failure.message);
            if failure.detail(detail::NODE).is_none() {
                failure.details = Details::of(&failure.details).with(detail::NODE, &node.to_owned()).into();
            }
        }
        failure
    }

    /// Keeps the value, or prints and remembers the failure.
    fn note<T>(&mut self, outcome: Outcome<T>) -> Option<T> {
        self.tally.note(self.out.format, outcome)
    }

    /// Prints what was done: sentences, or the documents that go with them. Returns the exit status.
    fn finish(self, done: Vec<(String, String)>) -> u8 {
        let (sentences, documents): (Vec<String>, Vec<String>) = done.into_iter().unzip();
        let documents = documents.join(",");
        let document = if self.several { format!("{{\"items\":[{documents}]}}") } else { documents };
        self.out.document(&document, String::new, || sentences.join("\n"));
        self.tally.exit()
    }
}

/// A node with its distinguishing facts: `n4 (<id>, 127.0.0.1:4404, member since 2024-…)`.
fn describe_node(id: &str, name: &str, addr: Option<&str>, since: Option<WallTime>) -> String {
    let addr = addr.map_or_else(String::new, |addr| format!(", {addr}"));
    let since = since.map_or_else(String::new, |since| format!(", member since {}", render::when(since)));
    printable(&format!("{name} ({id}{addr}{since})"))
}

/// `muster node promote` and `demote`. A node that is refused is reported, and the others continue; the highest exit status counts.
async fn set_role(ctx: &mut Context, change: RoleChange, role: Role) -> Outcome<u8> {
    check_durations(&change)?;
    let RoleChange { mut nodes, wait } = change;
    if role == Role::Worker && nodes.len() > 1 {
        own_node_last(ctx, &mut nodes).await;
    }
    let (mut batch, mut changes) = (Batch::of(&nodes, ctx.out), Vec::new());
    let until = wait.map(|wait| Instant::now() + wait);
    // 1. Each node's role is requested.
    for node in nodes {
        let request = Request::SetRole { node: node.clone(), role };
        let answer = ctx.client.call(request).await.map_err(|f| batch.with_node(&node, f));
        changes.extend(batch.note(answer.and_then(|text| AcceptedChange::read(&text, role))));
    }
    // 2. With `--wait`: until each change that was accepted is in force. They continue side by side, so one deadline is for all.
    if let Some(until) = until {
        for change in &mut changes {
            let (id, name) = (change.node.node.to_string(), change.node.name.to_string());
            let say = |reason: &str| ctx.out.note(format!("{name}: {reason}"));
            // By id: another node could take the name.
            let settled = ctx.client.wait_until_settled(&id, role, until, say).await;
            change.on_waited(batch.note(settled.map_err(|f| batch.with_node(&name, f))));
        }
    }
    // 3. One sentence for each node, or the documents.
    let done: Result<Vec<_>, _> =
        changes.iter().map(|change| Ok((change.sentence(), serde_json::to_string(&change.document())?))).collect();
    Ok(batch.finish(done.map_err(|e: serde_json::Error| Failure::internal(e))?))
}

/// `--wait 5m` makes a node of the duration.
fn check_durations(change: &RoleChange) -> Outcome<()> {
    let Some(time) = change.misplaced_duration() else { return Ok(()) };
    let text = format!("{time:?} is a duration, not a node: write --wait={time} (for a node of that name, use its id)");
    Err(Failure::new(ErrorCode::Invalid, text))
}

/// An accepted role change of one node, and what is known of it.
struct AcceptedChange {
    /// The answer, with fields of newer daemons.
    answer: Map<String, Value>,
    node: RoleChangeView,
    wanted: Role,
    outcome: RoleOutcome,
    /// With `--wait`.
    waited: bool,
}

/// How far an accepted role change is.
#[derive(Debug, PartialEq)]
enum RoleOutcome {
    /// The node had the role and was to hold it, before the request.
    AlreadySo,
    /// It was to hold the role before the request, and does not hold it yet.
    AlreadyRequested,
    /// The request changed what role it is to hold.
    Requested,
    /// The wait has seen the end of it.
    InForce,
    /// It is down. This is left for it to do when it returns.
    PendingReturn(String),
}

/// What is printed of a change as JSON.
#[derive(Serialize)]
struct ChangeDocument<'a> {
    #[serde(flatten)]
    answer: &'a Map<String, Value>,
    /// Whether it is complete; absent without `--wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    settled: Option<bool>,
    /// What the node does when it returns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<&'a str>,
}

impl AcceptedChange {
    fn read(text: &str, wanted: Role) -> Outcome<Self> {
        let answer: Map<String, Value> = parse(text)?;
        let node = RoleChangeView::deserialize(&answer)
            .map_err(|e| Failure::internal(format!("unexpected answer from the daemon: {e}")))?;
        let outcome = if node.changed {
            RoleOutcome::Requested
        } else if node.role.is_some_and(|granted| granted != wanted) {
            RoleOutcome::AlreadyRequested
        } else {
            RoleOutcome::AlreadySo // or the answer is an earlier release's, and does not name the granted role
        };
        Ok(Self { answer, node, wanted, outcome, waited: false })
    }

    /// How the wait for it ended; `None`: it failed, which is reported already.
    fn on_waited(&mut self, settled: Option<Settled>) {
        self.waited = true;
        match settled {
            Some(Settled::Fully) => self.outcome = RoleOutcome::InForce,
            Some(Settled::PendingReturn(left)) => self.outcome = RoleOutcome::PendingReturn(left),
            None => {}
        }
    }

    fn sentence(&self) -> String {
        let RoleChangeView { node, name, addr, member_since, .. } = &self.node;
        let name = describe_node(node.as_str(), name.as_str(), addr.as_deref(), *member_since);
        let role = self.wanted;
        match &self.outcome {
            RoleOutcome::AlreadySo => format!("{name} is already a {role}"),
            RoleOutcome::AlreadyRequested => format!("{name} is already becoming a {role}"),
            RoleOutcome::Requested => format!("{name} will be a {role}"),
            RoleOutcome::InForce => format!("{name} is a {role}"),
            RoleOutcome::PendingReturn(left) => {
                format!("{name} will be a {role} when it returns ({})", printable(left))
            }
        }
    }

    fn document(&self) -> ChangeDocument<'_> {
        let pending = match &self.outcome {
            RoleOutcome::PendingReturn(left) => Some(left.as_str()),
            _ => None,
        };
        let settled = self.waited.then_some(self.outcome == RoleOutcome::InForce);
        ChangeDocument { answer: &self.answer, settled, pending }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_identify_the_node_by_more_than_its_name() {
        let read = |document: Value, wanted: Role| AcceptedChange::read(&document.to_string(), wanted).unwrap();
        let answer = |changed: bool, role: &str| {
            json!({"node": "0000000000000000000000001", "name": "n4", "addr": "10.0.0.4:4400",
                "member_since": "2024-01-01T00:00:00.5Z", "role": role, "desired_role": "manager", "changed": changed})
        };
        let known = "n4 (0000000000000000000000001, 10.0.0.4:4400, member since 2024-01-01T00:00:00Z)";
        let sentence_of = |changed, role| read(answer(changed, role), Role::Manager).sentence();
        assert_eq!(sentence_of(true, "worker"), format!("{known} will be a manager"));
        assert_eq!(sentence_of(false, "manager"), format!("{known} is already a manager"));
        assert_eq!(sentence_of(false, "worker"), format!("{known} is already becoming a manager"));
        let old = json!({"node": "0000000000000000000000001", "name": "n4", "changed": true});
        let sentence = read(old, Role::Worker).sentence();
        assert_eq!(sentence, "n4 (0000000000000000000000001) will be a worker", "of an earlier release");
    }

    #[test]
    fn json_keeps_fields_of_newer_daemons_and_gains_the_outcome() {
        let text = r#"{"node":"0000000000000000000000001","name":"n4","changed":true,"newer":1}"#;
        let mut change = AcceptedChange::read(text, Role::Manager).unwrap();
        assert_eq!(serde_json::to_value(change.document()).unwrap(), parse::<Value>(text).unwrap());
        change.on_waited(Some(Settled::PendingReturn("it is down".to_owned())));
        let document = json!({"node": "0000000000000000000000001", "name": "n4", "changed": true, "newer": 1,
            "settled": false, "pending": "it is down"});
        assert_eq!(serde_json::to_value(change.document()).unwrap(), document);
    }
}
