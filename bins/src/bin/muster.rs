//! The command line. A thin main over the library.
fn main() {}
