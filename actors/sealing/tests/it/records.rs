use std::collections::BTreeSet;

use muster_sealing::{
    DataKey, KeyUse, Keys, Opener, RECORD_OVERHEAD, Sealer, WrongSeal, is_sealed_text, open_chunks, open_text,
    seal_chunks, seal_text,
};
use proptest::prelude::*;

const CHUNK: usize = 64 * 1024 + 16;
const HEAD: usize = 21;

fn keys() -> Vec<DataKey> {
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::open(dir.path()).unwrap();
    keys.ensure().unwrap();
    keys.of(KeyUse::Raft).unwrap()
}

fn sealed_file(key: &DataKey, place: &[u8], text: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    seal_chunks(key, place, text, |bytes| {
        file.extend_from_slice(bytes);
        Ok(())
    })
    .unwrap();
    file
}

fn text_of(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 31 % 251) as u8).collect()
}

#[test]
fn records_open_only_at_their_place() {
    let keys = keys();
    let (mut sealer, mut opener) = (Sealer::new(&keys[0]), Opener::new(keys.clone()));
    let record = sealer.seal(b"index 7 term 2", b"a secret");
    assert_eq!(record.len(), 8 + RECORD_OVERHEAD);
    assert!(!record.windows(8).any(|part| part == b"a secret"));
    assert_eq!(opener.open(b"index 7 term 2", &record).unwrap(), b"a secret");
    for elsewhere in [&b"index 8 term 2"[..], b"index 7 term 3", b"", b"index 7 term 2 "] {
        assert_eq!(opener.open(elsewhere, &record), Err(WrongSeal::Forged));
    }
    assert_eq!(Opener::new(self::keys()).open(b"index 7 term 2", &record), Err(WrongSeal::UnknownKey(keys[0].id())));
    let newer = [&[2], &record[1..]].concat();
    assert_eq!(opener.open(b"index 7 term 2", &newer), Err(WrongSeal::Newer(2)));
}

/// Test 41.
#[test]
fn flipped_bits_and_cut_ends_of_a_record_are_found() {
    let keys = keys();
    let (mut sealer, mut opener) = (Sealer::new(&keys[0]), Opener::new(keys));
    let record = sealer.seal(b"place", &text_of(100));
    for at in 0..record.len() {
        for bit in 0..8 {
            let mut changed = record.clone();
            changed[at] ^= 1 << bit;
            assert!(opener.open(b"place", &changed).is_err(), "byte {at} bit {bit}");
        }
        assert!(opener.open(b"place", &record[..at]).is_err(), "cut at {at}");
    }
    let other = sealer.seal(b"place", &text_of(100));
    // Heads, texts and tags of two records of one writer, mixed.
    for cut in 1..record.len() {
        let mixed = [&record[..cut], &other[cut..]].concat();
        assert_eq!(opener.open(b"place", &mixed).is_err(), mixed != record && mixed != other, "cut at {cut}");
    }
}

/// SEAL-7, test 42: 1,000 starts, of which each writes at the same positions.
#[test]
fn no_key_and_nonce_are_used_twice() {
    let key = &keys()[0];
    let mut seen = BTreeSet::new();
    for _start in 0..1000 {
        let mut sealer = Sealer::new(key);
        for index in 0..20u64 {
            let record = sealer.seal(&index.to_be_bytes(), b"the same text");
            assert!(seen.insert(record[..29].to_vec()), "key, salt and counter");
        }
        let file = sealed_file(key, b"snapshot", b"the same text");
        assert!(seen.insert(file[..HEAD].to_vec()), "every file is a writer of its own");
    }
    let salts: BTreeSet<&[u8]> = seen.iter().map(|head| &head[5..HEAD]).collect();
    assert_eq!(salts.len(), 2000);
}

