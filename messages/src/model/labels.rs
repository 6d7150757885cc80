//! Labels of nodes, and the texts that nodes report about themselves: the rules, in one place for all inputs.
//!
//! Invariants  TEXT-1  no text of a node contains control characters: it reaches terminals and logs.
//!             LABEL-1  a node has at most [`MAX_NODE_LABELS`] labels of the operator's and as many reported ones, and at most
//!                      [`MAX_NODE_LABEL_BYTES`] of each. Every list of nodes carries them.

use std::collections::BTreeMap;

/// Labels of one node: the operator's and the reported ones are counted separately.
pub const MAX_NODE_LABELS: usize = 64;
/// Bytes of keys and values of one node's labels: 64 keys and values of ordinary length; 640 nodes' fill 10 MiB.
pub const MAX_NODE_LABEL_BYTES: usize = 16 << 10;
/// Bytes of a label's key: a DNS name and a path below it.
pub const MAX_LABEL_KEY: usize = 128;
/// Bytes of a label's value.
pub const MAX_LABEL_VALUE: usize = 256;

/// Whether a character may reach a terminal: no control characters, and none that reorder or end a line.
pub fn is_printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Rejects a text that is too long, or that contains characters unsafe for a terminal. `what` names it in the refusal.
pub fn check_text(what: &str, text: &str, max_bytes: usize) -> Result<(), String> {
    if text.len() > max_bytes {
        return Err(format!("{what} has {} bytes, the limit is {max_bytes}", text.len()));
    }
    if !text.chars().all(is_printable) {
        return Err(format!("{what} contains control characters"));
    }
    Ok(())
}

/// The text with every character that is unsafe for a terminal replaced, and truncated to this length. For texts that are worth
/// keeping although they are malformed: reasons, errors.
pub fn printable(text: &str, max_chars: usize) -> String {
    let replaced: String =
        text.chars().map(|c| if is_printable(c) { c } else { '\u{fffd}' }).take(max_chars + 1).collect();
    super::in_short(&replaced, max_chars)
}

/// Rejects labels that no node may have.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), String> {
    for (key, value) in labels {
        let of = super::in_short(&printable(key, 40), 40);
        if key.is_empty() {
            return Err("a label has an empty key".to_owned());
        }
        check_text(&format!("the key of label {of:?}"), key, MAX_LABEL_KEY)?;
        check_text(&format!("the value of label {of:?}"), value, MAX_LABEL_VALUE)?;
    }
    labels_fit(labels)
}

/// Rejects more labels than a node may have.
pub fn labels_fit(labels: &BTreeMap<String, String>) -> Result<(), String> {
    if labels.len() > MAX_NODE_LABELS {
        return Err(format!("{} labels, the limit is {MAX_NODE_LABELS}", labels.len()));
    }
    let bytes: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_NODE_LABEL_BYTES {
        return Err(format!("labels of {bytes} bytes, the limit is {MAX_NODE_LABEL_BYTES}"));
    }
    Ok(())
}

/// The first labels, by key, within the limits: LABEL-1 for input that must not be rejected as a whole.
pub fn fitting_labels(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut bytes = 0;
    let fits = |(key, value): &(&String, &String)| {
        bytes += key.len() + value.len();
        bytes <= MAX_NODE_LABEL_BYTES
    };
    let fitting = labels.iter().take(MAX_NODE_LABELS).take_while(fits);
    fitting.map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn a_label_is_short_and_printable() {
        assert_eq!(check_labels(&labels(&[("zone", "eu-1"), ("a/b", "")])), Ok(()));
        for bad in [("", "a"), ("a\u{1b}[2J", "b"), ("a", "b\n"), ("a", "\u{202e}b"), (&*"k".repeat(129), "v")] {
            assert!(check_labels(&labels(&[bad])).is_err(), "{bad:?}");
        }
        let refusal = check_labels(&labels(&[("a\u{1b}", "b")])).unwrap_err();
        assert!(refusal.chars().all(is_printable), "{refusal:?}");
    }

    #[test]
    fn labels_of_a_node_are_bounded_in_number_and_bytes() {
        let many: BTreeMap<String, String> = (0..65).map(|n| (format!("{n:03}"), String::new())).collect();
        assert!(labels_fit(&many).is_err());
        assert_eq!(fitting_labels(&many).len(), 64);
        let large: BTreeMap<String, String> = (0..64).map(|n| (format!("{n:03}"), "x".repeat(256))).collect();
        assert!(labels_fit(&large).is_err());
        let fitting = fitting_labels(&large);
        assert_eq!((fitting.len(), labels_fit(&fitting)), (63, Ok(())));
    }

    #[test]
    fn a_malformed_reason_is_kept_in_a_printable_form() {
        assert_eq!(printable("dial \u{1b}[31mfailed\n", 80), "dial \u{fffd}[31mfailed\u{fffd}");
        assert_eq!(printable("abcdef", 3), "abc…");
    }
}
