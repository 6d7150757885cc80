//! Adjustable wall clocks, one per process.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library with which processes with their own wall clock are started.
pub struct WallClocks {
    library: PathBuf,
    folder: PathBuf,
}

/// The wall clock of one process and its children.
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

    /// A wall clock without offset.
    pub fn of(&self, name: &str) -> WallClock {
        let path = self.folder.join(format!("{name}.clock"));
        let file = File::create(&path).expect("the folder is writable");
        let clock = WallClock { library: self.library.clone(), path, file };
        clock.set(0);
        clock
    }
}

impl WallClock {
    /// Sets its offset in seconds.
    pub fn set(&self, ahead: i64) {
        self.file.write_all_at(&ahead.to_ne_bytes(), 0).expect("the folder is writable");
    }

    /// The environment that gives a process this clock.
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        [("LD_PRELOAD", self.library.clone().into()), ("WALL_CLOCK", self.path.clone().into())]
    }
}

#[test]
fn process_and_children_use_the_given_wall_clock() {
    use crate::election::played::{self, ChildProgram};
    use std::time::SystemTime;

    let folder = tempfile::tempdir().expect("a folder");
    let clock = WallClocks::new(folder.path()).of("one");
    let right = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("this is after 1970").as_secs();
    for days in [0, 400, -400] {
        clock.set(days * 86_400);
        let words = played::words(&ChildProgram::PrintTime);
        let mut command = Command::new("sh");
        command.args(["-c", r#""$@""#, "sh"]).args(words).envs(clock.environment());
        let output = String::from_utf8(command.output().expect("it starts").stdout).expect("it prints text");
        let output: i64 = output.lines().find_map(|line| line.strip_prefix("it is ")?.parse().ok()).expect("the time");
        let ahead = output - i64::try_from(right).expect("a time before the year 3000");
        assert!((ahead - days * 86_400).abs() < 3600, "{days} days: {ahead} s");
    }
}
