//! `muster`: parses arguments, calls a daemon, prints the answer.
//!
//! Owns        the command-line syntax, clusters on this machine (`dev`), and load (`bench`).
//! Invariants  CLI-1  with `-o json` stdout holds one JSON document (one per line with `--watch`) and stderr the error document.
//!             CLI-2  the exit status follows from the error's code alone.
//!             CLI-3  a process started in the foreground never outlives this one.

pub mod args;
pub mod bench;
mod commands;
mod definition;
pub mod dev;
mod discover;
pub mod duration;
pub mod elect;
pub mod output;
mod render;
mod screen;
mod signals;
mod tally;
mod terminal;
mod wait_ready;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use muster_client::{Failure, Outcome};
use muster_local_cluster::parent;
use muster_messages::ErrorCode;

use self::args::{Cli, Command, Format};
use self::output::print_failure;
use crate::guard;

/// Runs `muster` with these arguments, the program's name first.
///
/// If the program's name or its first argument is `musterd`, this process becomes the daemon: `cargo run` builds only one
/// binary, and `dev up` starts its daemons from it.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    parent::die_with_parent();
    let args: Vec<OsString> = args.into_iter().collect();
    if let Some(exit) = guard::hidden(&args) {
        return exit;
    }
    if let Some(args) = as_daemon(&args) {
        return crate::daemon::main(args.into_iter());
    }
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return usage(&args, &error),
    };
    let format = cli.global.output;
    match run(cli) {
        Ok(0) => match output::lost_output() {
            None => ExitCode::SUCCESS,
            Some(failure) => {
                print_failure(&failure, format);
                ExitCode::from(failure.exit)
            }
        },
        Ok(exit) => ExitCode::from(exit),
        Err(failure) => {
            print_failure(&failure, format);
            ExitCode::from(failure.exit)
        }
    }
}

/// The daemon's arguments, if this process is to become the daemon.
fn as_daemon(args: &[OsString]) -> Option<Vec<OsString>> {
    let named = args.first().and_then(|program| Path::new(program).file_name());
    if named.is_some_and(|name| name == "musterd") {
        return Some(args.to_vec());
    }
    args.get(1).is_some_and(|first| first == "musterd").then(|| args[1..].to_vec())
}

fn run(cli: Cli) -> Outcome<u8> {
    // `bench` uses every core. All other commands wait for one answer at a time and start faster with one thread.
    let mut builder = match cli.command {
        Command::Bench(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder.enable_all().build().map_err(|e| Failure::io("cannot start the async runtime", &e))?;
    runtime.block_on(commands::run(cli))
}

/// Prints clap's message, with `-o json` as the error document.
fn usage(args: &[OsString], error: &clap::Error) -> ExitCode {
    let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let hint = hint(args, error);
    if asked_for || !wants_json(args) {
        let printed = error.print();
        if let Some(hint) = &hint {
            crate::stderr::say(hint);
        }
        return ExitCode::from(if asked_for && printed.is_ok() { 0 } else { 2 });
    }
    let text = error.render().to_string();
    let mut sentence = text.trim_start_matches("error: ").lines().next().unwrap_or("usage").to_owned();
    if let Some(hint) = hint {
        sentence = format!("{sentence}; {hint}");
    }
    print_failure(&Failure::new(ErrorCode::Invalid, sentence), Format::Json);
    ExitCode::from(2)
}

/// A hint that clap cannot give: `muster elect` takes its command after two dashes.
fn hint(args: &[OsString], error: &clap::Error) -> Option<String> {
    let elect = args.iter().position(|arg| arg == "elect")?;
    let unexpected = matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument);
    if !unexpected || args.iter().any(|arg| arg == "--") || args.len() < elect + 3 {
        return None;
    }
    Some("the command to run comes after `--`: muster elect LEASE -- CMD".to_owned())
}

fn wants_json(args: &[OsString]) -> bool {
    let follows = |pair: &[OsString]| (pair[0] == "-o" || pair[0] == "--output") && pair[1] == "json";
    args.windows(2).any(follows) || args.iter().any(|arg| arg == "-ojson" || arg == "--output=json" || arg == "-o=json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn daemon_is_selected_by_name_or_first_argument() {
        assert_eq!(as_daemon(&words("/usr/bin/musterd --init")), Some(words("/usr/bin/musterd --init")));
        assert_eq!(as_daemon(&words("muster musterd --init")), Some(words("musterd --init")));
        assert_eq!(as_daemon(&words("muster status")), None);
        assert_eq!(as_daemon(&words("muster node musterd")), None);
    }

    #[test]
    fn elect_command_without_dashes_gets_a_hint() {
        let hinted = |line: &str| {
            let args = words(line);
            Cli::try_parse_from(&args).err().and_then(|error| hint(&args, &error)).is_some()
        };
        assert!(hinted("muster elect job sleep 1") && hinted("muster --timeout 5s elect job ls -l"));
        assert!(!hinted("muster elect job") && !hinted("muster elect job --nonsense -- true"));
        assert!(!hinted("muster elect job -- sleep 1") && !hinted("muster node bogus"));
    }

    #[test]
    fn usage_errors_are_documents_with_json_output() {
        assert!(wants_json(&words("muster -o json bogus")));
        assert!(wants_json(&words("muster bogus --output=json")));
        assert!(!wants_json(&words("muster bogus -o table")));
    }
}
