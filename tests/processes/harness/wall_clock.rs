//! Wall clocks that jump, one per process, while that process runs.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that processes with a wall clock of their own are started with.
pub struct WallClocks {
    library: PathBuf,
    folder: PathBuf,
}

/// The wall clock of one process, and of all that it starts.
pub struct WallClock {
    library: PathBuf,
    path: PathBuf,
    file: File,
}

impl WallClocks {
    /// Compiles it: musterd needs a C compiler as well.
    pub fn new(folder: &Path) -> Self {
        let library = folder.join("wall_clock.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/processes/harness/wall_clock.c");
        let compiled = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
        assert!(compiled.expect("there is a C compiler").success());
        Self { library, folder: folder.to_owned() }
    }

    /// A wall clock that is right, so far.
    pub fn of(&self, name: &str) -> WallClock {
        let path = self.folder.join(format!("{name}.clock"));
        let file = File::create(&path).expect("the folder is writable");
        let clock = WallClock { library: self.library.clone(), path, file };
        clock.set(0);
        clock
    }
}

impl WallClock {
    /// From now on it is so many seconds ahead, or behind.
    pub fn set(&self, ahead: i64) {
        self.file.write_all_at(&ahead.to_ne_bytes(), 0).expect("the folder is writable");
    }

    /// What makes a process have it.
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        [("LD_PRELOAD", self.library.clone().into()), ("WALL_CLOCK", self.path.clone().into())]
    }
}

#[test]
fn a_process_has_the_wall_clock_that_it_is_given_and_what_it_starts_has_it_too() {
    use crate::election::played::{self, Part};
    use std::time::SystemTime;

    let folder = tempfile::tempdir().expect("a folder");
    let clock = WallClocks::new(folder.path()).of("one");
    let right = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("this is after 1970").as_secs();
    for days in [0, 400, -400] {
        clock.set(days * 86_400);
        let words = played::words(&Part::TellTime);
        let mut command = Command::new("sh");
        command.args(["-c", r#""$@""#, "sh"]).args(words).envs(clock.environment());
        let told = String::from_utf8(command.output().expect("it starts").stdout).expect("it prints text");
        let told: i64 = told.lines().find_map(|line| line.strip_prefix("it is ")?.parse().ok()).expect("the time");
        let ahead = told - i64::try_from(right).expect("a time before the year 3000");
        assert!((ahead - days * 86_400).abs() < 3600, "{days} days: {ahead} s");
    }
}
