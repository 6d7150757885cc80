//! What the cluster's own answers tell.

use std::time::Duration;

use maud::{Markup, html};
use muster_messages::{
    AuthorityState, CertificateState, Liveness, NodeCertificateView, ReconcilerPhase, SealState, StatusView,
    TroubleKind, WaitReason, WallTime, answering, counted, word,
};

use super::{Finding, Seen, code, plain};
use crate::feed::Topic;
use crate::html::{Grade, link, node_link, text, time};
use crate::pages::name_of;

/// Things of one kind that a finding names.
const NAMED: usize = 5;
/// As the rule of MusterRoleChangePending has it.
const PENDING_LONG: Duration = Duration::from_secs(15 * 60);
/// As the rule of MusterRootExpires has it.
const ROOT_SOON: Duration = Duration::from_secs(180 * 24 * 3600);
/// As the rule of MusterFollowerBehind has it.
const FAR_BEHIND: u64 = 10_000;
/// As the rule of MusterLeaderChanges has it.
const MANY_TERMS: usize = 4;
/// The shortest lifetime is an hour, of which a fifth is left when a certificate should have been renewed.
const CERTIFICATE_LATE: Duration = Duration::from_secs(10 * 60);

pub fn all(seen: &Seen) -> Vec<Finding> {
    let Some(status) = seen.status() else { return silent(seen) };
    let mut found = Vec::new();
    found.extend(old(seen));
    found.extend(quorum(seen, status));
    found.extend(trouble(status));
    found.extend(declared(status));
    found.extend(pending(seen, status));
    found.extend(duplicates(status));
    found.extend(nodes(seen, status));
    found.extend(behind(seen));
    found.extend(certificates(seen));
    found.extend(roots(seen, status));
    found.extend(autolock(seen));
    found.extend(reconcilers(seen));
    found.extend(terms(seen));
    found
}

/// Whether the second time is less than a span after the first one.
fn within(from: WallTime, to: WallTime, span: Duration) -> bool {
    to.0.saturating_sub(from.0) < i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Names as links, not endless.
fn names<'a>(all: impl Iterator<Item = &'a str>) -> Markup {
    let all: Vec<&str> = all.collect();
    html! {
        @for (at, name) in all.iter().take(NAMED).enumerate() { @if at > 0 { ", " } (node_link(name)) }
        @if all.len() > NAMED { " and " (all.len() - NAMED) " more" }
    }
}

/// Nothing has ever been answered.
fn silent(seen: &Seen) -> Vec<Finding> {
    let failure = seen.samples.get(&Topic::Status).and_then(|sample| sample.failure.as_ref());
    let of = |why: &String| {
        let what = html! { "no daemon answers this dashboard: " (text(why)) };
        let then = html! { (code(&["systemctl", "status", "musterd"])) " on this machine, or choose another one with " (code(&["--socket"])) " or " (code(&["--identity"])) };
        Finding::new(Grade::Bad, "silent", what).then(then)
    };
    failure.map(of).into_iter().collect()
}

/// It answered before.
fn old(seen: &Seen) -> Option<Finding> {
    let sample = seen.samples.get(&Topic::Status)?;
    let why = sample.failure.as_ref()?;
    let what = html! { "no daemon answers this dashboard any more: " (text(why)) ". Below is what was known" };
    Some(Finding::new(Grade::Bad, "old", what).since(sample.at).then(code(&["systemctl", "status", "musterd"])))
}

fn quorum(seen: &Seen, status: &StatusView) -> Option<Finding> {
    let (needed, reachable, voters) = (status.quorum.needed, status.quorum.reachable, status.raft.voters.len());
    let missing = html! { @if !status.quorum.missing.is_empty() { ": missing " (names(status.quorum.missing.iter().map(|it| it.as_str()))) } };
    let locked = seen.autolock().is_some_and(|autolock| autolock.enabled);
    let back = html! {
        "bring them back: " (code(&["systemctl", "status", "musterd"])) " there"
        @if locked { "; one that was restarted may wait for " (code(&["muster", "unlock"])) }
    };
    if status.stale || reachable < needed {
        let what = html! { "no quorum: " (answering(reachable, voters)) ", " (needed) " needed, and nothing can change" (missing) };
        let lost = html! { (back) ". If a majority is lost for good: " (code(&["musterd", "--force-new-cluster"])) ", see recovery.md" };
        return Some(Finding::new(Grade::Bad, "quorum", what).alert("MusterNoLeader").since(status.as_of).then(lost));
    }
    if status.raft.leader.is_none() {
        let what = html! { "no manager leads: nothing can change" };
        return Some(
            Finding::new(Grade::Bad, "leader", what).alert("MusterNoLeader").then(code(&["muster", "raft", "status"])),
        );
    }
    if reachable > needed {
        return None;
    }
    Some(match voters {
        0 | 1 => return None,
        2 => {
            let what = html! { "two managers tolerate no failure" };
            Finding::new(Grade::Warn, "two", what).then(html! { "promote a third one, or demote one" })
        }
        _ => {
            let what = html! { "no manager may be lost: " (reachable) " of " (voters) " answer" (missing) };
            Finding::new(Grade::Bad, "margin", what).alert("MusterQuorumMarginNone").then(back)
        }
    })
}

