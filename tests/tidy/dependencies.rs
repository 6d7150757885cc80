//! This repository's dependencies, checked against `deny.toml`, and the permitted dependencies inside it.
//!
//! `cargo tree`, not `cargo metadata`: only the former lists the packages that are really built; optional ones
//! that are not enabled (above all `ring`) remain in the latter.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use super::licence::is_allowed;
use super::published::published;
use super::{Text, report, texts, top};

fn policy() -> toml::Table {
    let text = std::fs::read_to_string(top().join("deny.toml")).expect("deny.toml is there");
    text.parse().expect("deny.toml is TOML")
}

fn strings(value: &toml::Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// The licences that a package may have.
pub fn allowed_licences() -> Vec<String> {
    strings(&policy()["licenses"]["allow"])
}

/// The packages that `cargo tree` lists with these arguments: the name, the version, and what its format has for `field`.
pub fn cargo_tree(choice: &[&str], field: &str) -> BTreeSet<(String, String, String)> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--prefix", "none", "--format", &format!("{{p}}|{field}")])
        .args(choice)
        .current_dir(top())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo prints text");
    let package = |line: &str| {
        let (package, value) = line.split_once('|')?;
        let mut words = package.split_whitespace();
        // `(*)` marks a package that was listed before.
        let value = value.trim_end_matches(" (*)");
        Some((words.next()?.to_owned(), words.next()?.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(package).collect()
}

/// Name, version and licence of every package that is built on this platform, tests and build scripts included.
fn packages() -> BTreeSet<(String, String, String)> {
    let found = cargo_tree(&["--workspace", "-e", "normal,build,dev"], "{l}");
    assert!(found.len() > 50, "cargo tree lists {} packages only", found.len());
    found
}

#[test]
fn licences_are_allowed_and_banned_packages_absent() {
    let policy = policy();
    let allowed = allowed_licences();
    let banned = policy["bans"]["deny"].as_array().cloned().unwrap_or_default();
    let mut violations = Vec::new();
    for (name, version, licence) in packages() {
        if !is_allowed(&licence, &allowed) {
            violations.push(format!("{name} {version}: licence {licence:?}"));
        }
        if let Some(ban) = banned.iter().find(|ban| ban["crate"].as_str() == Some(&name)) {
            violations.push(format!("{name} {version} is banned: {}", ban["reason"]));
        }
    }
    report("deny.toml lists what this repository builds on", &violations);
}

#[test]
fn every_package_comes_from_the_default_registry() {
    let lock = std::fs::read_to_string(top().join("Cargo.lock")).expect("Cargo.lock is there");
    let sources: BTreeSet<&str> = lock.lines().filter_map(|line| line.strip_prefix("source = ")).collect();
    assert_eq!(sources.len(), 1, "{sources:?}");
    assert!(sources.iter().all(|source| source.starts_with("\"registry+")), "{sources:?}");
    assert_eq!(policy()["sources"]["unknown-registry"].as_str(), Some("deny"));
    assert_eq!(policy()["sources"]["unknown-git"].as_str(), Some("deny"));
}

#[test]
fn each_accepted_advisory_names_a_package_in_use_and_its_reason() {
    let lock = std::fs::read_to_string(top().join("Cargo.lock")).expect("Cargo.lock is there");
    let policy = policy();
    let accepted = policy["advisories"]["ignore"].as_array().cloned().unwrap_or_default();
    let mut violations = Vec::new();
    for entry in &accepted {
        let id = entry.get("id").and_then(toml::Value::as_str).unwrap_or("");
        let reason = entry.get("reason").and_then(toml::Value::as_str).unwrap_or("");
        // The reason begins with the package: `protobuf 2: …`.
        let package = reason.split([' ', ':']).next().unwrap_or("");
        if !id.starts_with("RUSTSEC-") || reason.len() < 40 || !lock.contains(&format!("name = \"{package}\"")) {
            violations.push(format!("{id}: {reason}"));
        }
    }
    report("an accepted advisory has an id, a package that is still in use, and a reason", &violations);
}

#[test]
fn messages_crate_depends_on_no_actor() {
    let manifest = std::fs::read_to_string(top().join("messages/Cargo.toml")).expect("messages has a manifest");
    let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
    let names: Vec<&String> = manifest["dependencies"].as_table().into_iter().flat_map(toml::Table::keys).collect();
    assert!(!names.iter().any(|name| name.starts_with("muster")), "{names:?}");
}

#[test]
fn every_package_inherits_workspace_lints() {
    let mut violations = Vec::new();
    for file in texts(|path| path.ends_with("Cargo.toml") && path != "Cargo.toml") {
        let manifest: toml::Table = file.text.parse().expect("a manifest is TOML");
        let obeys = manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
        if obeys != Some(true) {
            violations.push(file.path);
        }
    }
    report("lints are set once, for all packages", &violations);
}

/// The clients are a workspace of their own, whose lock file a change of a crate that they build on makes stale: only CI builds them.
#[test]
fn lock_file_of_the_clients_follows_the_crates() {
    let lock = std::fs::read_to_string(top().join("tests/clients/Cargo.lock")).expect("it is there");
    let lock: toml::Table = lock.parse().expect("a lock file is TOML");
    let locked: BTreeMap<&str, BTreeSet<&str>> = lock["package"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|package| {
            let dependencies = package.get("dependencies").and_then(toml::Value::as_array).into_iter().flatten();
            // `name`, or `name version` where there are several.
            let names = dependencies.filter_map(|entry| entry.as_str()?.split(' ').next());
            Some((package.get("name")?.as_str()?, names.collect()))
        })
        .collect();
    let mut violations = Vec::new();
    for file in texts(|path| path.ends_with("/Cargo.toml") && !path.starts_with("tests/clients/")) {
        let manifest: toml::Table = file.text.parse().expect("a manifest is TOML");
        let name = manifest["package"]["name"].as_str().expect("a package has a name");
        let Some(known) = locked.get(name) else { continue };
        for (dependency, how) in manifest.get("dependencies").and_then(toml::Value::as_table).into_iter().flatten() {
            let optional = how.get("optional").and_then(toml::Value::as_bool) == Some(true);
            if !optional && !known.contains(dependency.as_str()) {
                violations.push(format!("{name}: {dependency}"));
            }
        }
    }
    report(
        "`cargo fetch --manifest-path tests/clients/Cargo.toml` brings the lock file of the clients up to date",
        &violations,
    );
}

/// Dependencies required by a manifest but not named in its code: `(package, dependency)`, with the reason.
const NOT_NAMED_IN_CODE: [(&str, &str); 3] = [
    // The client of `kube` needs one of this crate's version features.
    ("actors/elector/Cargo.toml", "k8s-openapi"),
    // The mesh's tests include a file with hand-written frames by its path.
    ("tests/attacks/Cargo.toml", "muster-mesh"),
    // Turns on the features that its own unit tests are about.
    ("messages/Cargo.toml", "muster-messages"),
];

#[test]
fn every_direct_dependency_is_used() {
    let rust = texts(|path| path.ends_with(".rs"));
    let mut violations = Vec::new();
    for file in texts(|path| path.ends_with("Cargo.toml") && path != "Cargo.toml") {
        let manifest: toml::Table = file.text.parse().expect("a manifest is TOML");
        let folder = file.path.trim_end_matches("Cargo.toml");
        // A program or a test may be in another package's folder, such as the process scenarios of `bins`.
        let targets = ["test", "bin"].iter().filter_map(|kind| manifest.get(*kind)?.as_array()).flatten();
        let elsewhere = targets.filter_map(|target| target.get("path")?.as_str()?.strip_prefix("../"));
        let roots: Vec<&str> =
            elsewhere.map(|path| path.trim_start_matches("../").trim_end_matches("main.rs")).chain([folder]).collect();
        let code: Vec<&Text> =
            rust.iter().filter(|text| roots.iter().any(|root| text.path.starts_with(root))).collect();
        for table in ["dependencies", "dev-dependencies"] {
            for name in manifest.get(table).and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys) {
                // A path, not the bare word: `time` and `bytes` occur in many comments.
                let path = format!("{}::", name.replace('-', "_"));
                let used = code.iter().any(|text| text.text.contains(&path));
                if !used && !NOT_NAMED_IN_CODE.contains(&(file.path.as_str(), name)) {
                    violations.push(format!("{}: {name}", file.path));
                }
            }
        }
    }
    report("every dependency of a manifest is named in its code", &violations);
}

/// A library without a test target never compiles its unit tests: they would seem to pass.
#[test]
fn libraries_without_a_test_target_have_no_unit_tests() {
    let untested = |file: &Text| {
        let manifest: toml::Table = file.text.parse().expect("a manifest is TOML");
        manifest.get("lib").and_then(|lib| lib.get("test")).and_then(toml::Value::as_bool) == Some(false)
    };
    let manifests = texts(|path| path.ends_with("/Cargo.toml")).into_iter().filter(untested);
    let sources: Vec<String> = manifests.map(|file| file.path.replace("Cargo.toml", "src/")).collect();
    let is_untested = |path: &str| path.ends_with(".rs") && sources.iter().any(|folder| path.starts_with(folder));
    let opens_a_test = |line: &str| ["#[cfg(test)]", "#[test]", "#[tokio::test"].iter().any(|of| line.starts_with(of));
    let has_tests = |file: &Text| file.text.lines().map(str::trim_start).any(opens_a_test);
    let violations: Vec<String> =
        texts(is_untested).into_iter().filter(has_tests).map(|file| format!("{}: `test = false`", file.path)).collect();
    report("a unit test lies in a crate whose library has a test target", &violations);
}

#[test]
fn examples_of_the_documentation_are_tests() {
    let mut violations = Vec::new();
    let has_first_page: Vec<String> = published().into_iter().map(|package| package.folder + "/Cargo.toml").collect();
    for file in
        texts(|path| path.ends_with("Cargo.toml") && path != "Cargo.toml" && !path.starts_with("tests/clients/"))
    {
        // `published` has the rule for these.
        if has_first_page.contains(&file.path) {
            continue;
        }
        let manifest: toml::Table = file.text.parse().expect("a manifest is TOML");
        let library = top().join(&file.path).with_file_name("src").join("lib.rs");
        if !manifest.contains_key("lib") && !library.exists() {
            continue;
        }
        let doctest = manifest.get("lib").and_then(|lib| lib.get("doctest")).and_then(toml::Value::as_bool);
        if doctest != Some(false) {
            violations.push(format!("{}: [lib] doctest = false", file.path));
        }
    }
    for file in texts(|path| path.ends_with(".rs")) {
        let fences = file
            .text
            .lines()
            .map(str::trim_start)
            .filter_map(|line| line.strip_prefix("//! ```").or_else(|| line.strip_prefix("/// ```")));
        for opened in fences.step_by(2).filter(|opened| !matches!(*opened, "text" | "ignore")) {
            violations.push(format!("{}: ```{opened}", file.path));
        }
    }
    report(
        "a doc-test is a separately linked program: an example is a file of a test, included in the documentation",
        &violations,
    );
}
