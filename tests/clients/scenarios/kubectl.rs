//! Debian's `kubectl`: the manual's session, and commands that wait.

use std::path::PathBuf;
use std::process::Command;

use crate::harness::{Cluster, EndedProgram, Kubeconfig, Program, fetched, muster};
use crate::manual::{Session, sessions};

fn kubectl(cluster: &Cluster, kubeconfig: &Kubeconfig, words: &[&str]) -> Command {
    let mut command = cluster.program(&program(), kubeconfig);
    command.args(words);
    command
}

/// Debian's kubectl, unpacked.
pub fn program() -> PathBuf {
    fetched().join("kubectl/usr/bin/kubectl")
}

/// Both streams of a kubectl in a terminal.
fn run(cluster: &Cluster, kubeconfig: &Kubeconfig, words: &[&str]) -> (i32, String) {
    let ran = EndedProgram::of(kubectl(cluster, kubeconfig, words));
    (ran.code, ran.stdout + &ran.stderr)
}

#[test]
fn kubectl_is_the_debian_release() {
    let cluster = Cluster::up();
    let (code, printed) = run(&cluster, &cluster.kubeconfig(&[]), &["version", "--short"]);
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains("Client Version: v1.20.") && printed.contains("+muster-"), "{printed}");
}

#[test]
fn manual_sessions_run_as_printed() {
    let sessions = sessions();
    assert!(sessions.iter().map(|session| session.commands.len()).sum::<usize>() > 20, "the sessions are found");
    for session in sessions {
        runs_as_documented(&Cluster::up(), &session);
    }
}

/// Runs a session in one shell, and compares line by line.
fn runs_as_documented(cluster: &Cluster, session: &Session) {
    let script: String = session.commands.iter().map(|(command, _)| format!("{command}\necho '--next--'\n")).collect();
    let path = [program().parent(), muster().parent()].map(|folder| folder.expect("a folder").display().to_string());
    let usual = std::env::var("PATH").unwrap_or_default();
    let mut shell = Program::command("sh".as_ref());
    shell.args(["-c", &format!("exec 2>&1\n{script}")]).current_dir(cluster.folder()).env("HOME", cluster.folder());
    shell.env("PATH", format!("{}:{usual}", path.join(":"))).env_remove("MUSTER_SOCKET").env_remove("KUBECONFIG");
    let printed = EndedProgram::of(shell).stdout;
    let mut outputs = printed.split("--next--\n");
    for (command, expected) in &session.commands {
        let output = outputs.next().unwrap_or_default().trim_end();
        assert!(reads(output, expected), "$ {command}\n{output}\n\nThe manual shows:\n{expected}");
    }
}

/// Whether an output matches the manual, where `…` matches anything within a line.
fn reads(output: &str, shown: &str) -> bool {
    let (output, shown): (Vec<&str>, Vec<&str>) = (output.lines().collect(), shown.lines().collect());
    output.len() == shown.len() && output.iter().zip(shown).all(|(line, shown)| line_reads(line.trim_end(), shown))
}

fn line_reads(mut line: &str, shown: &str) -> bool {
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(rest) = line.strip_prefix(first) else { return false };
    line = rest;
    let mut open = false;
    for part in parts {
        let Some(at) = line.find(part) else { return false };
        line = &line[at + part.len()..];
        open = part.is_empty();
    }
    line.is_empty() || open
}

#[test]
fn ellipsis_matches_only_within_a_line() {
    for (line, shown) in [("a", "a"), ("age 5s", "age …s"), ("uid 1-2", "uid …"), ("a b c", "a … c"), ("", "")] {
        assert!(line_reads(line, shown), "{line} {shown}");
    }
    for (line, shown) in [("a", "b"), ("ab", "a"), ("age 5m", "age …s"), ("a b", "… c"), ("", "a")] {
        assert!(!line_reads(line, shown), "{line} {shown}");
    }
    assert!(!reads("a\nb", "a") && !reads("a", "a\nb"));
}

