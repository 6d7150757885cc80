//! A root rotation: clients keep working with the file that they have, while it runs and after their root has lost its key.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};

use crate::harness::{
    Cluster, Connection, Elector, EndedProgram, Kubeconfig, Program, Timing, eventually_async, scenario,
};
use crate::javascript::javascript;
use crate::kubectl;
use crate::python::python;

/// Each kind of client, on a connection that begins now.
async fn connect_anew(cluster: &Cluster, kubeconfig: &Kubeconfig, round: &str) {
    let mut get = cluster.program(&kubectl::program(), kubeconfig);
    get.args(["get", "lease", "kept", "-o", "name"]);
    assert_eq!(EndedProgram::of(get).ended(0).stdout.trim(), "lease.coordination.k8s.io/kept");

    let mut writes = javascript(cluster, kubeconfig, "writes.mjs");
    writes.arg(format!("javascript-{round}"));
    EndedProgram::of(writes).ended(0);

    python(cluster, kubeconfig, 37, ["lease_lock.py", &format!("python-{round}"), "ann"])
        .wait_for_line("ann leads with fencing token");

    let leases: Api<Lease> = Api::default_namespaced(crate::kube_rs::client(kubeconfig).await);
    let mut lease = Lease::default();
    lease.metadata.name = Some(format!("rust-{round}"));
    leases.create(&PostParams::default(), &lease).await.expect("the certificate is trusted");
}

fn python_holder(cluster: &Cluster, kubeconfig: &Kubeconfig, lock: &str) -> Program {
    let mut holder = python(cluster, kubeconfig, 37, ["lease_lock.py", lock, "ann"]);
    holder.wait_for_line("ann leads with fencing token");
    holder
}

#[test]
fn files_from_before_work_through_a_root_rotation() {
    scenario(async {
        let cluster = Cluster::up();
        cluster.muster(&["lease", "create", "kept"]).ended(0);
        // A manager, and a worker that relays.
        let kubeconfigs = [cluster.kubeconfig(&[]), cluster.kubeconfig_at("n4")];
        let timing = Timing {
            lease: Duration::from_secs(6),
            renew_deadline: Duration::from_secs(4),
            retry_period: Duration::from_millis(300),
        };
        let (mut holders, mut electors) = (vec![], vec![]);
        let (end, ended) = tokio::sync::watch::channel(());
        for (number, kubeconfig) in kubeconfigs.iter().enumerate() {
            holders.push(python_holder(&cluster, kubeconfig, &format!("python-{number}")));
            let connection = Connection::open(kubeconfig).await;
            let mut elector = Elector::new(connection, &format!("lock-{number}"), "elector", timing);
            elector.acquire().await;
            let (token, mut ended) = (elector.fencing_token(), ended.clone());
            // On another thread than the programs below, which block this one.
            electors.push(tokio::spawn(async move {
                tokio::select! {
                    lost = elector.lead() => panic!("not renewed for {lost:?}: {:?}", elector.statuses),
                    _ = ended.changed() => assert_eq!(elector.fencing_token(), token, "the leadership is unchanged"),
                }
            }));
        }

        let founding = cluster.document(&["ca", "ls"])["active"].as_str().expect("a root signs").to_owned();
        let settled = cluster.document(&["ca", "rotate", "--wait"]);
        assert_eq!(settled["settled"], true, "{settled}");
        for (number, kubeconfig) in kubeconfigs.iter().enumerate() {
            connect_anew(&cluster, kubeconfig, &format!("retiring-{number}")).await;
        }
        cluster.muster(&["ca", "retire", &founding]).ended(0);
        for (number, kubeconfig) in kubeconfigs.iter().enumerate() {
            connect_anew(&cluster, kubeconfig, &format!("retired-{number}")).await;
        }
        // On connections from before, too.
        let retired = Timestamp::now();
        for lock in ["lock-0", "lock-1", "python-0", "python-1"] {
            eventually_async("the lease is renewed", async || {
                let renewed: Option<Timestamp> = cluster.lease(lock)["renewed_at"].as_str()?.parse().ok();
                renewed.filter(|at| *at > retired)
            })
            .await;
        }

        assert_ne!(cluster.document(&["ca", "ls"])["active"], founding.as_str());
        drop(end);
        for elector in electors {
            elector.await.expect("its lease was kept");
        }
        for holder in &mut holders {
            assert!(holder.runs() && !holder.said().contains("stopped leading"), "{}", holder.said());
        }
    });
}
