//! Prometheus: both formats pass its parsers, it finds and scrapes all nodes with the configuration of docs/metrics.md, and alerts of
//! packaging/prometheus fire on a real cluster and are resolved.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Cluster, Program, eventually, fetched, here};

fn prometheus(program: &str) -> PathBuf {
    fetched().join("prometheus/usr/bin").join(program)
}

/// The body of an answer 200 to a GET.
fn get(mut stream: impl Read + Write, path: &str, headers: &str) -> Option<String> {
    // 1.0: the answer is not in chunks.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: muster\r\n{headers}\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    (head.split(' ').nth(1) == Some("200")).then(|| body.to_owned())
}

/// Runs a program with this text as its input.
#[track_caller]
fn accepts(mut command: Command, input: &str) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let text = input.to_owned();
    let writes = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    let [said, complained] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{command:?}\n{said}{complained}\n{input}");
    writes.join().expect("it writes").expect("it reads everything");
}

#[test]
fn both_formats_pass_their_parsers() {
    let cluster = Cluster::up();
    let leader = cluster.leader();
    for node in [leader, cluster.followers().remove(0), "n4".to_owned()] {
        let metrics = |accept: &str| {
            let stream = UnixStream::connect(cluster.socket(&node)).expect("the socket answers");
            get(stream, "/v1/metrics", &format!("Accept: {accept}\r\n")).expect("metrics")
        };
        let mut promtool = Command::new(prometheus("promtool"));
        promtool.args(["check", "metrics"]);
        accepts(promtool, &metrics("text/plain;version=0.0.4"));
        let mut python = Command::new(fetched().join("python-prometheus/bin/python"));
        python.arg(here().join("programs/openmetrics.py"));
        accepts(python, &metrics("application/openmetrics-text;version=1.0.0"));
    }
}

/// The configuration of docs/metrics.md for this cluster, whose user's files are in `folder`: by certificate, and by token.
fn configuration(cluster: &Cluster, folder: &Path, rules: &Path) -> String {
    let documented = std::fs::read_to_string(here().join("../../docs/metrics.md")).expect("the document exists");
    let (_, block) = documented.split_once("```yaml\nscrape_configs:\n").expect("it has a configuration");
    let (job, _) = block.split_once("```").expect("the block ends");
    let files = folder.to_str().expect("a path");
    let mut job = job.replace("/etc/prometheus/muster", files);
    for node in ["n1", "n2"] {
        job = job.replace(&format!("{node}.example:4400"), &cluster.addr(node));
    }
    let token = format!("authorization: {{type: Bearer, credentials_file: {files}/token}}");
    let by_token: String = job
        .replace("muster-prod", "muster-token")
        .replace("    tls_config: &muster\n", &format!("    {token}\n    tls_config: &token\n"))
        .replace("*muster}", &format!("*token, {token}}}"))
        .lines()
        .filter(|line| !line.contains("cert_file") && !line.contains("key_file"))
        .map(|line| format!("{line}\n"))
        .collect();
    format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\nscrape_configs:\n{job}{by_token}      \
         - {{source_labels: [__meta_muster_role], regex: manager, action: keep}}\n",
        rules.display()
    )
}

/// A query's values, by the label `instance`.
fn query(port: u16, query: &str) -> Option<BTreeMap<String, f64>> {
    let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let answer = get(TcpStream::connect(("127.0.0.1", port)).ok()?, &format!("/api/v1/query?query={escaped}"), "")?;
    let answer: Value = serde_json::from_str(&answer).ok()?;
    let series = answer["data"]["result"].as_array()?.iter().map(|series| {
        let instance = series["metric"]["instance"].as_str().unwrap_or_default().to_owned();
        Some((instance, series["value"][1].as_str()?.parse().ok()?))
    });
    series.collect()
}

