//! client-go's protocol: protobuf bodies over HTTP/2, `?timeout=`, streaming lists.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::coordination::v1beta1::{LeaseCandidate, LeaseCandidateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;

use crate::harness::{Cluster, Connection, Elector, Timing, candidate, envelope, eventually_async, lease, scenario};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const CANDIDATES: &str = "/apis/coordination.k8s.io/v1beta1/namespaces/default/leasecandidates";

/// A body as client-go sent it: `A` takes `lk1` for four seconds.
const RECORDED: &str = "6b3873000a1f0a16636f6f7264696e6174696f6e2e6b38732e696f2f763112054c6561736512410a1a0a036c6b311200\
                        1a0764656661756c7422002a0032003800420012230a014110041a0c08b3dc84d80610d8bdd1fa01220c08b3dc84d8\
                        0610d8bdd1fa0128001a002200";
const RECORDED_AT: &str = "2026-11-21T05:37:55.525623Z";

pub fn recorded() -> Vec<u8> {
    let digits = RECORDED.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("digits"));
    digits.map(|pair| u8::from_str_radix(pair, 16).expect("digits")).collect()
}

#[test]
fn our_own_encoding_is_the_recorded_one() {
    let at = RECORDED_AT.parse::<Timestamp>().expect("a time");
    let spec = LeaseSpec {
        holder_identity: Some("A".into()),
        lease_duration_seconds: Some(4),
        acquire_time: Some(MicroTime(at)),
        renew_time: Some(MicroTime(at)),
        lease_transitions: Some(0),
        ..LeaseSpec::default()
    };
    let mut object = Lease { spec: Some(spec), ..Lease::default() };
    object.metadata.name = Some("lk1".into());
    object.metadata.namespace = Some("default".into());
    assert_eq!(lease(&object), recorded());
}

#[test]
fn recorded_body_creates_expected_lease() {
    scenario(async {
        let cluster = Cluster::up();
        let connection = Connection::open(&cluster.kubeconfig(&[])).await;
        let made = connection.ask("POST", &format!("{LEASES}?timeout=5s"), recorded()).await;
        assert_eq!(made.status, 201, "{}", made.body);
        let spec = &made.body["spec"];
        assert_eq!((&spec["holderIdentity"], &spec["leaseDurationSeconds"]), (&"A".into(), &4.into()));
        assert_eq!((&spec["acquireTime"], &spec["renewTime"]), (&RECORDED_AT.into(), &RECORDED_AT.into()));
        assert_eq!(spec["leaseTransitions"], 0);
        assert_eq!(spec.as_object().map(serde_json::Map::len), Some(5), "unsent fields are absent: {spec}");

        let stranger = envelope("coordination.k8s.io/v1", "Lease", b"\x0a\xff");
        assert_eq!(connection.ask("POST", LEASES, stranger).await.status, 400);

        // Delete options are enveloped too: only the object that was read.
        let precondition = |uid: &str| {
            let nested = [&[0x0a, u8::try_from(uid.len()).expect("short")], uid.as_bytes()].concat();
            let options = [&[0x12, u8::try_from(nested.len()).expect("short")], &nested[..]].concat();
            envelope("coordination.k8s.io/v1", "DeleteOptions", &options)
        };
        let target = format!("{LEASES}/lk1");
        let uid = made.body["metadata"]["uid"].as_str().expect("a uid").to_owned();
        assert_eq!(connection.ask("DELETE", &target, precondition("another")).await.status, 409);
        assert_eq!(connection.ask("DELETE", &target, precondition(&uid)).await.status, 200);
        assert_eq!(connection.ask("GET", &target, vec![]).await.status, 404);
    });
}

const TIMING: Timing = Timing {
    lease: Duration::from_secs(3),
    renew_deadline: Duration::from_secs(2),
    retry_period: Duration::from_millis(200),
};

#[test]
fn electors_take_over_expired_leases() {
    scenario(async {
        let cluster = Cluster::up();
        let mut ann = Elector::new(Connection::open(&cluster.kubeconfig(&[])).await, "printer", "ann", TIMING);
        let mut bob = Elector::new(Connection::open(&cluster.kubeconfig_at("n4")).await, "printer", "bob", TIMING);
        ann.acquire().await;
        assert_eq!(ann.statuses, [("GET", 404), ("POST", 201)]);
        assert!(!bob.step().await && bob.holder() == Some("ann"));
        for _ in 0..3 {
            assert!(ann.step().await);
            assert!(!bob.step().await);
        }
        assert_eq!(ann.statuses[2..], [("PUT", 200); 3], "a leader renews without reading first");
        assert!(bob.statuses.iter().all(|statuses| *statuses == ("GET", 200)));

        // Ann falls silent. Bob waits as long as her record says, from when he saw it.
        let seen = Instant::now();
        bob.acquire().await;
        assert!(seen.elapsed() > TIMING.lease - Duration::from_millis(500), "after {:?}", seen.elapsed());
        assert!(bob.fencing_token() > ann.fencing_token());
        assert_eq!(cluster.lease("printer")["transitions"], 1);
        // Her cached object is refused, and the reread one informs her.
        assert!(!ann.step().await);
        assert_eq!(ann.holder(), Some("bob"));
    });
}

