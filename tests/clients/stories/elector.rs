//! Muster's own elector, as it works on any Kubernetes API: through the crate `kube`, with nothing but a kubeconfig.

use std::time::Instant;

use crate::harness::{Cluster, Kubeconfig, Program};
use crate::python::token;

fn elector(cluster: &Cluster, kubeconfig: &Kubeconfig, identity: &str) -> Program {
    let mut command = cluster.program(env!("CARGO_BIN_EXE_kube_elector").as_ref(), kubeconfig);
    command.args(["default/printer", identity]);
    Program::start(identity, command)
}

#[test]
fn electors_on_the_kubernetes_api_take_turns_under_larger_and_larger_tokens() {
    let cluster = Cluster::up();
    let (through_manager, through_worker) = (cluster.kubeconfig(&[]), cluster.kubeconfig_at("n4"));
    let mut ann = elector(&cluster, &through_manager, "ann");
    let first = token(&ann.says("leading, fencing token"));
    let lease = cluster.lease("printer");
    assert_eq!((&lease["holder"], &lease["fencing_token"]), (&"ann".into(), &first.into()));

    // Given up: a watch tells the next one, which need not wait for its poll.
    let mut bob = elector(&cluster, &through_worker, "bob");
    bob.says("leader: ann");
    let interrupted = Instant::now();
    ann.interrupt();
    let second = token(&bob.says("leading, fencing token"));
    println!("handed over after {:?}", interrupted.elapsed());
    ann.says("leading no more");
    assert_eq!(ann.ends(), Some(0));

    // Not given up: it is waited for.
    let mut cid = elector(&cluster, &through_manager, "cid");
    cid.says("leader: bob");
    bob.kill();
    let third = token(&cid.says("leading, fencing token"));
    assert!(first < second && second < third, "{first}, {second}, {third}");
    assert_eq!(cluster.lease("printer")["fencing_token"], third);
}
