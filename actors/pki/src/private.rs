//! Files and folders that only one user can change, for secrets, locks and sockets.
//!
//! Invariants  PKI-7  a file that holds a secret or a lock is the caller's own regular file, 0600 from its first byte, and no link
//!                    is followed to it; a folder of such files belongs to the caller or to root, and no other user can write in
//!                    it.
//! Why folders too: a user who can write in a folder can replace any file in it, whatever the mode of the file.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Write permission of the group and of all others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Write permission of all others.
const WRITABLE_BY_ALL: u32 = 0o002;
/// In a folder with this bit no user can rename or remove another user's files.
const STICKY: u32 = 0o1000;

/// Why a folder or a file is refused.
#[derive(Debug, thiserror::Error)]
pub enum NotPrivate {
    #[error("{path} belongs to user {owner}, and this process runs as user {caller}")]
    Owner { path: PathBuf, owner: u32, caller: u32 },
    #[error("other users can write in {path} (mode {mode:04o}); check its content, then run `chmod go-w {path}`")]
    Writable { path: PathBuf, mode: u32 },
    #[error("{path} is not a directory")]
    NotFolder { path: PathBuf },
    #[error("cannot access {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// The effective user of this process.
pub fn caller() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a file of this user, or a process of this user behind a socket, is trusted: the caller's own, or root's, which can
/// do anything to the caller anyway.
pub fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == caller()
}

/// Refuses a folder in which another user can replace a file. A symbolic link to a folder is allowed if the link is trusted as well.
pub fn check_folder(path: &Path) -> Result<(), NotPrivate> {
    check(path, |mode| mode & WRITABLE_BY_OTHERS != 0)
}

/// Refuses a folder in which another user can replace a folder of the caller. Less strict than [`check_folder`]: other users and
/// the caller's group may create files there, as in `/tmp`.
pub fn check_surroundings(path: &Path) -> Result<(), NotPrivate> {
    check(path, |mode| mode & WRITABLE_BY_ALL != 0 && mode & STICKY == 0)
}

/// Refuses a path that belongs to another user.
pub fn check_owner(path: &Path) -> Result<(), NotPrivate> {
    owner_of(path, &std::fs::symlink_metadata(path).map_err(|source| NotPrivate::Io { path: path.to_owned(), source })?)
}

fn check(path: &Path, is_open: impl Fn(u32) -> bool) -> Result<(), NotPrivate> {
    check_owner(path)?;
    let folder = std::fs::metadata(path).map_err(|source| NotPrivate::Io { path: path.to_owned(), source })?;
    if !folder.is_dir() {
        return Err(NotPrivate::NotFolder { path: path.to_owned() });
    }
    owner_of(path, &folder)?;
    let mode = folder.mode() & 0o7777;
    if is_open(mode) { Err(NotPrivate::Writable { path: path.to_owned(), mode }) } else { Ok(()) }
}

fn owner_of(path: &Path, found: &Metadata) -> Result<(), NotPrivate> {
    let owner = found.uid();
    if is_trusted(owner) {
        return Ok(());
    }
    Err(NotPrivate::Owner { path: path.to_owned(), owner, caller: caller() })
}

/// Opens the caller's own file for writing, and creates it if absent. Its content is unchanged.
pub fn open_own_file(path: &Path) -> io::Result<File> {
    own_file(OpenOptions::new().read(true).write(true), path)
}

/// The same, for appending.
pub fn append_to_own_file(path: &Path) -> io::Result<File> {
    own_file(OpenOptions::new().append(true), path)
}

