//! Identities of programs that are renewed while the leader changes.

use std::time::Duration;

use muster_kernel::Clock;
use muster_messages::{Role, WallTime};
use muster_pki::Bundle;
use muster_workload_api::proto::X509Svid;
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::time::timeout;

use crate::harness::{WallClocks, World};
use crate::workloads::{Svids, identities, own_uid, serves};

/// Of a certificate that lasts five minutes: it is renewed after 165 s at the latest.
const RENEWED_AFTER: Duration = Duration::from_secs(170);
/// A node looks at its wall clock every 30 s, and repeats a request that failed without a leader after 30 s at most.
const RENEWAL_LIMIT: Duration = Duration::from_secs(120);

/// Certificates, one after the other. Each has a length of two bytes.
fn certificates(mut der: &[u8]) -> Vec<CertificateDer<'static>> {
    let mut found = Vec::new();
    while !der.is_empty() {
        let (one, others) = der.split_at(4 + usize::from(u16::from_be_bytes([der[2], der[3]])));
        found.push(CertificateDer::from(one.to_vec()));
        der = others;
    }
    found
}

fn pem_of(der: &[u8]) -> String {
    let to_pem = |one: &CertificateDer<'_>| pem::encode(&pem::Pem::new("CERTIFICATE", one.to_vec()));
    certificates(der).iter().map(to_pem).collect()
}

fn validity(svid: &X509Svid) -> (WallTime, WallTime) {
    muster_pki::validity_of_chain(&pem_of(&svid.x509_svid)).expect("a certificate")
}

/// As another program would verify it now, by the roots that come with it.
fn is_good(svid: &X509Svid, now: WallTime) {
    let roots = Bundle::from_pem(&pem_of(&svid.bundle)).expect("roots");
    let millis = u64::try_from(now.0).expect("this is after 1970");
    let at = UnixTime::since_unix_epoch(Duration::from_millis(millis));
    assert!(roots.issuer_of(&certificates(&svid.x509_svid), at).is_some(), "no root leads to it: {svid:?}");
    let (from, until) = validity(svid);
    assert!(from <= now && now < until, "{svid:?} is valid from {from} to {until}, and it is {now}");
}

/// The next certificate of the stream, which continues, and gets it before the former one ends. `ahead`: the nodes' clocks.
fn renewed(world: &World, stream: &mut Svids, held: &X509Svid, ahead: Duration) -> X509Svid {
    let next = async {
        loop {
            let message = stream.message().await.expect("the stream continues").expect("a stream ends with a status");
            let svid = message.svids.into_iter().next().expect("a message names an identity");
            if svid.x509_svid != held.x509_svid {
                return svid;
            }
        }
    };
    let next = world.wait_for(async { timeout(RENEWAL_LIMIT, next).await.expect("another certificate in time") });
    let now = Clock.wall().plus(ahead);
    is_good(held, now);
    is_good(&next, now);
    assert_eq!(next.spiffe_id, held.spiffe_id);
    assert!(validity(&next).1 > validity(held).1, "it lasts longer");
    next
}

#[test]
#[ignore = "full tier"]
fn identity_is_renewed_without_a_gap_over_new_leaders() {
    let mut world = World::new();
    let clock = WallClocks::new(world.folder()).of("everybody");
    for name in ["n1", "n2", "n3", "n4"] {
        world.node(name).environment = clock.environment().into();
    }
    world.node("n1").start(&["--init"]).ready();
    let seed = world.node("n1").listen.to_string();
    for (name, role) in [("n2", Role::Manager), ("n3", Role::Manager), ("n4", Role::Worker)] {
        let token = world.token(role);
        world.node(name).start(&["--join", &seed, "--token", &token]).ready();
    }
    world.all_settled();
    let socket = serves(&mut world, "n4");
    world.muster(&["workload", "set", "shop/web", "--selector", &own_uid(), "--ttl", "5m", "--yes"]).ended(0);
    let (svids, mut stream) = identities(&world, &socket, 1);
    let first = svids[0].clone();
    is_good(&first, Clock.wall());

    // The renewal is due while the cluster has no leader.
    let mut ahead = RENEWED_AFTER;
    let leader = world.leader_seen_by("n1");
    clock.set(i64::try_from(ahead.as_secs()).expect("minutes"));
    world.node(&leader).kill();
    let second = renewed(&world, &mut stream, &first, ahead);
    let by = world.other_than(&[&leader]);
    assert_ne!(world.leader_seen_by(&by), leader, "another one leads");
    world.node(&leader).start(&[]).ready();
    world.is_recorded_as_ready(&by, &leader);

    // And while leadership moves.
    ahead += RENEWED_AFTER;
    clock.set(i64::try_from(ahead.as_secs()).expect("minutes"));
    world.make_lead(&leader);
    let third = renewed(&world, &mut stream, &second, ahead);
    let (held, _another) = identities(&world, &socket, 1);
    assert!(held[0] == third, "every program has it");
}
