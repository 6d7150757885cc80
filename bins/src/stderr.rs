//! Lines on stderr that are not part of the log.

use std::fmt::Display;
use std::io::Write;

/// Writes one line. The reader may be gone and the disk behind it full: unlike `eprintln!`, which panics then, this neither ends the
/// process nor changes its exit status.
pub fn say(line: impl Display) {
    let _closed = writeln!(std::io::stderr(), "{line}");
}
