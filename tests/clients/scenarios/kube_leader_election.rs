//! The crate `kube-leader-election`: it checks by wall clock whether a lease has expired, and then takes it
//! with a patch that does not name what it read. Guard mode makes that safe.

use std::sync::Arc;
use std::time::Duration;

use kube::client::Body;
use kube::{Client, Error};
use kube_leader_election::{Error as LockError, LeaseLock, LeaseLockParams, LeaseLockResult};
use tokio::sync::Barrier;

use crate::harness::{Cluster, Program, eventually, eventually_async, scenario};
use crate::kube_rs::client;
use crate::python::token;

fn lock(client: Client, holder: &str, seconds: u64) -> LeaseLock {
    let lease_ttl = Duration::from_secs(seconds);
    LeaseLock::new(
        client,
        "default",
        LeaseLockParams { lease_name: "printer".into(), holder_id: holder.into(), lease_ttl },
    )
}

/// A client whose patches all wait until the barrier's number of patches is about to be sent, as on
/// a slow network.
fn slowed(client: Client, gate: Arc<Barrier>) -> Client {
    let send = move |request: hyper::Request<Body>| {
        let (client, gate) = (client.clone(), gate.clone());
        async move {
            if request.method() == hyper::Method::PATCH {
                gate.wait().await;
            }
            client.send(request).await
        }
    };
    Client::new(tower::service_fn(send), "default")
}

/// Two clients find an expired lease, and both patch it.
async fn race(cluster: &Cluster) -> [Result<LeaseLockResult, LockError>; 2] {
    let client = client(&cluster.kubeconfig(&[])).await;
    let earlier = lock(client.clone(), "earlier", 1).try_acquire_or_renew().await.expect("no other holder");
    assert!(matches!(earlier, LeaseLockResult::Acquired(_)));
    eventually("its time has run out", || (cluster.lease("printer")["expired"] == true).then_some(()));
    let gate = Arc::new(Barrier::new(2));
    let [ann, bob] = ["ann", "bob"].map(|holder| lock(slowed(client.clone(), gate.clone()), holder, 15));
    tokio::join!(ann.try_acquire_or_renew(), bob.try_acquire_or_renew()).into()
}

fn leads(result: &Result<LeaseLockResult, LockError>) -> bool {
    matches!(result, Ok(LeaseLockResult::Acquired(_)))
}

#[test]
fn blind_takeovers_make_two_leaders_without_a_guard() {
    scenario(async {
        let cluster = Cluster::up();
        cluster.muster(&["lease", "guard", "set", "off"]).ended(0);
        let results = race(&cluster).await;
        assert!(results.iter().all(leads), "each was answered that it leads: {results:?}");
    });
}

#[test]
fn blind_takeovers_make_one_leader_under_the_guard() {
    scenario(async {
        let cluster = Cluster::up();
        let results = race(&cluster).await;
        assert_eq!(results.iter().filter(|result| leads(result)).count(), 1, "{results:?}");
        let refused = results.iter().find(|result| !leads(result)).expect("one is refused");
        let Err(LockError::AcquireLease(Error::Api(status))) = refused else { panic!("{refused:?}") };
        assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
        let winner = results.iter().position(leads).map(|index| ["ann", "bob"][index]);
        assert_eq!(cluster.lease("printer")["holder"], winner.expect("one leads"));
    });
}

#[test]
fn a_lock_is_renewed_and_handed_over_under_the_guard() {
    scenario(async {
        let cluster = Cluster::up();
        let client = client(&cluster.kubeconfig_at("n4")).await;
        let [ann, bob] = ["ann", "bob"].map(|holder| lock(client.clone(), holder, 15));
        for _ in 0..3 {
            assert!(leads(&ann.try_acquire_or_renew().await));
            assert!(!leads(&bob.try_acquire_or_renew().await));
        }
        let first = cluster.lease("printer")["fencing_token"].as_u64();
        ann.step_down().await.expect("it leads");
        // By its own rule a successor waits for the second that a released lease still lasts.
        eventually_async("bob leads", async || leads(&bob.try_acquire_or_renew().await).then_some(())).await;
        assert!(cluster.lease("printer")["fencing_token"].as_u64() > first);
    });
}

#[test]
fn programs_take_turns_when_their_leader_is_killed() {
    let cluster = Cluster::up();
    let kubeconfigs = [cluster.kubeconfig(&[]), cluster.kubeconfig_at("n4")];
    let start = |kubeconfig, identity| {
        let mut command = cluster.program(env!("CARGO_BIN_EXE_lease_lock").as_ref(), kubeconfig);
        command.args(["printer", identity]);
        Program::start(identity, command)
    };
    let mut ann = start(&kubeconfigs[0], "ann");
    let first = token(&ann.wait_for_line("ann leads with fencing token"));
    let mut bob = start(&kubeconfigs[1], "bob");
    ann.kill();
    let second = token(&bob.wait_for_line("bob leads with fencing token"));
    assert!(second > first);
    assert_eq!(cluster.lease("printer")["fencing_token"], second);
}
