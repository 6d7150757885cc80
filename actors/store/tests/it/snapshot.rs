//! Snapshots.

use muster_messages::*;
use muster_store::snapshot::{SnapshotFault, decode, encode};

use crate::world::*;

/// One of everything.
fn full() -> Tables {
    let mut world = World::founded().with([(2, Role::Manager), (3, Role::Worker)]);
    let granted = Some(world.record(3).granted);
    world.must(
        command([
            Change::PutToken(token("t", Role::Worker)),
            Change::PutUser(user("ann", "a1")),
            block(9, WallTime(T0.0 + HOUR)),
            Change::RecordCertificate { node: id(3), certificate: certificate(Role::Worker, granted, 7) },
            Change::UpdateLabels { node: id(3), add: [("zone".to_owned(), "a".to_owned())].into(), remove: vec![] },
        ])
        .with_request(RequestId(5)),
    );
    let refused = command([Change::AskRotate(id(8))]).with_request(RequestId(6));
    world.refused(refused);
    let scope = GuardScope { namespace: "default".to_owned(), lease: None };
    world.must(command([
        Change::SetGuard { scope, mode: Some(GuardMode::All) },
        Change::PutAccessToken(AccessToken {
            id: "t".to_owned(),
            user: name("ann"),
            digest: [7; 32],
            created_at: T0,
            expires_at: Some(T0),
        }),
    ]));
    world.must(acquire("l", "a", 1));
    for body in [
        ObjectBody::LeaseCandidate(CandidateSpec { lease_name: "l".to_owned(), ..CandidateSpec::default() }),
        ObjectBody::ConfigMap(ConfigMap { data: [("k".to_owned(), "v".to_owned())].into(), ..ConfigMap::default() }),
        ObjectBody::Endpoints("[]".to_owned()),
    ] {
        let (namespace, name) = ("default".to_owned(), "o".to_owned());
        let object = Object { namespace, name, meta: ObjectMeta::fresh(Uid(3)), body };
        world.must(command([Change::CreateObject(Box::new(object))]));
    }
    world.learner(2, 2).unwrap();
    world.remove_member(2).unwrap();
    world.learner(2, 3).unwrap();
    world.tables
}

#[test]
fn snapshot_decodes_to_the_encoded_state() {
    for tables in [Tables::default(), full()] {
        let bytes = encode(&tables);
        assert_eq!(decode(&bytes), Ok(tables));
    }
}

/// These bytes are on disks and on the wire: a change of them needs a new version in the enum. Written by
/// `UPDATE=1`.
fn golden(file: &str, tables: &Tables) {
    let path = format!("{}/tests/it/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, encode(tables)).unwrap();
    }
    let golden = std::fs::read(&path).unwrap();
    // Not assert_eq: its output would be two lists of thousands of numbers.
    assert!(encode(tables) == golden, "{file}: other bytes than before");
    assert!(decode(&golden).as_ref() == Ok(tables), "{file}: reads as something else");
}

#[test]
fn the_bytes_of_version_one_stay_readable() {
    golden("snapshot-v1.bin", &full());
}

#[test]
fn the_bytes_of_version_two_stay_readable() {
    golden("snapshot-v2.bin", &crate::gates::full());
}

/// A state with everything that only feature level 3 has.
fn full_of_identities() -> Tables {
    let mut world = World::founded_at(IDENTITY_LEVEL).with([(2, Role::Worker)]);
    let worker = id(2);
    let labels = |key: &str| [(key.to_owned(), "a".to_owned())].into();
    let pin = CertificatePin { fingerprint: [3; 32], key: [4; 32] };
    for (serial, held) in [("a1", None), ("b2", Some("a1"))] {
        let issued = |serial: &str| Box::new(crate::certificates::issued(2, &world, serial));
        let change = Change::IssueCertificate {
            node: worker,
            certificate: issued(serial),
            held: held.map(issued),
            replaces: held.map(str::to_owned),
        };
        world.must(command([change]));
    }
    let record = world.record(2);
    let (addr, release) = (record.addr.clone(), record.release.clone());
    world.must(command([
        Change::PutUser(user("ann", "a1")),
        Change::PutUser(User { kind: UserKind::ReadOnly, namespaces: vec![], ..user("eye", "e1") }),
        Change::PinUser { name: name("ann"), pin: UserPin { serial: "a1".to_owned(), pin, issuer: RootId([7; 8]) } },
        Change::PutAccessToken(AccessToken {
            id: "t".to_owned(),
            user: name("ann"),
            digest: [7; 32],
            created_at: T0,
            expires_at: Some(T0),
        }),
        Change::UpdateLabels { node: worker, add: labels("zone"), remove: vec![] },
        Change::Report { node: worker, name: name("other"), addr, release, labels: labels("disk") },
    ]));
    let request = RequestId::fresh(T0, 1 << 48);
    let by = Principal::User(name("ann"));
    world.must(Command { by, ..acquire("l", "a", 1) }.with_request(request).guard(Guard::Request { digest: 9 }));
    world.tables
}

