//! The official Python client: its lease lock, and the ConfigMap lock of releases before 37. And the asynchronous one.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{Cluster, Kubeconfig, Program, fetched, here};

/// One of the programs, in the virtual environment of a release.
pub fn python(cluster: &Cluster, kubeconfig: &Kubeconfig, release: u32, words: [&str; 3]) -> Program {
    python_of(cluster, kubeconfig, &format!("python-{release}"), words)
}

fn python_of(cluster: &Cluster, kubeconfig: &Kubeconfig, environment: &str, words: [&str; 3]) -> Program {
    let [program, lock, identity] = words;
    let interpreter = fetched().join(environment).join("bin/python");
    let mut command = cluster.program(&interpreter, kubeconfig);
    command.arg(here().join("programs").join(program)).args([lock, identity]);
    // Their local times differ by 14 hours, which must not matter.
    command.env("TZ", if identity == "ann" { "A+5" } else { "B-9" });
    Program::start(identity, command)
}

/// The last word of a program's line.
pub fn token(line: &str) -> u64 {
    line.rsplit(' ').next().expect("a word").parse().expect("the last word is the token")
}

#[test]
fn lease_lock_passes_on_with_larger_token_after_kill() {
    let cluster = Cluster::up();
    let through_manager = cluster.kubeconfig(&[]);
    let through_worker = cluster.kubeconfig_at("n4");
    let start = |kubeconfig, identity| python(&cluster, kubeconfig, 37, ["lease_lock.py", "printer", identity]);
    let mut ann = start(&through_manager, "ann");
    let first = token(&ann.wait_for_line("ann leads with fencing token"));
    assert_eq!(cluster.lease("printer")["fencing_token"], first);

    let mut bob = start(&through_worker, "bob");
    bob.wait_for_line("lease held by ann and has not expired");
    let killed = Instant::now();
    ann.kill();
    let second = token(&bob.wait_for_line("bob leads with fencing token"));
    // Ann renewed at most a second before her end; bob saw that, and waited the four seconds of the lease.
    assert!(killed.elapsed() > Duration::from_millis(2500), "after {:?}", killed.elapsed());
    assert!(second > first, "{second} > {first}");
    let lease = cluster.lease("printer");
    assert_eq!((&lease["holder"], &lease["fencing_token"]), (&"bob".into(), &second.into()));

    // The strictest guard changes nothing for a client that waits.
    cluster.muster(&["lease", "guard", "set", "all"]).ended(0);
    let mut cid = start(&through_manager, "cid");
    cid.wait_for_line("lease held by bob and has not expired");
    bob.kill();
    assert!(token(&cid.wait_for_line("cid leads with fencing token")) > second);
}

#[test]
fn asynchronous_lease_lock_passes_on_after_kill() {
    let cluster = Cluster::up();
    let (through_manager, through_worker) = (cluster.kubeconfig(&[]), cluster.kubeconfig_at("n4"));
    let start = |kubeconfig, identity| {
        python_of(&cluster, kubeconfig, "python-asyncio", ["lease_lock_asyncio.py", "printer", identity])
    };
    let mut ann = start(&through_manager, "ann");
    let first = token(&ann.wait_for_line("ann leads with fencing token"));
    assert_eq!(cluster.lease("printer")["fencing_token"], first);
    let mut bob = start(&through_worker, "bob");
    bob.wait_for_line("lease held by ann and has not expired");
    ann.kill();
    let second = token(&bob.wait_for_line("bob leads with fencing token"));
    let lease = cluster.lease("printer");
    assert_eq!((&lease["holder"], &lease["fencing_token"]), (&"bob".into(), &second.into()));
    assert!(second > first, "{second} > {first}");
}

#[test]
fn config_map_lock_passes_on_after_kill() {
    let cluster = Cluster::up();
    let (through_manager, through_worker) = (cluster.kubeconfig(&[]), cluster.kubeconfig_at("n4"));
    let start = |kubeconfig, identity| python(&cluster, kubeconfig, 36, ["config_map_lock.py", "printer", identity]);
    let mut ann = start(&through_manager, "ann");
    ann.wait_for_line("ann leads");
    let mut bob = start(&through_worker, "bob");
    bob.wait_for_line("lease held by ann and has not expired");
    ann.kill();
    bob.wait_for_line("bob leads");
}

#[test]
fn older_python_release_has_no_lease_lock() {
    // This is why ConfigMaps are served. Once every supported release has lease locks, they could go.
    let locks = |release: u32| {
        let library = format!("python-{release}/lib");
        let library = std::fs::read_dir(fetched().join(library)).expect("an environment").flatten().next();
        let folder = library.expect("one Python").path().join("site-packages/kubernetes/leaderelection/resourcelock");
        let has = |name: &str| Path::new(&folder).join(name).exists();
        (has("leaselock.py"), has("configmaplock.py"))
    };
    assert_eq!((locks(36), locks(37)), ((false, true), (true, true)));
}
