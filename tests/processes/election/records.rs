//! Records that guarded commands write about themselves, and the checks on them.

use std::path::{Path, PathBuf};

use muster_messages::Moment;

/// The common folder; each command has its own file, named by its fencing token.
pub struct Records(pub PathBuf);

/// One command's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub token: u64,
    pub holder: String,
    pub command: u32,
    pub guardian: u32,
    pub started: Moment,
    /// Times of its later lines, in order. It ran at least until the last one.
    pub alive: Vec<Moment>,
}

/// A command frozen together with everything that could have ended it, and thawed when another led. Its writes
/// until it is killed cannot be prevented; fencing tokens handle them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thaw {
    pub token: u64,
    pub at: Moment,
}

impl Records {
    /// Of all commands that have started, by token.
    pub fn read(&self) -> Vec<Record> {
        self.tokens().into_iter().filter_map(|token| self.of(token)).collect()
    }

    /// The newest record.
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
    /// The last time at which it is known to have run.
    pub fn last(&self) -> Moment {
        self.alive.last().copied().unwrap_or(self.started)
    }
}

fn parse(text: &str) -> Option<Record> {
    // Only complete lines count.
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

/// Whether at most one command ran at any time, under growing tokens. Returns how long the slowest thawed
/// command continued.
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
            return Err(format!("{} and {} both ran, for {by:?}", reported(earlier), reported(record)));
        }
        if let Some((earlier, _)) = before
            && earlier.token >= record.token
        {
            return Err(format!("{} came after {}", reported(record), reported(earlier)));
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

fn reported(record: &Record) -> String {
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
    fn sequential_commands_with_growing_tokens_pass() {
        assert!(one_at_a_time(&[ran(9, 30, 40), ran(5, 10, 20), ran(7, 21, 21)], &[]).is_ok());
    }

    #[test]
    fn overlapping_commands_are_detected() {
        assert!(one_at_a_time(&[ran(5, 10, 20), ran(7, 20, 25)], &[]).is_err());
        assert!(one_at_a_time(&[ran(5, 10, 20), ran(7, 12, 14), ran(9, 21, 22)], &[]).is_err());
    }

    #[test]
    fn command_record_with_stale_token_is_detected() {
        assert!(one_at_a_time(&[ran(7, 10, 20), ran(5, 30, 40)], &[]).is_err());
        assert!(one_at_a_time(&[ran(7, 10, 20), ran(7, 30, 40)], &[]).is_err());
    }

    #[test]
    fn thawed_command_may_write_only_after_its_thaw() {
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
    fn line_truncated_by_kill_is_ignored() {
        let record = parse("start 10 5 ann 3 4\nalive 12\nalive 1").expect("it has started");
        assert_eq!((record.token, record.last(), record.command, record.guardian), (5, Moment(12), 3, 4));
        assert_eq!(parse("start 10 5 ann 3"), None);
    }
}
