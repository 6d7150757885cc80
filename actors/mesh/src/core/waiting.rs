//! Calls to services that wait for room in their window, each until its deadline.
//!
//! Owns        the calls, in order of arrival, each with its deadline. Too many are refused.

use std::collections::VecDeque;
use std::time::Duration;

use muster_messages::Moment;

use super::filter::MAX_CALL_MS;

const MAX_WAITING_CALLS: usize = 256;

#[derive(Debug)]
pub struct WaitingCalls<C>(VecDeque<(Moment, C)>);

impl<C> Default for WaitingCalls<C> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<C> WaitingCalls<C> {
    /// A call with this deadline, which is bounded. `Err`: too many wait.
    pub fn push(&mut self, now: Moment, deadline: Duration, call: C) -> Result<(), C> {
        if self.0.len() >= MAX_WAITING_CALLS {
            return Err(call);
        }
        self.0.push_back((now + deadline.min(Duration::from_millis(MAX_CALL_MS)), call));
        Ok(())
    }
    /// The oldest call, and its deadline.
    pub fn pop(&mut self) -> Option<(Moment, C)> {
        self.0.pop_front()
    }
    /// The deadline of the newest call.
    pub fn newest(&self) -> Option<Moment> {
        self.0.back().map(|(until, _)| *until)
    }
    /// Removes the calls whose deadline has passed.
    pub fn overdue(&mut self, now: Moment) -> impl Iterator<Item = C> {
        let (late, waiting) = std::mem::take(&mut self.0).into_iter().partition(|(until, _)| *until <= now);
        self.0 = waiting;
        let late: VecDeque<(Moment, C)> = late;
        late.into_iter().map(|(_, call)| call)
    }
    /// Removes all.
    pub fn clear(&mut self) -> impl Iterator<Item = C> {
        std::mem::take(&mut self.0).into_iter().map(|(_, call)| call)
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waiting_calls_keep_their_order_and_end_at_their_deadline() {
        let (mut waiting, now) = (WaitingCalls::default(), Moment(0));
        for (call, deadline) in [("a", 3 * SECOND), ("b", SECOND), ("c", 2 * SECOND)] {
            waiting.push(now, deadline, call).unwrap();
        }
        assert_eq!(waiting.newest(), Some(now + 2 * SECOND));
        assert_eq!(waiting.overdue(now + SECOND).collect::<Vec<_>>(), ["b"]);
        assert_eq!(waiting.pop(), Some((now + 3 * SECOND, "a")));
        assert_eq!((waiting.clear().collect::<Vec<_>>(), waiting.is_empty()), (vec!["c"], true));
    }

    #[test]
    fn number_and_time_of_waiting_calls_are_bounded() {
        let mut waiting = WaitingCalls::default();
        for call in 0..MAX_WAITING_CALLS {
            waiting.push(Moment(0), Duration::from_secs(86_400), call).unwrap();
        }
        assert_eq!(waiting.push(Moment(0), SECOND, 999), Err(999));
        assert_eq!(waiting.newest(), Some(Moment(0) + Duration::from_millis(MAX_CALL_MS)));
    }
}
