//! The unlock key of a cluster, as text: `MSTR-UNLOCK-1-<50 digits>-<4 check digits>`, in base 36.
//!
//! The check digits tell a typing error from the key of another cluster or version before anything is tried.

use std::fmt;

use zeroize::Zeroizing;

use crate::crypto::{KEY_LEN, SecretKey, sha256};

const PREFIX: &str = "MSTR-UNLOCK-1-";
/// 36^50 > 2^256.
const DIGITS: usize = 50;
const CHECK_DIGITS: usize = 4;

/// Why a text is not an unlock key. Quotes no part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUnlockKey {
    /// The text does not have the form of an unlock key.
    #[error("not an unlock key: it must look like {PREFIX}<{DIGITS} digits of 0-9a-z>-<{CHECK_DIGITS} digits>")]
    Form,
    /// A version of the form that this release does not know.
    #[error("unsupported version of an unlock key; this release supports {PREFIX}…")]
    Version,
    /// A digit was mistyped.
    #[error("the unlock key has a typing error: its last {CHECK_DIGITS} digits do not match the others")]
    Check,
}

/// A cluster's unlock key: 32 random bytes. Hidden from `Debug`, without `Display`, and overwritten when dropped.
#[derive(Clone)]
pub struct UnlockKey(SecretKey);

impl UnlockKey {
    /// A new one.
    #[expect(clippy::new_without_default, reason = "every one differs")]
    pub fn new() -> Self {
        Self(SecretKey::new_random())
    }

    /// Parses the text of a key. White space around it and the case of its digits do not matter.
    pub fn parse(text: &str) -> Result<Self, BadUnlockKey> {
        let text = Zeroizing::new(text.trim().to_ascii_lowercase());
        let Some(rest) = text.strip_prefix("mstr-unlock-") else { return Err(BadUnlockKey::Form) };
        let (version, rest) = rest.split_once('-').ok_or(BadUnlockKey::Form)?;
        if version != "1" {
            return Err(if version.parse::<u32>().is_ok() { BadUnlockKey::Version } else { BadUnlockKey::Form });
        }
        let (digits, check) = rest.split_once('-').ok_or(BadUnlockKey::Form)?;
        let is_base36 = |text: &str| text.bytes().all(|c| c.is_ascii_digit() || c.is_ascii_lowercase());
        if digits.len() != DIGITS || check.len() != CHECK_DIGITS || !is_base36(digits) || !is_base36(check) {
            return Err(BadUnlockKey::Form);
        }
        if check_digits(digits) != check {
            return Err(BadUnlockKey::Check);
        }
        bytes_of(digits).map(Self).ok_or(BadUnlockKey::Check)
    }

    /// The whole text: for the operator who asked for it, never for a log.
    pub fn to_text(&self) -> Zeroizing<String> {
        let digits = digits_of(&self.0);
        Zeroizing::new(format!("{PREFIX}{}-{}", *digits, check_digits(&digits)))
    }

    /// A key for one purpose.
    pub(crate) fn derive(&self, salt: &[u8], purpose: &str) -> SecretKey {
        self.0.derive(salt, purpose)
    }

    /// The key that wraps master keys of this keyring.
    pub(crate) fn kek(&self, keyring_id: &[u8]) -> SecretKey {
        self.0.derive(keyring_id, "muster-kek/1")
    }
}

impl PartialEq for UnlockKey {
    /// In constant time.
    fn eq(&self, other: &Self) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(self.0.expose(), other.0.expose()).is_ok()
    }
}
impl Eq for UnlockKey {}

impl fmt::Debug for UnlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<unlock key>")
    }
}

fn digit(value: u8) -> char {
    char::from(b"0123456789abcdefghijklmnopqrstuvwxyz"[usize::from(value)])
}

/// Base 36, most significant digit first.
fn digits_of(key: &SecretKey) -> Zeroizing<String> {
    let mut number = Zeroizing::new(*key.expose());
    let mut digits = Zeroizing::new([0u8; DIGITS]);
    for place in digits.iter_mut().rev() {
        let mut rest = 0u32;
        for byte in number.iter_mut() {
            let value = rest << 8 | u32::from(*byte);
            *byte = (value / 36) as u8;
            rest = value % 36;
        }
        *place = rest as u8;
    }
    Zeroizing::new(digits.iter().map(|value| digit(*value)).collect())
}

/// `None`: the number has more than 256 bits.
fn bytes_of(digits: &str) -> Option<SecretKey> {
    let mut number = Zeroizing::new([0u8; KEY_LEN]);
    for c in digits.bytes() {
        let mut carry = u32::from(if c.is_ascii_digit() { c - b'0' } else { c - b'a' + 10 });
        for byte in number.iter_mut().rev() {
            let value = u32::from(*byte) * 36 + carry;
            *byte = value as u8;
            carry = value >> 8;
        }
        if carry > 0 {
            return None;
        }
    }
    SecretKey::from_slice(&*number)
}

fn check_digits(digits: &str) -> String {
    let text = Zeroizing::new(format!("{PREFIX}{digits}"));
    let sum = sha256(text.as_bytes());
    let mut value = u32::from_be_bytes([sum[0], sum[1], sum[2], sum[3]]);
    let mut check = String::new();
    for _ in 0..CHECK_DIGITS {
        check.push(digit((value % 36) as u8));
        value /= 36;
    }
    check
}
