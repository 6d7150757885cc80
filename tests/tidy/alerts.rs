//! The alerts for Prometheus and the board of Grafana: each alert has its instructions and its tests, and both name series that exist. What promtool itself checks is checked
//! where it is fetched (tests/clients/run).

use std::collections::BTreeSet;

use crate::top;

fn read(path: &str) -> String {
    std::fs::read_to_string(top().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn alerts(rules: &str) -> Vec<&str> {
    rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
}

/// The series that a text names, without what histograms append.
fn series(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let named = words.filter(|word| word.starts_with("muster_"));
    named.map(|word| word.trim_end_matches("_bucket").trim_end_matches("_count").to_owned()).collect()
}

#[test]
fn every_alert_has_instructions_and_tests() {
    let (rules, tests) =
        (read("packaging/prometheus/muster.rules.yml"), read("packaging/prometheus/muster.rules.test.yml"));
    let instructions = read("docs/alerts.md");
    let headings: Vec<&str> = instructions.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let alerts = alerts(&rules);
    assert!(alerts.len() > 15, "{alerts:?}");
    assert_eq!(headings, alerts, "docs/alerts.md describes each alert, in their order");
    for alert in alerts {
        let runbook = format!("runbook: docs/alerts.md#{}\n", alert.to_lowercase());
        assert!(rules.contains(&runbook), "{alert} has its runbook");
        for test in ["fires", "is silent"] {
            assert!(tests.contains(&format!("- name: {alert} {test}\n")), "{alert} {test}");
        }
    }
}

#[test]
fn alerts_and_panels_name_series_that_exist() {
    let known = read("docs/metrics.md");
    for file in ["packaging/prometheus/muster.rules.yml", "packaging/grafana/overview.json"] {
        let named = series(&read(file));
        assert!(named.len() > 15, "{file}: {named:?}");
        for name in named {
            assert!(known.contains(&format!("`{name}`")), "{file}: {name} is not in docs/metrics.md");
        }
    }
}
