//! The state in a file.

use muster_messages::*;
use muster_store::backup::{BadBackup, decode, encode};

use crate::world::*;

#[test]
fn backup_holds_the_state_and_describes_itself() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    world.must(acquire("leader", "me", 7));
    let backup = encode(&world.tables, Term(4), T0).unwrap();
    let (head, tables) = decode(&backup).unwrap();
    assert_eq!(tables, world.tables);
    assert_eq!((head.cluster, head.revision, head.term), (cluster().id, world.tables.revision, Term(4)));
    let line = String::from_utf8_lossy(&backup).lines().next().unwrap().to_owned();
    assert!(!line.contains("key") && line.contains("muster-backup/1"), "{line}");
}

#[test]
fn damaged_backup_is_never_accepted() {
    let whole = encode(&World::founded().tables, Term(1), T0).unwrap();
    let line = whole.iter().position(|byte| *byte == b'\n').unwrap();
    for at in (line + 1..whole.len()).step_by(7) {
        let mut rotten = whole.clone();
        rotten[at] ^= 0x10;
        assert_eq!(decode(&rotten).unwrap_err(), BadBackup::Digest, "byte {at}");
    }
    for end in (0..whole.len()).step_by(11) {
        let truncated = decode(&whole[..end]).unwrap_err();
        assert!(matches!(truncated, BadBackup::Foreign | BadBackup::Truncated { .. }), "{truncated} at {end}");
    }
    let longer = [whole.as_slice(), b"more"].concat();
    assert!(matches!(decode(&longer).unwrap_err(), BadBackup::Truncated { .. }));
    let newer = String::from_utf8_lossy(&whole).replace("muster-backup/1", "muster-backup/2");
    assert_eq!(decode(newer.as_bytes()).unwrap_err(), BadBackup::Format("muster-backup/2".to_owned()));
    assert_eq!(decode(b"{}\n").unwrap_err(), BadBackup::Foreign);
    assert_eq!(encode(&Tables::default(), Term(1), T0).unwrap_err(), BadBackup::Empty);
}
