//! What the managers' actors tell: of each manager its whole tree, asked seldom.

use maud::{Markup, html};
use muster_messages::{ActorNode, ActorState, Name, NodeActorsView, counted, word};

use super::{Finding, Seen, code};
use crate::html::{Grade, graded, link, node_link, text};
use crate::pages::name_of;

/// As the rule of MusterHandlerLong has it.
const HANDLER_LONG_MS: u64 = 5_000;
/// A disk write that takes longer counts as hung.
const DISK_HANGS_MS: u64 = 1_000;
const DISK: &str = "node/manager/raft-member/disk";
/// The last part of the audit log's path.
const AUDIT: &str = "/audit";

pub fn all(seen: &Seen) -> Vec<Finding> {
    let mut found = Vec::new();
    for of in seen.manager_actors().into_iter().flatten() {
        let name = name(seen, of);
        match (&of.root, &of.error) {
            (Some(root), _) => actor(&name, root, &mut found),
            (None, error) => {
                let why = error.as_ref().map_or_else(String::new, |error| text(&error.message));
                let what = html! { "the actors of " (node_link(&name)) " are not known: " (why) };
                let then = html! { (code(&["systemctl", "status", "musterd"])) " there" };
                found.push(Finding::new(Grade::Warn, format!("actors/{}", of.node), what).then(then));
            }
        }
    }
    found
}

/// A node that does not answer is known by the list of nodes.
fn name(seen: &Seen, of: &NodeActorsView) -> String {
    of.name.as_ref().map_or_else(|| name_of(of.node, seen.names()), Name::to_string)
}

fn actor(node: &str, actor: &ActorNode, found: &mut Vec<Finding>) {
    let of = link("/actors", &[("node", node), ("path", &actor.path)], &actor.path);
    let place = html! { (of) " on " (node_link(node)) };
    let key = |what: &str| format!("{what}/{node}/{}", actor.path);
    let inspect = code(&["muster", "actors", "inspect", &actor.path, "--node", node]);
    match actor.state {
        ActorState::Stuck | ActorState::Escalated => {
            let what = html! { (place) " is " (word(actor.state)) ": it can be neither stopped nor restarted" };
            let then = html! { "restart that daemon when " (code(&["muster", "node", "may-stop", node])) " allows it" };
            let new = Finding::new(Grade::Bad, key("stuck"), what).alert("MusterActorStuck").since(actor.since);
            found.push(new.then(then));
        }
        ActorState::BackingOff | ActorState::Dead => {
            let last = actor.last_exits.last().map(|exit| text(&exit.text));
            let what = html! { (place) " fails and is started again" @if let Some(last) = last { ": " (last) } };
            let new = Finding::new(Grade::Warn, key("fails"), what).alert("MusterActorRestarts").since(actor.since);
            found.push(new.then(inspect.clone()));
        }
        ActorState::Starting | ActorState::Healthy | ActorState::Done | ActorState::Stopping => {}
    }
    let limit = if actor.path == DISK { DISK_HANGS_MS } else { HANDLER_LONG_MS };
    if let Some(handling) = actor.handling.as_ref().filter(|handling| handling.for_ms > limit) {
        let (message, seconds) = (text(&handling.message), handling.for_ms / 1000);
        let what = html! { (place) " has handled " (message) " for " (seconds) " s" };
        let new = Finding::new(Grade::Bad, key("long"), what).alert("MusterHandlerLong");
        let disk = || html! { "its disk or file system hangs: " (inspect) };
        found.push(new.then(if actor.path == DISK { disk() } else { inspect.clone() }));
    }
    if let Some(limit) = actor.mailbox_limit.filter(|limit| actor.mailbox > limit / 2) {
        let what = html! { "the mailbox of " (place) " is filling: " (actor.mailbox) " of " (limit) };
        found.push(Finding::new(Grade::Warn, key("mailbox"), what).alert("MusterMailboxFilling").then(inspect.clone()));
    }
    if let Some(why) = audit_failure(actor) {
        let what = html! { "the audit log of " (node_link(node)) " cannot be written: " (text(why)) };
        let then = html! { "make room on its disk, or its directory writable" };
        found.push(Finding::new(Grade::Bad, key("audit"), what).alert("MusterAuditFailing").then(then));
    }
    actor.children.iter().for_each(|child| self::actor(node, child, found));
}

fn audit_failure(actor: &ActorNode) -> Option<&str> {
    actor.view.get("failing")?.as_str().filter(|_| actor.path.ends_with(AUDIT))
}

fn find<'a>(actor: &'a ActorNode, is: &dyn Fn(&ActorNode) -> bool) -> Option<&'a ActorNode> {
    if is(actor) { Some(actor) } else { actor.children.iter().find_map(|child| find(child, is)) }
}

/// Of each manager whose actors are known.
fn of_each<'a>(seen: &'a Seen, is: &dyn Fn(&ActorNode) -> bool) -> Vec<(String, &'a ActorNode)> {
    let all = seen.manager_actors().into_iter().flatten();
    all.filter_map(|of| Some((name(seen, of), find(of.root.as_ref()?, is)?))).collect()
}

/// Whether the audit logs are written.
pub fn audit(seen: &Seen) -> Markup {
    if seen.manager_actors().is_none() {
        return html! { "…" };
    }
    let logs = of_each(seen, &|actor| actor.path.ends_with(AUDIT));
    let failing: Vec<&str> =
        logs.iter().filter(|(_, log)| audit_failure(log).is_some()).map(|(node, _)| node.as_str()).collect();
    match (logs.len(), failing.as_slice()) {
        (0, _) => html! { "off, or not known" },
        (all, []) => seen.good(&format!("written on {}", counted(all, "manager"))),
        (_, failing) => graded(Grade::Bad, &format!("cannot be written on {}", failing.join(", "))),
    }
}

/// How the disks of the Raft data have done.
pub fn disks(seen: &Seen) -> Markup {
    if seen.manager_actors().is_none() {
        return html! { "…" };
    }
    let disks = of_each(seen, &|actor| actor.path == DISK);
    html! {
        @for (at, (node, disk)) in disks.iter().enumerate() {
            @if at > 0 { "; " }
            (node_link(node)) " "
            @match disk.handling.as_ref().filter(|handling| handling.for_ms > DISK_HANGS_MS) {
                Some(handling) => (graded(Grade::Bad, &format!("hangs for {} s", handling.for_ms / 1000))),
                None => {
                    @let (all, mean) = (disk.handler_times.handled(), mean_ms(disk));
                    (all) " writes"
                    @if let Some(mean) = mean { ", " (format!("{mean:.1}")) " ms on average" }
                },
            }
        }
        @if disks.is_empty() { "none known" }
    }
}

fn mean_ms(disk: &ActorNode) -> Option<f64> {
    let all = disk.handler_times.handled();
    (all > 0).then(|| disk.handler_times.sum.as_secs_f64() * 1_000.0 / all as f64)
}
