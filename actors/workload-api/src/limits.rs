//! What the processes of one user may take of this node, counted before anything is done for them.
//!
//! Owns        permits by user, and how many connections there may be.
//! Invariants  a user takes a third of what there is at most; what was taken is given back when it is dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use muster_messages::Moment;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::core::{MAX_STREAMS, MAX_STREAMS_OF_USER, Requests};

/// Connections: one for each stream, and some that are about to ask. A client has a connection for each of its sources.
const MAX_CONNECTIONS: usize = MAX_STREAMS + 100;
const MAX_CONNECTIONS_OF_USER: usize = MAX_STREAMS_OF_USER + 20;
/// Connections per second of one user, after all that it may have were made at once: twice its requests.
const CONNECTIONS_PER_SECOND: u64 = 100;
/// Files that a connection keeps open: its socket, and the handle of its process.
const FILES_OF_CONNECTION: u64 = 2;
/// The part of all files that connections may keep open. The rest is for the node's own port and its disk.
const PART_OF_FILES: u64 = 4;

/// Looks at processes at once. A look takes microseconds, unless a file system hangs: a user's own must not stop the looks at others.
const MAX_LOOKS: usize = 16;
const MAX_LOOKS_OF_USER: usize = 4;

/// How many of something there may be, of all users and of one.
#[derive(Clone)]
pub(crate) struct Limit {
    most: usize,
    most_of_user: usize,
    taken: Arc<Mutex<BTreeMap<u32, usize>>>,
}

/// One of them; given back when it is dropped.
pub(crate) struct Permit(Limit, u32);

impl Limit {
    pub(crate) fn new(most: usize, most_of_user: usize) -> Self {
        Self { most, most_of_user, taken: Arc::default() }
    }
    pub(crate) fn admit(&self, uid: u32) -> Option<Permit> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, of_user) = (taken.values().sum::<usize>(), taken.get(&uid).copied().unwrap_or(0));
        if all >= self.most || of_user >= self.most_of_user {
            return None;
        }
        taken.insert(uid, of_user + 1);
        Some(Permit(self.clone(), uid))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_user) = taken.get_mut(&self.1) {
            *of_user -= 1;
            if *of_user == 0 {
                taken.remove(&self.1);
            }
        }
    }
}

/// Looks at processes wait for each other, those of a user for those of the same user first.
#[derive(Clone)]
pub(crate) struct Looks {
    all: Arc<Semaphore>,
    users: Arc<Mutex<BTreeMap<u32, Arc<Semaphore>>>>,
}

impl Default for Looks {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_LOOKS)), users: Arc::default() }
    }
}

impl Looks {
    /// Resolves when there is room; nothing, if the actor has ended.
    pub(crate) async fn begin(&self, uid: u32) -> Option<[OwnedSemaphorePermit; 2]> {
        let of_user = self.of_user(uid).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some([of_user, of_all])
    }
    fn of_user(&self, uid: u32) -> Arc<Semaphore> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|_, looks| Arc::strong_count(looks) > 1); // held by each look, and by those that wait
        Arc::clone(users.entry(uid).or_insert_with(|| Arc::new(Semaphore::new(MAX_LOOKS_OF_USER))))
    }
}

/// Decides which connections are served: so many at a time, and so many per second.
pub(crate) struct Admission {
    open: Limit,
    arrivals: Requests,
}

impl Admission {
    /// `files`: how many this process may open, if that is limited.
    pub(crate) fn new(files: Option<u64>) -> Self {
        let (all, of_user) = connections_for(files);
        Self { open: Limit::new(all, of_user), arrivals: Requests::limited(of_user as u64, CONNECTIONS_PER_SECOND) }
    }
    pub(crate) fn admit(&mut self, now: Moment, uid: u32) -> Option<Permit> {
        let permit = self.open.admit(uid)?;
        self.arrivals.admit(now, uid).then_some(permit)
    }
}

/// Connections of all users, and of one.
fn connections_for(files: Option<u64>) -> (usize, usize) {
    let room = files.and_then(|files| usize::try_from(files / PART_OF_FILES / FILES_OF_CONNECTION).ok());
    let all = room.unwrap_or(MAX_CONNECTIONS).clamp(1, MAX_CONNECTIONS);
    (all, (all / 3).clamp(1, MAX_CONNECTIONS_OF_USER))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn connections_fit_into_a_quarter_of_the_open_files() {
        for (files, connections) in [
            (None, (MAX_CONNECTIONS, MAX_CONNECTIONS_OF_USER)),
            (Some(1 << 20), (MAX_CONNECTIONS, MAX_CONNECTIONS_OF_USER)),
            (Some(1024), (128, 42)),
            (Some(0), (1, 1)),
        ] {
            assert_eq!(connections_for(files), connections, "{files:?}");
        }
    }

    /// A user that connects and disconnects in a loop has no connection open.
    #[test]
    fn reconnecting_user_is_refused_and_others_are_served() {
        let mut admission = Admission::new(None);
        let now = Moment(1_000_000_000);
        let admitted = (0..2000).filter(|_| admission.admit(now, 7).is_some()).count();
        assert_eq!(admitted, MAX_CONNECTIONS_OF_USER);
        assert!(admission.admit(now, 8).is_some());
        assert!(admission.admit(now + Duration::from_secs(1), 7).is_some());
    }

    /// A file system of the user hangs.
    #[test]
    fn looks_that_hang_leave_room_for_other_users() {
        let looks = Looks::default();
        let begin = |uid| looks.begin(uid).now_or_never();
        let hung: Vec<_> = (0..MAX_LOOKS).filter_map(|_| begin(7)).collect();
        assert_eq!(hung.len(), MAX_LOOKS_OF_USER);
        assert!(begin(8).is_some());
        drop(hung);
        assert!(begin(7).is_some());
        let others: Vec<_> = (0..100).filter_map(begin).collect();
        assert_eq!(others.len(), MAX_LOOKS);
    }

    #[test]
    fn permits_are_bounded_and_given_back() {
        let limit = Limit::new(3, 2);
        let mut held: Vec<_> = (0..5).filter_map(|_| limit.admit(7)).collect();
        assert_eq!(held.len(), 2);
        held.extend(limit.admit(8));
        assert!(limit.admit(9).is_none());
        held.remove(0);
        assert!(limit.admit(9).is_some());
    }
}
