//! The state in a file.

use muster_messages::*;
use muster_sealing::UnlockKey;
use muster_store::backup::{BadBackup, decode, decode_sealed, encode, encode_for_file, verify};

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
    let newer = String::from_utf8_lossy(&whole).replace("muster-backup/1", "muster-backup/3");
    assert_eq!(decode(newer.as_bytes()).unwrap_err(), BadBackup::Format("muster-backup/3".to_owned()));
    let unsealed = String::from_utf8_lossy(&whole).replace("muster-backup/1", "muster-backup/2");
    assert_eq!(decode(unsealed.as_bytes()).unwrap_err(), BadBackup::Foreign);
    assert_eq!(decode(b"{}\n").unwrap_err(), BadBackup::Foreign);
    assert_eq!(encode(&Tables::default(), Term(1), T0).unwrap_err(), BadBackup::Empty);
}

/// A cluster with autolock, and its key.
fn locked() -> (World, UnlockKey) {
    let mut world = World::founded_at(IDENTITY_LEVEL);
    let key = UnlockKey::new();
    let text = Secret::new(key.to_text().as_str());
    world.must(command([Change::Autolock(Box::new(AutolockChange::Enable { key: text }))]));
    (world, key)
}

/// BACKUP-2.
#[test]
fn backup_is_sealed_while_autolock_is_on() {
    let (world, key) = locked();
    let backup = encode_for_file(&world.tables, Term(4), T0).unwrap();
    let version = world.tables.autolock.version;
    let head = verify(&backup).unwrap();
    assert_eq!((head.format.as_str(), head.unlock_version), ("muster-backup/2", Some(version)));
    assert_eq!(decode(&backup).unwrap_err(), BadBackup::Sealed(version));
    assert_eq!(decode_sealed(&backup, &UnlockKey::new()).unwrap_err(), BadBackup::WrongKey(version));
    let (inner, tables) = decode_sealed(&backup, &key).unwrap();
    assert_eq!((tables, inner.revision, inner.unlock_version), (world.tables.clone(), head.revision, None));

    // Nothing of it is in clear: no 12 bytes of the state, and so of no key or token, are in the file.
    let clear = encode(&world.tables, Term(4), T0).unwrap();
    let data = |file: &[u8]| file.splitn(2, |byte| *byte == b'\n').nth(1).unwrap().to_vec();
    let (clear, sealed) = (data(&clear), data(&backup));
    let secrets = clear.windows(12).step_by(5).filter(|part| part.iter().any(|byte| *byte != part[0]));
    for part in secrets {
        assert!(!sealed.windows(12).any(|found| found == part), "{part:?}");
    }
    // One in clear proves nothing about its author.
    assert_eq!(decode_sealed(&encode(&world.tables, Term(4), T0).unwrap(), &key).unwrap_err(), BadBackup::NotSealed);
    let off = World::founded();
    assert_eq!(encode_for_file(&off.tables, Term(4), T0).unwrap(), encode(&off.tables, Term(4), T0).unwrap());
}

#[test]
fn damaged_sealed_backup_is_never_accepted() {
    let (world, key) = locked();
    let whole = encode_for_file(&world.tables, Term(4), T0).unwrap();
    let line = whole.iter().position(|byte| *byte == b'\n').unwrap();
    for at in (line + 1..whole.len()).step_by(7) {
        let mut rotten = whole.clone();
        rotten[at] ^= 0x10;
        assert_eq!(verify(&rotten).unwrap_err(), BadBackup::Digest, "byte {at}");
        assert_eq!(decode_sealed(&rotten, &key).unwrap_err(), BadBackup::Digest, "byte {at}");
    }
    assert!(matches!(verify(&whole[..whole.len() - 1]).unwrap_err(), BadBackup::Truncated { .. }));
    // A line that names another cluster than the sealed state.
    let text = String::from_utf8(whole[..line].to_vec()).unwrap();
    let other = text.replace(cluster().id.as_str(), ClusterId::from_entropy(99).as_str());
    assert_ne!(other, text);
    let renamed = [other.as_bytes(), &whole[line..]].concat();
    assert_eq!(decode_sealed(&renamed, &key).unwrap_err(), BadBackup::Forged);
}
