//! What clients notice when Muster loses nodes: nothing, or an honest "not now".

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;

use crate::harness::{Answer, Cluster, Connection, Elector, EndedProgram, Timing, eventually_async, scenario};
use crate::kubectl;
use crate::python::python;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

#[test]
fn electors_keep_their_leases_when_the_leader_is_killed() {
    scenario(async {
        let cluster = Cluster::up();
        let leader = cluster.leader();
        let follower = cluster.followers().remove(0);
        let timing = Timing {
            lease: Duration::from_secs(6),
            renew_deadline: Duration::from_secs(4),
            retry_period: Duration::from_millis(300),
        };
        let kubeconfigs = [cluster.kubeconfig_at(&follower), cluster.kubeconfig_at("n4")];
        let mut electors = vec![];
        for number in 0..20 {
            let connection = Connection::open(&kubeconfigs[number % 2]).await;
            let mut elector = Elector::new(connection, &format!("lock-{number}"), &format!("elector-{number}"), timing);
            elector.acquire().await;
            electors.push((elector.fencing_token(), elector));
        }
        let [mut direct, mut relayed] =
            [("ann", &kubeconfigs[0]), ("bob", &kubeconfigs[1])].map(|(name, kubeconfig)| {
                let mut elector = python(&cluster, kubeconfig, 37, ["lease_lock.py", name, name]);
                elector.wait_for_line("leads with fencing token");
                elector
            });

        let watching = Connection::open(&kubeconfigs[0]).await;
        let mut watch = watching.watch(&format!("{LEASES}?watch=true")).await;

        cluster.kill(&leader);
        let killed = Timestamp::now();
        let renewing = electors.iter_mut().map(async |(_, elector)| {
            // Past the time at which an unrenewed lease would have passed on.
            let lost = tokio::time::timeout(timing.lease + timing.renew_deadline, elector.lead()).await;
            assert!(lost.is_err(), "not renewed for {lost:?}: {:?}", elector.statuses);
        });
        futures_util::future::join_all(renewing).await;

        for (token, elector) in &electors {
            let (denied, acquired) =
                (elector.statuses.iter().filter(|(_, status)| *status == 404).count(), ("GET", 404));
            assert_eq!((denied, elector.statuses[0]), (1, acquired), "denied what is there: {:?}", elector.statuses);
            assert_eq!(elector.fencing_token(), *token, "the leadership is unchanged");
        }
        for elector in [&mut direct, &mut relayed] {
            assert!(elector.runs() && !elector.said().contains("stopped leading"), "{}", elector.said());
        }
        assert_ne!(cluster.leader(), leader);
        loop {
            // A watch that was open throughout reports the expiry under the next leader.
            let (_, lease) = watch.next().await.expect("the watch continues");
            let renewed: Option<Timestamp> = lease["spec"]["renewTime"].as_str().and_then(|at| at.parse().ok());
            if renewed.is_some_and(|at| at > killed) {
                break;
            }
        }
    });
}

/// Every request about leases, for an existing one and a missing one. (A write answered with
/// 503 may still take effect later: its sender knows that the outcome is unknown.)
async fn ask_everything(connection: &Connection) -> Vec<(String, Duration, Answer)> {
    let asked = [
        ("GET", format!("{LEASES}/printer?timeout=5s"), vec![]),
        ("GET", format!("{LEASES}/nothing?timeout=5s"), vec![]),
        ("GET", format!("{LEASES}?timeout=5s"), vec![]),
        ("POST", format!("{LEASES}?timeout=5s"), crate::protobuf::recorded()),
        ("PUT", format!("{LEASES}/lk1?timeout=5s"), crate::protobuf::recorded()),
        ("DELETE", format!("{LEASES}/scrap?timeout=5s"), vec![]),
        ("GET", "/api/v1/namespaces/default/configmaps/nothing?timeout=5s".to_owned(), vec![]),
        ("GET", format!("{LEASES}?watch=true&timeout=5s"), vec![]),
    ];
    let asking = asked.map(async |(method, target, body)| {
        let begun = Instant::now();
        let answer = connection.ask(method, &target, body).await;
        (format!("{method} {target}"), begun.elapsed(), answer)
    });
    futures_util::future::join_all(asking).await
}

#[test]
fn without_a_quorum_nothing_is_denied_and_nothing_hangs() {
    scenario(async {
        let mut cluster = Cluster::up();
        let (leader, followers) = (cluster.leader(), cluster.followers());
        let left = cluster.kubeconfig_at(&leader);
        cluster.muster(&["lease", "create", "printer", "--holder", "cid", "--duration", "5m"]).ended(0);
        cluster.muster(&["lease", "create", "scrap"]).ended(0);
        let before = cluster.lease("printer");
        let connections = [Connection::open(&left).await, Connection::open(&cluster.kubeconfig_at("n4")).await];
        let mut ann = python(&cluster, &left, 37, ["lease_lock.py", "scanner", "ann"]);
        ann.wait_for_line("leads with fencing token");
        let mut bob = python(&cluster, &left, 37, ["lease_lock.py", "scanner", "bob"]);
        bob.wait_for_line("lease held by ann and has not expired");

        // The leader remains alone, and must notice.
        for follower in &followers {
            cluster.kill(follower);
        }
        for connection in &connections {
            for (asked, took, answer) in ask_everything(connection).await {
                assert_eq!(answer.status, 503, "{asked}: {}", answer.body);
                assert_eq!((answer.retry_after, &answer.body["kind"]), (Some(1), &"Status".into()), "{asked}");
                assert!(took < Duration::from_secs(5), "{asked} took {took:?}");
            }
        }
        let mut get = cluster.program(&kubectl::program(), &left);
        get.args(["get", "lease", "printer", "--request-timeout=4s"]);
        let refused = EndedProgram::of(get).ended(1);
        assert!(!refused.stderr.contains("NotFound"), "{}", refused.stderr);
        // A lease holder that cannot renew steps down; its follower does not take a lease that it cannot read.
        ann.wait_for_line("ann stopped leading");
        assert!(bob.runs() && !bob.said().contains("trying to create"), "{}", bob.said());

        cluster.restart(&followers);
        let after = cluster.lease("printer");
        assert_eq!((&after["holder"], &after["fencing_token"]), (&before["holder"], &before["fencing_token"]));
        bob.wait_for_line("bob leads with fencing token");
        for connection in &connections {
            eventually_async("reads continue", async || {
                let answer = connection.ask("GET", &format!("{LEASES}/nothing"), vec![]).await;
                (answer.status == 404).then_some(())
            })
            .await;
        }
    });
}
