//! Rules for waits in tests. A test waits for a condition. Real time passes only where that is the scenario, and then with its reason: through
//! `scenario_pause`. (`park_timeout` is the pause between two checks of a condition.)

use super::{Text, has_word, report, texts};

/// Tests with real processes or real sockets: nothing pauses their clocks.
const REAL_TIME: [&str; 5] =
    ["tests/processes/", "tests/attacks/", "tests/clients/scenarios/", "bins/tests/", "actors/mesh/tests/processes/"];

/// Files that may sleep in real time, each with its reason.
const MAY_SLEEP: [(&str, &str); 3] = [
    ("tests/processes/harness/pause.rs", "`scenario_pause`"),
    ("tests/attacks/src/pause.rs", "`scenario_pause`"),
    ("tests/processes/harness/network.rs", "data takes its time on a slow link"),
];

const SLEEPS: [&str; 2] = ["sleep", "sleep_until"];

/// Always in real time, also as an import.
const OF_THREADS: &str = concat!("thread::", "sleep");

fn is_test(path: &str) -> bool {
    let in_folder = path.starts_with("tests/") || path.contains("/tests/");
    path.ends_with(".rs") && (in_folder || path.ends_with("_tests.rs") || path.ends_with("/tests.rs"))
}

/// The line without its comment.
fn code(line: &str) -> &str {
    line.find("//").map_or(line, |at| &line[..at])
}

/// Whether a line sleeps, on a thread or in async code.
fn sleeps(line: &str) -> bool {
    SLEEPS.iter().any(|call| has_word(line, call) && line.contains(&format!("{call}(")))
}

/// Lines that sleep in real time: in a test of real processes any call, elsewhere a thread's, and those of an async test whose time is not
/// paused. A helper of such tests is not looked at: it may be called with paused time.
fn real_sleeps(file: &Text) -> Vec<usize> {
    let all = REAL_TIME.iter().any(|folder| file.path.starts_with(folder));
    let (mut found, mut end_of_unpaused) = (Vec::new(), None);
    for (index, line) in file.text.lines().enumerate() {
        let attribute = line.trim_start();
        if attribute.starts_with("#[tokio::test") && !attribute.contains("start_paused") {
            let indent = &line[..line.len() - attribute.len()];
            end_of_unpaused = Some(format!("{indent}}}"));
        }
        let line = code(line);
        if sleeps(line) && (all || end_of_unpaused.is_some()) || line.contains(OF_THREADS) {
            found.push(index + 1);
        }
        end_of_unpaused = end_of_unpaused.filter(|end| line != end);
    }
    found
}

#[test]
fn tests_wait_for_conditions_and_do_not_sleep() {
    let (files, mut violations) = (texts(is_test), Vec::new());
    let sleeping = files.iter().map(|file| (file, real_sleeps(file))).filter(|(_, lines)| !lines.is_empty());
    let mut listed = Vec::new();
    for (file, lines) in sleeping {
        if MAY_SLEEP.iter().any(|(path, _)| *path == file.path) {
            listed.push(file.path.as_str());
        } else {
            violations.extend(lines.iter().map(|number| format!("{}:{number}", file.path)));
        }
    }
    let unused = MAY_SLEEP.iter().filter(|(path, _)| !listed.contains(path));
    violations.extend(unused.map(|(path, _)| format!("{path} does not sleep: remove it from the list")));
    report("a test waits for a condition; where real time is the scenario, `scenario_pause` says why", &violations);
}

#[test]
fn sleeps_in_real_time_are_found() {
    let found = |path: &str, text: &str| real_sleeps(&Text { path: path.to_owned(), text: text.to_owned() });
    let text = "use tokio::time::sleep;\nfn f() {\n    sleep(A); // sleep(B)\n    let body = \"sleep 1\";\n    sleep_until(C);\n}\n";
    assert_eq!(found("tests/processes/a.rs", text), [3, 5]);
    assert_eq!(found("actors/a/tests/b.rs", text), Vec::<usize>::new(), "time may be paused");
    assert_eq!(found("actors/a/tests/b.rs", &format!("use std::{OF_THREADS};\n")), [1]);
    let tests = "#[tokio::test]\nasync fn a() {\n    sleep(A).await;\n}\n#[tokio::test(start_paused = true)]\nasync fn b() {\n    sleep(B).await;\n}\n";
    assert_eq!(found("actors/a/src/b_tests.rs", tests), [3]);
}
