//! Crates that other programs may use by themselves: those whose manifest does not take `publish = false` from the workspace. `docs/crates.md` lists them.

use std::collections::BTreeSet;

use super::dependencies::cargo_tree;
use super::{report, texts, top};

pub struct Published {
    pub name: String,
    pub folder: String,
    manifest: toml::Table,
}

impl Published {
    /// The modules whose API is listed: `package.metadata.muster.api`. None: all.
    pub fn listed_modules(&self) -> Vec<&str> {
        let metadata = self.manifest["package"].get("metadata").and_then(|metadata| metadata.get("muster"));
        let listed = metadata.and_then(|ours| ours.get("api")).and_then(toml::Value::as_array).into_iter().flatten();
        listed.filter_map(toml::Value::as_str).collect()
    }
}

/// The published crates, by folder.
pub fn published() -> Vec<Published> {
    let manifests = texts(|path| path.ends_with("/Cargo.toml") && !path.starts_with("tests/clients/"));
    let found: Vec<Published> = manifests
        .into_iter()
        .filter_map(|file| {
            let manifest: toml::Table = file.text.parse().expect("a manifest is TOML");
            let package = manifest["package"].as_table().expect("a package").clone();
            let name = package["name"].as_str().expect("a package has a name").to_owned();
            let folder = file.path.trim_end_matches("/Cargo.toml").to_owned();
            (!package.contains_key("publish")).then_some(Published { name, folder, manifest })
        })
        .collect();
    assert!(found.len() >= 5, "the published crates are found");
    found
}

/// Their packages by the flags that choose the features: every package that a program which depends on the crate builds for it, the crate
/// and its own build and macros included. A number that rises is a decision: users wait for it at every clean build. This list only shrinks.
const MOST_PACKAGES: [(&str, &str, usize); 12] = [
    ("muster-messages", "", 68),
    ("muster-messages", "--no-default-features", 20),
    ("muster-kernel", "", 62),
    ("muster-testkit", "", 63),
    ("muster-sealing", "", 29),
    ("muster-pki", "", 125),
    ("muster-gateway", "", 132),
    ("muster-elector", "", 137),
    ("muster-elector", "--no-default-features", 86),
    ("muster-client", "", 133),
    ("muster-role-manager", "", 72),
    ("muster-role-manager", "--no-default-features", 30),
];

/// What none of them may pull in: code for remote actors, its protobuf compiler, and the parts of a daemon.
const NEVER: [&str; 9] = [
    "ractor_cluster",
    "prost",
    "prost-build",
    "protobuf",
    "protoc-bin-vendored",
    "raft",
    "raft-engine",
    "muster-store",
    "muster-raft-member",
];

#[test]
fn published_crates_pull_in_no_more_than_listed() {
    let page = std::fs::read_to_string(top().join("docs/crates.md")).expect("docs/crates.md is there");
    let mut violations = Vec::new();
    for (name, flags, most) in MOST_PACKAGES {
        let mut choice = vec!["-p", name, "-e", "normal,build"];
        choice.extend(flags.split_whitespace());
        let packages = cargo_tree(&choice, "{f}");
        // With different features for macros and for programs, a package is listed twice, and counts once.
        let count = packages.iter().map(|(package, version, _)| (package, version)).collect::<BTreeSet<_>>().len();
        let shown = format!("{name} {flags}");
        match count {
            _ if count > most => violations.push(format!("{shown}: {count} packages, at most {most}")),
            _ if count < most => violations.push(format!("{shown}: {count} packages, listed with {most}: lower it")),
            _ => {}
        }
        let row = format!("| `{}` | {count} |", shown.trim_end());
        if !page.contains(&row) {
            violations.push(format!("docs/crates.md lacks the row that begins with {row}"));
        }
        for (package, _, features) in packages {
            let clustered = package == "ractor" && features.split(',').any(|feature| feature == "cluster");
            if NEVER.contains(&package.as_str()) || clustered {
                violations.push(format!("{shown} pulls in {package} {features}"));
            }
        }
    }
    for package in published() {
        if !MOST_PACKAGES.iter().any(|(name, ..)| *name == package.name) {
            violations.push(format!("{} is published, and has no number of packages here", package.name));
        }
    }
    report("the number of packages that a published crate pulls in only falls", &violations);
}

#[test]
fn published_crates_can_be_packaged_and_describe_themselves() {
    let published = published();
    let names: BTreeSet<&str> = published.iter().map(|package| package.name.as_str()).collect();
    let workspace: toml::Table =
        std::fs::read_to_string(top().join("Cargo.toml")).expect("it is there").parse().expect("a manifest is TOML");
    let shared = &workspace["workspace"]["dependencies"];
    let mut violations = Vec::new();
    for Published { folder, manifest, .. } in &published {
        let mut wrong = |what: &str| violations.push(format!("{folder}: {what}"));
        let has = |key: &str| manifest["package"].get(key).is_some();
        for key in ["description", "keywords", "categories", "readme", "license", "rust-version", "include"] {
            if !has(key) {
                wrong(&format!("no `{key}` in [package]"));
            }
        }
        for file in ["README.md", "CHANGELOG.md", "LICENSE"] {
            if !top().join(folder).join(file).exists() {
                wrong(&format!("no {file}"));
            }
        }
        for (dependency, how) in manifest.get("dependencies").and_then(toml::Value::as_table).into_iter().flatten() {
            let of_workspace = how.get("workspace").is_some().then(|| &shared[dependency.as_str()]);
            let version = of_workspace.unwrap_or(how).get("version").is_some();
            if dependency.starts_with("muster") && !(names.contains(dependency.as_str()) && version) {
                wrong(&format!("depends on {dependency}, which is not published, or not by its version"));
            }
        }
    }
    report("a published crate is complete in its own folder, and depends only on published crates", &violations);
}

/// A doc-test is a program of its own to link, so that only first pages have one.
#[test]
fn first_pages_are_doc_tests_and_nothing_else_is() {
    let mut violations = Vec::new();
    for Published { folder, manifest, .. } in published() {
        let read = |file: &str| std::fs::read_to_string(top().join(&folder).join(file)).unwrap_or_default();
        let has_example = read("README.md").contains("```rust\n");
        let shows_page = read("src/lib.rs").contains("include_str!(\"../README.md\")");
        let tests =
            manifest.get("lib").and_then(|lib| lib.get("doctest")).and_then(toml::Value::as_bool) != Some(false);
        if has_example != tests || has_example != shows_page {
            violations.push(format!(
                "{folder}: an example in README.md, `doctest`, and README.md in the crate's documentation go together"
            ));
        }
    }
    report("the example of a first page runs as a doc-test", &violations);
}
