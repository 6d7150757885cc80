//! The Debian package, built from the programs under test.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::MUSTERD;

/// Runs a program to its successful end.
#[track_caller]
fn run(command: &mut Command) -> String {
    let ended = command.output().expect("it is installed");
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&ended.stderr));
    text
}

fn build(out: &Path) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/deb/build");
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

#[test]
#[ignore = "full tier"]
fn debian_package_holds_all_and_starts_nothing() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        println!("dpkg-deb is not installed: no package was built");
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let package = build(&dir.path().join("a"));
    let again = build(&dir.path().join("b"));
    let bytes = |path: &Path| std::fs::read(path).expect("it was built");
    assert!(bytes(&package) == bytes(&again), "the same programs give the same bytes");

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
        let starts = |line: &&str| line.trim_start().starts_with("systemctl") && line.contains("start");
        assert_eq!(script(name).lines().find(starts), None, "{name}");
    }
    assert!(script("conffiles").lines().any(|line| line == "/etc/muster/musterd.toml"));
}