#[test]
fn the_bytes_of_version_three_stay_readable() {
    let tables = full_of_identities();
    let Tables { certificates, user_pins, token_rights, reported, requests, frequent_events, routine_events, .. } =
        &tables;
    assert!(![certificates.len(), user_pins.len(), token_rights.len(), reported.len()].contains(&0));
    assert!(*requests != Requests::default() && !frequent_events.is_empty() && !routine_events.is_empty());
    golden("snapshot-v3.bin", &tables);
}

/// A state with several roots.
#[test]
fn the_bytes_of_version_four_stay_readable() {
    let mut world = World { tables: full_of_identities() };
    world.must(command([crate::authorities::prepare(7, 8), crate::authorities::activate(8)]));
    // One that an authority above certified, and one that is requested.
    world.must(command([crate::authorities::request(9, false), crate::authorities::certify(8, 9)]));
    world.must(command([crate::authorities::request(10, true)]));
    // An unlock key, a former one and a report.
    world.must(command([crate::autolock::enable("first")]));
    world.must(command([crate::autolock::sealed(1, world.tables.autolock.version)]));
    world.must(command([crate::autolock::rotate("second")]));
    // A workload, and a former one.
    let entry = crate::workloads::entry("shop/web", 1000);
    let entry = WorkloadEntry {
        node_labels: [("zone".to_owned(), "a".to_owned())].into(),
        dns: vec!["web.example".to_owned()],
        hint: Some("internal".to_owned()),
        jwt: true,
        ..entry
    };
    world.must(command([crate::workloads::set(entry), crate::workloads::set(crate::workloads::entry("shop/db", 7))]));
    world.must(command([crate::workloads::remove("shop/db")]));
    golden("snapshot-v4.bin", &world.tables);
}

/// A state with a run that failed and a gate that was deleted.
#[test]
fn the_bytes_of_version_five_stay_readable() {
    let tables = crate::gates::runs::full();
    assert!(tables.runs.failures.len() == 1 && tables.runs.deleted_gates.len() == 1);
    golden("snapshot-v5.bin", &tables);
}

/// A state with a chain, of which a step has run, with options, and with runs.
#[test]
fn the_bytes_of_version_six_stay_readable() {
    let tables = crate::gates::records::full();
    assert!(tables.records.chains.len() == 1 && tables.records.run_bytes() > 0);
    golden("snapshot-v6.bin", &tables);
}

#[test]
fn workloads_alone_survive_a_snapshot() {
    let mut world = World { tables: full_of_identities() };
    world.must(command([crate::workloads::set(crate::workloads::entry("a/b", 1))]));
    assert_eq!(decode(&encode(&world.tables)).as_ref(), Ok(&world.tables));
    world.must(command([crate::workloads::remove("a/b")]));
    assert_eq!(decode(&encode(&world.tables)).as_ref(), Ok(&world.tables), "also the end of former ones");
}

/// Each of the additions alone needs the version, too.
#[test]
fn autolock_alone_survives_a_snapshot() {
    let mut world = World { tables: full_of_identities() };
    world.must(command([crate::autolock::enable("key")]));
    assert_eq!(decode(&encode(&world.tables)).as_ref(), Ok(&world.tables));
}

#[test]
fn damaged_bytes_are_refused_and_never_panic() {
    let bytes = encode(&full());
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err());
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x5a;
        let _ = decode(&damaged);
    }
    let fault = decode(&[1, 1]).unwrap_err();
    assert_eq!(fault.to_string(), "unreadable snapshot of 2 bytes");
}

#[test]
fn snapshot_of_a_newer_build_is_not_reported_as_damage() {
    let mut bytes = encode(&full());
    bytes[1] = 6;
    assert_eq!(decode(&bytes), Err(SnapshotFault::Newer { version: 7 }));
}
