//! The daemon. A thin main over the library.

/// Threads that block on a disk come and go. The C library's allocator keeps what each of them has freed, in up to eight arenas for each
/// processor; this one gives it back (docs/decisions/0024).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    muster_local_cluster::parent::obey();
    let args: Vec<_> = std::env::args_os().collect();
    muster::guard::hidden(&args).unwrap_or_else(|| muster::daemon::main(args.into_iter()))
}