/// A Prometheus that scrapes this cluster and evaluates these rules, and its port.
fn started(cluster: &Cluster, rules: &Path) -> (Program, u16) {
    let folder = cluster.folder().join("prometheus");
    std::fs::create_dir(&folder).expect("the folder is writable");
    let identity = cluster.folder().join("prom.json");
    let out = identity.to_str().expect("a path");
    cluster.muster(&["user", "create", "prom", "--read-only", "--out", out]).ended(0);
    let identity: Value = serde_json::from_slice(&std::fs::read(&identity).expect("a file")).expect("JSON");
    let token = cluster.document(&["kubeconfig", "--user", "prom"]);
    for (file, text) in [
        ("prom.crt", &identity["cert_pem"]),
        ("prom.key", &identity["key_pem"]),
        ("root.crt", &identity["root_pem"]),
        ("token", &token["users"][0]["user"]["token"]),
    ] {
        std::fs::write(folder.join(file), text.as_str().expect("text")).expect("the folder is writable");
    }
    let config = folder.join("prometheus.yml");
    std::fs::write(&config, configuration(cluster, &folder, rules)).expect("the folder is writable");
    let mut check = Command::new(prometheus("promtool"));
    check.args(["check", "config"]).arg(&config);
    accepts(check, "");

    let port = TcpListener::bind("127.0.0.1:0").and_then(|any| any.local_addr()).expect("a port is free").port();
    let mut command = Program::command(&prometheus("prometheus"));
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    let mut running = Program::start("prometheus", command);
    running.wait_for_line("Server is ready to receive web requests");
    (running, port)
}

fn shipped_rules() -> PathBuf {
    here().join("../../packaging/prometheus/muster.rules.yml")
}

#[test]
fn prometheus_finds_and_scrapes_every_node() {
    let cluster = Cluster::up();
    let (_running, port) = started(&cluster, &shipped_rules());
    let all = |up: &[&str], down: &[&str]| -> BTreeMap<String, f64> {
        let named =
            |names: &[&str], value| names.iter().map(move |name| ((*name).to_owned(), value)).collect::<Vec<_>>();
        [named(up, 1.0), named(down, 0.0)].concat().into_iter().collect()
    };
    let sees = |what: &str, expected: &BTreeMap<String, f64>| {
        eventually(what, || query(port, what).filter(|seen| seen == expected).map(drop));
    };
    sees("up{job=\"muster-prod\"}", &all(&["n1", "n2", "n3", "n4"], &[]));
    sees("up{job=\"muster-token\"}", &all(&["n1", "n2", "n3"], &[]));
    sees("max by (job) (muster_quorum_margin{job=\"muster-prod\"})", &BTreeMap::from([(String::new(), 1.0)]));

    // A node that is down stays a target.
    cluster.kill("n3");
    sees("up{job=\"muster-prod\"}", &all(&["n1", "n2", "n4"], &["n3"]));
    sees("max by (job) (muster_quorum_margin{job=\"muster-prod\"})", &BTreeMap::from([(String::new(), 0.0)]));
    let pending =
        "ALERTS{job=\"muster-prod\",alertstate=\"pending\",alertname=~\"MusterNotScraped|MusterQuorumMarginNone\"}";
    sees(&format!("count({pending})"), &BTreeMap::from([(String::new(), 2.0)]));
}

/// Whether an alert of the cluster fires now.
fn fires(port: u16, alert: &str) -> Option<bool> {
    let firing = format!("count(ALERTS{{job=\"muster-prod\",alertstate=\"firing\",alertname=\"{alert}\"}})");
    query(port, &firing).map(|found| !found.is_empty())
}

/// A definition whose command fails for good until there is a file.
fn failing_reconciler(cluster: &Cluster, file: &Path) -> String {
    let release = cluster.document(&["node", "ls"])["items"][0]["release"].as_str().expect("a release").to_owned();
    let script = format!("test -e '{}' || exit 78", file.display());
    let text = format!(
        "name = \"schema\"\nrelease = \"{release}\"\nscope = \"db\"\nfloor = \"{release}\"\n[command]\nargv = [\"sh\", \"-c\", \
         {script:?}]\n"
    );
    let definition = cluster.folder().join("schema.toml");
    std::fs::write(&definition, text).expect("the folder is writable");
    definition.display().to_string()
}

/// Whether it has fired at any time.
fn has_fired(port: u16, alert: &str) -> Option<bool> {
    let firing = format!("ALERTS{{job=\"muster-prod\",alertstate=\"firing\",alertname=\"{alert}\"}}");
    query(port, &format!("count(max_over_time({firing}[10m]))")).map(|found| !found.is_empty())
}

#[track_caller]
fn becomes(port: u16, alert: &str, wanted: bool) {
    let what = format!("{alert} {}", if wanted { "fires" } else { "is resolved" });
    eventually(&what, || (fires(port, alert)? == wanted).then_some(()));
}

/// Every node is scraped, and none of these alerts fires.
#[track_caller]
fn is_calm(port: u16, alerts: &[&str]) {
    eventually("it scrapes every node", || {
        let up = query(port, "up{job=\"muster-prod\"}")?;
        (up.len() == 4 && up.values().all(|up| *up == 1.0)).then_some(())
    });
    for alert in alerts {
        assert_eq!(fires(port, alert), Some(false), "{alert}");
    }
}

