//! Untrusted texts, in places that keep many of them.

/// The beginning of a long text: this many characters and an ellipsis.
pub fn in_short(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::in_short;

    #[test]
    fn long_text_is_truncated_between_characters() {
        assert_eq!((in_short("äöü", 3), in_short("äöü", 2)), ("äöü".to_owned(), "äö…".to_owned()));
    }
}
