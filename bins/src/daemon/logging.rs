//! Logs go to stderr. ractor and ractor_cluster stay at INFO whatever the filter says: at DEBUG they print whole frames, including
//! keys.
//!
//! One event is one line, whatever text others put into it: tracing escapes control characters that move a terminal's cursor, and
//! [`OneLine`] line breaks that could forge a line. Under systemd each line has a priority, and the journal's time instead of its own.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterFn, LevelFilter, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::Context;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use super::config::LogFormat;

/// The filter of the log, which can be replaced while it is used.
pub struct LogFilter(reload::Handle<EnvFilter, Registry>);

impl LogFilter {
    /// Replaces it.
    pub fn set(&self, filter: EnvFilter) -> Result<(), String> {
        self.0.reload(filter).map_err(|e| e.to_string())
    }
}

/// Fails on a filter that cannot be parsed, or in which a level or a target of this program is misspelt: it would silence the log.
pub fn parse(filter: &str) -> Result<EnvFilter, String> {
    for directive in filter.split(',').map(str::trim) {
        if let Some(misspelt) = misspelt(directive) {
            return Err(format!("--log {filter:?}: {misspelt}"));
        }
    }
    EnvFilter::builder().parse(filter).map_err(|e| format!("--log {filter:?}: {e}"))
}

/// What is wrong with a directive that can be parsed. One for a library is not checked: its targets are unknown.
fn misspelt(directive: &str) -> Option<String> {
    let (target, level) = directive.split_once('=').map_or((directive, None), |(target, level)| (target, Some(level)));
    let is_level = target.parse::<LevelFilter>().is_ok();
    if target.is_empty() || is_level || target.contains(['[', '{']) {
        return None; // spans and fields are not checked
    }
    let part = target.split("::").next().unwrap_or_default();
    // A target is a beginning: `muster` is for all of them.
    if CRATES.iter().any(|name| name.starts_with(part)) && part.starts_with("muster") {
        return None;
    }
    if part.starts_with("muster") {
        return Some(format!("{part} is not a target of this program, which has {}", CRATES.join(", ")));
    }
    let why = "neither a level (off, error, warn, info, debug, trace) nor a target of this program";
    level.is_none().then(|| format!("{part} is {why}; write a library's as {part}=debug"))
}

/// What the targets of this program begin with: its crates.
const CRATES: [&str; 29] = [
    "muster",
    "muster_agent",
    "muster_api",
    "muster_audit",
    "muster_autolock",
    "muster_autopilot",
    "muster_blocklist",
    "muster_cert_authority",
    "muster_client",
    "muster_elections",
    "muster_elector",
    "muster_gates",
    "muster_gateway",
    "muster_join",
    "muster_kernel",
    "muster_kubernetes",
    "muster_local_cluster",
    "muster_manager",
    "muster_mesh",
    "muster_messages",
    "muster_pki",
    "muster_raft_member",
    "muster_reconciler",
    "muster_role_manager",
    "muster_root_rotation",
    "muster_sealing",
    "muster_sessions",
    "muster_store",
    "muster_workload_api",
];

/// Libraries of which the log shows little, and no span.
const NOISY: [&str; 5] = ["ractor", "rustls", "hyper", "raft_engine", "h2"];

