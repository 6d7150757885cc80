use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};

use muster_messages::CommandLimits;

use super::*;

const PASSWD_TEXT: &str = "root:x:0:0:root:/root:/bin/sh\nmigrate:x:990:991:Migrations:/opt/shop:/bin/false\n";
const GROUP_TEXT: &str = "root:x:0:\nmigrate:x:991:\ndb:x:70:postgres,migrate\nlogs:x:71:migrated\n";

#[test]
fn user_and_its_groups_are_read() {
    let found = user_in(PASSWD_TEXT, GROUP_TEXT, "migrate").unwrap();
    let expected = UserRecord { uid: 990, gid: 991, groups: vec![991, 70], home: "/opt/shop".to_owned() };
    assert_eq!(found, expected);
    assert_eq!((user_in(PASSWD_TEXT, "", "migrat"), user_in("migrate:x:many:1::/:", "", "migrate")), (None, None));
}

#[test]
fn id_that_would_change_nothing_is_no_user_or_group() {
    for passwd in ["a:x:4294967295:1::/:/bin/sh", "a:x:1:4294967295::/:/bin/sh"] {
        assert_eq!(user_in(passwd, "", "a"), None, "{passwd}");
    }
    assert!(names_in("a:x:4294967295:1::/:/bin/sh", u32::MAX).is_empty());
    let found = user_in("a:x:4294967294:1::/:/bin/sh", "all:x:4294967295:a\n", "a").unwrap();
    assert_eq!((found.uid, found.groups), (4_294_967_294, vec![1]));
}

/// The user of the first line.
fn own_of(passwd: &str) -> OwnUser {
    let uid = passwd.split(':').nth(2).unwrap().parse().unwrap();
    OwnUser { uid, names: names_in(passwd, uid) }
}

#[test]
fn own_user_may_have_several_names() {
    let own = own_of("shop:x:990:990::/:\nroot:x:0:0::/:\nbroken\nalias:x:990:991::/:\n");
    assert_eq!(own.names, ["alias".to_owned(), "shop".to_owned()].into());
}

/// RUN-8.
#[test]
fn root_with_a_list_of_users_runs_commands_only_as_those() {
    let users = |names: &[&str]| Reconcilers {
        users: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Reconcilers::default()
    };
    let as_user = |name: Option<&str>| CommandOptions { user: name.map(str::to_owned), ..CommandOptions::default() };
    let [root, other] = ["root:x:0:", "shop:x:990:"].map(own_of);
    // Who runs it, whom its configuration lists, whom the definition names, and whether that is permitted.
    for (own, listed, named, permitted) in [
        (&root, &[][..], None, true),
        (&root, &[], Some("root"), true),
        (&root, &["migrate"], None, false),
        (&root, &["migrate"], Some("root"), false),
        (&root, &["migrate"], Some("migrate"), true),
        (&root, &["migrate", "root"], None, true),
        (&root, &["migrate", "root"], Some("root"), true),
        (&other, &["migrate"], None, true),
        (&other, &["migrate"], Some("root"), false),
        (&other, &["migrate"], Some("shop"), true),
        (&other, &[], Some("shop"), true),
        (&other, &[], Some("migrate"), false),
    ] {
        let found = permits(own, &users(listed), &as_user(named));
        assert_eq!(found.is_ok(), permitted, "{own:?} {listed:?} {named:?} {found:?}");
    }
    let refused = permits(&root, &users(&["migrate"]), &as_user(None)).unwrap_err();
    assert!(refused.contains("as root") && refused.contains("[reconcilers] users"), "{refused}");
}

