//! Invariants have names. A name is defined once, in the header of the file that keeps it, and listed once in
//! docs/invariants.md.

use std::collections::BTreeMap;

use super::{report, texts, top};

/// `NAME-7` at the start of `text`, and what follows it.
fn name(text: &str) -> Option<(&str, &str)> {
    let word = text.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '-')?;
    let (kind, number) = text[..word].rsplit_once('-')?;
    let legal = !kind.is_empty() && kind.chars().all(|c| c.is_ascii_uppercase()) && number.parse::<u32>().is_ok();
    legal.then(|| (&text[..word], &text[word..]))
}

/// The name that a header line defines: `//! Invariants  NAME-7  what holds`, or the same below a first one.
fn defined(line: &str) -> Option<&str> {
    let line = line.trim_start().strip_prefix("//!")?;
    let rest = line.strip_prefix(" Invariants  ").or_else(|| line.strip_prefix("             "))?;
    let (name, after) = name(rest)?;
    after.starts_with("  ").then_some(name)
}

/// The name in a document line: the first word of a row, an item or a heading.
fn listed(line: &str) -> Option<&str> {
    let (name, after) = name(line.trim_start_matches(['|', '#', '-', '*', '`', ' ']))?;
    let marked = line.starts_with(['|', '#', '-', '*']);
    (marked && !after.starts_with([',', '…'])).then_some(name)
}

#[test]
fn invariants_have_one_home_and_one_document_line() {
    let mut homes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in texts(|path| path.ends_with(".rs") && !path.starts_with("tests/tidy/")) {
        for name in file.text.lines().filter_map(defined) {
            homes.entry(name.to_owned()).or_default().push(file.path.clone());
        }
    }
    let document = std::fs::read_to_string(top().join("docs/invariants.md")).expect("docs/invariants.md is there");
    let mut lines: BTreeMap<&str, u32> = BTreeMap::new();
    for name in document.lines().filter_map(listed) {
        *lines.entry(name).or_default() += 1;
    }
    let mut wrong = Vec::new();
    for (name, files) in &homes {
        if files.len() > 1 {
            wrong.push(format!("{name} is defined more than once: {}", files.join(", ")));
        }
        match lines.get(name.as_str()) {
            None => wrong.push(format!("{name} ({}) is not in docs/invariants.md", files.join(", "))),
            Some(1) => {}
            Some(n) => wrong.push(format!("{name} has {n} lines in docs/invariants.md")),
        }
    }
    report("an invariant has a name, one home, and one line in docs/invariants.md", &wrong);
}

#[test]
fn invariant_names_are_recognised() {
    assert_eq!(defined("//! Invariants  ROLE-2  of all plans"), Some("ROLE-2"));
    assert_eq!(defined("//!             MESH-14  both sides"), Some("MESH-14"));
    assert_eq!(defined("//! Invariants  AGENT-1…4 (see `managers`)"), None);
    assert_eq!(defined("//! ROLE-1, as everywhere"), None);
    assert_eq!(listed("| `ROLE-2` | of all plans |"), Some("ROLE-2"));
    assert_eq!(listed("- **ROLE-2** of all plans"), Some("ROLE-2"));
    assert_eq!(listed("ROLE-2 is mentioned"), None);
}
