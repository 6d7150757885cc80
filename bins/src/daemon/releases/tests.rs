use super::*;

struct Directory(tempfile::TempDir, Files);

impl Directory {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap(), Files::new())
    }
    fn write(&mut self, name: &str, text: &str) -> (String, Vec<String>) {
        std::fs::write(self.0.path().join(name), text).unwrap();
        self.look()
    }
    /// Everything that is declared, and every fault.
    fn look(&mut self) -> (String, Vec<String>) {
        self.1 = look(self.0.path(), &self.1).unwrap();
        let found = declared(&self.1);
        let text = |of: &Option<Release>| of.as_ref().map_or("-".to_owned(), Release::to_string);
        let all: Vec<_> = found.declared.scopes.iter().map(|(scope, of)| format!("{scope} {}", text(of))).collect();
        (all.join(", "), found.faults)
    }
}

#[test]
fn each_file_declares_the_release_of_one_scope() {
    let mut directory = Directory::new();
    assert_eq!(look(&directory.0.path().join("missing"), &Files::new()), Ok(Files::new()));
    let (all, faults) = directory.write("shop.toml", "scope = \"shop\"\nrelease = \"1.2.0\"\n");
    assert_eq!((all.as_str(), faults.len()), ("shop 1.2.0", 0));
    directory.write("mail.toml", "scope = \"mail\"\nrelease = \"7.0.0\"\n");
    directory.write(".new.toml", "scope = ");
    let (all, faults) = directory.write("readme", "scope = ");
    assert_eq!((all.as_str(), faults.len()), ("mail 7.0.0, shop 1.2.0", 0));
    std::fs::remove_file(directory.0.path().join("mail.toml")).unwrap();
    assert_eq!(directory.look().0, "shop 1.2.0");
    let (all, faults) = directory.write("mail.toml", "scope = \"mail\"\nrelease = \"none\"\n");
    assert_eq!((all.as_str(), faults.len()), ("mail -, shop 1.2.0", 0), "nothing of mail is here");
}

/// DECLARE-1.
#[test]
fn a_bad_file_leaves_what_it_declared_before() {
    let mut directory = Directory::new();
    directory.write("shop.toml", "scope = \"shop\"\nrelease = \"1.2.0\"\n");
    for (bad, why) in [
        ("scope = \"shop\"\nrelease = \"1.3\"\n", "MAJOR.MINOR.PATCH"),
        ("scope = \"shop\"\nrelease = \"1.3.0+b\"\n", "tell two builds of one release apart"),
        ("scope = \"shop\"\n", "release"),
        ("scope = \"Shop!\"\nrelease = \"1.3.0\"\n", "a scope is"),
        ("scope = \"muster\"\nrelease = \"1.3.0\"\n", "the managers themselves"),
        ("scope = \"shop\"\nrelease = \"1.3.0\"\nrelaese = \"\"\n", "relaese"),
        (&"#".repeat(5000), "larger than 4096 bytes"),
    ] {
        let (all, faults) = directory.write("shop.toml", bad);
        assert_eq!(all, "shop 1.2.0", "{bad}");
        assert!(faults.len() == 1 && faults[0].contains(why) && faults[0].contains("stays at 1.2.0"), "{faults:?}");
    }
    let (all, faults) = directory.write("shop.toml", "scope = \"shop\"\nrelease = \"1.3.0\"\n");
    assert_eq!((all.as_str(), faults.len()), ("shop 1.3.0", 0));
}

#[test]
fn of_two_files_for_one_scope_the_first_counts() {
    let mut directory = Directory::new();
    directory.write("b.toml", "scope = \"shop\"\nrelease = \"2.0.0\"\n");
    let (all, faults) = directory.write("a.toml", "scope = \"shop\"\nrelease = \"1.0.0\"\n");
    assert_eq!(all, "shop 1.0.0");
    assert_eq!(faults, ["b.toml: a.toml declares scope shop, too, and counts"]);
}

/// DECLARE-2: the process's own release is not what a declaration that was never read stands for.
#[test]
fn nothing_is_run_for_a_file_that_was_never_read() {
    let mut directory = Directory::new();
    let (all, faults) = directory.write("shop.toml", "scope = ");
    assert_eq!(all, "shop -");
    assert!(faults[0].contains("nothing of scope shop is run here"), "{faults:?}");
    assert_eq!(declared(&directory.1).faulty, ["shop".to_owned()].into());
    // Beside a usable one for the scope, in whichever file.
    let (all, _) = directory.write("a.toml", "scope = \"shop\"\nrelease = \"1.2.0\"\n");
    assert_eq!(all, "shop 1.2.0");
    std::fs::remove_file(directory.0.path().join("shop.toml")).unwrap();
    assert_eq!(directory.look(), ("shop 1.2.0".to_owned(), vec![]));
}

/// DECLARE-1. A link to itself can be neither inspected nor read, also by root.
#[test]
fn only_a_file_that_is_gone_withdraws_its_declaration() {
    let mut directory = Directory::new();
    directory.write("shop.toml", "scope = \"shop\"\nrelease = \"1.2.0\"\n");
    let path = directory.0.path().join("shop.toml");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("shop.toml", &path).unwrap();
    let (all, faults) = directory.look();
    assert!(all == "shop 1.2.0" && faults[0].contains("stays at 1.2.0"), "{all} {faults:?}");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(directory.look(), (String::new(), vec![]));
}

#[test]
fn a_pipe_does_not_block_the_others() {
    let mut directory = Directory::new();
    let pipe = directory.0.path().join("a.toml");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let (all, faults) = directory.write("shop.toml", "scope = \"shop\"\nrelease = \"1.2.0\"\n");
    assert!(all == "a -, shop 1.2.0" && faults[0].contains("not a regular file"), "{all} {faults:?}");
}
