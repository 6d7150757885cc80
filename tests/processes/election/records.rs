//! What the guarded commands have written about themselves, and what must be true of it.

use std::path::{Path, PathBuf};

use muster_messages::Moment;

/// The folder that all of them write to, each one its own file, named by its fencing token.
pub struct Records(pub PathBuf);

/// What one command has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub token: u64,
    pub holder: String,
    pub command: u32,
    pub guardian: u32,
    pub started: Moment,
    /// When it wrote anything later, in order. The last one says how long it ran at least.
    pub alive: Vec<Moment>,
}

/// A command that was frozen together with everything that could have ended it, and thawed when another led. What it writes
/// until it is killed nobody can prevent; fencing tokens are for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thaw {
    pub token: u64,
    pub at: Moment,
}

impl Records {
    /// Of those that have started so far, by token.
    pub fn read(&self) -> Vec<Record> {
        self.tokens().into_iter().filter_map(|token| self.of(token)).collect()
    }

    /// The newest one.
    pub fn newest(&self) -> Option<Record> {
        self.of(self.tokens().pop()?)
    }

    fn of(&self, token: u64) -> Option<Record> {
        parse(&std::fs::read_to_string(self.0.join(token.to_string())).ok()?)
    }

    fn tokens(&self) -> Vec<u64> {
        let entries = std::fs::read_dir(&self.0).expect("the folder can be read").flatten();
        let mut tokens: Vec<u64> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        tokens.sort_unstable();
        tokens
    }

    /// An empty folder.
    pub fn new(folder: &Path) -> Self {
        let folder = folder.join("records");
        std::fs::create_dir_all(&folder).expect("the folder is writable");
        Self(folder)
    }
}

impl Record {
    /// The last moment at which it is known to have run.
    pub fn last(&self) -> Moment {
        self.alive.last().copied().unwrap_or(self.started)
    }
}

fn parse(text: &str) -> Option<Record> {
    // A line counts when it is whole.
    let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let first: Vec<&str> = lines.next()?.split(' ').collect();
    let ["start", started, token, holder, command, guardian] = first[..] else { return None };
    let moment = |text: &str| text.parse().ok().map(Moment);
    Some(Record {
        token: token.parse().ok()?,
        holder: holder.to_owned(),
        command: command.parse().ok()?,
        guardian: guardian.parse().ok()?,
        started: moment(started)?,
        alive: lines.filter_map(|line| moment(line.split_once(' ')?.1)).collect(),
    })
}

/// Whether at most one of them ran at any time, under greater and greater tokens. The result says how long the longest of
/// those that were thawed went on.
pub fn one_at_a_time(records: &[Record], thaws: &[Thaw]) -> Result<std::time::Duration, String> {
    let mut by_start: Vec<&Record> = records.iter().collect();
    by_start.sort_by_key(|record| record.started);
    let mut longest = std::time::Duration::ZERO;
    let mut before: Option<(&Record, Moment)> = None;
    for record in by_start {
        if let Some((earlier, last)) = before
            && last >= record.started
        {
            let by = last.since(record.started);
            return Err(format!("{} and {} both ran, for {by:?}", told(earlier), told(record)));
        }
        if let Some((earlier, _)) = before
            && earlier.token >= record.token
        {
            return Err(format!("{} came after {}", told(record), told(earlier)));
        }
        let thawed = thaws.iter().find(|thaw| thaw.token == record.token).map(|thaw| thaw.at);
        let last = match thawed {
            Some(at) => {
                longest = longest.max(record.last().since(at));
                record.alive.iter().rev().copied().find(|moment| *moment < at).unwrap_or(record.started)
            }
            None => record.last(),
        };
        before = Some((record, last));
    }
    Ok(longest)
}

fn told(record: &Record) -> String {
    format!("{} (token {})", record.holder, record.token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(token: u64, started: u64, last: u64) -> Record {
        let alive = (started + 1..=last).map(Moment).collect();
        Record { token, holder: format!("h{token}"), command: 1, guardian: 1, started: Moment(started), alive }
    }

    #[test]
    fn one_after_the_other_under_greater_tokens_is_right() {
        assert!(one_at_a_time(&[ran(9, 30, 40), ran(5, 10, 20), ran(7, 21, 21)], &[]).is_ok());
    }

    #[test]
    fn two_at_a_time_are_found_however_shortly_and_wherever_they_stand() {
        assert!(one_at_a_time(&[ran(5, 10, 20), ran(7, 20, 25)], &[]).is_err());
        assert!(one_at_a_time(&[ran(5, 10, 20), ran(7, 12, 14), ran(9, 21, 22)], &[]).is_err());
    }

    #[test]
    fn a_token_that_does_not_grow_is_found() {
        assert!(one_at_a_time(&[ran(7, 10, 20), ran(5, 30, 40)], &[]).is_err());
        assert!(one_at_a_time(&[ran(7, 10, 20), ran(7, 30, 40)], &[]).is_err());
    }

    #[test]
    fn only_what_a_thawed_command_writes_after_its_thaw_is_nobodys_fault() {
        let late = |at| Thaw { token: 5, at: Moment(at) };
        let mut frozen = ran(5, 10, 12);
        frozen.alive.extend([Moment(30), Moment(33)]);
        let records = [frozen, ran(7, 20, 40)];
        assert!(one_at_a_time(&records, &[]).is_err());
        assert_eq!(one_at_a_time(&records, &[late(29)]), Ok(std::time::Duration::from_micros(4)));
        assert!(one_at_a_time(&records, &[late(31)]).is_err());
        assert!(one_at_a_time(&records, &[Thaw { token: 7, at: Moment(29) }]).is_err());
    }

    #[test]
    fn a_line_that_was_cut_by_a_kill_does_not_count() {
        let record = parse("start 10 5 ann 3 4\nalive 12\nalive 1").expect("it has started");
        assert_eq!((record.token, record.last(), record.command, record.guardian), (5, Moment(12), 3, 4));
        assert_eq!(parse("start 10 5 ann 3"), None);
    }
}
