//! How many records of 1 KiB are sealed and opened per second: `cargo bench -p muster-sealing`.

#![expect(clippy::unwrap_used, reason = "a benchmark ends where what it relies on fails")]

use std::time::Instant;

use muster_sealing::{KeyUse, Keys, Opener, Sealer};

const RECORDS: u32 = 500_000;

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::open(dir.path()).unwrap();
    keys.ensure().unwrap();
    let keys = keys.of(KeyUse::Raft).unwrap();
    let (mut sealer, mut opener) = (Sealer::new(&keys[0]), Opener::new(keys.clone()));
    let (text, mut record) = (vec![7; 1024], Vec::new());
    let started = Instant::now();
    for n in 0..RECORDS {
        record = sealer.seal(&n.to_be_bytes(), &text);
    }
    let sealed = started.elapsed();
    let started = Instant::now();
    for _ in 0..RECORDS {
        opener.open(&(RECORDS - 1).to_be_bytes(), &record).unwrap();
    }
    let per_second = |took: std::time::Duration| f64::from(RECORDS) / took.as_secs_f64();
    println!("{:.0} records sealed, {:.0} opened per second", per_second(sealed), per_second(started.elapsed()));
}
