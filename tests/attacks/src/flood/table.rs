//! A flood's results, as a table row.

use std::fmt;
use std::time::Duration;

use super::Outcomes;

/// One row.
pub struct Row<'a> {
    pub what: String,
    pub seen: &'a Outcomes,
}

/// The table's head, in Markdown.
pub fn header() -> &'static str {
    "| flood | connections | held | requests | MB sent | joins | p50 ms | p90 ms | max ms | over 1 s | rss MB before → most | log lines/min | worst kind/min | leader |\n\
     |---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
}

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.seen;
        let mut joins = s.joins.clone();
        joins.sort_unstable();
        let ms = |time: Option<&Duration>| time.map_or("–".to_owned(), |t| t.as_millis().to_string());
        let minutes = (s.lasted.as_secs_f64() / 60.0).max(1.0);
        let leader = if s.leader[0] == s.leader[1] { "same" } else { "CHANGED" };
        write!(
            f,
            "| {} | {} | {} | {} | {} | {}{} | {} | {} | {} | {} | {} → {} | {:.0} | {} | {leader} |",
            self.what,
            s.connections,
            s.held,
            s.requests,
            s.bytes / 1_000_000,
            joins.len(),
            if s.failed_joins.is_empty() { String::new() } else { format!(" ({} FAILED)", s.failed_joins.len()) },
            ms(joins.get(joins.len() / 2)),
            ms(joins.get(joins.len() * 9 / 10)),
            ms(joins.last()),
            s.slow_joins.len(),
            s.rss_before_kib / 1024,
            s.rss_most_kib / 1024,
            s.logged.lines as f64 / minutes,
            s.logged.worst.0,
        )
    }
}
