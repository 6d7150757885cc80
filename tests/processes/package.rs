//! The packages, built from the programs under test, and installed below a folder: nothing here touches this machine.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_messages::Role;

use crate::harness::{MUSTERD, World};

/// Runs a program to its successful end.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let ended = command.output().expect("it is installed");
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&ended.stderr));
    text
}

/// Whether a line of a script starts a daemon. Texts and comments speak of it.
fn starts(line: &&str) -> bool {
    let command = line.trim_start();
    command.contains("start") && !command.starts_with("echo ") && !command.starts_with('#')
}

/// Whether the program can be started; prints that nothing is checked with it otherwise.
pub fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("{program} is not installed: nothing was checked with it");
    }
    found
}

/// Builds the package of this kind (`deb`, `rpm`) into a new folder, and returns its path.
pub fn build(kind: &str, out: &Path) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(kind).join("build");
    let programs = Path::new(MUSTERD).parent().expect("a program is in a directory");
    // Uncompressed: what is tested is its content.
    // The builder's mask does not change the package's modes.
    run(Command::new("sh")
        .args(["-c", "umask 077; exec \"$0\" \"$@\""])
        .args([script.as_path(), programs, out])
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none")
        .env("SOURCE_DATE_EPOCH", "1700000000"));
    let mut packages = std::fs::read_dir(out).expect("it was created").map(|entry| entry.expect("readable").path());
    packages.next().expect("a package")
}

/// A11. The package of these programs may have grown by a tenth since its size was written down.
fn has_not_grown(package: &Path) {
    if !cfg!(debug_assertions) {
        println!("the programs are not those whose size is written down: it was not compared");
        return;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/deb/sizes");
    let text = std::fs::read_to_string(&file).expect("it is there");
    let line = text.lines().find(|line| line.starts_with("debug ")).expect("it has the size of this package");
    let written: u64 = line["debug ".len()..].parse().expect("a number of bytes");
    let size = std::fs::metadata(package).expect("it was built").len();
    println!("the package has {size} bytes, {written} are written down");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, text.replace(line, &format!("debug {size}"))).expect("the file can be written");
    } else {
        let text = "what does it ship now? If that is meant: UPDATE=1";
        assert!(size <= written + written / 10, "the package has grown from {written} to {size} bytes: {text}");
    }
}