#[test]
fn deleted_lease_is_recreated_with_a_larger_token() {
    scenario(async {
        let cluster = Cluster::up();
        let mut ann = Elector::new(Connection::open(&cluster.kubeconfig(&[])).await, "printer", "ann", TIMING);
        ann.acquire().await;
        let token = ann.fencing_token();
        cluster.muster(&["lease", "delete", "printer"]).ended(0);
        assert!(ann.step().await, "{:?}", ann.statuses);
        // The cached object belongs to an earlier object of that name: writing it must not restore it.
        assert_eq!(ann.statuses[2..], [("PUT", 409), ("GET", 404), ("POST", 201)]);
        assert!(ann.fencing_token() > token);
    });
}

fn named(name: &str, emulation: &str, binary: &str) -> LeaseCandidate {
    let spec = LeaseCandidateSpec {
        lease_name: "printer".into(),
        binary_version: binary.into(),
        emulation_version: Some(emulation.into()),
        strategy: "OldestEmulationVersion".into(),
        renew_time: Some(MicroTime(Timestamp::now())),
        ping_time: None,
    };
    let mut candidate = LeaseCandidate { spec, ..LeaseCandidate::default() };
    candidate.metadata.name = Some(name.into());
    candidate.metadata.namespace = Some("default".into());
    candidate
}

#[test]
fn empty_streaming_list_sends_bookmark_and_continues() {
    scenario(async {
        let cluster = Cluster::up();
        let connection = Connection::open(&cluster.kubeconfig(&[])).await;
        let rejected = format!("{CANDIDATES}?watch=true&sendInitialEvents=true&timeoutSeconds=300");
        assert_eq!(connection.ask("GET", &rejected, vec![]).await.status, 422, "without resourceVersionMatch");
        let target = format!(
            "{CANDIDATES}?allowWatchBookmarks=true&fieldSelector=metadata.name%3Dann&resourceVersionMatch=NotOlderThan\
             &sendInitialEvents=true&timeoutSeconds=300&watch=true"
        );
        let mut events = connection.watch(&target).await;
        let (kind, marker) = events.next().await.expect("a bookmark");
        assert_eq!(kind, "BOOKMARK");
        assert_eq!(marker["metadata"]["annotations"]["k8s.io/initial-events-end"], "true", "{marker}");

        // On the same connection, as client-go does it: now the candidate registers, and the watch reports it.
        for name in ["bob", "ann"] {
            let body = candidate(&named(name, "1.30.0", "1.30.0"));
            let made = connection.ask("POST", &format!("{CANDIDATES}?timeout=5s"), body).await;
            assert_eq!(made.status, 201, "{}", made.body);
        }
        let (kind, object) = events.next().await.expect("an event");
        assert_eq!((kind.as_str(), &object["metadata"]["name"]), ("ADDED", &"ann".into()), "the selector holds");
        assert_eq!(object["spec"]["emulationVersion"], "1.30.0");
    });
}

#[test]
fn pinged_candidate_is_elected_and_renews() {
    scenario(async {
        let cluster = Cluster::up();
        let connection = Connection::open(&cluster.kubeconfig_at("n4")).await;
        // Another client holds the lease, for longer than a candidate's registration counts as live.
        let held = ["lease", "create", "printer", "--holder", "stranger", "--duration", "7s"];
        cluster.muster(&held).ended(0);
        let own = format!("{CANDIDATES}/ann");
        let made = connection.ask("POST", CANDIDATES, candidate(&named("ann", "1.30.0", "1.31.0"))).await;
        assert_eq!(made.status, 201, "{}", made.body);
        let registered: LeaseCandidate = serde_json::from_value(made.body).expect("a candidate");
        assert_eq!(
            (registered.spec.lease_name.as_str(), registered.spec.binary_version.as_str()),
            ("printer", "1.31.0")
        );

        // client-go's candidate watches itself, and renews when pinged.
        let watch = format!("{CANDIDATES}?fieldSelector=metadata.name%3Dann&watch=true");
        let mut events = connection.watch(&watch).await;
        let asked = loop {
            let (kind, object) = events.next().await.expect("the watch lasts");
            assert!(["ADDED", "MODIFIED"].contains(&kind.as_str()), "{kind} {object}");
            let seen: LeaseCandidate = serde_json::from_value(object).expect("a candidate");
            if seen.spec.ping_time.is_some() {
                break seen;
            }
        };
        let mut alive = asked;
        alive.spec.renew_time = Some(MicroTime(Timestamp::now()));
        let renewed = connection.ask("PUT", &format!("{own}?timeout=5s"), candidate(&alive)).await;
        assert_eq!(renewed.status, 200, "{}", renewed.body);

        let mut elector = Elector::new(connection, "printer", "ann", TIMING);
        eventually_async("ann is elected and takes the lease up", async || {
            let led = elector.step().await;
            (led && elector.holder() == Some("ann")).then_some(())
        })
        .await;
        assert!(
            !elector.statuses.contains(&("POST", 201)),
            "the coordinator made her the holder: {:?}",
            elector.statuses
        );
        let lease = cluster.lease("printer");
        assert_eq!((&lease["holder"], &lease["strategy"]), (&"ann".into(), &"OldestEmulationVersion".into()));
        assert!(elector.step().await);
        assert_eq!(cluster.lease("printer")["fencing_token"], lease["fencing_token"], "the leadership is unchanged");
    });
}
