//! An attack's costs: memory, log lines, leadership.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Current resident memory of a process, in KiB.
pub fn rss_kib(pid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Current open files of a process.
pub fn open_files(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// A position in a log file: later lines follow it.
pub struct LogMark {
    path: PathBuf,
    from: usize,
}

/// Lines logged since a mark.
#[derive(Clone, Debug, Default)]
pub struct Logged {
    pub lines: usize,
    /// The most frequent kind of line within a minute, with its count.
    pub worst: (usize, String),
    /// Lines that report an error.
    pub errors: Vec<String>,
}

impl LogMark {
    pub fn here(path: PathBuf) -> Self {
        let from = std::fs::read(&path).map_or(0, |text| text.len());
        Self { path, from }
    }

    /// Everything since the mark. `but`: lines with another legitimate cause, such as joins.
    pub fn read(&self, but: impl Fn(&str) -> bool) -> Logged {
        let bytes = std::fs::read(&self.path).unwrap_or_default();
        let text = String::from_utf8_lossy(bytes.get(self.from..).unwrap_or_default()).into_owned();
        let mut logged = Logged::default();
        let mut kinds: BTreeMap<(String, String), usize> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !but(line)) {
            logged.lines += 1;
            if ["panicked", "ERROR"].iter().any(|word| line.contains(word)) {
                logged.errors.push(line.to_owned());
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

/// A line without its numbers: lines that differ only in ports and counters are of one kind.
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
    fn log_lines_differing_in_numbers_are_one_kind_per_minute() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        std::fs::write(&path, "before\n").expect("writable");
        let mark = LogMark::here(path.clone());
        let lines = "before\n2026-01-01T00:00:01Z  WARN x count=12\n2026-01-01T00:00:59Z  WARN x count=7\n\
                     2026-01-01T00:01:00Z  WARN x count=1\n2026-01-01T00:01:01Z  INFO joined\n";
        std::fs::write(&path, lines).expect("writable");
        let logged = mark.read(|line| line.contains("joined"));
        assert_eq!((logged.lines, logged.worst.0), (3, 2));
        assert!(logged.errors.is_empty());
    }
}
