//! The list of process scenarios with their tiers, so that no scenario is lost unnoticed.

use super::{Text, report, texts, top};

const LIST: &str = "tests/processes/TIERS.md";

/// The mark of a full-tier test: the only permitted reason to ignore a test.
const FULL_TIER_MARK: &str = "#[ignore = \"full tier\"]";

struct Scenario {
    name: String,
    full: bool,
}

/// The tests of one source file, with the attributes between `#[test]` and the function.
fn scenarios(file: &Text) -> Vec<Scenario> {
    let path = file.path.trim_start_matches("tests/processes/").trim_end_matches(".rs").trim_end_matches("/mod");
    let module = path.replace('/', "::");
    let (mut found, mut lines) = (Vec::new(), file.text.lines().map(str::trim));
    while let Some(line) = lines.next() {
        if line != "#[test]" {
            continue;
        }
        let mut full = false;
        for line in lines.by_ref() {
            full |= line == FULL_TIER_MARK;
            if let Some(rest) = line.strip_prefix("fn ") {
                let name = rest.split('(').next().unwrap_or(rest);
                found.push(Scenario { name: format!("{module}::{name}"), full });
                break;
            }
        }
    }
    found
}

fn list() -> String {
    let files = texts(|path| path.starts_with("tests/processes/") && path.ends_with(".rs"));
    let mut all: Vec<Scenario> = files.iter().flat_map(scenarios).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let quick = all.iter().filter(|scenario| !scenario.full).count();
    let mut text = format!(
        "# Process scenarios and their tiers\n\n{} scenarios: {quick} in the quick tier, {} in the full tier only. [OVERVIEW](../OVERVIEW.md#two-tiers) says how to run each tier.\n\
         This list is generated: `UPDATE=1 cargo test -p muster-tests --test tidy tiers`.\n\n| scenario | tier |\n|---|---|\n",
        all.len(),
        all.len() - quick
    );
    for Scenario { name, full } in all {
        text += &format!("| `{name}` | {} |\n", if full { "full" } else { "quick" });
    }
    text
}

#[test]
fn every_process_scenario_is_listed_with_its_tier() {
    let (path, list) = (top().join(LIST), list());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &list).expect("the list can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == list, "{LIST} is out of date; write it again with UPDATE=1 and review the difference");
}

#[test]
fn a_test_is_ignored_only_for_its_tier() {
    let mut violations = Vec::new();
    for file in texts(|path| path.ends_with(".rs") && !path.starts_with("tests/tidy/")) {
        for (index, line) in file.text.lines().enumerate() {
            if line.trim_start().starts_with("#[ignore") && line.trim() != FULL_TIER_MARK {
                violations.push(format!("{}:{}: {}", file.path, index + 1, line.trim()));
            }
        }
    }
    report("an ignored test belongs to the full tier; a measurement is a benchmark", &violations);
}
