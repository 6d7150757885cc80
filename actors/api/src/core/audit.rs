//! How a request appears in the audit log: its verb, its object, and whether the log may refuse it.
//!
//! Only names and ids leave this file (AUDIT-2): no body, no label, no argument of a command; of a token, only its id.

use muster_audit::{Class, Object, Outcome};
use muster_messages::wire::{
    ActorsAsk, ActorsOf, AutopilotRequest, KubeCall, LeaseRef, LeaseRequest, ReconcilerRequest, Request,
};
use muster_messages::{ManagedKey, ObjectKey, ParticipantKey, Revision, Role, RootId, Tables, UserKind};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::authorize::{Kind, kind_of, participates};
use super::resolve::resolve;

/// The outcome of a request that was answered without an error.
pub fn outcome_of(request: &Request, answer: &str) -> Outcome {
    let takes_time = matches!(
        request,
        Request::SetRole { .. }
            | Request::CertRotate { .. }
            | Request::CertRevoke { .. }
            | Request::RootRotate { .. }
            | Request::RootIssued { .. }
            | Request::RootActivate { .. }
            | Request::AutolockOn
            | Request::AutolockOff
            | Request::AutolockRotate
    );
    let unchanged = || serde_json::from_str(answer).is_ok_and(|answer: Value| answer["changed"] == false);
    if takes_time && !unchanged() { Outcome::Accepted } else { Outcome::Done }
}

/// The id of the object that an answer names: of a token, next to its secret, of a root that was made, or the version of an unlock key.
pub fn object_of(request: &Request, answer: &str) -> Option<String> {
    let field = match request {
        Request::TokenCreate { .. }
        | Request::TokenRotate { .. }
        | Request::TokenShow { .. }
        | Request::AccessTokenCreate { .. } => "id",
        Request::RootRotate { .. } | Request::RootRequest { .. } | Request::RootIssued { .. } | Request::RootAbort => {
            "root"
        }
        Request::AutolockOn | Request::AutolockOff | Request::AutolockRotate | Request::AutolockKey { .. } => "version",
        _ => return None,
    };
    let answer: Value = serde_json::from_str(answer).ok()?;
    answer[field].as_str().map(str::to_owned).or_else(|| answer[field].as_u64().map(|number| number.to_string()))
}

/// Whether the log may refuse it. Uses this replica, if there is one: who holds a lease decides whether a write renews it.
pub fn class_of(request: &Request, tables: Option<&Tables>) -> Class {
    match request {
        Request::TokenShow { .. } | Request::AutolockKey { .. } => Class::Secret,
        // Requests that keep the cluster together pass whatever the state of the log.
        Request::TransferLeader { .. } | Request::Actors { .. } if kind_of(request) != Kind::Actors => Class::Vital,
        Request::Lease(request) => class_of_lease(request),
        Request::Reconciler(request) if participates(request) => Class::Vital,
        Request::Kube(call) => class_of_kube(call, tables),
        _ if kind_of(request) == Kind::Write => Class::Change,
        _ => Class::Read,
    }
}

fn class_of_lease(request: &LeaseRequest) -> Class {
    use LeaseRequest as L;
    match request {
        L::Create { holder: None, .. } | L::Delete { .. } | L::DeleteHeld { .. } | L::SetGuard { .. } => Class::Change,
        L::Create { .. } | L::Update { .. } | L::Acquire { .. } | L::Release { .. } => Class::Vital,
        L::List { .. } | L::Get { .. } | L::Guards | L::Renew { .. } | L::Watch { .. } => Class::Read,
    }
}

/// Clients renew by writing the lease again: that would be as many lines as heartbeats. A change of holder is not a
/// renewal.
fn class_of_kube(call: &KubeCall, tables: Option<&Tables>) -> Class {
    match call.method.as_str() {
        "GET" | "HEAD" => Class::Read,
        "DELETE" => Class::Change,
        "PUT" | "PATCH" if renews(call, tables) => Class::Read,
        _ => Class::Vital,
    }
}

fn renews(call: &KubeCall, tables: Option<&Tables>) -> bool {
    let path = kube_path(&call.target);
    let (Some(tables), Some("leases"), Some(name)) = (tables, path.resource.as_deref(), path.name) else {
        return false;
    };
    let key = ObjectKey::lease(path.namespace.unwrap_or_default(), name);
    // An array is a JSON patch, and a strategic one may delete what it names.
    let strategic = call.content_type.as_deref().is_some_and(|content| content.contains("strategic"));
    if strategic || !call.body.trim_ascii_start().starts_with(b"{") {
        return false;
    }
    let Some(holder) = tables.objects.get(&key).and_then(|object| object.lease()?.spec.held_by()) else { return false };
    serde_json::from_slice(&call.body)
        .is_ok_and(|WithSpec { spec }| spec.get("holderIdentity").is_some_and(|to| to == holder))
}

