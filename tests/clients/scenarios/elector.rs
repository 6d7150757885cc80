//! Muster's own elector on any Kubernetes API: through the crate `kube`, with only a kubeconfig.

use std::time::Instant;

use crate::harness::{Cluster, Kubeconfig, Program};
use crate::python::token;

fn elector(cluster: &Cluster, kubeconfig: &Kubeconfig, identity: &str) -> Program {
    let mut command = cluster.program(env!("CARGO_BIN_EXE_kube_elector").as_ref(), kubeconfig);
    command.args(["default/printer", identity]);
    Program::start(identity, command)
}

#[test]
fn electors_on_kubernetes_api_lead_with_growing_tokens() {
    let cluster = Cluster::up();
    let (through_manager, through_worker) = (cluster.kubeconfig(&[]), cluster.kubeconfig_at("n4"));
    let mut ann = elector(&cluster, &through_manager, "ann");
    let first = token(&ann.wait_for_line("leading, fencing token"));
    let lease = cluster.lease("printer");
    assert_eq!((&lease["holder"], &lease["fencing_token"]), (&"ann".into(), &first.into()));

    // Released: a watch informs the next candidate, which need not wait for its poll.
    let mut bob = elector(&cluster, &through_worker, "bob");
    bob.wait_for_line("leader: ann");
    let interrupted = Instant::now();
    ann.interrupt();
    let second = token(&bob.wait_for_line("leading, fencing token"));
    println!("handed over after {:?}", interrupted.elapsed());
    ann.wait_for_line("stopped leading");
    assert_eq!(ann.ends(), Some(0));

    // Not released: the next candidate waits for its expiry.
    let mut cid = elector(&cluster, &through_manager, "cid");
    cid.wait_for_line("leader: bob");
    bob.kill();
    let third = token(&cid.wait_for_line("leading, fencing token"));
    assert!(first < second && second < third, "{first}, {second}, {third}");
    assert_eq!(cluster.lease("printer")["fencing_token"], third);
}
