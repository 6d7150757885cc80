//! Rules for Rust sources.

use std::collections::{BTreeMap, BTreeSet};

use super::{Text, has_word, report, texts};

/// Forbidden in a core: runtimes, clocks, concurrency, unordered collections, hidden randomness, state that changes behind a shared reference.
const FORBIDDEN_IN_CORES: [&str; 25] = [
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
    "rand",
    "random",
    "sleep",
    "File",
    "TcpStream",
    "Mutex",
    "RwLock",
    "fs",
    "mpsc",
    "oneshot",
    "thread",
    "Cell",
    "RefCell",
    "OnceLock",
    "LazyLock",
];

/// Cores with such a word, each with its reason. This list only shrinks.
const IMPURE_CORES: [(&str, &str, &str); 3] = [
    (
        "actors/raft-member/src/core/values.rs",
        "OnceLock",
        "the bytes of a snapshot, encoded by whichever clone of the job runs first: all of them would encode the same",
    ),
    ("actors/kubernetes/src/openapi/mod.rs", "LazyLock", "documents made of constant tables, on the first request"),
    (
        "actors/store/src/bugs.rs",
        "Cell",
        "the bug that a simulation injects, per thread; without the feature, no code reads it",
    ),
];

/// Log macros whose lines operators read.
const LOG_MACROS: [&str; 3] = ["info!(", "warn!(", "error!("];

/// Fields of such lines in Rust's debug form, each with its reason.
const DEBUG_FIELDS: [(&str, &str, &str); 1] =
    [("actors/kernel/src/supervisor/child_table.rs", "name", "not a valid name: it may hold any character")];

/// Maximum lines of a source file.
const MAX_LINES: usize = 600;

/// Longer files, each with its maximum. This list only shrinks.
const LONGER_FILES: [(&str, usize); 0] = [];

/// Maximum lines of a file with a shell: what it decides belongs in a core, and state of its own in a type.
const MAX_SHELL_LINES: usize = 250;

/// Longer files with a shell, each with its lines. This list only shrinks.
const LONGER_SHELLS: [(&str, usize); 0] = [];

/// Maximum files of a crate that a type's inherent `impl` blocks are spread over.
const MAX_IMPL_FILES: usize = 4;

/// Types spread over more files: crate, type, files. This list only shrinks.
const SPREAD_TYPES: [(&str, &str, usize); 1] = [("actors/raft-member", "RaftCore", 5)];

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

/// The lines of a core with a forbidden word.
fn impure(file: &Text) -> Vec<(usize, &'static str)> {
    let of_line = |(number, line): (usize, &str)| {
        let found = FORBIDDEN_IN_CORES.iter().filter(|word| has_word(line, word)).map(|word| (number, *word));
        found.collect::<Vec<_>>()
    };
    shipped(file).into_iter().flat_map(of_line).collect()
}

#[test]
fn cores_are_pure() {
    let (mut violations, mut used) = (Vec::new(), BTreeSet::new());
    for file in texts(is_core).iter().filter(|file| !is_test_file(&file.path)) {
        for (number, word) in impure(file) {
            match IMPURE_CORES.iter().position(|(path, allowed, _)| (*path, *allowed) == (file.path.as_str(), word)) {
                Some(exception) => {
                    used.insert(exception);
                }
                None => violations.push(format!("{}:{number}: {word}", file.path)),
            }
        }
    }
    let unused = IMPURE_CORES.iter().enumerate().filter(|(nth, _)| !used.contains(nth));
    violations.extend(unused.map(|(_, (path, word, _))| format!("{path}: {word}: remove it from the list")));
    report(
        "a core uses only values: no runtime, clock, concurrency, unordered iteration, hidden randomness or hidden state",
        &violations,
    );
}

#[test]
fn hidden_state_in_a_core_is_found() {
    let text = "use std::cell::{Cell, RefCell};\nstatic A: OnceLock<u8> = OnceLock::new(); // LazyLock\nstatic B: LazyLock<u8> = f();\n\
                struct Cells(u8);\n";
    let found = impure(&Text { path: "x.rs".into(), text: text.into() });
    assert_eq!(found, [(1, "Cell"), (1, "RefCell"), (2, "OnceLock"), (3, "LazyLock")]);
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

/// The rest of a macro's arguments, up to the end of its last field.
fn arguments(rest: &str) -> &str {
    let mut depth = 1usize;
    let end = rest.find(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        depth == 0 || c == ';'
    });
    &rest[..end.unwrap_or(rest.len())]
}

