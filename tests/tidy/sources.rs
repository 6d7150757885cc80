//! Rules for Rust sources.

use super::{Text, has_word, report, texts};

/// Forbidden in a core: runtimes, clocks, concurrency, unordered collections, hidden randomness.
const FORBIDDEN_IN_CORES: [&str; 15] = [
    "tokio",
    "ractor",
    "Instant",
    "SystemTime",
    "spawn",
    "async",
    "await",
    "HashMap",
    "HashSet",
    "thread_rng",
    "random",
    "sleep",
    "File",
    "TcpStream",
    "Mutex",
];

/// Maximum lines of a source file.
const MAX_LINES: usize = 600;

/// Longer files, each with its maximum. This list only shrinks.
const LONGER_FILES: [(&str, usize); 0] = [];

fn rust(path: &str) -> bool {
    path.ends_with(".rs")
}

/// Libraries that decide and do nothing else.
const PURE_CRATES: [&str; 3] = ["actors/store/src/", "actors/kubernetes/src/", "actors/gates/src/"];

fn is_core(path: &str) -> bool {
    let shipped = (path.starts_with("actors/") || path.starts_with("bins/src/")) && rust(path);
    let by_name = path.contains("/core/") || path.ends_with("/core.rs");
    shipped && (by_name || PURE_CRATES.iter().any(|pure| path.starts_with(pure)))
}

/// Test code by its path.
fn is_test_file(path: &str) -> bool {
    path.starts_with("tests/")
        || path.contains("/tests/")
        || path.contains("/benches/")
        || path.ends_with("/tests.rs")
        || path.ends_with("_tests.rs")
}

/// The shipped lines with their numbers: without comments, and without items under `#[cfg(test)]`.
fn shipped(file: &Text) -> Vec<(usize, &str)> {
    let mut shipped = Vec::new();
    let mut lines = file.text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            skip_item(&mut lines);
            continue;
        }
        let code = line.find("//").map_or(line, |at| &line[..at]);
        shipped.push((index + 1, code));
    }
    shipped
}

/// Skips the item after an attribute: to its `;`, or to its closing brace.
fn skip_item<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>) {
    let mut depth = 0usize;
    for (_, line) in lines {
        if depth == 0 && line.trim_start().starts_with("#[") {
            continue;
        }
        let opened = line.matches('{').count();
        let closed = line.matches('}').count();
        let was_open = depth > 0 || opened > 0;
        depth = (depth + opened).saturating_sub(closed);
        if depth == 0 && (was_open || line.trim_end().ends_with(';')) {
            return;
        }
    }
}

#[test]
fn cores_are_pure() {
    let mut violations = Vec::new();
    for file in texts(is_core).iter().filter(|file| !is_test_file(&file.path)) {
        for (number, line) in shipped(file) {
            for word in FORBIDDEN_IN_CORES.iter().filter(|word| has_word(line, word)) {
                violations.push(format!("{}:{number}: {word}", file.path));
            }
        }
    }
    report(
        "a core uses only values: no runtime, clock, concurrency, unordered iteration or hidden randomness",
        &violations,
    );
}

#[test]
fn shipped_code_does_not_unwrap() {
    let call = concat!(".unw", "rap()");
    let mut violations = Vec::new();
    for file in texts(rust).iter().filter(|file| !is_test_file(&file.path)) {
        let bad = shipped(file).into_iter().filter(|(_, line)| line.contains(call));
        violations.extend(bad.map(|(number, _)| format!("{}:{number}", file.path)));
    }
    report("outside tests `expect` names the invariant, or the absence is an error", &violations);
}

#[test]
fn exceptions_to_lints_give_their_reason() {
    let mut violations = Vec::new();
    for file in texts(rust).iter().filter(|file| !is_test_file(&file.path)) {
        let joined = file.text.replace('\n', " ");
        for attribute in ["#[allow(", "#![allow(", "#[expect(", "#![expect("] {
            for (at, _) in joined.match_indices(attribute) {
                let end = joined[at..].find(")]").map_or(joined.len(), |length| at + length);
                if !joined[at..end].contains("reason = ") {
                    violations.push(format!("{}: {}", file.path, &joined[at..end]));
                }
            }
        }
    }
    report("each exception to a lint has a reason", &violations);
}

/// What is read and changed behind the raft crate's own interface is listed in `internals.rs`, each with its reason.
#[test]
fn raft_internals_are_reached_in_one_file() {
    let inside = |path: &str| path.starts_with("actors/raft-member/src/") && rust(path) && !path.contains("/tests/");
    let mut violations = Vec::new();
    for file in texts(|path| inside(path) && !path.ends_with("/core/internals.rs")) {
        let reaches = |(_, line): &(usize, &str)| line.contains("raw.raft");
        let lines = file.text.lines().enumerate().filter(reaches).map(|(at, _)| format!("{}:{}", file.path, at + 1));
        violations.extend(lines);
    }
    report("the raft crate's internals are reached through `Internals` only", &violations);
}

#[test]
fn source_files_stay_within_size_limit() {
    let mut violations = Vec::new();
    for file in texts(rust) {
        let lines = file.text.lines().count();
        let most = LONGER_FILES.iter().find(|(path, _)| *path == file.path).map_or(MAX_LINES, |(_, most)| *most);
        if lines > most {
            violations.push(format!("{}: {lines} lines, at most {most}", file.path));
        }
    }
    report("a file over the limit holds state that could be separated", &violations);
}

#[test]
fn every_module_has_a_header() {
    let bare = |file: &&Text| !file.text.trim_start().starts_with("//!");
    let files = texts(rust);
    let ships = |file: &&Text| !is_test_file(&file.path);
    let violations: Vec<String> = files.iter().filter(ships).filter(bare).map(|file| file.path.clone()).collect();
    report("a file starts with a header", &violations);
}

#[test]
fn code_under_test_configuration_does_not_ship() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { c() }\n}\nfn d() {} // e\n#[cfg(test)]\nuse f;\nfn g() {}\n";
    let file = Text { path: "x.rs".into(), text: text.into() };
    let lines: Vec<&str> = shipped(&file).into_iter().map(|(_, line)| line.trim_end()).collect();
    assert_eq!(lines, ["fn a() {}", "fn d() {}", "fn g() {}"]);
}
