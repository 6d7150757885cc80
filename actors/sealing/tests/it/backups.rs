//! Backups under the unlock key.

use muster_sealing::{UnlockKey, WrongBackup, WrongSeal, open_backup, seal_backup};

#[test]
fn backup_opens_with_its_key_alone() {
    let (key, other) = (UnlockKey::new(), UnlockKey::new());
    for bytes in [0, 1, 64 * 1024, 200_000] {
        let text: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        let sealed = seal_backup(&key, &text);
        assert_eq!(open_backup(&key, &sealed), Ok(text.clone()));
        assert_eq!(open_backup(&other, &sealed), Err(WrongBackup::Key));
        assert_ne!(sealed, seal_backup(&key, &text), "each has a salt of its own");
    }
}

#[test]
fn altered_backup_differs_from_wrong_key() {
    let key = UnlockKey::new();
    let sealed = seal_backup(&key, &[7; 100_000]);
    // The salt, and what tells keys apart: a key that would match them is another one.
    for at in [0, 39] {
        let mut altered = sealed.clone();
        altered[at] ^= 1;
        assert_eq!(open_backup(&key, &altered), Err(WrongBackup::Key), "byte {at}");
    }
    for at in (40..sealed.len()).step_by(997) {
        let mut altered = sealed.clone();
        altered[at] ^= 1;
        let refused = open_backup(&key, &altered);
        assert!(matches!(refused, Err(WrongBackup::Seal(_))), "byte {at}: {refused:?}");
    }
    for end in [0, 31, 39, 40, 70, sealed.len() - 1] {
        assert!(open_backup(&key, &sealed[..end]).is_err(), "{end} bytes");
    }
    assert_eq!(open_backup(&key, &sealed[..32]), Err(WrongBackup::Seal(WrongSeal::Short)));
}
