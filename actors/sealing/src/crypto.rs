//! The primitives: AES-256-GCM, HKDF-SHA256, HMAC-SHA256 of aws-lc-rs, and keys that leave no copy behind.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{digest, hkdf, hmac};
use zeroize::Zeroizing;

use crate::keyring::{KeyId, KeyUse};

pub(crate) const KEY_LEN: usize = 32;
pub(crate) const TAG_LEN: usize = 16;
pub(crate) const SALT_LEN: usize = 16;

/// 32 secret bytes. Neither `Debug` nor `Display` shows them; they are overwritten when dropped.
#[derive(Clone)]
pub(crate) struct SecretKey(Zeroizing<[u8; KEY_LEN]>);

impl SecretKey {
    pub fn new_random() -> Self {
        let mut key = Self(Zeroizing::new([0; KEY_LEN]));
        random(&mut *key.0);
        key
    }
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        let mut key = Self(Zeroizing::new([0; KEY_LEN]));
        (bytes.len() == KEY_LEN).then(|| {
            key.0.copy_from_slice(bytes);
            key
        })
    }
    /// The bytes. Every call is a place to check when secrets leak.
    pub fn expose(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
    /// HKDF-SHA256 of this key.
    pub fn derive(&self, salt: &[u8], purpose: &str) -> SecretKey {
        struct Length;
        impl hkdf::KeyType for Length {
            fn len(&self) -> usize {
                KEY_LEN
            }
        }
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&*self.0);
        let info = [purpose.as_bytes()];
        let mut key = Self(Zeroizing::new([0; KEY_LEN]));
        let filled = secret.expand(&info, Length).and_then(|okm| okm.fill(&mut *key.0));
        filled.expect("32 bytes are within the limit of HKDF");
        key
    }
    pub fn cipher(&self) -> LessSafeKey {
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*self.0).expect("the key has the length of AES-256"))
    }
    /// HMAC-SHA256.
    pub fn mac(&self, text: &[u8]) -> [u8; 32] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &*self.0), text);
        tag.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
    }
    /// Whether `mac` is the text's. In constant time.
    pub fn verifies(&self, text: &[u8], mac: &[u8]) -> bool {
        hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, &*self.0), text, mac).is_ok()
    }
    /// `nonce 12 | text | tag 16`. For the few keys of a keyring: their nonces are random.
    pub fn wrap(&self, about: &str, key: &SecretKey) -> Vec<u8> {
        let mut nonce = [0; NONCE_LEN];
        random(&mut nonce);
        let mut wrapped = nonce.to_vec();
        let mut text = Zeroizing::new(key.expose().to_vec());
        let tag = self.cipher().seal_in_place_separate_tag(nonce_of(nonce), Aad::from(about), &mut text);
        wrapped.extend_from_slice(&text);
        wrapped.extend_from_slice(tag.expect("a key is far below the limit of AES-GCM").as_ref());
        wrapped
    }
    /// The inverse of [`SecretKey::wrap`]. `None`: this key did not wrap it, or not `about` the same.
    pub fn unwrap_key(&self, about: &str, wrapped: &[u8]) -> Option<SecretKey> {
        let (nonce, sealed) = wrapped.split_first_chunk::<NONCE_LEN>()?;
        let mut text = Zeroizing::new(sealed.to_vec());
        let opened = self.cipher().open_in_place(nonce_of(*nonce), Aad::from(about), &mut text).ok()?;
        SecretKey::from_slice(opened)
    }
}
impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// A key for data, from an open keyring.
#[derive(Clone, Debug)]
pub struct DataKey {
    pub(crate) id: KeyId,
    pub(crate) for_use: KeyUse,
    pub(crate) key: SecretKey,
}

impl DataKey {
    /// Its number in the keyring, which is also in every record.
    pub fn id(&self) -> KeyId {
        self.id
    }
    /// The key of one writer.
    pub(crate) fn cipher(&self, salt: &[u8; SALT_LEN]) -> LessSafeKey {
        self.key.derive(salt, self.for_use.purpose()).cipher()
    }
}

pub(crate) fn nonce_of(bytes: [u8; NONCE_LEN]) -> Nonce {
    Nonce::assume_unique_for_key(bytes)
}

/// The nonce of the record with this number.
pub(crate) fn counted_nonce(counter: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&counter.to_be_bytes());
    nonce_of(bytes)
}

pub(crate) fn random(bytes: &mut [u8]) {
    aws_lc_rs::rand::fill(bytes).expect("the kernel provides random bytes");
}

pub(crate) fn sha256(text: &[u8]) -> [u8; 32] {
    digest::digest(&digest::SHA256, text).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(b"0123456789abcdef"[digit as usize]))
        .collect()
}

/// The inverse of [`hex`], for lower-case digits only.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}