/// Of the node that answers.
fn trouble(status: &StatusView) -> Option<Finding> {
    let trouble = status.this.trouble.as_ref()?;
    let (alert, then) = match status.this.trouble_kind() {
        Some(TroubleKind::AuditFailing) => {
            (Some("MusterAuditFailing"), html! { "make room on its disk, or its directory writable" })
        }
        Some(TroubleKind::ManagerFailing) => {
            (Some("MusterActorRestarts"), html! { "its log, and " (code(&["muster", "actors"])) })
        }
        Some(TroubleKind::CertificateExpired) => (
            Some("MusterCertificateExpires"),
            html! { "start it with " (code(&["--join"])) " and a token of its role" },
        ),
        Some(TroubleKind::AdmissionClosed) => (None, code(&["muster", "recovery", "open"])),
        Some(TroubleKind::DiskFailed) => (None, html! { "make its data directory writable; it tries again by itself" }),
        Some(
            TroubleKind::Blocked
            | TroubleKind::Removed
            | TroubleKind::FeatureLevelTooLow
            | TroubleKind::RaftDataMissing
            | TroubleKind::RaftDataDamaged
            | TroubleKind::DialBackFailed,
        )
        | None => (None, html! { "see its log: " (code(&["journalctl", "-u", "musterd"])) }),
    };
    let what = html! { (node_link(status.this.name.as_str())) ": " (text(trouble)) };
    Some(Finding { alert, ..Finding::new(Grade::Bad, "trouble", what).then(then) })
}

fn advice(reason: WaitReason) -> Markup {
    match reason {
        WaitReason::WaitingForNode | WaitReason::NoContact => html! { "start that node, or remove it" },
        WaitReason::QuorumAtRisk => html! { "bring the silent managers back, or promote another node first" },
        WaitReason::LastManager => html! { "promote another node first" },
        WaitReason::DialBackFailed => html! { "the leader must reach the address of its " (code(&["--advertise"])) },
        WaitReason::SnapshotNotTaken => html! { "its disk is full, or its build too old: its log says which" },
        WaitReason::StateDiverged => html! { "demote it, and promote it again with an empty directory" },
        WaitReason::RaftDataMissing | WaitReason::RaftDataDamaged => {
            html! { "it gets the state from the leader by itself; look at its disk" }
        }
        WaitReason::DuplicateIdentity => {
            html! { "stop the process that was started from a copy of its data directory" }
        }
        WaitReason::Drained => html! { (code(&["muster", "node", "undrain"])) " once it is back" },
        WaitReason::ReportedNameDiffers => {
            html! { (code(&["muster", "node", "rename"])) ", or correct its " (code(&["--name"])) }
        }
        _ => html! { "no action needed: Muster retries" },
    }
}

fn pending(seen: &Seen, status: &StatusView) -> Vec<Finding> {
    let of = |it: &muster_messages::PendingView| {
        let what = html! {
            (node_link(it.name.as_str())) " is to become " (word(it.wants)) ": " (plain(it.reason)) ", " (text(&it.message))
            @if let Some(retry) = it.retry_at { ", next try " (time(retry)) }
        };
        let long = it.reason != WaitReason::WaitingForNode && !within(it.since, seen.now, PENDING_LONG);
        let found =
            Finding::new(Grade::Warn, format!("pending/{}", it.node), what).since(it.since).then(advice(it.reason));
        if long { found.alert("MusterRoleChangePending") } else { found }
    };
    status.pending.iter().map(of).collect()
}

/// The declared number of managers, and whether it is kept.
fn declared(status: &StatusView) -> Vec<Finding> {
    let Some(declared) = &status.declared else { return Vec::new() };
    let mut found = Vec::new();
    if let Some(pause) = &declared.paused {
        let what = html! { "the autopilot is paused: " (text(&pause.why)) };
        let then = code(&["muster", "autopilot", "resume"]);
        found.push(match pause.gave_up {
            true => Finding::new(Grade::Bad, "paused", what).alert("MusterAutopilotGaveUp").since(pause.at).then(then),
            false => Finding::new(Grade::Plain, "paused", what).since(pause.at).then(then),
        });
    }
    let (managers, answering) = (usize::from(declared.managers), status.quorum.reachable);
    if managers > answering {
        let what = html! { (counted(answering, "manager")) @if answering == 1 { " answers" } @else { " answer" } ", " (managers) " declared" };
        let then = html! { (code(&["muster", "autopilot", "state"])) " says why" };
        found.push(Finding::new(Grade::Warn, "declared", what).alert("MusterManagersMissing").then(then));
    }
    found
}

