//! Logs go to stderr. ractor and ractor_cluster stay at INFO whatever the filter says: at DEBUG they print whole frames, including
//! keys.
//!
//! One event is one line, whatever text others put into it: tracing escapes control characters that move a terminal's cursor, and
//! [`OneLine`] line breaks that could forge a line.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

use super::config::LogFormat;

/// Installs the log. Fails on a filter that cannot be parsed.
pub fn install(filter: &str, format: LogFormat) -> Result<(), String> {
    let filter = EnvFilter::builder().parse(filter).map_err(|e| format!("--log {filter:?}: {e}"))?;
    let quiet = tracing_subscriber::filter::filter_fn(|meta| {
        let noisy = ["ractor", "rustls", "hyper", "raft_engine", "h2"];
        let least = match noisy.iter().find(|library| meta.target().starts_with(**library)) {
            None => return true,
            // They warn about a client's behaviour once per connection. The gateway's lines about offenders are bounded;
            // these are not.
            Some(&("h2" | "rustls")) => LevelFilter::ERROR,
            // It warns of "Corruption" where an unclean end truncated a write, which it recovers from. Damage that it does not
            // recover from is an error of ours, with the file's name.
            Some(&"raft_engine") => LevelFilter::ERROR,
            Some(_) => LevelFilter::INFO,
        };
        // ractor opens a span around each actor that contains only a number.
        *meta.level() <= least && meta.is_event()
    });
    let registry = tracing_subscriber::registry().with(filter);
    let layer =
        tracing_subscriber::fmt::layer().with_writer(|| OneLine(io::stderr())).with_ansi(io::stderr().is_terminal());
    let installed = match format {
        LogFormat::Text => registry.with(layer.compact().with_filter(quiet)).try_init(),
        LogFormat::Json => registry.with(layer.json().with_filter(quiet)).try_init(),
    };
    installed.map_err(|e| e.to_string())
}

/// Writes each event, which arrives whole, as one line.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(&one_line(event))?;
        Ok(event.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn one_line(event: &[u8]) -> Cow<'_, [u8]> {
    let (text, end) = match event.split_last() {
        Some((b'\n', text)) => (text, &event[text.len()..]),
        _ => (event, &event[event.len()..]),
    };
    if !text.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return Cow::Borrowed(event);
    }
    let mut line = Vec::with_capacity(event.len() + 16);
    for byte in text {
        match byte {
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            other => line.push(*other),
        }
    }
    line.extend_from_slice(end);
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_text_with_line_breaks_stays_one_line() {
        let mut log = Vec::new();
        let mut writer = OneLine(&mut log);
        writer.write_all(b"INFO refused why=x\n2026-01-01 INFO forged\r\n\n").unwrap();
        writer.write_all(b"INFO fine\n").unwrap();
        assert_eq!(String::from_utf8(log).unwrap(), "INFO refused why=x\\n2026-01-01 INFO forged\\r\\n\nINFO fine\n");
    }
}