/// The shipped rules, whose expressions must hold for seconds only; and what must be old is.
fn quick_rules(cluster: &Cluster) -> PathBuf {
    let shipped = std::fs::read_to_string(shipped_rules()).expect("the rules exist");
    let pending = "muster_role_change_oldest_seconds{reason!=\"waiting_for_node\"}) > 900";
    assert!(shipped.contains(pending), "a change is old after a quarter of an hour");
    let shipped = shipped.replace(pending, &pending.replace("900", "0.5"));
    let quick = |line: &str| if line.trim_start().starts_with("for: ") { "        for: 2s" } else { line }.to_owned();
    let rules = cluster.folder().join("quick.rules.yml");
    std::fs::write(&rules, shipped.lines().map(|line| quick(line) + "\n").collect::<String>()).expect("writable");
    rules
}

/// A13. The shipped expressions on a real cluster's series; only the times for which they must hold are shorter.
#[test]
fn alerts_fire_on_a_real_cluster_and_are_resolved() {
    let mut cluster = Cluster::up();
    let (_running, port) = started(&cluster, &quick_rules(&cluster));
    let alerts = ["MusterNotScraped", "MusterQuorumMarginNone", "MusterReconcilerFailed"];
    let becomes = |alert: &str, wanted: bool| becomes(port, alert, wanted);
    is_calm(port, &alerts);

    let repaired = cluster.folder().join("repaired");
    let definition = failing_reconciler(&cluster, &repaired);
    cluster.muster(&["reconciler", "apply", "-f", &definition]).ended(0);
    becomes("MusterReconcilerFailed", true);
    assert_eq!(fires(port, "MusterQuorumMarginNone"), Some(false));
    let down = cluster.followers().remove(0);
    cluster.kill(&down);
    becomes("MusterNotScraped", true);
    becomes("MusterQuorumMarginNone", true);

    std::fs::write(&repaired, "").expect("the folder is writable");
    cluster.muster(&["reconciler", "retry", "schema"]).ended(0);
    becomes("MusterReconcilerFailed", false);
    cluster.restart(&[down]);
    becomes("MusterNotScraped", false);
    becomes("MusterQuorumMarginNone", false);
}

/// A13. A disk that hangs, and a worker that stands still before its promotion.
#[test]
fn alerts_of_a_hung_disk_and_a_frozen_node_fire() {
    let mut cluster = Cluster::up();
    let (_running, port) = started(&cluster, &quick_rules(&cluster));
    let slow = cluster.followers().remove(0);
    let hang = cluster.folder().join("hang");
    cluster.kill(&slow);
    cluster.configure("[debug]\n", &format!("[debug]\ndisk_hangs_while = {hang:?}\n"));
    cluster.restart(std::slice::from_ref(&slow));
    is_calm(port, &["MusterHandlerLong", "MusterRoleChangePending", "MusterNodesDown"]);

    std::fs::write(&hang, "").expect("the folder is writable");
    becomes(port, "MusterHandlerLong", true);
    let path = "node/manager/raft-member/disk";
    let handling =
        format!("max by (instance) (muster_actor_handling_seconds{{job=\"muster-prod\",path=\"{path}\"}}) > 5");
    let of = query(port, &handling).expect("it answers");
    assert!(of.keys().all(|instance| *instance == slow), "{of:?}");
    std::fs::remove_file(&hang).expect("it was there");
    becomes(port, "MusterHandlerLong", false);

    // It has a session until it was silent for long: then it is down, which is another alert.
    cluster.signal("n4", Signal::STOP);
    cluster.muster(&["node", "promote", "n4"]).ended(0);
    eventually("MusterRoleChangePending fires", || has_fired(port, "MusterRoleChangePending")?.then_some(()));
    becomes(port, "MusterNodesDown", true);
    becomes(port, "MusterRoleChangePending", false);
    cluster.signal("n4", Signal::CONT);
    becomes(port, "MusterNodesDown", false);
    eventually("n4 is a manager", || {
        let margin = query(port, "max by (job) (muster_raft_voters{job=\"muster-prod\"})")?;
        margin.values().any(|voters| *voters == 4.0).then_some(())
    });
    // It fires once more if the promotion takes as long.
    becomes(port, "MusterRoleChangePending", false);
}
