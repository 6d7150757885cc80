//! Sealed records and files.
//!
//! ```text
//! record   version 1 | key id 4 | salt 16 | counter 8 | sealed text | tag 16
//! file     version 1 | key id 4 | salt 16 | chunks of 64 KiB, the last one shorter: sealed text | tag 16
//! ```
//!
//! The *place* is what the reader knows without the record: directory, kind, index, term. It is authenticated and not stored, so
//! that a record opens only where it was written.
//!
//! Invariants  SEAL-7  no pair of key and nonce is used twice. Every writer draws a salt, derives its own key from it, and counts.
//! Why not the index of an entry as nonce: it is written again after a conflict. Why not random nonces: at 56,000 entries a second
//! the limit of one key would be reached within a day.

use std::collections::BTreeMap;
use std::io;

use aws_lc_rs::aead::{Aad, LessSafeKey};

use crate::crypto::{DataKey, SALT_LEN, TAG_LEN, counted_nonce, random};
use crate::keyring::KeyId;

const VERSION: u8 = 1;
/// Version, key id and salt.
const WRITER_LEN: usize = 1 + 4 + SALT_LEN;
const HEAD_LEN: usize = WRITER_LEN + 8;
/// What a record is longer than its text.
pub const RECORD_OVERHEAD: usize = HEAD_LEN + TAG_LEN;
/// Text in one chunk of a file: small enough to be authenticated before much of it is used, large enough for the tags not to count.
const CHUNK: usize = 64 * 1024;
/// Records after which a writer draws another salt.
const MAX_RECORDS: u64 = 1 << 32;
/// Ciphers that an opener keeps. A log holds records of as many writers as starts since its last snapshot.
const MAX_CIPHERS: usize = 64;

/// Why a record or a file does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongSeal {
    /// Too few bytes.
    #[error("it is too short to be sealed")]
    Short,
    /// A newer release wrote it, in this format.
    #[error("it is sealed in format {0}, and this build supports format {VERSION}")]
    Newer(u8),
    /// The keyring has no key with this id.
    #[error("it is sealed with key {0}, which is not in the keyring")]
    UnknownKey(KeyId),
    /// Changed, cut off, or written for another place.
    #[error("it is not what was sealed here")]
    Forged,
}

/// Seals records. One per start of a writer.
pub struct Sealer {
    key: DataKey,
    writer: [u8; WRITER_LEN],
    cipher: LessSafeKey,
    counter: u64,
}

impl Sealer {
    /// A writer with a salt of its own.
    pub fn new(key: &DataKey) -> Self {
        Self::with_salt(key, new_salt())
    }
    fn with_salt(key: &DataKey, salt: [u8; SALT_LEN]) -> Self {
        Self { key: key.clone(), writer: writer(key.id, &salt), cipher: key.cipher(&salt), counter: 0 }
    }
    /// Seals a text for its place.
    pub fn seal(&mut self, place: &[u8], text: &[u8]) -> Vec<u8> {
        if self.counter == MAX_RECORDS {
            *self = Self::new(&self.key);
        }
        let mut record = Vec::with_capacity(text.len() + RECORD_OVERHEAD);
        record.extend_from_slice(&self.writer);
        record.extend_from_slice(&self.counter.to_be_bytes());
        let about = Aad::from([place, &record].concat());
        record.extend_from_slice(text);
        let sealed =
            self.cipher.seal_in_place_separate_tag(counted_nonce(self.counter), about, &mut record[HEAD_LEN..]);
        record.extend_from_slice(sealed.expect("a record is below the limit of AES-GCM").as_ref());
        self.counter += 1;
        record
    }
}

/// Opens records of any writer, with the keys of one keyring.
pub struct Opener {
    keys: Vec<DataKey>,
    ciphers: BTreeMap<[u8; WRITER_LEN], LessSafeKey>,
}

