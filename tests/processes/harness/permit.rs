//! Limits concurrent clusters to twice the number of cores, regardless of `--test-threads`: a scenario waits for half of its time.
//!
//! Owns        two slots per core and a gate before them, as locked files: concurrent test programs share them.
//! Invariants  PERMIT-1  at most twice as many permits are out as there are cores, and none besides an exclusive one.
//!             PERMIT-2  a thread waits for a permit only while it has none, so that no two tests wait for each other.
//!
//! A permit belongs to the test's thread: all clusters that the thread starts share it. The kernel releases a lock when
//! its process ends.

use std::cell::RefCell;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::available_parallelism;

use super::between_checks;

thread_local! {
    static HELD: RefCell<Weak<Permit>> = const { RefCell::new(Weak::new()) };
}

/// Released with its last clone.
#[derive(Debug)]
pub struct Permit {
    exclusive_use: bool,
    _locked: Vec<File>,
}

/// The permit of this thread; waits for a slot if it has none.
pub fn permit() -> Arc<Permit> {
    held().unwrap_or_else(|| hold(Slots::of_this_machine().one()))
}

/// Exclusive use of the machine, without other process scenarios, while the result is kept.
pub fn exclusive_use() -> Arc<Permit> {
    match held() {
        Some(permit) => {
            assert!(permit.exclusive_use, "a test requests exclusive use before it starts anything");
            permit
        }
        None => hold(Slots::of_this_machine().all()),
    }
}

/// Shares this permit with a thread that the test has started.
pub fn share(permit: &Arc<Permit>) {
    HELD.with_borrow_mut(|held| *held = Arc::downgrade(permit));
}

fn held() -> Option<Arc<Permit>> {
    HELD.with_borrow(Weak::upgrade)
}

fn hold(permit: Permit) -> Arc<Permit> {
    let permit = Arc::new(permit);
    share(&permit);
    permit
}

/// A scenario uses less than half of a core: the rest of the time it waits for elections, renewals and expiries.
const PER_CORE: usize = 2;

struct Slots {
    gate: File,
    slots: Vec<File>,
}

impl Slots {
    fn of_this_machine() -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self::open(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("clusters"), PER_CORE * cores)
    }

    fn open(folder: &Path, slots: usize) -> Self {
        std::fs::create_dir_all(folder).expect("cargo's temporary folder is writable");
        let open = |name: &str| {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(name));
            file.expect("cargo's temporary folder is writable")
        };
        Self { gate: open("gate"), slots: (0..slots).map(|number| open(&format!("slot-{number}"))).collect() }
    }

    /// The gate is held while waiting, so that a request for all slots is not starved.
    fn one(mut self) -> Permit {
        lock(&self.gate);
        loop {
            if let Some(free) = self.slots.iter().position(is_lock_taken) {
                return Permit { exclusive_use: false, _locked: vec![self.slots.swap_remove(free)] };
            }
            between_checks();
        }
    }

    fn all(self) -> Permit {
        lock(&self.gate);
        self.slots.iter().for_each(lock);
        Permit { exclusive_use: true, _locked: self.slots.into_iter().chain([self.gate]).collect() }
    }
}

fn lock(file: &File) {
    file.lock().expect("a file can be locked");
}

fn is_lock_taken(slot: &File) -> bool {
    match slot.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(error)) => panic!("a file can be locked: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::{scope, spawn, yield_now};

    use super::*;

    #[test]
    fn permits_never_exceed_slots_or_overlap_exclusive() {
        const SLOTS: usize = 3;
        let folder = tempfile::tempdir().expect("a folder");
        let (ones, exclusive) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // A permit is counted from after its acquisition until before its release.
        let work = |own: &AtomicUsize, most: usize, others: &AtomicUsize| {
            assert!(own.fetch_add(1, Ordering::SeqCst) < most);
            for _ in 0..100 {
                assert_eq!(others.load(Ordering::SeqCst), 0);
                yield_now();
            }
            own.fetch_sub(1, Ordering::SeqCst);
        };
        scope(|threads| {
            for number in 0..8 * SLOTS {
                let (slots, ones, exclusive, work) = (Slots::open(folder.path(), SLOTS), &ones, &exclusive, &work);
                threads.spawn(move || {
                    if number % 4 == 0 {
                        let _permit = slots.all();
                        work(exclusive, 1, ones);
                    } else {
                        let _permit = slots.one();
                        work(ones, SLOTS, exclusive);
                    }
                });
            }
        });
    }

    #[test]
    fn threads_of_one_test_share_a_permit() {
        let first = permit();
        assert!(Arc::ptr_eq(&first, &permit()));
        let theirs = Arc::clone(&first);
        let started = spawn(move || {
            share(&theirs);
            Arc::ptr_eq(&theirs, &permit())
        });
        assert!(started.join().expect("it does not panic"));
        drop(first);
        assert!(held().is_none());
    }
}