/// The fields that are logged in Rust's debug form.
fn debug_fields(arguments: &str) -> Vec<&str> {
    let fields = arguments.match_indices('?').filter_map(|(at, _)| {
        let begins = arguments[..at].chars().next_back().is_none_or(char::is_whitespace);
        let name = &arguments[at + 1..];
        let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
        (begins && end > 0).then_some(&name[..end])
    });
    fields.collect()
}

#[test]
fn logs_print_words_and_no_debug_forms() {
    assert_eq!(debug_fields(arguments("?why, n = f(2), side = ?self.side, \"so?\") ?no")), ["why", "self"]);
    let mut violations = Vec::new();
    for file in texts(rust).iter().filter(|file| !is_test_file(&file.path)) {
        let code = shipped(file).into_iter().map(|(_, line)| line).collect::<Vec<_>>().join("\n");
        for (at, call) in LOG_MACROS.iter().flat_map(|call| code.match_indices(*call)) {
            for field in debug_fields(arguments(&code[at + call.len()..])) {
                if !DEBUG_FIELDS.iter().any(|(path, allowed, _)| (*path, *allowed) == (file.path.as_str(), field)) {
                    violations.push(format!("{}: {call}… ?{field}", file.path));
                }
            }
        }
    }
    report("operators read words: a line from info on holds no value in Rust's debug form", &violations);
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

/// Whether a file of a core has a type with state: one that others use, and that its own methods change.
fn has_state(file: &Text) -> bool {
    let lines = shipped(file);
    let name_of = |line: &str| {
        let (before, after) = line.split_once("struct ")?;
        let name = after.split(|c: char| !c.is_alphanumeric()).next()?;
        before.starts_with("pub").then(|| name.to_owned())
    };
    let types: BTreeSet<String> = lines.iter().filter_map(|(_, line)| name_of(line)).collect();
    let mut within = false;
    lines.iter().any(|(_, line)| {
        if let Some(name) = inherent(line) {
            within = types.contains(name);
        } else if line.starts_with('}') {
            within = false;
        }
        within && line.contains("&mut self")
    })
}

#[test]
fn state_of_a_core_says_what_it_owns() {
    let cores = texts(|path| is_core(path) && !PURE_CRATES.iter().any(|library| path.starts_with(library)));
    let stateful: Vec<&Text> = cores.iter().filter(|file| !is_test_file(&file.path) && has_state(file)).collect();
    assert!(stateful.len() > 60, "the states are found");
    let silent = stateful.iter().filter(|file| !file.text.lines().any(|line| line.starts_with("//! Owns ")));
    let violations: Vec<String> = silent.map(|file| file.path.clone()).collect();
    report("a header says what state the file owns", &violations);
}

/// Whether a file of a core has the machine: the function through which every input passes.
fn has_step(file: &Text) -> bool {
    shipped(file).iter().any(|(_, line)| line.contains("fn step("))
}

#[test]
fn a_step_says_what_comes_in_and_what_goes_out() {
    let step = |text: &str| has_step(&Text { path: "x.rs".into(), text: text.into() });
    assert!(step("impl A {\n    pub fn step(&mut self) {}\n}\n") && !step("fn stepped() {} // fn step(\n"));
    let cores = texts(|path| is_core(path) && !PURE_CRATES.iter().any(|library| path.starts_with(library)));
    let machines: Vec<&Text> = cores.iter().filter(|file| !is_test_file(&file.path) && has_step(file)).collect();
    assert!(machines.len() > 20, "the machines are found");
    let silent = |part: &&str, file: &Text| !file.text.lines().any(|line| line.starts_with(&format!("//! {part} ")));
    let missing = |file: &&Text| {
        let parts = ["Inputs", "Outputs"].into_iter().filter(|part| silent(part, file));
        parts.map(|part| format!("{}: {part}", file.path)).collect::<Vec<_>>()
    };
    let violations: Vec<String> = machines.iter().flat_map(missing).collect();
    report("the header of a core with a `step` says what its inputs and outputs are", &violations);
}

#[test]
fn code_under_test_configuration_does_not_ship() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { c() }\n}\nfn d() {} // e\n#[cfg(test)]\nuse f;\nfn g() {}\n";
    let file = Text { path: "x.rs".into(), text: text.into() };
    let lines: Vec<&str> = shipped(&file).into_iter().map(|(_, line)| line.trim_end()).collect();
    assert_eq!(lines, ["fn a() {}", "fn d() {}", "fn g() {}"]);
}