/// A body as far as it names a lease's holder. A struct would be read from an array, too.
#[derive(Deserialize)]
struct WithSpec {
    spec: Map<String, Value>,
}

#[derive(Default)]
struct KubePath {
    resource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

/// `/apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE/NAME`, or `/api/v1/…`.
fn kube_path(target: &str) -> KubePath {
    let path = target.split('?').next().unwrap_or_default();
    let mut segments = path.trim_matches('/').split('/').map(str::to_owned);
    let skipped = if segments.next().as_deref() == Some("apis") { 2 } else { 1 };
    let mut segments = segments.skip(skipped);
    let Some(first) = segments.next() else { return KubePath::default() };
    if first != "namespaces" {
        return KubePath { resource: Some(first), namespace: None, name: segments.next() };
    }
    let namespace = segments.next();
    KubePath { resource: segments.next(), namespace, name: segments.next() }
}

/// A request's verb and object, as the log shows them. Uses this replica, if there is one: names become ids while the object exists.
pub fn described(request: &Request, tables: Option<&Tables>) -> (String, Object) {
    let node = |reference: &str| node_object(reference, tables);
    let default_token = |role: &Role| {
        let token = tables.and_then(|tables| tables.default_token(*role));
        Object { kind: "token", id: token.map(|token| token.id.clone()), name: Some(role.to_string()) }
    };
    let (verb, object) = match request {
        Request::Status { .. } => ("status", cluster()),
        Request::NodeList { .. } => ("node.list", cluster()),
        Request::NodeInspect { node: of, .. } | Request::NodeWatch { node: of, .. } => ("node.inspect", node(of)),
        Request::SetRole { node: of, role: Role::Manager } => ("node.promote", node(of)),
        Request::SetRole { node: of, role: Role::Worker } => ("node.demote", node(of)),
        Request::NodeRemove { node: of, force: false } => ("node.remove", node(of)),
        Request::NodeRemove { node: of, force: true } => ("node.remove_by_force", node(of)),
        Request::NodeUpdate { node: of, .. } => ("node.update", node(of)),
        Request::NodeMayStop { node: of } => ("node.may_stop", node(of)),
        Request::NodeRename { node: of, .. } => ("node.rename", node(of)),
        Request::Autopilot(request) => match request {
            AutopilotRequest::State => ("autopilot.state", cluster()),
            AutopilotRequest::Preview { .. } => ("autopilot.preview", cluster()),
            AutopilotRequest::Set { .. } => ("autopilot.set", cluster()),
            AutopilotRequest::Withdraw { .. } => ("autopilot.withdraw", cluster()),
            AutopilotRequest::Pause { .. } => ("autopilot.pause", cluster()),
            AutopilotRequest::Resume => ("autopilot.resume", cluster()),
            AutopilotRequest::Prefer { node: of, .. } => ("node.prefer", node(of)),
            AutopilotRequest::Drain { node: of, .. } => ("node.drain", node(of)),
            AutopilotRequest::Undrain { node: of } => ("node.undrain", node(of)),
        },
        Request::TokenCreate { role, .. } => ("token.create", Object::named("token", role)),
        Request::TokenList => ("token.list", cluster()),
        // Text that is not the id of a token may be a token itself.
        Request::TokenRevoke { id } => {
            let known = tables.is_some_and(|tables| tables.tokens.contains_key(id));
            ("token.revoke", Object { kind: "token", id: known.then(|| id.clone()), name: None })
        }
        Request::TokenRotate { role } => ("token.rotate", default_token(role)),
        Request::TokenShow { role } => ("token.show", default_token(role)),
        Request::CertList => ("certificate.list", cluster()),
        Request::CertRotate { node: of } => ("certificate.rotate", node(of)),
        Request::CertRevoke { node: of } => ("certificate.revoke", node(of)),
        Request::CaShow => ("ca.show", cluster()),
        Request::RootList => ("root.list", cluster()),
        Request::RootRotate { compromised: false, .. } => ("root.rotate", some_root(None)),
        Request::RootRotate { compromised: true, .. } => ("root.rotate_compromised", some_root(None)),
        Request::RootActivate { root } => ("root.activate", some_root(Some(*root))),
        Request::RootRequest { compromised: false } => ("root.request", some_root(None)),
        Request::RootRequest { compromised: true } => ("root.request_compromised", some_root(None)),
        Request::RootIssued { .. } => ("root.issued", some_root(None)),
        Request::RootAbort => ("root.abort", some_root(None)),
        Request::RootRetire { root, force: false } => ("root.retire", some_root(Some(*root))),
        Request::RootRetire { root, force: true } => ("root.retire_by_force", some_root(Some(*root))),
        Request::RootRevoke { root } => ("root.revoke", some_root(Some(*root))),
        Request::AutolockStatus => ("autolock.status", cluster()),
        Request::AutolockOn => ("autolock.on", unlock_key(None)),
        Request::AutolockOff => ("autolock.off", unlock_key(None)),
        Request::AutolockRotate => ("autolock.rotate", unlock_key(None)),
        Request::AutolockKey { version } => ("autolock.key", unlock_key(*version)),
        Request::WorkloadList => ("workload.list", cluster()),
        Request::WorkloadShow { name } => ("workload.show", Object::named("workload", name)),
        Request::WorkloadSet { entry, .. } => ("workload.set", Object::named("workload", &entry.name)),
        Request::WorkloadRemove { name } => ("workload.remove", Object::named("workload", name)),
        Request::WorkloadExplain { .. } => ("workload.explain", cluster()),
        Request::Unlock { version, .. } => ("unlock", unlock_key(*version)),
        Request::UserCreate { name, kind: UserKind::User, .. } => ("user.create", Object::named("user", name)),
        Request::UserCreate { name, kind: UserKind::Operator, .. } => {
            ("user.create_admin", Object::named("user", name))
        }
        Request::UserCreate { name, kind: UserKind::ReadOnly, .. } => {
            ("user.create_read_only", Object::named("user", name))
        }
        Request::UserRenew { name, .. } => ("user.renew", Object::named("user", name)),
        Request::UserList => ("user.list", cluster()),
        Request::UserRevoke { name } => ("user.revoke", Object::named("user", name)),
        Request::AccessTokenCreate { user, .. } => ("access_token.create", Object::named("access_token", user)),
        Request::BlocklistList { .. } => ("blocklist.list", cluster()),
        Request::RaftStatus { .. } => ("raft.status", cluster()),
        Request::TransferLeader { to } => {
            ("raft.transfer_leader", to.as_deref().map_or_else(cluster, |to| node_object(to, tables)))
        }
        Request::Actors { node: of, ask } => return described_actors(of, ask),
        Request::Events { .. } => ("events", cluster()),
        Request::Contact => ("contact", cluster()),
        Request::Page { of, fresh, .. } => return described(&of.whole(*fresh), tables),
        Request::OpenAdmission => ("recovery.open", cluster()),
        Request::Lease(request) => described_lease(request),
        Request::Reconciler(request) => described_reconciler(request),
        Request::Kube(call) => return described_kube(call),
    };
    (verb.to_owned(), object)
}

fn cluster() -> Object {
    Object { kind: "cluster", id: None, name: None }
}

/// `None`: known from the answer only.
fn some_root(id: Option<RootId>) -> Object {
    Object { kind: "root", id: id.map(|id| id.to_string()), name: None }
}

/// `None`: known from the answer only.
fn unlock_key(version: Option<Revision>) -> Object {
    Object { kind: "unlock_key", id: version.map(|version| version.to_string()), name: None }
}

fn node_object(reference: &str, tables: Option<&Tables>) -> Object {
    match tables.and_then(|tables| resolve(tables, reference).ok()) {
        Some(node) => Object { kind: "node", id: Some(node.id.to_string()), name: Some(node.name.to_string()) },
        None => Object::named("node", reference),
    }
}

fn described_actors(of: &ActorsOf, ask: &ActorsAsk) -> (String, Object) {
    let (verb, path) = match ask {
        ActorsAsk::Tree => ("actors.list", "node"),
        ActorsAsk::Inspect { path } => ("actors.inspect", path.as_str()),
        ActorsAsk::Restart { path } => ("actors.restart", path.as_str()),
        ActorsAsk::Crash { path, .. } => ("actors.crash", path.as_str()),
        ActorsAsk::RunLog(ask) => ("reconciler.logs", ask.run.reconciler.as_str()),
    };
    let node = match of {
        ActorsOf::Here => None,
        ActorsOf::Leader => Some("leader".to_owned()),
        ActorsOf::All => Some("all".to_owned()),
        ActorsOf::Node(node) => Some(node.clone()),
        ActorsOf::Id(id) => Some(id.to_string()),
    };
    let name = node.map_or_else(|| path.to_owned(), |node| format!("{node}: {path}"));
    (verb.to_owned(), Object::named("actor", name))
}

fn described_lease(request: &LeaseRequest) -> (&'static str, Object) {
    use LeaseRequest as L;
    let object = |lease: &LeaseRef| Object::named("lease", lease);
    match request {
        L::List { .. } => ("lease.list", cluster()),
        L::Get { lease } => ("lease.get", object(lease)),
        L::Create { lease, .. } => ("lease.create", object(lease)),
        L::Delete { lease } => ("lease.delete", object(lease)),
        L::DeleteHeld { lease } => ("lease.delete_held", object(lease)),
        L::Update { lease, .. } => ("lease.update", object(lease)),
        L::Acquire { lease, .. } => ("lease.acquire", object(lease)),
        L::Renew { held, .. } => ("lease.renew", held.first().map_or_else(cluster, |(lease, _)| object(lease))),
        L::Release { lease, .. } => ("lease.release", object(lease)),
        L::Watch { lease, .. } => ("lease.watch", object(lease)),
        L::Guards => ("guard.list", cluster()),
        L::SetGuard { scope, .. } => {
            let name =
                scope.lease.as_ref().map_or_else(|| scope.namespace.clone(), |l| format!("{}/{l}", scope.namespace));
            ("guard.set", Object::named("guard", name))
        }
    }
}

fn described_reconciler(request: &ReconcilerRequest) -> (&'static str, Object) {
    use ReconcilerRequest as R;
    let reconciler = |name: &String| Object::named("reconciler", name);
    let member = |scope: &str, member: &str| Object::named("member", format!("{scope}/{member}"));
    let participant = |key: &ParticipantKey| member(&key.scope, &key.member);
    let object = |key: &ManagedKey| Object::named("object", format!("{}/{}/{}", key.kind, key.namespace, key.name));
    match request {
        R::Apply { definitions, .. } => {
            let first = definitions.first().map_or_else(cluster, |d| reconciler(&d.reconciler));
            ("reconciler.apply", first)
        }
        R::List => ("reconciler.list", cluster()),
        R::Status { name, .. } => ("reconciler.status", reconciler(name)),
        R::Plan { name, .. } => ("reconciler.plan", reconciler(name)),
        R::History { name } => ("reconciler.history", reconciler(name)),
        R::Runs { name } => ("reconciler.runs", reconciler(name)),
        R::Log { name, .. } => ("reconciler.logs", reconciler(name)),
        R::Pause { name, paused: true } => ("reconciler.pause", reconciler(name)),
        R::Pause { name, paused: false } => ("reconciler.resume", reconciler(name)),
        R::Finalize { name, .. } => ("reconciler.finalize", reconciler(name)),
        R::Retry { name, .. } => ("reconciler.retry", reconciler(name)),
        R::Repair { name, .. } => ("reconciler.repair", reconciler(name)),
        R::ForceFloor { name, .. } => ("reconciler.force_floor", reconciler(name)),
        R::DeleteGate { name } => ("reconciler.delete_gate", reconciler(name)),
        R::Delete { name } => ("reconciler.delete", reconciler(name)),
        R::MemberList { .. } => ("member.list", cluster()),
        R::MemberForget { scope, member: of } => ("member.forget", member(scope, of)),
        R::MemberDrain { scope, member: of } => ("member.drain", member(scope, of)),
        R::MemberAnnounce { scope, member: of, .. } => ("member.announce", member(scope, of)),
        R::ObjectList { .. } => ("object.list", cluster()),
        R::ObjectChanges { .. } => ("object.watch", cluster()),
        R::ObjectGet { key } => ("object.get", object(key)),
        R::ObjectPut { key, .. } => ("object.put", object(key)),
        R::ObjectDelete { key } => ("object.delete", object(key)),
        R::Announce { participant: of } => ("member.announce", participant(&of.key)),
        R::Admit { key } => ("member.admit", participant(key)),
        R::Admission { key, .. } => ("member.admission", participant(key)),
        R::Leave { key } => ("member.leave", participant(key)),
        R::Definitions { .. } => ("reconciler.definitions", cluster()),
        R::View { name, .. } => ("reconciler.view", reconciler(name)),
        R::Step { name, .. } => ("reconciler.step", reconciler(name)),
        R::Wave { name, .. } => ("reconciler.wave", reconciler(name)),
        R::RecordRun { record } => ("reconciler.run", reconciler(&record.reconciler)),
        R::Progress { progress } => ("reconciler.progress", reconciler(&progress.reconciler)),
        R::StepDone { name, .. } => ("reconciler.step_done", reconciler(name)),
        R::RaiseLevel { .. } => ("feature_level.raise", cluster()),
    }
}

fn described_kube(call: &KubeCall) -> (String, Object) {
    let KubePath { resource, namespace, name } = kube_path(&call.target);
    let name: Vec<String> = namespace.into_iter().chain(name).collect();
    let name = (!name.is_empty()).then(|| name.join("/"));
    let object = Object { kind: "kubernetes", id: None, name };
    (format!("{} {}", call.method, resource.unwrap_or_default()), object)
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
