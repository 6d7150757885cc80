//! Which commands the readers of the cluster's replica see at once.

use muster_messages::{Change, Command, ObjectKey, SessionId, Uid};

use super::world::*;
use crate::core::Notice;

fn lease(name: String) -> Command {
    let (key, holder) = (ObjectKey::lease("default", name), "holder".to_owned());
    command().change(Change::AcquireLease { key, holder, session: SessionId(1), duration_ms: 60_000, uid: Uid(1) })
}

/// Whether the leader's cluster replica lacks the command at the moment at which its own has it.
fn is_late(w: &mut World, command: Command) -> bool {
    let leader = w.leading().expect("a leader");
    let before = w.core(leader).replica().tables.revision;
    w.propose(leader, command);
    w.until("it is applied", |w| w.core(leader).replica().tables.revision > before);
    let core = w.core(leader);
    core.cluster_replica().tables.revision < core.replica().tables.revision
}

#[test]
fn only_commands_about_objects_alone_are_late() {
    let mut w = World::cluster(71, 3);
    w.run(ms(300));
    // Once in 100 ms one is not.
    let late = (0..10).filter(|n| is_late(&mut w, lease(format!("l{n}")))).count();
    assert!(late > 5, "{late} of 10");
    let both =
        |n: u32| Command { changes: [lease(format!("b{n}")).changes, label("a", "1").changes].concat(), ..command() };
    for n in 0..5 {
        assert!(!is_late(&mut w, label("a", "1")), "also if it was repeated");
        assert!(!is_late(&mut w, command()), "without a change");
        assert!(!is_late(&mut w, both(n)), "an object and something else");
        is_late(&mut w, lease(format!("m{n}")));
    }
}

#[test]
fn installed_snapshot_is_in_both_replicas_at_once() {
    let mut w = World::seeded(72);
    (w.config.snapshot_entries, w.config.keep_entries, w.config.keep_time) = (50, 10, ms(0));
    w.grow(3);
    w.run(ms(300));
    w.crash(3, 0);
    for n in 0..200 {
        let leader = w.leading().expect("a leader");
        let ask = w.propose(leader, lease(format!("l{}", n % 9)));
        w.applied(ask);
    }
    // What is only due, and not news, is never shown.
    w.config.publish_every = ms(60_000);
    w.restart(3);
    let installed = |w: &World| {
        let newest = w.nodes[&3].notices.iter().rev().find_map(|(_, notice)| match notice {
            Notice::Installed { index } => Some(*index),
            _ => None,
        });
        newest.unwrap_or_default()
    };
    // It installed one when it became a member, too.
    let before = installed(&w);
    w.until("it installs a snapshot", |w| installed(w) > before);
    let core = w.core(3);
    assert!(core.replica().tables.revision.0 > 100);
    assert_eq!(core.cluster_replica().tables.revision, core.replica().tables.revision);
}
