//! An unlock key as it is given to `muster unlock` or to a locked daemon: its text alone, or the JSON of `muster autolock key`, which
//! says which version it is.

use muster_messages::{Revision, Secret};
use muster_sealing::UnlockKey;
use serde::Deserialize;
use zeroize::Zeroizing;

/// More than any text with a key.
pub const MAX_KEY_TEXT_BYTES: u64 = 4096;

/// For a text with a key. It does not grow: a buffer that did would leave parts of the key behind.
pub fn key_buffer() -> Zeroizing<String> {
    Zeroizing::new(String::with_capacity(MAX_KEY_TEXT_BYTES as usize))
}

/// A well-formed key: whether it opens anything is another question.
#[derive(Clone, Debug)]
pub struct GivenKey {
    pub key: UnlockKey,
    /// `None`: the text does not say.
    pub version: Option<Revision>,
}

#[derive(Deserialize)]
struct KeyDocument {
    key: Secret,
    version: Option<Revision>,
}

impl GivenKey {
    /// Errors quote nothing of the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("no unlock key was given: the input is empty".to_owned());
        }
        // Without a copy of the text, which would not be wiped.
        let (key, version) = match text.starts_with('{') {
            false => (UnlockKey::parse(text), None),
            true => {
                let document: KeyDocument = serde_json::from_str(text)
                    .map_err(|_| "not the JSON of `muster autolock key -o json`".to_owned())?;
                (UnlockKey::parse(document.key.expose()), document.version)
            }
        };
        let key = key.map_err(|bad| bad.to_string())?;
        Ok(Self { key, version })
    }
    /// The text of the key alone.
    pub fn text(&self) -> Secret {
        Secret::new(self.key.to_text().as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlock_key_is_read_as_text_or_as_json() {
        let key = UnlockKey::new();
        let text = key.to_text();
        let alone = GivenKey::parse(&format!("  {}\n", *text)).unwrap();
        assert_eq!((&alone.key, alone.version), (&key, None));
        let json = GivenKey::parse(&format!("{{\"enabled\":true,\"key\":\"{}\",\"version\":418}}\n", *text)).unwrap();
        assert_eq!((&json.key, json.version, json.text().expose()), (&key, Some(Revision(418)), text.as_str()));
    }

    #[test]
    fn mistyped_keys_are_refused_without_quoting_them() {
        let text = UnlockKey::new().to_text().to_string();
        let at = text.len() - 7;
        let other = if text.as_bytes()[at] == b'0' { "1" } else { "0" };
        let mistyped = format!("{}{other}{}", &text[..at], &text[at + 1..]);
        for bad in ["", " \n", "MSTR-UNLOCK-1-x", "{\"key\":1}", "{", mistyped.as_str()] {
            let why = GivenKey::parse(bad).unwrap_err();
            assert!(bad.trim().len() < 2 || !why.contains(bad.trim()), "{why}");
        }
        assert!(GivenKey::parse(&mistyped).unwrap_err().contains("typing error"));
    }
}
