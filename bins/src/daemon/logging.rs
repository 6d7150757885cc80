//! Logs go to stderr. ractor and ractor_cluster stay at INFO whatever the filter says: at DEBUG they print whole
//! frames, keys included.

use std::io::IsTerminal;

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
            // They warn of what a stranger does, once per connection. The gateway's lines about offenders are bounded,
            // these are not.
            Some(&("h2" | "rustls")) => LevelFilter::ERROR,
            Some(_) => LevelFilter::INFO,
        };
        // ractor opens a span around each actor that says nothing but a number.
        *meta.level() <= least && meta.is_event()
    });
    let registry = tracing_subscriber::registry().with(filter);
    let layer =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let installed = match format {
        LogFormat::Text => registry.with(layer.compact().with_filter(quiet)).try_init(),
        LogFormat::Json => registry.with(layer.json().with_filter(quiet)).try_init(),
    };
    installed.map_err(|e| e.to_string())
}