#[test]
#[ignore = "full tier"]
fn debian_package_holds_all_and_starts_nothing() {
    if !is_installed("dpkg-deb") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let package = build("deb", &dir.path().join("a"));
    let again = build("deb", &dir.path().join("b"));
    let bytes = |path: &Path| std::fs::read(path).expect("it was built");
    assert!(bytes(&package) == bytes(&again), "the same programs give the same bytes");
    has_not_grown(&package);

    let (tree, control) = (dir.path().join("tree"), dir.path().join("control"));
    run(Command::new("dpkg-deb").arg("-x").args([&package, &tree]));
    run(Command::new("dpkg-deb").arg("-e").args([&package, &control]));
    for (path, mode) in [
        ("usr/bin", 0o755),
        ("usr/share/doc/muster/examples", 0o755),
        ("etc/muster", 0o755), // closed to others by postinst, which knows the group
        ("usr/bin/musterd", 0o755),
        ("usr/bin/muster", 0o755),
        ("usr/lib/systemd/system/musterd.service", 0o644),
        ("usr/lib/sysusers.d/muster.conf", 0o644),
        ("etc/muster/musterd.toml", 0o640),
        ("usr/share/man/man1/muster-node-promote.1.gz", 0o644),
        ("usr/share/man/man8/musterd.8.gz", 0o644),
        ("usr/share/bash-completion/completions/muster", 0o644),
    ] {
        let found = std::fs::metadata(tree.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(found.permissions().mode() & 0o777, mode, "{path}");
    }
    assert!(run(Command::new(tree.join("usr/bin/musterd")).arg("--version")).starts_with("musterd "));
    // What it ships as its configuration is one that can be used.
    let mut check = Command::new(tree.join("usr/bin/musterd"));
    check.arg("--config").arg(tree.join("etc/muster/musterd.toml")).arg("--data-dir").arg(dir.path().join("data"));
    run(check.args(["--listen", "127.0.0.1:0", "--check-config"]));
    let script = |name: &str| std::fs::read_to_string(control.join(name)).expect("a script");
    for name in ["postinst", "prerm", "postrm"] {
        run(Command::new("sh").arg("-n").arg(control.join(name)));
        assert_eq!(script(name).lines().find(starts), None, "{name}");
    }
    assert!(script("conffiles").lines().any(|line| line == "/etc/muster/musterd.toml"));
    if is_installed("lintian") {
        // Not compressed: see `build`.
        let tarballs = "uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball";
        let mut lintian = Command::new("lintian");
        lintian.args(["--allow-root", "--suppress-tags", tarballs, "--fail-on", "error,warning"]).arg(&package);
        assert_eq!(run(&mut lintian), "");
    }
}

/// A system below a folder, with no other package.
struct Root(PathBuf);

impl Root {
    fn new(folder: &Path) -> Self {
        let state = folder.join("var/lib/dpkg");
        for folder in ["info", "updates", "triggers"] {
            std::fs::create_dir_all(state.join(folder)).expect("it is ours");
        }
        std::fs::create_dir_all(folder.join("etc")).expect("it is ours");
        for file in ["status", "available"] {
            std::fs::write(state.join(file), "").expect("it is ours");
        }
        Self(folder.to_owned())
    }

    /// The scripts run outside of it, with DPKG_ROOT: they have no shell there.
    #[track_caller]
    fn dpkg(&self, action: &[&str]) -> String {
        let mut dpkg = Command::new("fakeroot");
        dpkg.arg("dpkg").arg(format!("--root={}", self.0.display()));
        let log = format!("--log={}", self.0.join("dpkg.log").display());
        dpkg.args(["--force-not-root", "--force-script-chrootless", "--force-depends", &log]);
        run(dpkg.args(action))
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn mode(&self, path: &str) -> u32 {
        std::fs::metadata(self.at(path)).unwrap_or_else(|why| panic!("{path}: {why}")).permissions().mode() & 0o777
    }
}

/// A11. A daemon that runs is left alone by an upgrade, and its data by a purge.
#[test]
#[ignore = "full tier"]
fn debian_package_is_installed_upgraded_and_purged() {
    if !is_installed("dpkg-deb") || !is_installed("fakeroot") || !is_installed("systemd-sysusers") {
        return;
    }
    let mut world = World::new();
    let package = build("deb", &world.folder().join("deb")).display().to_string();
    let root = Root::new(&world.folder().join("root"));
    let installed = root.dpkg(&["-i", &package]);
    assert!(installed.contains("nothing was started"), "{installed}");
    let users = std::fs::read_to_string(root.at("etc/passwd")).expect("it was written");
    assert!(users.contains("muster:") && users.contains("/usr/sbin/nologin"), "{users}");
    assert_eq!((root.mode("etc/muster"), root.mode("etc/muster/musterd.toml")), (0o750, 0o640));
    assert!(!root.at("etc/systemd").exists() && !root.at("var/lib/muster").exists(), "nothing is enabled or started");

    // The installed program leads a cluster of two.
    let mut command = Command::new(root.at("usr/bin/musterd"));
    let node = world.node("n1");
    command.args(node.arguments()).arg("--init");
    node.spawn(command).ready();
    world.join_more(1, Role::Manager);
    world.all_settled();
    let leader = world.leader_seen_by("n2");
    let pid = world.node("n1").pid();
    let config = root.at("etc/muster/musterd.toml");
    std::fs::write(&config, "# ours\n").expect("it is ours");
    std::fs::set_permissions(root.at("etc/muster"), PermissionsExt::from_mode(0o700)).expect("it is ours");
    root.dpkg(&["-i", &package]);
    assert_eq!(std::fs::read_to_string(&config).expect("it is kept"), "# ours\n");
    assert_eq!(root.mode("etc/muster"), 0o700, "an upgrade changes no mode that an operator chose");
    assert_eq!((world.node("n1").pid(), world.leader_seen_by("n2")), (pid, leader));
    let runs = std::fs::read_link(format!("/proc/{pid}/exe")).expect("it runs");
    assert!(runs.display().to_string().ends_with("(deleted)"), "the program was replaced: {}", runs.display());

    let (data, wants) = (root.at("var/lib/muster"), root.at("etc/systemd/system/multi-user.target.wants"));
    for folder in [&data, &wants] {
        std::fs::create_dir_all(folder).expect("it is ours");
    }
    let enabled = wants.join("musterd.service");
    std::os::unix::fs::symlink("/usr/lib/systemd/system/musterd.service", &enabled).expect("it is ours");
    root.dpkg(&["--remove", "muster"]);
    assert!(config.exists() && !root.at("usr/bin/musterd").exists());
    assert!(enabled.symlink_metadata().is_err(), "the next installation would start it at a boot");
    let purged = root.dpkg(&["--purge", "muster"]);
    assert!(purged.contains("/var/lib/muster is kept") && data.exists() && !config.exists(), "{purged}");
}

#[test]
#[ignore = "full tier"]
fn rpm_package_holds_all_and_starts_nothing() {
    if !is_installed("rpmbuild") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let package = build("rpm", &dir.path().join("a"));
    let again = build("rpm", &dir.path().join("b"));
    let bytes = |path: &Path| std::fs::read(path).expect("it was built");
    assert!(bytes(&package) == bytes(&again), "the same programs give the same bytes");
    let asked = |what: &[&str]| run(Command::new("rpm").arg("-qp").args(what).arg(&package));
    let files =
        asked(&["--qf", "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILEFLAGS:fflags}\n]"]);
    for line in [
        "/etc/muster drwxr-x--- root:muster",
        "/etc/muster/musterd.toml -rw-r----- root:muster cn",
        "/usr/bin/musterd -rwxr-xr-x root:root",
        "/usr/bin/muster -rwxr-xr-x root:root",
        "/usr/lib/systemd/system/musterd.service -rw-r--r-- root:root",
        "/usr/share/man/man8/musterd.8.gz -rw-r--r-- root:root",
    ] {
        assert!(files.lines().any(|found| found.trim_end().starts_with(line)), "{line}: {files}");
    }
    let scripts = asked(&["--scripts"]);
    assert_eq!(scripts.lines().find(starts), None, "{scripts}");
    assert!(scripts.contains("/var/lib/muster is kept"), "{scripts}");
}
