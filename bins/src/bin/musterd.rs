//! The daemon. A thin main over the library.

fn main() -> std::process::ExitCode {
    muster::cli::parent::obey();
    muster::daemon::main(std::env::args_os())
}
