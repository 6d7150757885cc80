//! Who may do what, and for how long.

use std::time::Instant;

use crate::harness::{Cluster, Connection, Ran, eventually_async, story};
use crate::kubectl;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

#[test]
fn a_revoked_user_is_refused_at_once_everywhere_and_hears_no_more() {
    story(async {
        let cluster = Cluster::up();
        let ann = cluster.kubeconfig(&["--user", "ann"]);
        let mut everywhere = vec![];
        for node in ["n1", "n2", "n3", "n4"] {
            let server = cluster.kubeconfig_at(node).text("server");
            everywhere.push((node, Connection::open_as(&server, &ann).await));
        }
        let mut watches = vec![];
        for (node, connection) in &everywhere {
            assert_eq!(connection.ask("GET", LEASES, vec![]).await.status, 200, "{node}");
            watches.push((node, connection.watch(&format!("{LEASES}?watch=true")).await));
        }

        cluster.muster(&["user", "revoke", "ann"]).ended(0);
        let revoked = Instant::now();
        for (node, connection) in &everywhere {
            // It is so where it was done, and a moment later wherever the news travels.
            eventually_async("ann is nobody", async || {
                let status = connection.ask("GET", LEASES, vec![]).await.status;
                assert!([200, 401].contains(&status), "{node}: {status}");
                (status == 401).then_some(())
            })
            .await;
        }
        for (node, watch) in &mut watches {
            // Nothing happens to any lease, and yet the stream ends, with the reason.
            let (kind, object) = watch.next().await.unwrap_or_else(|| panic!("{node} gives no reason"));
            assert_eq!((kind.as_str(), &object["code"]), ("ERROR", &401.into()), "{node}");
            assert!(watch.next().await.is_none(), "{node}");
        }
        // A watch that ended by its own time would have no reason. How soon it is, is not judged beside other programs.
        println!("ann is nobody anywhere {:?} after the answer", revoked.elapsed());
    });
}

#[test]
fn a_file_for_a_namespace_opens_that_one_alone() {
    story(async {
        let cluster = Cluster::up();
        let connection = Connection::open(&cluster.kubeconfig(&["-n", "team-a"])).await;
        let leases = |namespace: &str| format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        assert_eq!(connection.ask("GET", &leases("team-a"), vec![]).await.status, 200);
        for method in ["GET", "POST", "DELETE"] {
            let refused = connection.ask(method, &leases("team-b"), vec![]).await;
            assert_eq!((refused.status, &refused.body["reason"]), (403, &"Forbidden".into()), "{method}");
        }
        let everywhere = connection.ask("GET", "/apis/coordination.k8s.io/v1/leases", vec![]).await;
        assert_eq!(everywhere.status, 403);
        let me = connection.ask("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", vec![]).await;
        assert_eq!(me.body["status"]["userInfo"]["username"], "kube-team-a", "{}", me.body);
    });
}

#[test]
fn a_certificate_opens_managers_and_a_worker_says_where_they_are() {
    let cluster = Cluster::up();
    let identity = cluster.muster(&["user", "create", "ann", "--namespace", "default", "--out", "-"]).ended(0).stdout;
    let identity: serde_json::Value = serde_json::from_str(&identity).expect("an identity");
    let get_through = |node: &str| {
        let mut get = cluster.program(&kubectl::program(), &cluster.kubeconfig_at(node));
        get.args(["get", "leases", "-n", "default", "--kubeconfig", "/dev/null"]);
        get.args(["--server", &cluster.kubeconfig_at(node).text("server")]);
        for (flag, key) in
            [("certificate-authority", "root_pem"), ("client-certificate", "cert_pem"), ("client-key", "key_pem")]
        {
            let path = cluster.folder().join(key);
            std::fs::write(&path, identity[key].as_str().expect("PEM")).expect("the folder is writable");
            get.arg(format!("--{flag}")).arg(path);
        }
        Ran::of(get)
    };
    assert_eq!(get_through("n2").ended(0).stderr.trim(), "No resources found in default namespace.");
    let refused = get_through("n4").ended(1).stderr;
    assert!(refused.contains("this node is no manager and vouches for no certificate; ask one"), "{refused}");
    cluster.muster(&["user", "revoke", "ann"]).ended(0);
    let revoked = get_through("n2").ended(1).stderr;
    assert!(revoked.contains("ann"), "{revoked}");
}

#[test]
fn nobody_gets_in_without_a_token_that_holds() {
    story(async {
        let cluster = Cluster::up();
        let kubeconfig = cluster.kubeconfig(&[]);
        let token = kubeconfig.text("token");
        let guess = format!("{}x", &token[..token.len() - 1]);
        for token in ["", "x", guess.as_str()] {
            for node in ["n1", "n4"] {
                let mut connection = Connection::open(&cluster.kubeconfig_at(node)).await;
                token.clone_into(&mut connection.token);
                for method in ["GET", "POST"] {
                    let answer = connection.ask(method, LEASES, vec![]).await;
                    assert_eq!(
                        (answer.status, &answer.body["reason"]),
                        (401, &"Unauthorized".into()),
                        "{node} {token}"
                    );
                }
            }
        }
    });
}