#[test]
fn kubectl_errors_are_readable() {
    let cluster = Cluster::up();
    cluster.muster(&["lease", "create", "printer", "--holder", "ann", "--duration", "60s"]).ended(0);
    let kubeconfig = cluster.kubeconfig(&[]);
    std::fs::write(
        cluster.folder().join("x.yaml"),
        "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: x}\nspec: {holder: x}\n",
    )
    .expect("the folder is writable");
    let fails = r#"[{"op":"test","path":"/spec/holderIdentity","value":"bob"}]"#;
    for (words, said) in [
        (&["create", "-f", "x.yaml"][..], r#"unknown field "holder""#),
        (&["get", "--raw", "/apis/coordination.k8s.io/v1/leases", "--as", "nobody"], "impersonation is not supported"),
        (
            &["patch", "lease", "printer", "--type=json", "-p", fails],
            "is invalid: /spec/holderIdentity: operation 0 of the patch failed: value did not match",
        ),
        (&["get", "pods"], r#"the server doesn't have a resource type "pods""#),
        (&["get", "leases", "-l", "a in b"], "unable to parse"),
    ] {
        let (code, printed) = run(&cluster, &kubeconfig, words);
        assert!(code == 1 && printed.contains(said), "{words:?}: {printed}");
    }
}

#[test]
fn kubectl_edit_explain_describe_and_diff_work() {
    let cluster = Cluster::up();
    let kubeconfig = cluster.kubeconfig(&[]);
    let lease = |seconds: u32| {
        let text = format!(
            "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {{name: x}}\nspec: {{leaseDurationSeconds: {seconds}}}\n"
        );
        std::fs::write(cluster.folder().join("x.yaml"), text).expect("the folder is writable");
    };
    let ok = |words: &[&str], said: &str| {
        let (code, printed) = run(&cluster, &kubeconfig, words);
        assert!(code == 0 && printed.contains(said), "{words:?}: {code} {printed}");
    };
    lease(15);
    ok(&["create", "-f", "x.yaml"], "lease.coordination.k8s.io/x created");
    ok(&["apply", "-f", "x.yaml"], "lease.coordination.k8s.io/x configured");
    ok(&["apply", "-f", "x.yaml"], "lease.coordination.k8s.io/x unchanged");
    ok(&["apply", "-f", "x.yaml", "--dry-run=server"], "lease.coordination.k8s.io/x unchanged (server dry run)");
    ok(&["replace", "-f", "x.yaml"], "lease.coordination.k8s.io/x replaced");
    ok(&["explain", "lease.spec.holderIdentity"], "the holder of the lease");
    ok(&["explain", "configmap.metadata"], "labels");
    ok(&["auth", "can-i", "--list"], "leases.coordination.k8s.io");
    ok(&["create", "configmap", "cm", "--from-literal=a=b"], "configmap/cm created");
    ok(&["describe", "configmap", "cm"], "Events:  <none>");
    ok(&["get", "events"], "No resources found");

    let mut edit = kubectl(&cluster, &kubeconfig, &["edit", "lease", "x"]);
    edit.env("KUBE_EDITOR", "sed -i 's/Seconds: 15/Seconds: 20/'");
    let edited = EndedProgram::of(edit);
    assert_eq!((edited.code, edited.stdout.trim()), (0, "lease.coordination.k8s.io/x edited"), "{}", edited.stderr);
    assert_eq!(cluster.lease("x")["lease_duration_ms"], 20_000);
    // 1: there is a difference.
    lease(25);
    let (code, printed) = run(&cluster, &kubeconfig, &["diff", "-f", "x.yaml"]);
    assert!(code == 1 && printed.contains("+  leaseDurationSeconds: 25"), "{code} {printed}");
}

#[test]
fn a_watch_prints_one_table_with_a_line_per_change() {
    let cluster = Cluster::up();
    cluster.muster(&["lease", "create", "printer", "--holder", "ann"]).ended(0);
    let watch = kubectl(&cluster, &cluster.kubeconfig_at("n4"), &["get", "leases", "-w"]);
    let mut watch = Program::start("kubectl get -w", watch);
    assert_eq!(words(&watch.wait_for_line("NAME")), ["NAME", "HOLDER", "AGE"]);
    assert_eq!(words(&watch.wait_for_line("printer"))[..2], ["printer", "ann"]);

    let through_manager = cluster.kubeconfig(&[]);
    let release = r#"[{"op":"test","path":"/spec/holderIdentity","value":"ann"},
                      {"op":"replace","path":"/spec/holderIdentity","value":""}]"#;
    let (code, printed) = run(&cluster, &through_manager, &["patch", "lease", "printer", "--type=json", "-p", release]);
    assert_eq!((code, printed.trim()), (0, "lease.coordination.k8s.io/printer patched"));
    // The holder's column is empty now.
    assert_eq!(words(&watch.wait_for_line("printer")).len(), 2);
    run(&cluster, &through_manager, &["delete", "lease", "printer"]);
    // kubectl reports a deletion with the object's last line.
    assert_eq!(words(&watch.wait_for_line("printer")).len(), 2);
    assert_eq!(watch.said().matches("NAME").count(), 1, "{}", watch.said());
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn kubectl_wait_for_delete_returns() {
    let cluster = Cluster::up();
    cluster.muster(&["lease", "create", "printer"]).ended(0);
    let kubeconfig = cluster.kubeconfig(&[]);
    let wait = ["wait", "--for=delete", "lease/printer", "--timeout=60s", "-v=6"];
    let mut wait = Program::start("kubectl wait", kubectl(&cluster, &kubeconfig, &wait));
    wait.wait_for_line("watch=true");
    let (code, printed) = run(&cluster, &kubeconfig, &["delete", "lease", "printer"]);
    assert_eq!((code, printed.trim()), (0, r#"lease.coordination.k8s.io "printer" deleted"#));
    wait.wait_for_line("lease.coordination.k8s.io/printer condition met");
    assert_eq!(wait.ends(), Some(0));

    cluster.muster(&["lease", "create", "printer"]).ended(0);
    let (code, printed) = run(&cluster, &kubeconfig, &["wait", "--for=delete", "lease/printer", "--timeout=1s"]);
    assert_eq!(code, 1, "{printed}");
    assert!(printed.contains("timed out waiting for the condition on leases/printer"), "{printed}");
}
