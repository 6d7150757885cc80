//! The daemon.

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the daemon with these arguments, the program's name first.
pub fn main(_args: impl Iterator<Item = OsString>) -> ExitCode {
    eprintln!("musterd: not wired yet");
    ExitCode::FAILURE
}
