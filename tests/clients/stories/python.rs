//! The official Python client: its lease lock, and the ConfigMap lock that releases before 37 have.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{Cluster, Kubeconfig, Program, fetched, here};

/// One of the programs, in the virtual environment of a release.
pub fn python(cluster: &Cluster, kubeconfig: &Kubeconfig, release: u32, words: [&str; 3]) -> Program {
    let [program, lock, identity] = words;
    let interpreter = fetched().join(format!("python-{release}/bin/python"));
    let mut command = cluster.program(&interpreter, kubeconfig);
    command.arg(here().join("programs").join(program)).args([lock, identity]);
    // They disagree about the local time by 14 hours. Nobody may care.
    command.env("TZ", if identity == "ann" { "A+5" } else { "B-9" });
    Program::start(identity, command)
}

/// What a program says in the end of a line.
pub fn token(line: &str) -> u64 {
    line.rsplit(' ').next().expect("a word").parse().expect("the last word is the token")
}

#[test]
fn lease_locks_pass_from_a_killed_leader_to_the_next_with_a_larger_token() {
    let cluster = Cluster::up();
    let through_manager = cluster.kubeconfig(&[]);
    let through_worker = cluster.kubeconfig_at("n4");
    let start = |kubeconfig, identity| python(&cluster, kubeconfig, 37, ["lease_lock.py", "printer", identity]);
    let mut ann = start(&through_manager, "ann");
    let first = token(&ann.says("ann leads with fencing token"));
    assert_eq!(cluster.lease("printer")["fencing_token"], first);

    let mut bob = start(&through_worker, "bob");
    bob.says("lease held by ann and has not expired");
    let killed = Instant::now();
    ann.kill();
    let second = token(&bob.says("bob leads with fencing token"));
    // Ann renewed at most a second before her end; bob saw that, and waited the four seconds of the lease.
    assert!(killed.elapsed() > Duration::from_millis(2500), "after {:?}", killed.elapsed());
    assert!(second > first, "{second} > {first}");
    let lease = cluster.lease("printer");
    assert_eq!((&lease["holder"], &lease["fencing_token"]), (&"bob".into(), &second.into()));

    // The strictest guard changes nothing for a client that waits.
    cluster.muster(&["lease", "guard", "set", "all"]).ended(0);
    let mut cid = start(&through_manager, "cid");
    cid.says("lease held by bob and has not expired");
    bob.kill();
    assert!(token(&cid.says("cid leads with fencing token")) > second);
}

#[test]
fn config_map_locks_of_older_releases_pass_on_too() {
    let cluster = Cluster::up();
    let (through_manager, through_worker) = (cluster.kubeconfig(&[]), cluster.kubeconfig_at("n4"));
    let start = |kubeconfig, identity| python(&cluster, kubeconfig, 36, ["config_map_lock.py", "printer", identity]);
    let mut ann = start(&through_manager, "ann");
    ann.says("ann leads");
    let mut bob = start(&through_worker, "bob");
    bob.says("lease held by ann and has not expired");
    ann.kill();
    bob.says("bob leads");
}

#[test]
fn the_older_release_has_no_lease_lock() {
    // Which is why ConfigMaps are served at all. With the last release that has none gone, they could go.
    let locks = |release: u32| {
        let library = format!("python-{release}/lib");
        let library = std::fs::read_dir(fetched().join(library)).expect("an environment").flatten().next();
        let folder = library.expect("one Python").path().join("site-packages/kubernetes/leaderelection/resourcelock");
        let has = |name: &str| Path::new(&folder).join(name).exists();
        (has("leaselock.py"), has("configmaplock.py"))
    };
    assert_eq!((locks(36), locks(37)), ((false, true), (true, true)));
}
