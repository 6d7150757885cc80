//! Recorded certificates.

use muster_messages::*;

use crate::world::*;

pub fn issued(n: u8, world: &World, serial: &str) -> IssuedCertificate {
    let record = world.record(n);
    IssuedCertificate {
        serial: serial.to_owned(),
        role: record.role,
        granted: Some(record.granted),
        not_after: WallTime(T0.0 + HOUR),
        pin: Some(CertificatePin { fingerprint: [serial.len() as u8; 32], key: [0; 32] }),
        issuer: Some(RootId([7; 8])),
    }
}

fn issue(world: &World, n: u8, serial: &str, held: Option<&str>, replaces: Option<&str>) -> Command {
    command([Change::IssueCertificate {
        node: id(n),
        certificate: Box::new(issued(n, world, serial)),
        held: held.map(|held| Box::new(issued(n, world, held))),
        replaces: replaces.map(str::to_owned),
    }])
}

/// The newest certificate and the previous one.
fn serials(world: &World, n: u8) -> (Option<String>, Option<String>) {
    let row = &world.tables.certificates[&id(n)];
    let serial = |issued: Option<&IssuedCertificate>| issued.map(|issued| issued.serial.clone());
    (serial(row.current.as_ref()), serial(row.previous.as_ref()))
}

fn on_record(current: Option<&str>, previous: Option<&str>) -> (Option<String>, Option<String>) {
    (current.map(str::to_owned), previous.map(str::to_owned))
}

fn world() -> World {
    World::founded_at(3).with([(2, Role::Worker)])
}

/// CERT-7.
#[test]
fn certificate_in_use_is_kept_however_many_are_lost() {
    let mut world = world();
    world.must(issue(&world, 2, "a", None, None));
    let mut newest = "a".to_owned();
    for lost in ["b", "c", "d"] {
        world.must(issue(&world, 2, lost, Some("a"), Some(&newest)));
        lost.clone_into(&mut newest);
        assert_eq!(serials(&world, 2), on_record(Some(lost), Some("a")));
    }
    assert_eq!(world.record(2).certificate.as_ref().map(|c| c.serial.as_str()), Some("d"));
}

/// CERT-7. The node asked twice; the first request is handled after the second one was answered.
#[test]
fn late_request_leaves_the_certificate_in_use_on_record() {
    let mut world = world();
    world.must(issue(&world, 2, "a", None, None));
    world.must(issue(&world, 2, "b", Some("a"), Some("a")));
    world.must(issue(&world, 2, "c", Some("a"), Some("b")));
    let on_record = |world: &World| {
        let row = &world.tables.certificates[&id(2)];
        let all = row.previous.iter().chain(&row.unclaimed).chain(&row.current);
        all.map(|issued| issued.serial.clone()).collect::<Vec<_>>()
    };
    assert_eq!(on_record(&world), ["a", "b", "c"], "the node may hold any of them");
    world.must(issue(&world, 2, "d", Some("b"), Some("c")));
    assert_eq!(on_record(&world), ["b", "c", "d"], "certificates before the presented one are dropped");
    for (serial, newest) in [("e", "d"), ("f", "e"), ("g", "f"), ("h", "g")] {
        world.must(issue(&world, 2, serial, Some("b"), Some(newest)));
    }
    assert_eq!(on_record(&world), ["b", "e", "f", "g", "h"], "bounded");
    world.must(issue(&world, 2, "i", Some("h"), Some("h")));
    assert_eq!(on_record(&world), ["h", "i"]);
}

#[test]
fn superseded_certificate_is_not_recorded() {
    let mut world = world();
    world.must(issue(&world, 2, "a", None, None));
    world.must(issue(&world, 2, "b", Some("a"), Some("a")));
    let before = world.tables.certificates.clone();
    let refused = world.refused(issue(&world, 2, "c", Some("a"), Some("a")));
    assert!(matches!(refused, CommandRefusal::Stale { .. }), "{refused:?}");
    assert_eq!(world.tables.certificates, before);
    world.must(command([Change::DeleteNode(id(2))]));
    assert!(world.tables.certificates.is_empty(), "a deleted node has none");
}

#[test]
fn revoked_certificate_is_dropped_once_the_next_is_used() {
    let mut world = world();
    world.must(issue(&world, 2, "a", None, None));
    let seen = |serial: &str| command([Change::CertificateSeen { node: id(2), serial: serial.to_owned() }]);
    world.must(command([Change::RevokeCertificates(id(2))]));
    world.must(seen("a"));
    assert_eq!(serials(&world, 2), on_record(Some("a"), None), "it has not renewed yet");
    world.must(issue(&world, 2, "b", Some("a"), Some("a")));
    assert_eq!(serials(&world, 2), on_record(Some("b"), Some("a")), "the answer may be lost");
    world.must(seen("b"));
    assert_eq!(serials(&world, 2), on_record(Some("b"), None));
    assert!(!world.tables.certificates[&id(2)].revoking);
}

/// The state of level 2 is incomplete, so no certificate is refused for it.
#[test]
fn raising_the_level_refuses_no_node() {
    let mut world = World::founded_at(1).with([(2, Role::Worker), (3, Role::Worker)]);
    let granted = Some(world.record(2).granted);
    world
        .must(command([Change::RecordCertificate { node: id(2), certificate: certificate(Role::Worker, granted, 7) }]));
    let refused = world.refused(issue(&world, 2, "a", None, None));
    assert!(matches!(refused, CommandRefusal::FeatureLevel { needs: 3, level: 1 }), "{refused:?}");
    assert!(world.tables.certificates.is_empty());
    world.must(command([Change::SetFeatureLevel(3)]));
    let rows = &world.tables.certificates;
    assert!(rows.values().all(|row| row.incomplete) && rows.len() == world.tables.nodes.len());
    assert_eq!(rows[&id(2)].current.as_ref().map(|c| (c.serial.as_str(), c.pin)), Some(("7", None)));
    world.must(issue(&world, 2, "a", None, Some("7")));
    assert!(!world.tables.certificates[&id(2)].incomplete);
}

#[test]
fn a_user_is_pinned_to_the_certificate_in_force() {
    let mut world = world();
    let pin = |serial: &str| UserPin {
        serial: serial.to_owned(),
        pin: CertificatePin { fingerprint: [1; 32], key: [2; 32] },
        issuer: RootId([7; 8]),
    };
    let put = |serial: &str, pinned: &str| {
        command([Change::PutUser(user("ann", serial)), Change::PinUser { name: name("ann"), pin: pin(pinned) }])
    };
    world.must(put("a1", "a1"));
    assert!(matches!(world.refused(put("a2", "a1")), CommandRefusal::Stale { .. }));
    world.must(command([Change::PutUser(user("ann", "a3"))]));
    assert!(world.tables.user_pins.is_empty(), "a pin belongs to one certificate");
    world.must(put("a4", "a4"));
    world.must(command([Change::DeleteUser(name("ann"))]));
    assert!(world.tables.user_pins.is_empty());
}
