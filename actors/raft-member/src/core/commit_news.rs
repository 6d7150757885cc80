//! How followers learn of a commit: with the next append, or by a message of its own if none follows within `commit_news`. (Raft
//! would send a message to each follower at every commit.)
//!
//! Owns        the commit index last sent to all peers, and when a newer one is sent.
//! Invariants  a leader's newer commit index is sent within `commit_news`, unless it no longer leads by then.

use std::time::Duration;

use muster_messages::Moment;

#[derive(Default)]
pub(crate) struct CommitNews {
    /// The commit index last sent to all peers.
    sent: u64,
    /// When the leader sends them a newer one.
    at: Option<Moment>,
}

impl CommitNews {
    /// Appends to all peers carry this commit index.
    pub fn carried(&mut self, committed: u64) {
        (self.sent, self.at) = (committed, None);
    }
    /// Whether the message must be sent now. `committed`: a leader's commit index.
    pub fn take_due(&mut self, now: Moment, committed: Option<u64>) -> bool {
        let due = self.at.take_if(|at| *at <= now).is_some();
        let newer = committed.filter(|committed| due && *committed > self.sent);
        self.sent = newer.unwrap_or(self.sent);
        newer.is_some()
    }
    /// Plans the message, or cancels it if the others know everything.
    pub fn plan(&mut self, now: Moment, committed: Option<u64>, within: Duration) {
        let news = committed.is_some_and(|committed| committed > self.sent);
        self.at = news.then(|| self.at.unwrap_or(now + within));
    }
    pub fn at(&self) -> Option<Moment> {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_millis(2);

    #[test]
    fn commit_without_append_is_sent_once() {
        let mut news = CommitNews::default();
        news.plan(Moment(0), Some(5), WITHIN);
        news.plan(Moment(1_000), Some(6), WITHIN);
        assert_eq!(news.at(), Some(Moment(2_000)), "the second commit postpones nothing");
        assert!(!news.take_due(Moment(1_999), Some(6)) && news.take_due(Moment(2_000), Some(6)));
        news.plan(Moment(2_000), Some(6), WITHIN);
        assert_eq!(news.at(), None);
    }

    #[test]
    fn append_carries_the_news() {
        let mut news = CommitNews::default();
        news.plan(Moment(0), Some(5), WITHIN);
        news.carried(5);
        assert!(!news.take_due(Moment(9_000), Some(5)));
        news.plan(Moment(9_000), Some(6), WITHIN);
        assert!(!news.take_due(Moment(20_000), None), "it no longer leads");
    }
}
