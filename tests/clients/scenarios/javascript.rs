//! `@kubernetes/client-node`: an informer, and the writes that it reports.

use std::os::unix::fs::symlink;
use std::path::Path;

use crate::harness::{Cluster, EndedProgram, Kubeconfig, Program, fetched, here};

/// A program beside its imported packages.
pub fn javascript(cluster: &Cluster, kubeconfig: &Kubeconfig, program: &str) -> std::process::Command {
    let folder = cluster.folder();
    if !folder.join("node_modules").exists() {
        symlink(fetched().join("node/node_modules"), folder.join("node_modules")).expect("a folder of our own");
    }
    std::fs::copy(here().join("programs").join(program), folder.join(program)).expect("a folder of our own");
    let mut command = cluster.program(Path::new("node"), kubeconfig);
    command.arg(program);
    command
}

#[test]
fn informer_receives_every_write() {
    let cluster = Cluster::up();
    cluster.muster(&["lease", "create", "earlier", "--holder", "cid"]).ended(0);
    let mut informer = Program::start("informer", javascript(&cluster, &cluster.kubeconfig_at("n4"), "informer.mjs"));
    informer.wait_for_line("add earlier cid");
    informer.wait_for_line("watching");

    let mut writes = javascript(&cluster, &cluster.kubeconfig(&[]), "writes.mjs");
    writes.arg("printer");
    let said = EndedProgram::of(writes).ended(0).stdout;
    let token = cluster_token(&said);
    let expected = [
        format!("created ann {token}").as_str(),
        "replaced true",
        "stale write refused 409 Conflict",
        "patched by operations 30",
        "patched by merging 7",
        "deleted Success",
    ]
    .join("\n");
    assert_eq!(said.trim(), expected);

    for what in ["add", "update", "update", "update", "delete"] {
        // In this order, each with its holder's token.
        assert_eq!(informer.wait_for_line(what), format!("{what} printer ann {token}"));
    }
    assert!(!informer.said().contains("error"), "{}", informer.said());
}

/// The token in the first line.
fn cluster_token(said: &str) -> u64 {
    let line = said.lines().next().expect("a line");
    line.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no token in {line:?}"))
}