fn own_file(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = open_regular_as(options.create(true).mode(0o600), path, Symlinks::Refused)?;
    let found = file.metadata()?;
    if !is_trusted(found.uid()) {
        return Err(refused(&format!("it belongs to user {}", found.uid())));
    }
    // The other name may be anywhere, and be of a file that must not be written.
    if found.nlink() != 1 {
        return Err(refused("it has a second name (a hard link)"));
    }
    // Created by an earlier build, or restored from a copy.
    if found.uid() == caller() && found.mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Whether a symbolic link in place of a file is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symlinks {
    Followed,
    Refused,
}

/// Opens a regular file for reading. Never blocks on a pipe in its place.
pub fn open_regular(path: &Path, symlinks: Symlinks) -> io::Result<File> {
    open_regular_as(OpenOptions::new().read(true), path, symlinks)
}

fn open_regular_as(options: &mut OpenOptions, path: &Path, symlinks: Symlinks) -> io::Result<File> {
    // NONBLOCK: a pipe would block until its other end is opened. Regular files ignore it.
    let flags = match symlinks {
        Symlinks::Followed => OFlags::NONBLOCK,
        Symlinks::Refused => OFlags::NOFOLLOW | OFlags::NONBLOCK,
    };
    let flags = i32::try_from(flags.bits()).expect("these flags of open(2) are small");
    let file = options.custom_flags(flags).open(path).map_err(|error| match symlinks {
        Symlinks::Refused if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            refused("a symbolic link is not followed")
        }
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(refused("not a regular file")) }
}

/// The text of a file of at most `max` bytes. A longer one is refused, whatever its bytes are.
pub fn read_text(file: File, max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("larger than {max} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why.to_owned())
}

/// Removes the permissions of group and others from everything below a folder, except links. Absent: no effect.
pub fn close_to_others(path: &Path) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if found.is_symlink() {
        return Ok(());
    }
    if found.mode() & 0o077 != 0 && (found.is_dir() || found.is_file()) {
        std::fs::set_permissions(path, Permissions::from_mode(found.mode() & 0o700))?;
    }
    if found.is_dir() {
        for entry in std::fs::read_dir(path)? {
            close_to_others(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    /// Another user. Only root can change owners; other callers skip these checks.
    const OTHER_USER: u32 = 65534;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o777
    }
    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_link_in_place_of_an_own_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link, second) = (dir.path().join("precious"), dir.path().join("lock"), dir.path().join("second"));
        std::fs::write(&target, "kept").unwrap();
        symlink(&target, &link).unwrap();
        assert!(open_own_file(&link).unwrap_err().to_string().contains("symbolic link"));
        symlink(dir.path().join("to-be-made"), dir.path().join("dangling")).unwrap();
        assert!(append_to_own_file(&dir.path().join("dangling")).is_err() && !dir.path().join("to-be-made").exists());
        std::fs::hard_link(&target, &second).unwrap();
        assert!(append_to_own_file(&second).unwrap_err().to_string().contains("second name"));
        assert!(open_own_file(dir.path()).is_err(), "a folder");
        assert_eq!(std::fs::read(&target).unwrap(), b"kept");
    }

    #[test]
    fn pipes_and_folders_are_no_regular_files() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, file, link) = (dir.path().join("pipe"), dir.path().join("file"), dir.path().join("link"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::fs::write(&file, "text").unwrap();
        symlink(&file, &link).unwrap();
        for symlinks in [Symlinks::Followed, Symlinks::Refused] {
            for other in [&pipe, dir.path()] {
                assert_eq!(open_regular(other, symlinks).unwrap_err().to_string(), "not a regular file");
            }
            assert!(open_regular(&file, symlinks).is_ok());
        }
        assert!(open_regular(&link, Symlinks::Followed).is_ok());
        assert!(open_regular(&link, Symlinks::Refused).unwrap_err().to_string().contains("symbolic link"));
    }

    #[test]
    fn text_is_limited_and_utf8() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let text = |bytes: &[u8], max: u64| {
            std::fs::write(&path, bytes).unwrap();
            read_text(open_regular(&path, Symlinks::Refused).unwrap(), max).map_err(|error| error.to_string())
        };
        assert_eq!(text("aäb".as_bytes(), 4), Ok("aäb".to_owned()));
        // Its limit is within a character.
        assert_eq!(text("aäb".as_bytes(), 1), Err("larger than 1 bytes".to_owned()));
        assert_eq!(text(b"a\xff", 4), Err("not UTF-8".to_owned()));
    }

    #[test]
    fn own_files_become_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        drop(open_own_file(&path).unwrap());
        assert_eq!(mode(&path), 0o600);
        set_mode(&path, 0o644);
        drop(open_own_file(&path).unwrap());
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn folders_that_others_can_write_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        for (open, folder, surroundings) in [
            (0o700, true, true),
            (0o755, true, true),
            (0o775, false, true),
            (0o777, false, false),
            (0o1777, false, true),
        ] {
            set_mode(path, open);
            assert_eq!(
                (check_folder(path).is_ok(), check_surroundings(path).is_ok()),
                (folder, surroundings),
                "{open:o}"
            );
        }
        set_mode(path, 0o700);
        std::fs::write(path.join("file"), "").unwrap();
        assert!(matches!(check_folder(&path.join("file")), Err(NotPrivate::NotFolder { .. })));
        assert!(matches!(check_folder(&path.join("none")), Err(NotPrivate::Io { .. })));
    }

    #[test]
    fn folders_and_files_of_another_user_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, file) = (dir.path().join("folder"), dir.path().join("file"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(&file, "").unwrap();
        if chown(&folder, Some(OTHER_USER), None).is_err() {
            return; // not root
        }
        chown(&file, Some(OTHER_USER), None).unwrap();
        assert!(matches!(check_folder(&folder), Err(NotPrivate::Owner { owner: OTHER_USER, .. })));
        assert!(matches!(check_surroundings(&folder), Err(NotPrivate::Owner { owner: OTHER_USER, .. })));
        assert!(open_own_file(&file).unwrap_err().to_string().contains("65534"));
        let link = dir.path().join("link");
        symlink(dir.path(), &link).unwrap();
        assert!(check_folder(&link).is_ok());
        std::os::unix::fs::lchown(&link, Some(OTHER_USER), None).unwrap();
        assert!(matches!(check_folder(&link), Err(NotPrivate::Owner { .. })), "its owner can redirect it");
    }

    #[test]
    fn everything_below_a_folder_is_closed_and_links_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let (raft, outside) = (dir.path().join("raft"), dir.path().join("outside"));
        std::fs::create_dir_all(raft.join("log")).unwrap();
        let file = raft.join("log/1.raftlog");
        for path in [&file, &outside] {
            std::fs::write(path, "").unwrap();
            set_mode(path, 0o644);
        }
        set_mode(&raft, 0o755);
        symlink(&outside, raft.join("link")).unwrap();
        close_to_others(&raft).unwrap();
        assert_eq!((mode(&raft), mode(&file), mode(&outside)), (0o700, 0o600, 0o644));
        close_to_others(&dir.path().join("none")).unwrap();
    }
}
