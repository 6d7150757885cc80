//! The table in the documents.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::kinds::FAILURE_MODES;
use super::stage::Outcomes;

const BEGIN: &str = "<!-- kill matrix: written by a test -->\n";
const END: &str = "<!-- end of the kill matrix -->\n";
/// With this variable the table is written, not compared.
const UPDATE_VARIABLE: &str = "MUSTER_BLESS";

/// A cell gives one outcome if idle and at work agree.
fn table(settled_picture: &Outcomes, at_work: &Outcomes) -> String {
    let kinds: BTreeSet<&String> = settled_picture.keys().chain(at_work.keys()).map(|(kind, _)| kind).collect();
    let mut text = format!("| actor | {} |\n", FAILURE_MODES.map(|(name, _)| name).join(" | "));
    text += &format!("|{}\n", "---|".repeat(FAILURE_MODES.len() + 1));
    for kind in kinds {
        let cell = |name: &'static str| {
            let of =
                |outcomes: &Outcomes| outcomes.get(&(kind.clone(), name)).cloned().unwrap_or("not there".to_owned());
            let (rest, work) = (of(settled_picture), of(at_work));
            if rest == work { rest } else { format!("idle: {rest}; at work: {work}") }
        };
        text += &format!("| `{kind}` | {} |\n", FAILURE_MODES.map(|(name, _)| cell(name)).join(" | "));
    }
    text
}

/// Compares the observations with the document.
pub fn compare(settled_picture: &Outcomes, at_work: &Outcomes) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/supervision.md");
    let document = std::fs::read_to_string(&path).expect("the document is there");
    let (before, rest) = document.split_once(BEGIN).expect("the begin marker exists");
    let (written, after) = rest.split_once(END).expect("the end marker exists");
    let seen = table(settled_picture, at_work);
    if std::env::var_os(UPDATE_VARIABLE).is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}\n{seen}\n{END}{after}")).expect("the document is writable");
        return;
    }
    assert_eq!(
        written.trim(),
        seen.trim(),
        "docs/supervision.md differs; {UPDATE_VARIABLE}=1 writes the observed table:\n{seen}"
    );
}