#[test]
fn files_open_whole_whatever_their_length() {
    let keys = keys();
    for length in [0, 1, CHUNK - 17, CHUNK - 16, CHUNK - 15, 3 * (CHUNK - 16), 200_000] {
        let text = text_of(length);
        let file = sealed_file(&keys[0], b"at 5", &text);
        assert_eq!(open_chunks(&keys, b"at 5", file.clone()), Ok(text), "{length}");
        assert_eq!(open_chunks(&keys, b"at 6", file), Err(WrongSeal::Forged));
    }
}

/// Test 41: files cut off, extended, with chunks dropped, repeated, swapped, or of another file.
#[test]
fn files_that_were_cut_or_reordered_are_found() {
    let keys = keys();
    let text = text_of(5 * 64 * 1024 + 100);
    let file = sealed_file(&keys[0], b"at 5", &text);
    let (head, rest) = file.split_at(HEAD);
    let chunks: Vec<&[u8]> = rest.chunks(CHUNK).collect();
    assert_eq!(chunks.len(), 6);
    let opens = |parts: &[&[u8]]| open_chunks(&keys, b"at 5", [head, &parts.concat()].concat()).is_ok();
    assert!(opens(&chunks));
    for n in 0..chunks.len() {
        assert!(!opens(&chunks[..n]), "cut before chunk {n}");
        let mut parts = chunks.clone();
        parts.remove(n);
        assert!(!opens(&parts), "without chunk {n}");
        let mut parts = chunks.clone();
        parts.insert(n, chunks[n]);
        assert!(!opens(&parts), "chunk {n} twice");
        let mut parts = chunks.clone();
        parts.swap(n, (n + 1) % 6);
        assert!(!opens(&parts), "chunk {n} swapped");
        for other in [sealed_file(&keys[0], b"at 5", &text), sealed_file(&keys[0], b"at 6", &text)] {
            let foreign: Vec<&[u8]> = other[HEAD..].chunks(CHUNK).collect();
            let mut parts = chunks.clone();
            parts[n] = foreign[n];
            assert!(!opens(&parts), "chunk {n} of another file");
        }
    }
    for end in (0..file.len()).step_by(997).chain(file.len() - 20..file.len()) {
        assert!(open_chunks(&keys, b"at 5", file[..end].to_vec()).is_err(), "cut at {end}");
    }
    for at in (0..HEAD).chain((HEAD..file.len()).step_by(4093)) {
        let mut changed = file.clone();
        changed[at] ^= 0x40;
        assert!(open_chunks(&keys, b"at 5", changed).is_err(), "byte {at}");
    }
    assert!(open_chunks(&keys, b"at 5", [&file[..], &[0]].concat()).is_err(), "a byte more");
}

#[test]
fn sealed_texts_are_pem_blocks() {
    let keys = keys();
    let text = seal_text(&keys[0], "SEALED FILE", "join.json", "a secret\n");
    assert!(is_sealed_text("SEALED FILE", &text) && !is_sealed_text("SEALED", &text) && !text.contains("secret"));
    let open = |label: &str, place: &str, text: &str| open_text(keys.clone(), label, place, text);
    assert_eq!(*open("SEALED FILE", "join.json", &text).unwrap(), "a secret\n");
    assert!(open("SEALED FILE", "recovery.json", &text).is_err());
    assert!(open("OTHER", "join.json", &text).is_err());
    assert!(open("SEALED FILE", "join.json", "a secret\n").is_err());
}

proptest! {
    #[test]
    fn records_round_trip(text in proptest::collection::vec(any::<u8>(), 0..5000), place in proptest::collection::vec(any::<u8>(), 0..60)) {
        let keys = keys();
        let record = Sealer::new(&keys[0]).seal(&place, &text);
        prop_assert_eq!(Opener::new(keys).open(&place, &record).unwrap(), text);
    }

    #[test]
    fn any_bytes_are_opened_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let keys = keys();
        prop_assert!(Opener::new(keys.clone()).open(b"place", &bytes).is_err());
        prop_assert!(open_chunks(&keys, b"place", bytes).is_err());
    }
}