fn noisy_library(meta: &Metadata<'_>) -> Option<&'static str> {
    NOISY.into_iter().find(|library| meta.target().starts_with(library))
}

/// Their spans are not opened at all. ractor opens one around each actor, which would cost something each time the actor runs.
fn without_noisy_spans() -> FilterFn<fn(&Metadata<'_>) -> bool> {
    FilterFn::new(|meta| meta.is_event() || noisy_library(meta).is_none())
}

/// Installs the log.
pub fn install(filter: EnvFilter, format: LogFormat) -> Result<LogFilter, String> {
    let (filter, handle) = reload::Layer::new(filter);
    let quiet = filter_fn(|meta| {
        let least = match noisy_library(meta) {
            None => return true,
            // They warn about a client's behaviour once per connection. The gateway's lines about offenders are bounded;
            // these are not.
            Some("h2" | "rustls") => LevelFilter::ERROR,
            // It warns of "Corruption" where an unclean end truncated a write, which it recovers from. Damage that it does not
            // recover from is an error of ours, with the file's name.
            Some("raft_engine") => LevelFilter::ERROR,
            Some(_) => LevelFilter::INFO,
        };
        *meta.level() <= least
    });
    let registry = tracing_subscriber::registry()
        .with(filter)
        .with(without_noisy_spans())
        .with(Counting.with_filter(quiet.clone()));
    let journal = is_the_journal();
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(Stderr { journal })
        .with_ansi(!journal && io::stderr().is_terminal());
    let installed = match (format, journal) {
        (LogFormat::Text, false) => registry.with(layer.compact().with_filter(quiet)).try_init(),
        // The journal has the time, the level and the identifier of each line.
        (LogFormat::Text, true) => {
            registry.with(layer.compact().without_time().with_level(false).with_filter(quiet)).try_init()
        }
        (LogFormat::Json, _) => registry.with(layer.json().with_filter(quiet)).try_init(),
    };
    installed.map(|()| LogFilter(handle)).map_err(|e| e.to_string())
}

/// Lines written since this process started, by level. Of the process, as stderr is.
static EVENTS: [(Level, &str, AtomicU64); 5] = [
    (Level::ERROR, "error", AtomicU64::new(0)),
    (Level::WARN, "warn", AtomicU64::new(0)),
    (Level::INFO, "info", AtomicU64::new(0)),
    (Level::DEBUG, "debug", AtomicU64::new(0)),
    (Level::TRACE, "trace", AtomicU64::new(0)),
];

/// How many lines the log has, by level.
pub fn events() -> impl Iterator<Item = (&'static str, u64)> {
    EVENTS.iter().map(|(_, name, count)| (*name, count.load(Ordering::Relaxed)))
}

/// Counts the events that pass the filters.
struct Counting;

impl<S: Subscriber> Layer<S> for Counting {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = event.metadata().level();
        if let Some((_, _, count)) = EVENTS.iter().find(|(counted, ..)| counted == level) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether stderr is a stream of systemd's journal: `JOURNAL_STREAM` names its file, see systemd.exec(5).
fn is_the_journal() -> bool {
    let Some(file) = std::env::var_os("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(io::stderr()).is_ok_and(|stderr| file == *format!("{}:{}", stderr.st_dev, stderr.st_ino))
}

/// Where events go.
#[derive(Clone, Copy)]
struct Stderr {
    journal: bool,
}

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = OneLine<io::Stderr>;

    fn make_writer(&'a self) -> Self::Writer {
        OneLine { to: io::stderr(), prefix: "" }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Self::Writer {
        let prefix = if self.journal { priority(*meta.level()) } else { "" };
        OneLine { prefix, ..self.make_writer() }
    }
}

/// The prefix by which the journal knows a line's priority: see sd-daemon(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Writes each event, which arrives whole, as one line.
struct OneLine<W> {
    to: W,
    prefix: &'static str,
}

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = one_line(event);
        match self.prefix {
            "" => self.to.write_all(&line)?,
            prefix => self.to.write_all(&[prefix.as_bytes(), &line].concat())?,
        }
        Ok(event.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
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

    /// Such a filter is legal, and would log nothing at all.
    #[test]
    fn misspelt_filters_are_refused() {
        for legal in [
            "info",
            "INFO",
            "off",
            "3",
            "",
            "info,muster=debug",
            "muster_mesh=trace",
            "muster_raft=debug,warn",
            "tokio=warn",
            "muster::daemon::node=debug",
            "muster_api",
            "info,[span]=debug",
            "muster[{node}]=debug",
        ] {
            assert!(parse(legal).is_ok(), "{legal}: {:?}", parse(legal).err());
        }
        for (filter, word) in [
            ("inof", "neither a level"),
            ("info,debgu", "debgu is neither"),
            ("musterd=debug", "muster_agent, muster_api"),
            ("info,muster_msh=debug", "muster_msh is not a target"),
            ("muster=loud", "--log"),
        ] {
            let refused = parse(filter).err().unwrap_or_default();
            assert!(refused.starts_with("--log") && refused.contains(word), "{filter}: {refused}");
        }
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../actors");
        for actor in std::fs::read_dir(root).unwrap() {
            let name = format!("muster_{}", actor.unwrap().file_name().to_str().unwrap().replace('-', "_"));
            assert!(CRATES.contains(&&*name), "{name}");
        }
    }

    #[test]
    fn spans_of_noisy_libraries_are_never_opened() {
        let opens = || {
            [
                tracing::info_span!(target: "ractor::actor", "Actor"),
                tracing::error_span!(target: "h2::client", "stream"),
                tracing::info_span!(target: "muster_api::service", "api"),
            ]
            .map(|span| !span.is_disabled())
        };
        let subscriber = tracing_subscriber::registry().with(without_noisy_spans());
        assert_eq!(tracing::subscriber::with_default(subscriber, opens), [false, false, true]);
    }

    #[test]
    fn log_text_with_line_breaks_stays_one_line() {
        let mut log = Vec::new();
        let mut writer = OneLine { to: &mut log, prefix: "" };
        writer.write_all(b"INFO refused why=x\n2026-01-01 INFO forged\r\n\n").unwrap();
        writer.write_all(b"INFO fine\n").unwrap();
        let mut writer = OneLine { to: &mut log, prefix: priority(Level::ERROR) };
        writer.write_all(b"for the journal\n<0>forged\n").unwrap();
        let expected = "INFO refused why=x\\n2026-01-01 INFO forged\\r\\n\nINFO fine\n<3>for the journal\\n<0>forged\n";
        assert_eq!(String::from_utf8(log).unwrap(), expected);
    }
}
