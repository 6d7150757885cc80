//! Opens a browser of this machine without showing the link to its other users.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A file that leads a browser to a link: arguments of processes can be read by everyone, this file only by its owner. Removed when
/// dropped.
pub struct Redirect {
    folder: PathBuf,
}

impl Redirect {
    /// Opens the desktop's browser. `None`: there is none that this user could mean, so the link must be opened by hand.
    pub fn open(link: &str) -> Option<Self> {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let desktop = set("DISPLAY") || set("WAYLAND_DISPLAY");
        let elsewhere = set("SSH_CONNECTION") || set("SSH_TTY");
        // Browsers refuse to run as root, and a browser at the other end of SSH cannot reach this port.
        if !desktop || elsewhere || std::env::var("USER").is_ok_and(|user| user == "root") {
            return None;
        }
        let redirect = Self::write(link).ok()?;
        let opened = Command::new("xdg-open")
            .arg(redirect.folder.join("open.html"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut child = opened.ok()?;
        // It ends when the browser has the file, or with the browser.
        std::thread::spawn(move || child.wait());
        Some(redirect)
    }

    fn write(link: &str) -> std::io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("muster-dashboard-{:016x}", rand::random::<u64>()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let redirect = Self { folder };
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(redirect.folder.join("open.html"))?;
        // A link consists of characters that need no escaping.
        write!(
            file,
            "<!doctype html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0;url={link}\"><title>Muster</title>"
        )?;
        Ok(redirect)
    }
}

impl Drop for Redirect {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn redirect_file_is_its_owners_alone_and_goes_away() {
        let redirect = Redirect::write("http://127.0.0.1:1/#x").unwrap();
        let (folder, file) = (redirect.folder.clone(), redirect.folder.join("open.html"));
        let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));
        assert!(std::fs::read_to_string(&file).unwrap().contains("0;url=http://127.0.0.1:1/#x\""));
        drop(redirect);
        assert!(!folder.exists());
    }
}
