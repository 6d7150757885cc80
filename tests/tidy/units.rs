//! The units for systemd: valid, and as confined as their documentation states. Checked where systemd's tools are installed.

use std::path::Path;
use std::process::Command;

use crate::top;

/// The exposure that `systemd-analyze security` computes, times ten: of a node that runs commands, and of one that runs none. They may only
/// shrink.
const EXPOSURE: [(&str, &str); 2] = [("", "45"), ("confined.conf", "17")];

fn analyze(args: &[&str], unit: &Path) -> Option<(bool, String)> {
    let run = Command::new("systemd-analyze").args(args).arg(unit).output().ok()?;
    let text = [run.stdout, run.stderr].concat();
    Some((run.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
fn units_are_valid_and_as_confined_as_promised() {
    let from = top().join("packaging/systemd");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let unit = std::fs::read_to_string(from.join("musterd.service")).expect("the unit is there");
    for (drop_in, exposure) in EXPOSURE {
        let unit_file = dir.path().join("musterd.service");
        // The program and its page are not installed here.
        let here = unit.replace("/usr/bin/musterd", "/bin/true").replace("Documentation=man:musterd(8)\n", "");
        assert_ne!(here, unit, "the unit starts musterd");
        std::fs::write(&unit_file, here).expect("it is writable");
        if !drop_in.is_empty() {
            let overrides = dir.path().join("musterd.service.d");
            std::fs::create_dir(&overrides).expect("it is writable");
            std::fs::copy(from.join(drop_in), overrides.join(drop_in)).expect("the drop-in is there");
        }
        let Some((valid, text)) = analyze(&["--man=no", "verify"], &unit_file) else {
            println!("systemd-analyze is not installed: the units were not checked");
            return;
        };
        assert!(valid && text.is_empty(), "{drop_in}: {text}");
        let threshold = format!("--threshold={exposure}");
        let (below, text) = analyze(&["security", "--offline=yes", &threshold], &unit_file).expect("it is installed");
        assert!(below, "{drop_in}: above {exposure}: {}", text.lines().last().unwrap_or_default());
    }
}
