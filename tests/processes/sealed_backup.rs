//! A backup that was made while autolock was on: what a reader without the key sees of it, and how it is restored.

use muster_sealing::UnlockKey;
use serde_json::Value;

use crate::harness::World;
use crate::recovery::at_once;
use crate::sealed_disk::{key_lines, showing, token_secrets};

/// BACKUP-2.
#[test]
fn backup_with_autolock_opens_with_the_unlock_key_alone() {
    let mut world = World::with(1, 0);
    let files = world.folder().join("backups");
    std::fs::create_dir(&files).expect("the world's folder is writable");
    let path = |name: &str| files.join(name).to_str().expect("the path is text").to_owned();
    let (clear, sealed) = (path("clear"), path("sealed"));
    world.muster(&["backup", &clear]).ended(0);
    let mut secrets = token_secrets(&world);
    secrets.extend(key_lines(&String::from_utf8_lossy(&std::fs::read(&clear).expect("a backup"))));
    assert_eq!(showing(&files, &secrets), std::slice::from_ref(&clear), "the search finds existing secrets");
    let earlier = world.folder().join("earlier").to_str().expect("the path is text").to_owned();
    std::fs::rename(&clear, &earlier).expect("it is there");

    let on = world.muster(&["autolock", "on", "--wait=60s"]).ended(0).json();
    let key = on["key"].as_str().expect("the answer shows the key").to_owned();
    secrets.push(key.clone());
    let written = world.muster(&["backup", &sealed]).ended(0).json();
    assert_eq!((&written["format"], &written["unlock_version"]), (&"muster-backup/2".into(), &on["version"]));
    assert_eq!(showing(&files, &secrets), Vec::<String>::new());

    world.node("n1").kill();
    let file = |name: &str, text: &str| {
        let path = world.folder().join(name);
        std::fs::write(&path, text).expect("the world's folder is writable");
        path.to_str().expect("a path").to_owned()
    };
    let (right, wrong) = (file("right", &key), file("wrong", &UnlockKey::new().to_text()));
    let restore = ["--restore", &sealed, "--name", "m1"];
    let version = on["version"].to_string();
    for (flags, reason) in [
        (vec![], "--unlock-key-file"),
        (vec!["--unlock-key-file", &wrong], "not the one that the backup was sealed under"),
        (vec!["--unlock-key-file", "/nowhere/key"], "No such file"),
    ] {
        let (code, _, said) = at_once(&world.folder().join("m1"), &[&restore[..], &flags].concat());
        assert!(code == Some(6) && said.contains(reason) && said.contains(&format!("version {version}")), "{said}");
        assert!(!said.contains(&key), "{said}");
    }
    // One in clear is not taken for it.
    let replaced = ["--restore", &earlier, "--name", "m1", "--unlock-key-file", &right];
    let (code, _, said) = at_once(&world.folder().join("m1"), &replaced);
    assert!(code == Some(6) && said.contains("is not sealed") && !said.contains(&key), "{said}");
    world.node("m1").start(&[&restore[..2], &["--unlock-key-file", &right]].concat()).ready();
    world.muster_at("m1", &["recovery", "open"]).ended(0);
    // The restored cluster has the key, too.
    let restored: Value = world.muster_at("m1", &["autolock", "key"]).ended(0).json();
    assert_eq!(restored["key"], key.as_str());
}
