//! The daemon. A thin main over the library.

fn main() -> std::process::ExitCode {
    muster_local_cluster::parent::die_with_parent();
    let args: Vec<_> = std::env::args_os().collect();
    muster::guard::hidden(&args).unwrap_or_else(|| muster::daemon::main(args.into_iter()))
}
