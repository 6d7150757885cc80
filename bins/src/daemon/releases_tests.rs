use super::*;

const OWN: &str = "9.0.0";

fn shell(directory: &str, (releases, files): (&Releases, &Slot<Files>)) -> ReleasesShell {
    ReleasesShell::new(directory.into(), OWN.to_owned(), releases.clone(), files.clone())
}

fn of(releases: &Releases, scope: &str) -> String {
    let found = releases.declared().of_scope(scope, &OWN.parse().unwrap());
    found.map_or_else(|| "in doubt".to_owned(), |release| release.to_string())
}

/// DECLARE-2.
#[test]
fn every_scope_is_in_doubt_until_the_directory_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let (_spec, releases) = spec(folder.path().to_owned(), OWN.to_owned());
    assert_eq!(of(&releases, "shop"), "in doubt");
    let mut shell = shell("", (&releases, &Slot::new()));
    shell.take(look(&folder.path().join("missing"), &Files::new()));
    assert_eq!((of(&releases, "shop").as_str(), &shell.view()["incomplete"]), (OWN, &false.into()));
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    shell.take(look(&file, &Files::new()));
    assert_eq!((of(&releases, "shop").as_str(), &shell.view()["incomplete"]), ("in doubt", &true.into()));
}

/// DECLARE-1 and DECLARE-2, also across a crash.
#[test]
fn unreadable_directory_leaves_what_it_declared() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("shop.toml"), "scope = \"shop\"\nrelease = \"1.2.0\"\n").unwrap();
    let shared = (&Releases::default(), &Slot::new());
    let mut first = shell("", shared);
    first.take(look(folder.path(), &Files::new()));
    let both = || (of(shared.0, "shop"), of(shared.0, "mail"));
    let known = |shop: &str, mail: &str| (shop.to_owned(), mail.to_owned());
    assert_eq!(both(), known("1.2.0", OWN));
    first.take(Err("stale file handle".to_owned()));
    assert_eq!(both(), known("1.2.0", "in doubt"));
    assert_eq!((&first.view()["incomplete"], &first.view()["looks"]), (&true.into(), &2.into()));
    drop(first);
    // A successor has the files: what one declared stays although it cannot be used now.
    std::fs::write(folder.path().join("shop.toml"), "scope = ").unwrap();
    let mut second = shell("", shared);
    let files = second.files.get().unwrap_or_default();
    second.take(look(folder.path(), &files));
    assert_eq!(both(), known("1.2.0", OWN));
    assert_eq!(second.view()["faulty"], json!(["shop"]));
}

/// DECLARE-2.
#[test]
fn look_that_does_not_end_leaves_every_scope_in_doubt() {
    let releases = Releases::default();
    let mut shell = shell("/etc/releases", (&releases, &Slot::new()));
    shell.looks.begin();
    shell.take(Ok(Files::new()));
    shell.overdue(1);
    assert_eq!((of(&releases, "shop").as_str(), &shell.view()["faults"]), (OWN, &json!([])), "it has ended");
    shell.looks.begin();
    shell.overdue(2);
    assert_eq!(of(&releases, "shop"), "in doubt");
    let faults = json!(["/etc/releases was not read within 10 s; its file system may hang"]);
    assert_eq!((&shell.view()["faults"], &shell.view()["looks"]), (&faults, &1.into()));
    shell.take(Ok(Files::new()));
    assert_eq!((of(&releases, "shop").as_str(), &shell.view()["faults"]), (OWN, &json!([])));
}
