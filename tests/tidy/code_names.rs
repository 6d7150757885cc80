//! Documents name code that exists: types, tests, source files and metrics.

use std::collections::BTreeSet;

use super::{report, texts};

/// Names of other projects' code in documents, each with where it is from.
const FOREIGN: [(&str, &str); 2] = [("BuildConfigFromFlags", "client-go"), ("ReleaseOnCancel", "client-go")];

fn is_code(path: &str) -> bool {
    [".rs", ".toml", ".json", ".py", ".mjs"].iter().any(|end| path.ends_with(end))
}

/// The parts of a line between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|token| !token.is_empty())
}

/// `RaftMember` and the like: two capitals at least, each followed by a small letter.
fn is_camel_case(token: &str) -> bool {
    let begins = token.chars().next().is_some_and(char::is_uppercase);
    let pairs = token.as_bytes().windows(2);
    begins
        && !token.contains('_')
        && pairs.filter(|p| p[0].is_ascii_uppercase() && p[1].is_ascii_lowercase()).count() > 1
}

/// `node_is_promoted` and the like: three words at least, in small letters. Metrics have a rule of their own.
fn is_like_a_test(token: &str) -> bool {
    let is_part = |c: char| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit();
    token.matches('_').count() >= 2 && token.chars().all(is_part) && !token.starts_with("muster_")
}

/// Whether the code has the `name` in `text`. The filter of a command, or an ending such as `…_is_promoted`, is a part
/// of a name.
fn is_in_code(name: &str, text: &str, known: &BTreeSet<&str>) -> bool {
    let may_be_a_part = name.starts_with('_') || text.contains("cargo test ");
    known.contains(name) || may_be_a_part && known.iter().any(|whole| whole.contains(name))
}

/// The links of a line: text and target.
fn links(line: &str) -> Vec<(&str, &str)> {
    let parts = line.split("](").collect::<Vec<_>>();
    let pairs = parts.windows(2).filter_map(|pair| {
        let text = pair[0].rsplit_once('[')?.1;
        Some((text, pair[1].split_once(')')?.0))
    });
    pairs.collect()
}

#[test]
fn documents_name_code_that_exists() {
    let code = texts(|path| is_code(path) && !path.starts_with("tests/tidy/"));
    let known: BTreeSet<&str> = code.iter().flat_map(|file| tokens(&file.text)).collect();
    let files: BTreeSet<&str> = code.iter().filter_map(|file| file.path.rsplit('/').next()).collect();
    let documents = texts(|path| path.ends_with(".md") && !path.starts_with("docs/changes/"));
    let metrics = documents.iter().find(|file| file.path == "docs/metrics.md").expect("docs/metrics.md is there");
    let series: BTreeSet<&str> = tokens(&metrics.text).filter(|token| token.starts_with("muster_")).collect();
    let mut wrong = Vec::new();
    for file in documents.iter().filter(|file| !file.path.starts_with("docs/decisions/")) {
        for (n, line) in file.text.lines().enumerate() {
            let at = format!("{}:{}", file.path, n + 1);
            for text in quoted(line) {
                let foreign = |token: &str| FOREIGN.iter().any(|(name, _)| *name == token);
                for token in tokens(text).filter(|token| is_camel_case(token) && !known.contains(token)) {
                    if !foreign(token) {
                        wrong.push(format!("{at}: no code is called `{token}`"));
                    }
                }
                let names = text.split(|c: char| c.is_whitespace() || "/()[],".contains(c));
                for name in names.filter(|name| name.ends_with(".rs") && !files.contains(name)) {
                    wrong.push(format!("{at}: no file is called `{name}`"));
                }
                let metric = text.split(['{', ' ']).next().unwrap_or_default();
                let ends = ["_total", "_seconds", "_bytes"];
                if metric.starts_with("muster_")
                    && ends.iter().any(|end| metric.ends_with(end))
                    && !series.contains(metric)
                {
                    wrong.push(format!("{at}: `{metric}` is not in docs/metrics.md"));
                }
            }
            for (text, target) in links(line) {
                let end = target.split('#').next().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
                if text.ends_with(".rs") && !text.contains(' ') && text.rsplit('/').next() != Some(end) {
                    wrong.push(format!("{at}: the link {text} leads to {target}"));
                }
            }
        }
    }
    report("documents name code, files and metrics that exist", &wrong);
}

#[test]
fn tests_that_documents_name_exist() {
    let code = texts(is_code);
    let known: BTreeSet<&str> = code.iter().flat_map(|file| tokens(&file.text)).collect();
    let is_history = |path: &str| path.starts_with("docs/changes/") || path.starts_with("docs/decisions/");
    let mut wrong = Vec::new();
    for file in texts(|path| path.ends_with(".md") && !is_history(path)) {
        for (n, line) in file.text.lines().enumerate() {
            for text in quoted(line) {
                for name in tokens(text).filter(|token| is_like_a_test(token) && !is_in_code(token, text, &known)) {
                    wrong.push(format!("{}:{}: no code is called `{name}`", file.path, n + 1));
                }
            }
        }
    }
    report("a test that was renamed is renamed in the documents, too", &wrong);
}

#[test]
fn code_names_are_recognised() {
    assert!(is_camel_case("RaftMember") && is_camel_case("NotMember"));
    assert!(
        !is_camel_case("Raft") && !is_camel_case("raft_member") && !is_camel_case("HTTP") && !is_camel_case("JSON")
    );
    assert_eq!(links("see [a.rs](x/a.rs) and [b](c#d)"), [("a.rs", "x/a.rs"), ("b", "c#d")]);
    assert_eq!(quoted("a `b` c `d`").collect::<Vec<_>>(), ["b", "d"]);
}

#[test]
fn test_names_are_recognised() {
    assert!(is_like_a_test("node_is_promoted") && is_like_a_test("_is_promoted"));
    assert!(!is_like_a_test("is_promoted") && !is_like_a_test("MAX_NODE_NAME") && !is_like_a_test("muster_node_is_up"));
    let known = BTreeSet::from(["node_is_promoted_once"]);
    let has = |name: &str, text: &str| is_in_code(name, text, &known);
    assert!(has("node_is_promoted_once", "node_is_promoted_once") && !has("node_is_promoted", "node_is_promoted"));
    assert!(has("node_is_promoted", "cargo test node_is_promoted") && has("_promoted_once", "…_promoted_once"));
}
