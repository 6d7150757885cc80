//! Lines on stderr that are not the log's.

use std::fmt::Display;
use std::io::Write;

/// One line. Nobody may read it any more, and the disk behind it may be full: unlike `eprintln!`, which panics then, it neither ends
/// what it tells of nor changes an exit status.
pub fn say(line: impl Display) {
    let _nobody_reads = writeln!(std::io::stderr(), "{line}");
}
