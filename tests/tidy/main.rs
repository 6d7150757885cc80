//! Rules for this repository's text, each a test. Exceptions are lists in this folder that may
//! only shrink (ratchets).

mod alerts;
mod code_names;
mod dependencies;
mod invariants;
mod licence;
mod messages;
mod public_api;
mod published;
mod sbom;
mod sources;
mod texts;
mod tiers;
mod units;
mod waits;
mod walks;
mod words;

use std::path::{Path, PathBuf};

/// The root folder of the repository.
fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("this package lies in the repository")
}

/// A file of the repository.
struct Text {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
}

/// Every text file below `folder`, except build results and caches.
fn files_below(folder: &Path, out: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let built = matches!(name.as_str(), "target" | ".git" | ".muster" | "node_modules" | "__pycache__" | "shared");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !built => files_below(&path, out),
            Ok(kind) if kind.is_file() => out.push(path),
            _ => {}
        }
    }
}

/// The repository's text files that `wanted` picks by path.
fn texts(wanted: impl Fn(&str) -> bool) -> Vec<Text> {
    let (top, mut paths) = (top(), Vec::new());
    files_below(&top, &mut paths);
    let mut found: Vec<Text> = paths
        .into_iter()
        .filter_map(|path| {
            let relative = path.strip_prefix(&top).expect("found below the top").to_string_lossy().into_owned();
            let text = wanted(&relative).then(|| std::fs::read_to_string(&path).ok())??;
            Some(Text { path: relative, text })
        })
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "the rule matches no file");
    found
}

/// Fails with all violations at once.
fn report(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}:\n  {}", violations.join("\n  "));
}

/// Whether `line` contains `word` as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

#[test]
fn words_are_found_only_whole() {
    assert!(has_word("let x = tokio::spawn(y);", "spawn") && has_word("async", "async"));
    assert!(!has_word("respawned spawn_all asynchronous", "spawn") && !has_word("asynchronous", "async"));
}
