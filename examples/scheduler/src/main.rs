//! See the library, which tests can run, too.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    muster_example_scheduler::run(&args).into()
}
