//! Output to stdout: verbatim JSON, aligned tables, or only the essential value.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

use muster_client::Failure;

use super::args::{Format, Global};

/// How a command prints.
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
    /// Whether the output is JSON.
    pub fn is_json(self) -> bool {
        self.format == Format::Json
    }
    /// Prints a document: verbatim as JSON, as a table, or only `brief` with `-q`.
    pub fn document(self, text: &str, brief: impl FnOnce() -> String, table: impl FnOnce() -> String) {
        let shown = match (self.format, self.quiet) {
            (Format::Json, _) => text.to_owned(),
            (Format::Table, true) => brief(),
            (Format::Table, false) => table(),
        };
        print(&shown);
    }
    /// Prints a sentence, unless with `-o json` or `-q`. Unlike [`print()`], it does not end the process when the reader is
    /// gone: `dev up --detach | head -1` creates the whole cluster.
    pub fn say(self, line: impl AsRef<str>) {
        if self.format == Format::Table && !self.quiet {
            match write_line(line.as_ref()) {
                Err(error) if error.kind() != ErrorKind::BrokenPipe => drop(LOST_OUTPUT.set(error.to_string())),
                _written_or_unread => {}
            }
        }
    }
    /// Prints progress to stderr, unless with `-o json` or `-q`.
    pub fn note(self, line: impl AsRef<str>) {
        if self.format == Format::Table && !self.quiet {
            crate::stderr::say(printable(line.as_ref()));
        }
    }
}

/// Prints one sentence, or the error document, to stderr.
pub fn print_failure(failure: &Failure, format: Format) {
    match format {
        Format::Json => crate::stderr::say(failure.to_json()),
        Format::Table => crate::stderr::say(format_args!("muster: {}", printable_lines(&failure.message))),
    }
}

/// Writes to stdout. Ends the process quietly when the reader is gone (`muster events | head`), and with an error when the
/// output cannot be written, as on a full disk: a script must not take an empty file for an answer.
pub fn print(text: &str) {
    printed(try_print(text));
}

/// Like [`print()`], without the end of a line.
pub fn print_part(text: &str) {
    let mut stdout = std::io::stdout().lock();
    printed(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
}

fn printed(result: std::io::Result<()>) {
    if let Err(error) = result {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        print_failure(&output_failure(&error), Format::Table);
        std::process::exit(1);
    }
}

/// Like [`print()`], for callers that must undo something when it fails.
pub fn try_print(text: &str) -> std::io::Result<()> {
    if text.is_empty() { Ok(()) } else { write_line(text) }
}

/// The failure of lost output.
pub fn output_failure(error: &std::io::Error) -> Failure {
    Failure::io("cannot write the output", error)
}

/// Why a sentence could not be written, for example on a full disk.
static LOST_OUTPUT: OnceLock<String> = OnceLock::new();

/// The failure of a command that did its work but could not write all of its output.
pub fn lost_output() -> Option<Failure> {
    LOST_OUTPUT.get().map(|why| Failure::internal(format!("cannot write the output: {why}")))
}

fn write_line(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    let end = if text.ends_with('\n') { "" } else { "\n" };
    write!(stdout, "{text}{end}")?;
    stdout.flush()
}

/// A table with aligned columns.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|h| (*h).to_owned()).collect()] }
    }
    /// A table without headings: pairs, or lines.
    pub fn bare() -> Self {
        Self::default()
    }
    /// Adds a row. A cell is one line, whatever its origin.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell.into())).collect());
    }
    /// The lines, without trailing blanks.
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

/// A line without control characters, which would move a terminal's cursor or begin another line: much of the output was written
/// by others.
pub fn printable(line: &str) -> String {
    line.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// [`printable`] for several lines.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// A value for a table cell or a sentence; `-` if there is none.
pub fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| printable(&value.to_string()))
}

/// `yes` or `no`.
pub fn yes_or_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// Values, one per line.
pub fn lines(values: impl IntoIterator<Item = impl Display>) -> String {
    values.into_iter().map(|value| printable(&value.to_string())).collect::<Vec<_>>().join("\n")
}

/// A time without fractions of a second: `2025-01-31T12:00:00Z`.
pub fn without_fraction(rfc3339: &str) -> String {
    match rfc3339.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => rfc3339.to_owned(),
    }
}

/// The first 8 characters of an id: enough to distinguish nodes and to name them in a command. Other text stays whole.
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
    fn control_characters_in_tables_are_replaced() {
        let mut table = Table::new(&["NAME", "PHASE"]);
        table.row(["m\x1b[2J", "x\nm2  serving"]);
        assert_eq!(table.render(), "NAME   PHASE\nm\u{fffd}[2J  x\u{fffd}m2  serving\n");
        assert_eq!(or_dash(Some("\u{9b}2J")), "\u{fffd}2J");
        assert_eq!(printable_lines("a\r\n\tb\n"), "a\u{fffd}\n\tb\n");
    }

    #[test]
    fn values_become_readable_cells() {
        assert_eq!(or_dash(None::<u64>), "-");
        assert_eq!(
            (or_dash(Some(2)), yes_or_no(true), lines(["a", "b"])),
            ("2".to_owned(), "yes".to_owned(), "a\nb".to_owned())
        );
        assert_eq!(without_fraction("2023-11-14T22:13:20.123Z"), "2023-11-14T22:13:20Z");
    }
}
