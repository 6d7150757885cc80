//! `musterd` with a notifier: the same arguments.

use std::process::ExitCode;

fn main() -> ExitCode {
    muster::daemon::main_with(std::env::args_os().collect(), muster_example_notifier::start)
}