#[test]
fn environment_is_lines_of_names_and_values() {
    let text = "# the shop\n\nDATABASE=postgres://a=b\n  # more\nEMPTY=\nDATABASE=later\n";
    let expected = [("DATABASE", "postgres://a=b"), ("EMPTY", ""), ("DATABASE", "later")];
    assert_eq!(environment_in(text).unwrap(), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    for (text, why) in [
        ("A=1\nsecret", "line 2 is not NAME=VALUE"),
        ("1A=secret", "line 1 is not NAME=VALUE"),
        ("A B=secret", "line 1"),
        ("MUSTER_SOCKET=secret", "set by Muster"),
    ] {
        let refused = environment_in(text).unwrap_err();
        assert!(refused.contains(why) && !refused.contains("secret"), "{refused}");
    }
}

#[test]
fn environment_file_must_be_private() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("env"), folder.path().join("link"));
    let mode = |mode| std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    assert!(read_environment(&file).unwrap_err().contains("missing on this node"));
    std::fs::write(&file, "A=1\n").unwrap();
    symlink(&file, &link).unwrap();
    for open in [0o640, 0o604, 0o660] {
        mode(open);
        assert!(read_environment(&file).unwrap_err().contains("chmod 0600"), "{open:o}");
    }
    mode(0o600);
    assert_eq!(read_environment(&file).unwrap(), [("A".to_owned(), "1".to_owned())]);
    assert!(read_environment(&link).unwrap_err().contains("symbolic link"));
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for other in [folder.path(), &pipe] {
        assert!(read_environment(other).unwrap_err().contains("not a regular file"));
    }
    std::fs::write(&file, "A=1\n".repeat(20_000)).unwrap();
    assert!(read_environment(&file).unwrap_err().contains("larger than 65536 bytes"));
}

/// RUN-8.
#[test]
fn only_configured_users_and_files_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("env");
    std::fs::write(&file, "A=1\n").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let file = file.to_str().unwrap().to_owned();
    let (none, own_user) = (Reconcilers::default(), OwnUser::of_this_process());
    let files = CommandOptions { env_files: vec![file.clone()], ..CommandOptions::default() };
    assert!(set_up(&own_user, &none, &files).unwrap_err().contains("[reconcilers] env_files"));
    let listed = Reconcilers { env_files: vec![file], ..Reconcilers::default() };
    assert_eq!(set_up(&own_user, &listed, &files).unwrap().environment.len(), 1);
    // The user that runs this is always allowed: nothing changes.
    let passwd = std::fs::read_to_string(PASSWD).unwrap();
    let own = rustix::process::geteuid().as_raw();
    let named = |id: u32| {
        let mut lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
        lines.find(|fields| fields.get(2) == Some(&id.to_string().as_str())).map(|fields| fields[0].to_owned())
    };
    let as_user = |name: Option<String>| CommandOptions { user: name, ..CommandOptions::default() };
    if let Some(own) = named(own) {
        assert_eq!(set_up(&own_user, &none, &as_user(Some(own))), Ok(CommandSetup::default()));
    }
    let other = named(if own == 65534 { 0 } else { 65534 }).expect("`nobody` or `root` exists");
    let refused = set_up(&own_user, &none, &as_user(Some(other.clone()))).unwrap_err();
    assert!(refused.contains("[reconcilers] users"), "{refused}");
    let listed = Reconcilers { users: vec![other.clone(), "nobody-at-all".to_owned()], ..Reconcilers::default() };
    let allowed = set_up(&own_user, &listed, &as_user(Some(other.clone())));
    match may_become_another_user() {
        true => assert_eq!(allowed.unwrap().attributes.user.unwrap().name, other),
        false => assert!(allowed.unwrap_err().contains("CAP_SETUID")),
    }
    let unknown = set_up(&own_user, &listed, &as_user(Some("nobody-at-all".to_owned()))).unwrap_err();
    assert!(unknown.contains("no user nobody-at-all"), "{unknown}");
}

#[test]
fn directory_and_limits_are_taken_over() {
    let (folder, own_user) = (tempfile::tempdir().unwrap(), OwnUser::of_this_process());
    let directory = folder.path().to_str().unwrap().to_owned();
    let limits = CommandLimits { open_files: Some(64), ..CommandLimits::default() };
    let options = CommandOptions { directory: Some(directory.clone()), limits, ..CommandOptions::default() };
    let attributes = set_up(&own_user, &Reconcilers::default(), &options).unwrap().attributes;
    assert_eq!(attributes, Attributes { user: None, directory: Some(directory.clone().into()), limits });
    let missing = CommandOptions { directory: Some(format!("{directory}/none")), ..CommandOptions::default() };
    let refused = set_up(&own_user, &Reconcilers::default(), &missing).unwrap_err();
    assert!(refused.contains("/none") && refused.contains("create it here"), "{refused}");
}
