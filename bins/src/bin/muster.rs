//! The command line. A thin main over the library.

fn main() -> std::process::ExitCode {
    muster::cli::main(std::env::args_os())
}