fn duplicates(status: &StatusView) -> Vec<Finding> {
    let of = |it: &muster_messages::DuplicateView| {
        let what = html! { "two processes use the identity of " (node_link(it.name.as_str())) };
        let then = html! { "stop the wrong one; " (code(&["muster", "cert", "rotate", it.name.as_str(), "--revoke"])) " if an attacker has its key" };
        Finding::new(Grade::Bad, it.node.as_str(), what).alert("MusterDuplicateIdentity").since(it.since).then(then)
    };
    status.duplicates.iter().map(of).collect()
}

fn nodes(seen: &Seen, status: &StatusView) -> Vec<Finding> {
    let mut found = Vec::new();
    let all = || seen.nodes().into_iter().flat_map(|nodes| &nodes.items);
    if status.nodes.down > 0 {
        let down = || all().filter(|node| node.state == Liveness::Down);
        let listed = html! { @if down().next().is_some() { ": " (names(down().map(|node| node.name.as_str()))) } };
        let what = html! { (status.nodes.down) " of " (status.nodes.total) " nodes are down" (listed) };
        let then = html! { "start them; those that will not come back: " (code(&["muster", "node", "rm"])) };
        let since = down().map(|node| node.state_since).min();
        found.push(Finding::new(Grade::Bad, "down", what).alert("MusterNodesDown").since(since).then(then));
    }
    for node in all() {
        for condition in &node.conditions {
            let shown_as_pending = status.pending.iter().any(|it| it.node == node.id && it.reason == condition.reason);
            if shown_as_pending || condition.reason == WaitReason::DuplicateIdentity {
                continue;
            }
            let cannot = matches!(condition.reason, WaitReason::SnapshotNotTaken | WaitReason::StateDiverged);
            let grade = match condition.reason {
                _ if cannot => Grade::Bad,
                WaitReason::NoContact | WaitReason::Drained => Grade::Plain,
                _ => Grade::Warn,
            };
            let what = html! { (node_link(node.name.as_str())) ": " (plain(condition.reason)) ", " (text(&condition.message)) };
            let key = format!("{}/{}", node.id, word(condition.reason));
            let new = Finding::new(grade, key, what).since(condition.since).then(advice(condition.reason));
            found.push(if cannot { new.alert("MusterManagerCannotFollow") } else { new });
        }
    }
    found
}

fn behind(seen: &Seen) -> Vec<Finding> {
    // Without a leader it is not known.
    let Some(raft) = seen.raft().filter(|raft| !raft.stale) else { return Vec::new() };
    let of = |member: &muster_messages::RaftMemberView| {
        let lag = raft.commit.0.saturating_sub(member.matched);
        let name = name_of(member.node, seen.names());
        let what = html! { (node_link(&name)) " is " (lag) " entries behind" };
        let then = html! { "its disk or its link is slow, or it was just started" };
        (lag > FAR_BEHIND && member.reachable)
            .then(|| Finding::new(Grade::Warn, member.node.as_str(), what).alert("MusterFollowerBehind").then(then))
    };
    raft.members.iter().filter_map(of).collect()
}

fn certificates(seen: &Seen) -> Vec<Finding> {
    let all = || seen.certificates().into_iter().flatten();
    let left = |until: WallTime| until.0.saturating_sub(seen.now.0);
    // For managers that do not report the lifetime: the newest certificate has at least a fifth of it left.
    let longest = all().filter_map(|it| it.not_after).map(left).max().unwrap_or(0);
    let lifetime = |it: &NodeCertificateView| {
        let reported = it.lifetime_secs.and_then(|secs| i64::try_from(secs).ok()?.checked_mul(1_000));
        reported.unwrap_or(longest)
    };
    let shortest_late = i64::try_from(CERTIFICATE_LATE.as_millis()).unwrap_or(i64::MAX);
    let late = |it: &NodeCertificateView| (lifetime(it) / 100 * 15).max(shortest_late);
    let mut found: Vec<(WallTime, Finding)> = Vec::new();
    for it in all() {
        let Some(until) = it.not_after else { continue };
        let failed = it.state == CertificateState::Failed;
        if !failed && left(until) > late(it) {
            continue;
        }
        let name = it.name.as_ref().map_or_else(|| it.node.to_string(), ToString::to_string);
        let expired = left(until) <= 0;
        let what = html! {
            "the certificate of " (node_link(&name))
            @if expired { " has expired, " } @else if failed { " could not be renewed; it expires " } @else { " is not renewed; it expires " }
            (time(until))
        };
        let then = if expired {
            html! { "start that node with " (code(&["--join"])) " and a token of its role" }
        } else {
            html! { (code(&["muster", "node", "inspect", &name])) " and its log say why" }
        };
        found.push((
            until,
            Finding::new(Grade::Bad, it.node.as_str(), what).alert("MusterCertificateExpires").then(then),
        ));
    }
    found.sort_by_key(|(until, _)| *until);
    found.into_iter().map(|(_, finding)| finding).collect()
}