impl Opener {
    /// Opens what one of these keys sealed.
    pub fn new(keys: Vec<DataKey>) -> Self {
        Self { keys, ciphers: BTreeMap::new() }
    }
    /// The text of a record that was sealed for this place.
    pub fn open(&mut self, place: &[u8], record: &[u8]) -> Result<Vec<u8>, WrongSeal> {
        let (head, sealed) = record.split_at_checked(HEAD_LEN).ok_or(WrongSeal::Short)?;
        let (writer, counter) = head.split_first_chunk::<WRITER_LEN>().ok_or(WrongSeal::Short)?;
        let counter = u64::from_be_bytes(counter.try_into().map_err(|_| WrongSeal::Short)?);
        let mut text = sealed.to_vec();
        let cipher = self.cipher(writer)?;
        let opened =
            cipher.open_in_place(counted_nonce(counter), Aad::from([place, head].concat()), &mut text).map(|t| t.len());
        text.truncate(opened.map_err(|_| WrongSeal::Forged)?);
        Ok(text)
    }
    fn cipher(&mut self, writer: &[u8; WRITER_LEN]) -> Result<&LessSafeKey, WrongSeal> {
        if !self.ciphers.contains_key(writer) {
            let cipher = cipher_of(&self.keys, writer)?;
            if self.ciphers.len() >= MAX_CIPHERS {
                self.ciphers.clear();
            }
            self.ciphers.insert(*writer, cipher);
        }
        Ok(&self.ciphers[writer])
    }
}

fn cipher_of(keys: &[DataKey], writer: &[u8; WRITER_LEN]) -> Result<LessSafeKey, WrongSeal> {
    let [version, key_id @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = writer;
    if *version != VERSION {
        return Err(WrongSeal::Newer(*version));
    }
    let id = KeyId(u32::from_be_bytes(*key_id));
    let key = keys.iter().find(|key| key.id == id).ok_or(WrongSeal::UnknownKey(id))?;
    let salt = writer.last_chunk().expect("a writer ends with its salt");
    Ok(key.cipher(salt))
}

fn writer(id: KeyId, salt: &[u8; SALT_LEN]) -> [u8; WRITER_LEN] {
    let mut writer = [0; WRITER_LEN];
    writer[0] = VERSION;
    writer[1..5].copy_from_slice(&id.0.to_be_bytes());
    writer[5..].copy_from_slice(salt);
    writer
}

fn new_salt() -> [u8; SALT_LEN] {
    let mut salt = [0; SALT_LEN];
    random(&mut salt);
    salt
}

fn about_chunk(place: &[u8], writer: &[u8], number: u64, is_last: bool) -> Aad<Vec<u8>> {
    Aad::from([place, writer, &number.to_be_bytes(), &[u8::from(is_last)]].concat())
}

/// Seals a whole file for its place, chunk by chunk. A file without text has one empty chunk.
pub fn seal_chunks(
    key: &DataKey,
    place: &[u8],
    text: &[u8],
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let salt = new_salt();
    let (writer, cipher) = (writer(key.id, &salt), key.cipher(&salt));
    write(&writer)?;
    let chunks = text.len().div_ceil(CHUNK).max(1);
    let mut sealed = Vec::with_capacity(CHUNK.min(text.len()) + TAG_LEN);
    for number in 0..chunks {
        let chunk = &text[number * CHUNK..text.len().min((number + 1) * CHUNK)];
        let about = about_chunk(place, &writer, number as u64, number + 1 == chunks);
        sealed.clear();
        sealed.extend_from_slice(chunk);
        let done = cipher.seal_in_place_append_tag(counted_nonce(number as u64), about, &mut sealed);
        done.expect("a chunk is below the limit of AES-GCM");
        write(&sealed)?;
    }
    Ok(())
}

/// The text of a file that [`seal_chunks`] wrote for this place.
pub fn open_chunks(keys: &[DataKey], place: &[u8], mut file: Vec<u8>) -> Result<Vec<u8>, WrongSeal> {
    let writer = *file.first_chunk::<WRITER_LEN>().ok_or(WrongSeal::Short)?;
    let cipher = cipher_of(keys, &writer)?;
    let sealed = file.len() - WRITER_LEN;
    let chunks = sealed.div_ceil(CHUNK + TAG_LEN).max(1);
    let mut end = 0;
    for number in 0..chunks {
        let from = WRITER_LEN + number * (CHUNK + TAG_LEN);
        let to = file.len().min(from + CHUNK + TAG_LEN);
        let about = about_chunk(place, &writer, number as u64, number + 1 == chunks);
        let opened = cipher.open_in_place(counted_nonce(number as u64), about, &mut file[from..to]);
        let length = opened.map_err(|_| WrongSeal::Forged)?.len();
        file.copy_within(from..from + length, end);
        end += length;
    }
    file.truncate(end);
    Ok(file)
}
