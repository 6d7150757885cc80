//! What goes to stdout: verbatim JSON, aligned tables, or only the essentials.

use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

use muster_client::Failure;
use serde_json::Value;

use super::args::{Format, Global};

/// Where and how a command prints.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    pub format: Format,
    pub quiet: bool,
}

impl Out {
    /// As the flags ask.
    pub fn new(global: &Global) -> Self {
        Self { format: global.output, quiet: global.quiet }
    }
    /// Whether programs read this.
    pub fn is_json(self) -> bool {
        self.format == Format::Json
    }
    /// A document: verbatim for programs, rendered for people, `brief` alone with `-q`.
    pub fn document(self, text: &str, brief: impl FnOnce() -> String, table: impl FnOnce() -> String) {
        let shown = match (self.format, self.quiet) {
            (Format::Json, _) => text.to_owned(),
            (Format::Table, true) => brief(),
            (Format::Table, false) => table(),
        };
        print(&shown);
    }
    /// A sentence for people who did not ask for quiet. Unlike [`print()`], it does not end what it tells of when nobody
    /// reads any more: `dev up --detach | head -1` founds the whole cluster.
    pub fn say(self, line: impl AsRef<str>) {
        if self.format == Format::Table && !self.quiet {
            match write_line(line.as_ref()) {
                Err(error) if error.kind() != ErrorKind::BrokenPipe => drop(LOST.set(error.to_string())),
                _written_or_unread => {}
            }
        }
    }
    /// What happens meanwhile, for people who did not ask for quiet: on stderr, beside the outcome.
    pub fn note(self, line: impl AsRef<str>) {
        if self.format == Format::Table && !self.quiet {
            crate::stderr::say(printable(line.as_ref()));
        }
    }
}

/// One sentence, or the error document, on stderr.
pub fn print_failure(failure: &Failure, format: Format) {
    match format {
        Format::Json => crate::stderr::say(failure.to_json()),
        Format::Table => crate::stderr::say(format_args!("muster: {}", printable_lines(&failure.message))),
    }
}

/// Writes to stdout. Ends the process quietly when the reader is gone (`muster events | head`), and with an error where
/// the output cannot be written, as on a full disk: a script must not take an empty file for an answer.
pub fn print(text: &str) {
    if let Err(error) = try_print(text) {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        print_failure(&unwritten(&error), Format::Table);
        std::process::exit(1);
    }
}

/// The same for callers that must undo something when it fails.
pub fn try_print(text: &str) -> std::io::Result<()> {
    if text.is_empty() { Ok(()) } else { write_line(text) }
}

/// Output that is lost.
pub fn unwritten(error: &std::io::Error) -> Failure {
    Failure::io("cannot write the output", error)
}

/// A sentence was lost on the way to a full disk.
static LOST: OnceLock<String> = OnceLock::new();

/// Why some of the sentences were not written, if so: the command did its work, and says with its exit status that its
/// output is not whole.
pub fn lost_sentence() -> Option<Failure> {
    LOST.get().map(|why| Failure::internal(format!("cannot write the output: {why}")))
}

fn write_line(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    let end = if text.ends_with('\n') { "" } else { "\n" };
    write!(stdout, "{text}{end}")?;
    stdout.flush()
}

/// Columns that line up.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|h| (*h).to_owned()).collect()] }
    }
    /// A table without headings: pairs, or a tree.
    pub fn bare() -> Self {
        Self::default()
    }
    /// Adds a row. A cell is one line, whoever wrote what is in it.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell.into())).collect());
    }
    /// The lines, without blanks at their ends.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let padded: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            out.push_str(padded.join("  ").trim_end());
            out.push('\n');
        }
        out
    }
}

/// A line without what would move a terminal's cursor or begin another line: much of what is shown was written by others.
pub fn printable(line: &str) -> String {
    line.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// The same of several lines.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// A JSON value as a table cell, or in a sentence: one line.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(","),
        other => printable(&other.to_string()),
    }
}

/// A time to the second, which is what people read: `2025-01-31T12:00:00Z`.
pub fn to_the_second(rfc3339: &str) -> String {
    match rfc3339.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => rfc3339.to_owned(),
    }
}

/// The first digits of an id: enough to tell nodes apart and to name them in a command. Text that is not an id stays whole.
pub fn short(id: &str) -> String {
    if id.len() == muster_messages::ID_LEN { id.chars().take(8).collect() } else { printable(id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_without_blanks() {
        let mut table = Table::new(&["NAME", "ROLE", "NOTE"]);
        table.row(["a-long-name", "worker", ""]);
        table.row(["ü", "manager", "leader"]);
        assert_eq!(table.render(), "NAME         ROLE     NOTE\na-long-name  worker\nü            manager  leader\n");
    }

    #[test]
    fn what_others_wrote_neither_moves_the_cursor_nor_makes_lines() {
        let mut table = Table::new(&["NAME", "PHASE"]);
        table.row(["m\x1b[2J", "x\nm2  serving"]);
        assert_eq!(table.render(), "NAME   PHASE\nm\u{fffd}[2J  x\u{fffd}m2  serving\n");
        assert_eq!(cell(&serde_json::json!({"a": "\u{9b}2J"})), "{\"a\":\"\u{fffd}2J\"}");
        assert_eq!(printable_lines("a\r\n\tb\n"), "a\u{fffd}\n\tb\n");
    }

    #[test]
    fn values_read_like_words() {
        assert_eq!(cell(&Value::Null), "-");
        assert_eq!(cell(&serde_json::json!(["a", 2])), "a,2");
        assert_eq!(to_the_second("2023-11-14T22:13:20.123Z"), "2023-11-14T22:13:20Z");
    }
}
