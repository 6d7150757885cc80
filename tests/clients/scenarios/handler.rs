//! A program that embeds a reconciler, with a Kubernetes API server: `programs/config_maps.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use muster_messages::FencingToken;
use muster_reconciler::{ApplyCtx, Handler, HandlerError};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::harness::{Cluster, Kubeconfig, Program, eventually, scenario};
use crate::kube_rs::{client, code};
use crate::python::token;

#[expect(dead_code, reason = "a program has a main function, and this is no program")]
#[path = "../programs/config_maps.rs"]
mod config_maps;

const TOKEN: &str = "settings.example.com/fencing-token";

fn start(cluster: &Cluster, kubeconfig: &Kubeconfig, member: &str, node: &str, release: &str) -> Program {
    let mut command = cluster.program(env!("CARGO_BIN_EXE_config_maps").as_ref(), kubeconfig);
    command.arg(cluster.socket(node)).args([member, release]);
    Program::start(member, command)
}

fn define(cluster: &Cluster, release: &str) {
    let text = format!(
        "name = \"settings\"\nrelease = \"{release}\"\nscope = \"web\"\nfloor = \"1.0.0\"\nevery = \"1s\"\nsettle = \"1s\"\nhandler = true\n"
    );
    let file = cluster.folder().join(format!("settings-{release}.toml"));
    std::fs::write(&file, text).expect("the folder is writable");
    cluster.muster(&["reconciler", "apply", "-f", file.to_str().expect("a path")]).ended(0);
}

/// Names and what they say, of those that are managed.
async fn there(maps: &Api<ConfigMap>) -> Vec<String> {
    let managed = ListParams::default().labels("app.kubernetes.io/managed-by=settings");
    let all = maps.list(&managed).await.expect("listed").into_iter();
    all.map(|map| format!("{} {:?}", map.name_any(), map.data.unwrap_or_default().into_values().collect::<Vec<_>>()))
        .collect()
}

fn fence(map: &ConfigMap) -> u64 {
    map.annotations()[TOKEN].parse().expect("a number")
}

#[test]
fn embedded_handler_writes_config_maps_once_per_term() {
    scenario(async {
        let cluster = Cluster::up();
        let kubeconfig = cluster.kubeconfig(&[]);
        let maps: Api<ConfigMap> = Api::default_namespaced(client(&kubeconfig).await);
        // Another owner's: neither wanted nor touched.
        let mut stranger = ConfigMap::default();
        stranger.metadata.name = Some("stranger".into());
        maps.create(&PostParams::default(), &stranger).await.expect("created");

        define(&cluster, "1.0.0");
        let mut ann = start(&cluster, &kubeconfig, "ann", "n1", "1.0.0");
        let first = token(&ann.wait_for_line("created colours under"));
        ann.wait_for_line("created greeting under");
        assert_eq!(there(&maps).await, [r#"colours ["blue"]"#, r#"greeting ["hello"]"#]);

        // Drift is repaired: a change, and a deletion.
        let drift = Patch::Merge(json!({"data": {"text": "by hand"}}));
        maps.patch("greeting", &PatchParams::default(), &drift).await.expect("changed by hand");
        ann.wait_for_line("replaced greeting under");
        maps.delete("colours", &DeleteParams::default()).await.expect("deleted by hand");
        ann.wait_for_line("created colours under");
        assert_eq!(there(&maps).await, [r#"colours ["blue"]"#, r#"greeting ["hello"]"#]);

        // A second process stands by, and takes over from a killed one.
        let mut bob = start(&cluster, &kubeconfig, "bob", "n2", "1.0.0");
        eventually("bob stands by", || {
            (cluster.document(&["reconciler", "status", "settings"])["candidates"] == 2).then_some(())
        });
        let read_by_ann = maps.get("greeting").await.expect("it is there");
        assert_eq!(fence(&read_by_ann), first);
        ann.kill();
        let second = token(&bob.wait_for_line("replaced colours under"));
        bob.wait_for_line("replaced greeting under");
        assert!(first < second, "{first}, {second}");

        // Writes that ann decided but had not sent: the API server refuses them.
        let before = maps.get("greeting").await.expect("it is there");
        assert_eq!(code(maps.replace("greeting", &PostParams::default(), &read_by_ann).await), 409);
        // Ann begins a run, frozen since before the end of its term: it refuses by itself, because it reads the objects.
        let late = ApplyCtx {
            reconciler: "settings".into(),
            fence: FencingToken(first),
            from: None,
            target: "1.0.0".parse().expect("a release"),
            attempt: 1,
            cancelled: CancellationToken::new(),
            term: None, // like a run that has not noticed its end
        };
        let refused = config_maps::ConfigMaps::new(client(&kubeconfig).await).apply(late).await;
        let Err(HandlerError::Failed(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("later term"), "{why}");
        let after = maps.get("greeting").await.expect("it is there");
        assert_eq!((fence(&after), after.resource_version()), (second, before.resource_version()));

        // The next release wants other objects; the older process yields.
        define(&cluster, "2.0.0");
        let mut cid = start(&cluster, &kubeconfig, "cid", "n4", "2.0.0");
        let third = token(&cid.wait_for_line("replaced greeting under"));
        cid.wait_for_line("created limits under");
        cid.wait_for_line("deleted colours under");
        assert!(second < third, "{second}, {third}");
        assert_eq!(there(&maps).await, [r#"greeting ["welcome"]"#, r#"limits ["100"]"#]);
        assert!(maps.get_opt("stranger").await.expect("answered").is_some());
        let gate = &cluster.document(&["reconciler", "status", "settings"])["gate"];
        assert_eq!((&gate["state"], &gate["reconciled"]), (&json!("done"), &json!("2.0.0")));
        cid.interrupt();
        assert_eq!(cid.ends(), Some(0));
        assert!(bob.runs());
    });
}
