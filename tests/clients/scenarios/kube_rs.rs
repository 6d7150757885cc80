//! The crate `kube`: every kind of write, and its watcher.

use futures_util::{Stream, StreamExt, pin_mut};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig as File};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Client, Config, Error, ResourceExt};
use serde_json::json;

use crate::harness::{Cluster, Kubeconfig, scenario};

/// A client from a kubeconfig, as programs create it.
pub async fn client(kubeconfig: &Kubeconfig) -> Client {
    let file = File::read_from(&kubeconfig.path).expect("muster prints what kube reads");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a context");
    Client::try_from(config).expect("a client")
}

fn held_by(holder: &str) -> Lease {
    let spec =
        LeaseSpec { holder_identity: Some(holder.into()), lease_duration_seconds: Some(15), ..LeaseSpec::default() };
    let mut lease = Lease { spec: Some(spec), ..Lease::default() };
    lease.metadata.name = Some("printer".into());
    lease
}

fn duration(lease: &Lease) -> Option<i32> {
    lease.spec.as_ref()?.lease_duration_seconds
}

/// The code of a refusal.
pub fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> u16 {
    match result {
        Err(Error::Api(status)) => status.code,
        other => panic!("not refused: {other:?}"),
    }
}

/// The next event as text.
async fn next(events: &mut (impl Stream<Item = watcher::Result<Event<Lease>>> + Unpin)) -> String {
    match events.next().await.expect("a watcher never ends").expect("the watch holds") {
        Event::Init => "init".into(),
        Event::InitApply(lease) => format!("there is {}", lease.name_any()),
        Event::InitDone => "that is all".into(),
        Event::Apply(lease) => format!("{} {:?}", lease.name_any(), duration(&lease).expect("a duration")),
        Event::Delete(lease) => format!("{} is gone", lease.name_any()),
    }
}

#[test]
fn writes_of_every_kind_reach_a_watcher() {
    scenario(async {
        let beginning = ["init", "there is earlier", "that is all"];
        writes_reach_a_watcher(watcher::Config::default(), &beginning).await;
    });
}

#[test]
fn writes_of_every_kind_reach_a_watcher_that_lists_by_streaming() {
    scenario(async {
        let beginning = ["there is earlier", "that is all"];
        writes_reach_a_watcher(watcher::Config::default().streaming_lists(), &beginning).await;
    });
}

async fn writes_reach_a_watcher(how: watcher::Config, beginning: &[&str]) {
    let cluster = Cluster::up();
    cluster.muster(&["lease", "create", "earlier"]).ended(0);
    let watching: Api<Lease> = Api::default_namespaced(client(&cluster.kubeconfig_at("n4")).await);
    let events = watcher(watching, how);
    pin_mut!(events);
    for expected in beginning {
        assert_eq!(next(&mut events).await, *expected);
    }

    let leases: Api<Lease> = Api::default_namespaced(client(&cluster.kubeconfig(&[])).await);
    let created = leases.create(&PostParams::default(), &held_by("ann")).await.expect("created");
    assert_eq!(next(&mut events).await, "printer 15");
    assert_eq!(code(leases.create(&PostParams::default(), &held_by("bob")).await), 409);

    let own = PatchParams::default();
    let spec = |secs: i32| json!({"spec": {"leaseDurationSeconds": secs}});
    leases.patch("printer", &own, &Patch::Merge(spec(16))).await.expect("merged");
    assert_eq!(next(&mut events).await, "printer 16");
    leases.patch("printer", &own, &Patch::Strategic(spec(17))).await.expect("merged strategically");
    assert_eq!(next(&mut events).await, "printer 17");
    let operations = json!([{"op": "test", "path": "/spec/leaseDurationSeconds", "value": 17},
                            {"op": "replace", "path": "/spec/leaseDurationSeconds", "value": 18}]);
    let operations: kube::core::params::Patch<()> =
        Patch::Json(serde_json::from_value(operations).expect("operations"));
    leases.patch("printer", &own, &operations).await.expect("operated upon");
    assert_eq!(next(&mut events).await, "printer 18");
    assert_eq!(code(leases.patch("printer", &own, &operations).await), 422, "its test fails now");

    apply(&leases).await;
    assert_eq!(next(&mut events).await, "printer 20", "only one of the attempted writes changed it");

    let mut stale = created;
    stale.spec = held_by("ann").spec;
    assert_eq!(code(leases.replace("printer", &PostParams::default(), &stale).await), 409);
    let mut fresh = leases.get("printer").await.expect("it is there");
    fresh.spec.get_or_insert_default().lease_duration_seconds = Some(21);
    leases.replace("printer", &PostParams::default(), &fresh).await.expect("replaced");
    assert_eq!(next(&mut events).await, "printer 21");

    leases.delete("printer", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(next(&mut events).await, "printer is gone");
    assert_eq!(leases.get_opt("printer").await.expect("answered").map(|lease| lease.name_any()), None);
}

/// Server-side apply: the writer of a field owns it; force takes fields over, but not a lease from a live holder.
async fn apply(leases: &Api<Lease>) {
    let mine = |spec: serde_json::Value| {
        Patch::Apply(json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}))
    };
    let longer = mine(json!({"leaseDurationSeconds": 20}));
    let refused = leases.patch("printer", &PatchParams::apply("scheduler"), &longer).await;
    let Err(Error::Api(status)) = refused else { panic!("{refused:?}") };
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    assert!(status.message.contains("leaseDurationSeconds"), "{}", status.message);
    let taken = leases.patch("printer", &PatchParams::apply("scheduler").force(), &longer).await.expect("forced");
    let owners = taken.managed_fields().iter().filter_map(|entry| entry.manager.as_deref());
    assert!(owners.collect::<Vec<_>>().contains(&"scheduler"), "{:?}", taken.managed_fields());
    let theft = mine(json!({"holderIdentity": "bob"}));
    assert_eq!(code(leases.patch("printer", &PatchParams::apply("bob").force(), &theft).await), 409, "ann is live");
}
