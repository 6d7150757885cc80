//! What an attack costs: memory, log lines, leadership.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Resident memory of a process now, in KiB.
pub fn rss_kib(pid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Open files of a process now.
pub fn open_files(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// A place in a log file: what is written from here on.
pub struct LogMark {
    path: PathBuf,
    from: usize,
}

/// What was logged since a mark.
#[derive(Clone, Debug, Default)]
pub struct Logged {
    pub lines: usize,
    /// The most frequent kind of line in any one minute, with how often it came.
    pub worst: (usize, String),
    /// Lines that say something broke.
    pub alarms: Vec<String>,
}

impl LogMark {
    pub fn here(path: PathBuf) -> Self {
        let from = std::fs::read(&path).map_or(0, |text| text.len());
        Self { path, from }
    }

    /// Everything since. `but`: lines that belong to something else, legitimate joins for one.
    pub fn read(&self, but: impl Fn(&str) -> bool) -> Logged {
        let bytes = std::fs::read(&self.path).unwrap_or_default();
        let text = String::from_utf8_lossy(bytes.get(self.from..).unwrap_or_default()).into_owned();
        let mut logged = Logged::default();
        let mut kinds: BTreeMap<(String, String), usize> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !but(line)) {
            logged.lines += 1;
            if ["panicked", "ERROR"].iter().any(|word| line.contains(word)) {
                logged.alarms.push(line.to_owned());
            }
            let (at, rest) = line.split_once(' ').unwrap_or(("", line));
            let minute: String = at.chars().take("2026-01-01T00:00".len()).collect();
            *kinds.entry((minute, kind_of(rest))).or_default() += 1;
        }
        let worst = kinds.into_iter().max_by_key(|(_, count)| *count);
        logged.worst = worst.map(|((_, kind), count)| (count, kind)).unwrap_or_default();
        logged
    }
}

/// A line without its numbers: two lines about the same thing are the same kind. Ports and counters differ each time.
fn kind_of(line: &str) -> String {
    let mut kind = String::new();
    for c in line.trim().chars() {
        let digit = c.is_ascii_digit();
        if !(digit && kind.ends_with('#')) {
            kind.push(if digit { '#' } else { c });
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_differ_in_numbers_only_are_of_one_kind_within_a_minute() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        std::fs::write(&path, "before\n").expect("writable");
        let mark = LogMark::here(path.clone());
        let lines = "before\n2026-01-01T00:00:01Z  WARN x count=12\n2026-01-01T00:00:59Z  WARN x count=7\n\
                     2026-01-01T00:01:00Z  WARN x count=1\n2026-01-01T00:01:01Z  INFO joined\n";
        std::fs::write(&path, lines).expect("writable");
        let logged = mark.read(|line| line.contains("joined"));
        assert_eq!((logged.lines, logged.worst.0), (3, 2));
        assert!(logged.alarms.is_empty());
    }
}
