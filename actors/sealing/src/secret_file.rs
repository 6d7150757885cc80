//! Small secret texts in the identity folder, sealed as one PEM block.

use zeroize::Zeroizing;

use crate::crypto::DataKey;
use crate::keyring::KeyId;
use crate::record::{Opener, Sealer, WrongSeal};

/// Seals a text as a PEM block with this label, for the file or part of one that `place` names.
pub fn seal_text(key: &DataKey, label: &str, place: &str, text: &str) -> String {
    let record = Sealer::new(key).seal(place.as_bytes(), text.as_bytes());
    let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(label, record), lines)
}

/// Whether a text begins with a sealed block of this label.
pub fn is_sealed_text(label: &str, text: &str) -> bool {
    text.trim_start()
        .strip_prefix("-----BEGIN ")
        .and_then(|rest| rest.strip_prefix(label))
        .is_some_and(|rest| rest.starts_with("-----"))
}

/// The key that a block of this label is sealed with. `None`: it is not sealed, or cannot be read.
pub fn key_of_text(label: &str, text: &str) -> Option<KeyId> {
    let block = pem::parse(text).ok().filter(|block| block.tag() == label)?;
    let id = block.contents().get(1..5)?;
    Some(KeyId(u32::from_be_bytes(id.try_into().ok()?)))
}

/// The inverse of [`seal_text`].
pub fn open_text(keys: Vec<DataKey>, label: &str, place: &str, text: &str) -> Result<Zeroizing<String>, WrongSeal> {
    let block = pem::parse(text).ok().filter(|block| block.tag() == label).ok_or(WrongSeal::Forged)?;
    let opened = Opener::new(keys).open(place.as_bytes(), block.contents())?;
    String::from_utf8(opened).map(Zeroizing::new).map_err(|_| WrongSeal::Forged)
}