/// Compares what was counted with a limit, and with the listed exceptions: a listed value is the present one, and more than the
/// limit.
fn over_limit(counted: &BTreeMap<String, usize>, most: usize, listed: &BTreeMap<String, usize>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, count) in counted.iter().filter(|(_, count)| **count > most) {
        let allowed = listed.get(name).copied().unwrap_or(most);
        if *count > allowed {
            wrong.push(format!("{name}: {count}, at most {allowed}"));
        }
    }
    for (name, allowed) in listed {
        let count = counted.get(name).copied().unwrap_or(0);
        if count <= most {
            wrong.push(format!("{name}: {count}, within the limit of {most}: remove it from the list"));
        } else if count < *allowed {
            wrong.push(format!("{name}: {count}, listed with {allowed}: lower the listed value"));
        }
    }
    wrong
}

/// What follows `impl` and its generic parameters, on a line that begins an implementation.
fn implementation(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.strip_prefix("impl").or_else(|| line.strip_prefix("unsafe impl"))?;
    let Some(parameters) = rest.strip_prefix('<') else { return rest.strip_prefix(' ') };
    let (mut depth, mut before) = (1usize, ' ');
    for (at, c) in parameters.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(parameters[at + 1..].trim_start());
        }
        before = c;
    }
    None
}

/// The type of an inherent implementation that begins on this line.
fn inherent(line: &str) -> Option<&str> {
    let head = implementation(line)?;
    let path = head.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').next()?;
    let name = path.rsplit("::").next().filter(|name| name.starts_with(char::is_uppercase))?;
    (!has_word(head, "for")).then_some(name)
}

fn implements_shell(line: &str) -> bool {
    implementation(line).is_some_and(|head| head.starts_with("Shell for ") || head.starts_with("Actor for "))
}

/// The folder of the crate that a source file belongs to.
fn crate_of(path: &str) -> &str {
    let inside = ["/src/", "/tests/", "/benches/", "/examples/"].iter().filter_map(|folder| path.find(folder)).min();
    inside.map_or("", |at| &path[..at])
}

#[test]
fn files_with_a_shell_stay_within_their_limit() {
    let has_shell = |file: &&Text| file.text.lines().any(implements_shell);
    let files = texts(|path| rust(path) && !is_test_file(path));
    let lines = |file: &Text| (file.path.clone(), file.text.lines().count());
    let counted: BTreeMap<String, usize> = files.iter().filter(has_shell).map(lines).collect();
    assert!(counted.len() > 20, "the shells are found");
    let listed = LONGER_SHELLS.iter().map(|(path, lines)| ((*path).to_owned(), *lines)).collect();
    report(
        "a long file with a shell holds a decision for a core, or state for a type",
        &over_limit(&counted, MAX_SHELL_LINES, &listed),
    );
}

#[test]
fn a_type_is_implemented_in_few_files() {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for file in texts(rust) {
        let types: BTreeSet<&str> = file.text.lines().filter_map(inherent).collect();
        for name in types {
            *found.entry(format!("{}: {name}", crate_of(&file.path))).or_default() += 1;
        }
    }
    let listed = SPREAD_TYPES.iter().map(|(at, name, files)| (format!("{at}: {name}"), *files)).collect();
    report(
        "a type whose methods are spread over many files of a crate is several types",
        &over_limit(&found, MAX_IMPL_FILES, &listed),
    );
}

#[test]
fn implementations_are_recognised() {
    assert_eq!(inherent("impl MeshShell {"), Some("MeshShell"));
    assert_eq!(inherent("    impl<'a, F: Fn(u8) -> u8> super::Lead<'a, F> {"), Some("Lead"));
    assert_eq!((inherent("impl Shell for MeshShell {"), inherent("implements")), (None, None));
    assert_eq!((inherent("impl $name {"), inherent("fn f() -> impl Iterator {")), (None, None));
    assert!(implements_shell("impl Shell for A {") && implements_shell("impl<T: B<C>> Actor for A<T> {"));
    assert!(!implements_shell("impl ShellOf for A {") && !implements_shell("impl A {"));
    assert_eq!((crate_of("actors/api/src/core/a.rs"), crate_of("tests/tidy/b.rs")), ("actors/api", ""));
}

#[test]
fn a_listed_exception_has_its_present_value() {
    let map = |of: &[(&str, usize)]| of.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect::<BTreeMap<_, _>>();
    let wrong = |counted: &[(&str, usize)], listed: &[(&str, usize)]| over_limit(&map(counted), 4, &map(listed)).len();
    assert_eq!((wrong(&[("a", 4)], &[]), wrong(&[("a", 5)], &[]), wrong(&[("a", 5)], &[("a", 5)])), (0, 1, 0));
    assert_eq!((wrong(&[("a", 6)], &[("a", 5)]), wrong(&[("a", 5)], &[("a", 6)])), (1, 1), "above, and too large");
    assert_eq!((wrong(&[("a", 4)], &[("a", 5)]), wrong(&[], &[("a", 5)])), (1, 1), "no longer an exception");
}
