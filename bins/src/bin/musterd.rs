//! The daemon. A thin main over the library.
fn main() {}
