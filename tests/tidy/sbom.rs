//! The SBOMs of a release's programs (`packaging/sbom`), beside what cargo, its lock file and `deny.toml` say. Checked where Python 3.11 is
//! installed.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::dependencies::{allowed_licences, cargo_tree};
use super::licence::is_allowed;
use super::published::published;
use super::{report, top};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Names and versions of packages.
type Packages = BTreeSet<(String, String)>;

/// The bytes that the script prints for a program; none without Python.
fn printed(program: &str) -> Option<Vec<u8>> {
    let python = Command::new("python3").args(["-c", "import tomllib"]).output();
    if !python.is_ok_and(|ended| ended.status.success()) {
        println!("Python 3.11 is not installed: no SBOM was checked");
        return None;
    }
    let mut script = Command::new(top().join("packaging/sbom"));
    script.args([program, TARGET]).env("SOURCE_DATE_EPOCH", "1700000000").current_dir(std::env::temp_dir());
    let ended = script.output().expect("it can be run");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    Some(ended.stdout)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The checksums of Cargo.lock.
fn checksums() -> BTreeMap<(String, String), String> {
    let lock = std::fs::read_to_string(top().join("Cargo.lock")).expect("Cargo.lock is there");
    let lock: toml::Table = lock.parse().expect("a lock file is TOML");
    let field = |package: &toml::Value, key: &str| Some(package.get(key)?.as_str()?.to_owned());
    let packages = lock["package"].as_array().expect("packages").iter();
    packages.filter_map(|of| Some(((field(of, "name")?, field(of, "version")?), field(of, "checksum")?))).collect()
}

/// What can be reached from a component along the SBOM's edges, itself included.
fn reached(document: &Value, from: &str) -> BTreeSet<String> {
    let edges: BTreeMap<&str, &[Value]> =
        list(document, "dependencies").iter().map(|edge| (text(edge, "ref"), list(edge, "dependsOn"))).collect();
    let (mut found, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(next) = left.pop() {
        if found.insert(next.to_owned()) {
            left.extend(edges[next].iter().filter_map(Value::as_str));
        }
    }
    found
}

#[test]
fn sboms_list_exactly_what_is_linked() {
    let tree = |edges: &str| cargo_tree(&["-p", "muster", "-e", edges, "--target", TARGET], "{l}");
    let version = |shown: &str| shown.trim_start_matches('v').to_owned();
    let linked: Packages =
        tree("normal,no-proc-macro").into_iter().map(|(name, shown, _)| (name, version(&shown))).collect();
    assert!(linked.len() > 150, "{}", linked.len());
    for program in ["muster", "musterd"] {
        let Some(bytes) = printed(program) else { return };
        assert!(printed(program) == Some(bytes.clone()), "the same bytes twice");
        let document: Value = serde_json::from_slice(&bytes).expect("it is JSON");
        let own = &document["metadata"]["component"];
        assert_eq!((text(&document, "specVersion"), text(own, "name")), ("1.6", program));
        assert_eq!(text(&document["metadata"], "timestamp"), "2023-11-14T22:13:20Z");

        let components = list(&document, "components");
        let listed: Packages =
            components.iter().map(|of| (text(of, "name").to_owned(), text(of, "version").to_owned())).collect();
        assert_eq!(listed.len(), components.len(), "each once");
        // The package of the programs is the document's subject, and the standard library is not a package.
        let beside: Vec<&str> = listed.difference(&linked).map(|(name, _)| name.as_str()).collect();
        let missing: Vec<&str> = linked.difference(&listed).map(|(name, _)| name.as_str()).collect();
        assert_eq!((beside, missing), (vec!["rust-std"], vec!["muster"]));
        // Macros, and what only build scripts use, are not linked.
        let names: BTreeSet<&str> = listed.iter().map(|(name, _)| name.as_str()).collect();
        for absent in ["syn", "serde_derive", "cc", "protoc-bin-vendored", "muster-testkit"] {
            assert!(!names.contains(absent), "{absent}");
        }
        let all: BTreeSet<String> =
            components.iter().map(|of| text(of, "bom-ref").to_owned()).chain([program.to_owned()]).collect();
        assert_eq!(reached(&document, text(own, "bom-ref")), all, "every component is used by one");
    }
}

#[test]
fn sboms_have_licences_and_checksums() {
    let Some(bytes) = printed("musterd") else { return };
    let document: Value = serde_json::from_slice(&bytes).expect("it is JSON");
    let (allowed, checksums) = (allowed_licences(), checksums());
    let published: Vec<String> = published().into_iter().map(|package| package.name).collect();
    let mut violations = Vec::new();
    for component in list(&document, "components") {
        let (name, version) = (text(component, "name"), text(component, "version"));
        let mut wrong = |what: String| violations.push(format!("{name} {version}: {what}"));
        let licence = text(&component["licenses"][0], "expression");
        // SPDX, unlike in old manifests.
        if licence.contains('/') || !is_allowed(licence, &allowed) {
            wrong(format!("licence {licence:?}"));
        }
        let checksum = checksums.get(&(name.to_owned(), version.to_owned()));
        if component["hashes"][0]["content"].as_str() != checksum.map(String::as_str) {
            wrong(format!("its hashes are {}, and Cargo.lock has {checksum:?}", component["hashes"]));
        }
        let from_a_registry = checksum.is_some() || published.iter().any(|of| of == name);
        let address = component["purl"].as_str().unwrap_or("");
        if address.starts_with(&format!("pkg:cargo/{name}@")) != from_a_registry {
            wrong(format!("its address is {address:?}"));
        }
    }
    report("a component of an SBOM has the licence, the checksum and the address that it is known by", &violations);
}
