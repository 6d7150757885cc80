//! Opens a browser of this machine without showing the link to its other users.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A file that leads a browser to a link: arguments of processes can be read by everyone, this file only by its owner. Removed when
/// dropped.
pub struct Redirect(TempDir);

const FILE: &str = "open.html";

impl Redirect {
    /// Opens the desktop's browser. `None`: there is none that this user could mean, so the link must be opened by hand.
    pub fn open(link: &str) -> Option<Self> {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let desktop = set("DISPLAY") || set("WAYLAND_DISPLAY");
        let elsewhere = set("SSH_CONNECTION") || set("SSH_TTY");
        // Browsers refuse to run as root, and a browser at the other end of SSH cannot reach this port.
        if !desktop || elsewhere || rustix::process::geteuid().is_root() {
            return None;
        }
        let redirect = Self::write(link).ok()?;
        let opened = Command::new("xdg-open")
            .arg(redirect.0.path().join(FILE))
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
        // Only its owner can look into the directory.
        let only_owner = Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix("muster-dashboard-").permissions(only_owner).tempdir()?;
        let mut file = std::fs::File::create_new(folder.path().join(FILE))?;
        // A link consists of characters that need no escaping.
        write!(
            file,
            "<!doctype html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0;url={link}\"><title>Muster</title>"
        )?;
        Ok(Self(folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_file_is_its_owners_alone_and_goes_away() {
        let redirect = Redirect::write("http://127.0.0.1:1/#x").unwrap();
        let (folder, file) = (redirect.0.path().to_owned(), redirect.0.path().join(FILE));
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(std::fs::read_to_string(&file).unwrap().contains("0;url=http://127.0.0.1:1/#x\""));
        drop(redirect);
        assert!(!folder.exists());
    }
}
