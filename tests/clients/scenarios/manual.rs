//! `docs/kubernetes.md`: its programs and sessions run here, and the tests that it names exist.

use std::collections::BTreeSet;
use std::path::Path;

use crate::harness::here;

/// Commands with what they print.
pub struct Session {
    pub commands: Vec<(String, String)>,
}

fn manual() -> String {
    std::fs::read_to_string(here().join("../../docs/kubernetes.md")).expect("the manual is there")
}

/// The fenced blocks in a language.
fn blocks(language: &str) -> Vec<String> {
    let manual = manual();
    let mut parts = manual.split("\n```").skip(1);
    let mut found = vec![];
    // Fences alternate: one opens and names its language, the next one closes.
    while let (Some(block), Some(_)) = (parts.next(), parts.next()) {
        if let Some(text) = block.strip_prefix(&format!("{language}\n")) {
            found.push(text.to_owned() + "\n");
        }
    }
    found
}

/// Shell sessions: `$` begins a command, `>` continues it, the rest is its output.
pub fn sessions() -> Vec<Session> {
    blocks("console").iter().map(|block| session(block)).collect()
}

fn session(block: &str) -> Session {
    let mut commands: Vec<(String, String)> = vec![];
    for line in block.lines() {
        match (line.strip_prefix("$ "), line.strip_prefix("> "), commands.last_mut()) {
            (Some(command), _, _) => commands.push((command.to_owned(), String::new())),
            (_, Some(more), Some((command, _))) => *command += &format!("\n{more}"),
            (_, _, Some((_, output))) => *output += &format!("{line}\n"),
            _ => panic!("a session begins with a command, not with {line:?}"),
        }
    }
    let trimmed = |(command, output): (String, String)| (command, output.trim_end().to_owned());
    Session { commands: commands.into_iter().map(trimmed).collect() }
}

#[test]
fn manual_shows_the_tested_programs() {
    let shown = [blocks("python"), blocks("js"), blocks("rust")].concat();
    for program in ["lease_lock.py", "config_map_lock.py", "informer.mjs", "writes.mjs", "lease_lock.rs"] {
        let text = std::fs::read_to_string(here().join("programs").join(program)).expect("a program");
        assert!(shown.contains(&text), "docs/kubernetes.md does not show programs/{program} as it is");
    }
}

/// Every test function of the repository.
fn tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    collect(&here().join("../.."), &mut found);
    found
}

fn collect(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the repository").flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&path, found);
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
                let line = line.strip_prefix("async ").unwrap_or(line);
                if let (Some(rest), true) = (line.strip_prefix("fn "), is_test) {
                    found.insert(rest.split(['(', '<']).next().unwrap_or_default().to_owned());
                    is_test = false;
                }
            }
        }
    }
}

/// The rows of the table of cases: number, claim, tests or reason.
fn cases() -> Vec<(u32, String)> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let number = cells.next()?.parse().ok()?;
        Some((number, cells.nth(1)?.to_owned()))
    };
    manual().lines().filter_map(row).collect()
}

#[test]
fn upstream_cases_are_listed_with_tests_or_reason() {
    let (cases, tests) = (cases(), tests());
    let numbers: Vec<u32> = cases.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=100).collect::<Vec<_>>());
    for (number, evidence) in cases {
        let mut quoted = evidence.split('`').skip(1).step_by(2).peekable();
        let reasoned = evidence.starts_with("not applicable: ");
        assert!(quoted.peek().is_some() || reasoned, "case {number}: {evidence}");
        let missing: Vec<&str> = quoted.filter(|name| !reasoned && !tests.contains(*name)).collect();
        assert!(missing.is_empty(), "case {number} names missing tests: {missing:?}");
    }
}
