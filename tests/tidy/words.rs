//! The words of this repository: the field's English, in identifiers, shipped strings, documents and commit subjects.

use std::collections::BTreeMap;
use std::process::Command;

use super::{report, texts, top};

/// Words of a private dialect, and what the field says instead. They appear neither in identifiers nor in documents.
const BANNED: [(&str, &str); 37] = [
    ("universe", "simulation, harness"),
    ("universes", "simulations"),
    ("dice", "rng"),
    ("wish", "request"),
    ("wishes", "requests"),
    ("wished", "desired"),
    ("cradle", "inbox"),
    ("knock", "membership request"),
    ("knocks", "membership requests"),
    ("court", "admission check"),
    ("verdict", "decision"),
    ("heir", "transfer target"),
    ("heirs", "transfer targets"),
    ("outgrown", "incompatible"),
    ("sabotage", "bug injection"),
    ("sabotaged", "bug injected"),
    ("unseat", "remove the member"),
    ("unseated", "removed"),
    ("lobby", "handshake pool"),
    ("poke", "admin action"),
    ("farewell", "parting message"),
    ("portion", "page"),
    ("portions", "pages"),
    ("whoever", "name the subject"),
    ("somebody", "name the subject"),
    ("hurt", "inject faults"),
    ("seatless", "without membership"),
    ("lacking", "missing"),
    ("strangers", "unauthenticated"),
    ("patience", "a timeout, by what it bounds"),
    ("story", "scenario"),
    ("stories", "scenarios"),
    ("hears", "receives"),
    ("lane", "membership-change slot"),
    ("hall", "handshake pool"),
    ("owed", "pending"),
    ("seats", "Raft members, member ids"),
];

/// Where a banned word stays, and why. This list only shrinks.
const ALLOWED: [(&str, &str, &str); 4] = [
    ("docs/attacks.md", "strangers", "the file name of a decision"),
    ("docs/changes/0095-renamed-actors-and-view-fields.md", "owed", "a former field, for readers of old views"),
    ("docs/decisions/README.md", "strangers", "the file name of a decision"),
    ("tests/simulation/src/leaders.rs", "universe", "the cluster's name; another one changes what every seed does"),
];

/// The longest name of a test.
const MAX_TEST_NAME: usize = 60;
/// The longest subject of a commit.
const MAX_SUBJECT: usize = 72;
/// Subjects are checked from here on.
const SUBJECTS_SINCE: &str = "2026-11-25T09:00:00Z";

/// The words of an identifier: `SeatChange`, `seat_change` and `SEAT_CHANGE` are seat and change.
fn words(identifier: &str) -> Vec<String> {
    let mut found: Vec<String> = vec![String::new()];
    let mut before_lower = false;
    for c in identifier.chars() {
        if c == '_' || (c.is_uppercase() && before_lower) {
            found.push(String::new());
        }
        before_lower = c.is_lowercase() || c.is_ascii_digit();
        if c != '_' {
            found.last_mut().expect("one at least").extend(c.to_lowercase());
        }
    }
    found
}

fn banned(path: &str, text: &str) -> BTreeMap<String, (usize, &'static str)> {
    let mut found = BTreeMap::new();
    for token in text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|token| !token.is_empty()) {
        for word in words(token) {
            let Some((_, instead)) = BANNED.iter().find(|(bad, _)| *bad == word) else { continue };
            let allowed = ALLOWED.iter().any(|(at, which, _)| path.starts_with(at) && *which == word);
            if !allowed {
                found.entry(token.to_owned()).or_insert((0, *instead)).0 += 1;
            }
        }
    }
    found
}

#[test]
fn the_fields_words_are_used() {
    let mut wrong = Vec::new();
    let checked = |path: &str| {
        let quotes = path == "docs/changes/0088-plain-words.md" || path == "tests/tidy/words.rs";
        (path.ends_with(".rs") || path.ends_with(".md")) && !quotes
    };
    for file in texts(checked) {
        for (token, (times, instead)) in banned(&file.path, &file.text) {
            wrong.push(format!("{}: `{token}` ({times} times): say {instead}", file.path));
        }
    }
    report("identifiers, comments, strings and documents use the field's words (see docs/glossary.md)", &wrong);
}

#[test]
fn test_names_are_short() {
    let mut wrong = Vec::new();
    for file in texts(|path| path.ends_with(".rs")) {
        let lines: Vec<&str> = file.text.lines().map(str::trim_start).collect();
        for (n, line) in lines.iter().enumerate() {
            let is_test = line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let named = lines[n..].iter().take(8).find_map(|line| line.split_once("fn ")?.1.split('(').next());
            if let Some(name) = named.filter(|name| is_test && name.len() > MAX_TEST_NAME) {
                wrong.push(format!("{}: {name} ({})", file.path, name.len()));
            }
        }
    }
    report("a test's name says what is shown, in 60 characters at most", &wrong);
}

/// `component: imperative`. A clone without history has nothing to be checked.
#[test]
fn commit_subjects_name_a_component() {
    let log = Command::new("git")
        .args(["log", "--no-merges", "--format=%s", &format!("--since={SUBJECTS_SINCE}")])
        .current_dir(top())
        .output();
    let Ok(log) = log else { return };
    let subjects = String::from_utf8_lossy(&log.stdout);
    let wrong: Vec<String> = (subjects.lines())
        .filter(|subject| {
            let component = subject.split_once(": ").map_or("", |(component, _)| component);
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || " ,-_/.".contains(c);
            component.is_empty() || !component.chars().all(plain) || subject.chars().count() > MAX_SUBJECT
        })
        .map(ToOwned::to_owned)
        .collect();
    report("a commit's subject is `component: imperative`, 72 characters at most", &wrong);
}

#[test]
fn identifiers_fall_into_words() {
    assert_eq!(words("SeatChange"), ["seat", "change"]);
    assert_eq!(words("seat_change2"), ["seat", "change2"]);
    assert_eq!(words("SEAT_CHANGE"), ["seat", "change"]);
    assert_eq!(banned("a.rs", "let wish = JoinWish::new(\"the wish\");").len(), 2);
}
