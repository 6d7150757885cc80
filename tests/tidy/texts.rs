//! Rules for all text that people read here.

use super::{Text, has_word, report, texts, top};

fn is_documentation(path: &str) -> bool {
    let kinds = [".rs", ".md", ".toml", ".sh", ".py", ".js", ".mjs", ".txt", ".yaml", ".yml", ".json"];
    let here = path.starts_with("tests/tidy/");
    !here && (kinds.iter().any(|kind| path.ends_with(kind)) || path == ".ci/run" || path == ".gitignore")
}

fn lines(files: &[Text], bad: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            found.extend(bad(line).map(|why| format!("{}:{}: {why}", file.path, index + 1)));
        }
    }
    found
}

#[test]
fn comments_contain_no_todo() {
    let words = ["TODO", "FIXME", "HACK", "XXX"];
    let bad = |line: &str| words.iter().find(|word| has_word(line, word)).map(|word| (*word).to_owned());
    report("postponed work is an issue, not a comment", &lines(&texts(is_documentation), bad));
}

#[test]
fn texts_contain_no_machine_paths() {
    let roots = ["work", "root", "home", "mnt", "srv", "Users"];
    let bad = |line: &str| {
        let starts = |at: usize| line[..at].chars().next_back().is_none_or(|c| "\"'= (`:".contains(c));
        let mut found = roots.iter().filter_map(|root| {
            let path = format!("/{root}/");
            line.match_indices(&path).any(|(at, _)| starts(at)).then_some(path)
        });
        found.next()
    };
    report("a path of one machine is wrong on every other", &lines(&texts(is_documentation), bad));
}

#[test]
fn texts_name_no_registry() {
    let hosts = ["crates.io", "pypi.org", "npmjs.org", "npmjs.com", "deb.debian.org", "proxy.golang.org"];
    let bad = |line: &str| hosts.iter().find(|host| line.contains(*host)).map(|host| (*host).to_owned());
    report("packages come from the registry that the machine's settings name", &lines(&texts(is_documentation), bad));
}

#[test]
fn every_actor_crate_has_an_overview() {
    let manifests = texts(|path| path.starts_with("actors/") && path.ends_with("/Cargo.toml"));
    let folders = manifests.iter().filter_map(|file| file.path.strip_suffix("/Cargo.toml"));
    let missing: Vec<String> =
        folders.map(|folder| format!("{folder}/OVERVIEW.md")).filter(|path| !top().join(path).is_file()).collect();
    report("docs/ARCHITECTURE.md promises an overview of each crate with an actor or a library of theirs", &missing);
}

#[test]
fn document_links_lead_to_existing_files() {
    let mut dead = Vec::new();
    for file in texts(|path| path.ends_with(".md")) {
        let folder = top().join(&file.path);
        let folder = folder.parent().expect("a file lies in a folder");
        for (at, _) in file.text.match_indices("](") {
            let target: String = file.text[at + 2..].chars().take_while(|c| *c != ')').collect();
            let path = target.split('#').next().unwrap_or("");
            if !path.is_empty() && !path.contains("://") && !folder.join(path).exists() {
                dead.push(format!("{}: {target}", file.path));
            }
        }
    }
    report("a link to a file of this repository names a file", &dead);
}