fn roots(seen: &Seen, status: &StatusView) -> Option<Finding> {
    let active =
        seen.roots().into_iter().flat_map(|roots| &roots.items).find(|root| root.state == AuthorityState::Active);
    let of_roots =
        active.map(|root| (root.id, root.not_after)).filter(|(_, until)| within(seen.now, *until, ROOT_SOON));
    let (root, until) = of_roots.or_else(|| status.root_expires.as_ref().map(|root| (root.root, root.not_after)))?;
    let grade = if status.root_expires.is_some() { Grade::Bad } else { Grade::Warn };
    let what = html! { "root " (text(&root.to_string())) ", which signs every certificate, expires " (time(until)) };
    Some(Finding::new(grade, "root", what).alert("MusterRootExpires").then(code(&["muster", "ca", "rotate"])))
}

fn autolock(seen: &Seen) -> Vec<Finding> {
    let Some(autolock) = seen.autolock().filter(|autolock| autolock.enabled) else { return Vec::new() };
    let mut found = Vec::new();
    for manager in autolock.managers.iter().filter(|manager| manager.state != SealState::Sealed) {
        let what =
            html! { "the disk of " (node_link(manager.name.as_str())) " is not sealed: " (plain(manager.state)) };
        let new = Finding::new(Grade::Warn, format!("seal/{}", manager.node), what).since(manager.at);
        found.push(new.then(code(&["muster", "autolock", "status"])));
    }
    for manager in autolock.managers.iter().filter(|manager| manager.liveness == Liveness::Down) {
        let what =
            html! { (node_link(manager.name.as_str())) " is down; if it was restarted, it waits for the unlock key" };
        let new = Finding::new(Grade::Warn, manager.node.as_str(), what).alert("MusterLocked");
        found.push(
            new.then(html! { (code(&["muster", "status"])) " and " (code(&["muster", "unlock"])) " on its machine" }),
        );
    }
    for old in &autolock.needs_old_key {
        let what = html! { (node_link(old.name.as_str())) " will ask for the unlock key of version " (old.version.0) };
        let then = code(&["muster", "autolock", "key", "--version", &old.version.0.to_string(), "-q"]);
        found.push(Finding::new(Grade::Warn, format!("old/{}", old.node), what).since(old.since).then(then));
    }
    found
}

fn reconcilers(seen: &Seen) -> Vec<Finding> {
    let mut found = Vec::new();
    for gate in seen.reconcilers().into_iter().flatten() {
        let name = link("/gates", &[("name", &gate.name)], &gate.name);
        let status = code(&["muster", "reconciler", "status", &gate.name]);
        let key = || format!("gate/{}", gate.name);
        let last = html! { @if let Some(error) = &gate.last_error { ": " (text(error)) } };
        let since = gate.last_failure.as_ref().map(|failure| failure.since);
        if gate.phase.known() == Some(ReconcilerPhase::Failed) {
            let what = html! { "the reconciler " (name) " has failed, and nothing runs it" (last) };
            let then =
                html! { "resolve what it reports, then " (code(&["muster", "reconciler", "retry", &gate.name])) };
            found.push(Finding::new(Grade::Bad, key(), what).alert("MusterReconcilerFailed").since(since).then(then));
        } else if gate.consecutive_failures > 0 {
            let what =
                html! { "the reconciler " (name) " failed " (gate.consecutive_failures) " times in a row" (last) };
            let new = Finding::new(Grade::Warn, key(), what).since(since).then(status);
            found.push(if gate.consecutive_failures >= 3 { new.alert("MusterReconcilerFails") } else { new });
        } else if gate.blockers_in_all > 0 {
            let what = html! { (gate.blockers_in_all) " members hold the reconciler " (name) " back" };
            found.push(Finding::new(Grade::Warn, key(), what).alert("MusterGateBlocked").then(status));
        }
    }
    found
}

/// Of the last 15 minutes at most, while this dashboard ran.
fn terms(seen: &Seen) -> Option<Finding> {
    let terms: Vec<u64> = seen.points.iter().filter_map(|point| point.term).collect();
    let changes = terms.windows(2).filter(|pair| pair[0] != pair[1]).count();
    let since = seen.points.front()?.at;
    let what = html! { "leaders changed " (changes) " times" };
    let then = html! { "managers that are overloaded, paused or badly connected" };
    (changes > MANY_TERMS)
        .then(|| Finding::new(Grade::Warn, "terms", what).alert("MusterLeaderChanges").since(since).then(then))
}
