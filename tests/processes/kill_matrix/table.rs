//! The table in the documents.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::kinds::HOWS;
use super::stage::Outcomes;

const BEGIN: &str = "<!-- kill matrix: written by a test -->\n";
const END: &str = "<!-- end of the kill matrix -->\n";
/// With this variable the table is written, not compared.
const BLESS: &str = "MUSTER_BLESS";

/// A cell says once what is so at rest and at work.
fn table(at_rest: &Outcomes, at_work: &Outcomes) -> String {
    let kinds: BTreeSet<&String> = at_rest.keys().chain(at_work.keys()).map(|(kind, _)| kind).collect();
    let mut text = format!("| actor | {} |\n", HOWS.map(|(name, _)| name).join(" | "));
    text += &format!("|{}\n", "---|".repeat(HOWS.len() + 1));
    for kind in kinds {
        let cell = |name: &'static str| {
            let of =
                |outcomes: &Outcomes| outcomes.get(&(kind.clone(), name)).cloned().unwrap_or("not there".to_owned());
            let (rest, work) = (of(at_rest), of(at_work));
            if rest == work { rest } else { format!("idle: {rest}; at work: {work}") }
        };
        text += &format!("| `{kind}` | {} |\n", HOWS.map(|(name, _)| cell(name)).join(" | "));
    }
    text
}

/// Holds what was seen against what is written down.
pub fn compare(at_rest: &Outcomes, at_work: &Outcomes) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/supervision.md");
    let document = std::fs::read_to_string(&path).expect("the document is there");
    let (before, rest) = document.split_once(BEGIN).expect("the table's beginning is marked");
    let (written, after) = rest.split_once(END).expect("the table's end is marked");
    let seen = table(at_rest, at_work);
    if std::env::var_os(BLESS).is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}\n{seen}\n{END}{after}")).expect("the document is writable");
        return;
    }
    assert_eq!(
        written.trim(),
        seen.trim(),
        "docs/supervision.md says otherwise; {BLESS}=1 writes down what was seen:\n{seen}"
    );
}
