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
        let (declared, faults) = declared(&self.1);
        let all: Vec<_> = declared.iter().map(|(scope, release)| format!("{scope} {release}")).collect();
        (all.join(", "), faults)
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
        (&"#".repeat(5000), "more than 4096 bytes"),
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
