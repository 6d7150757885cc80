//! Files that must be complete or absent. The only module with effects beside [`crate::Keys`], which uses it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The largest identity file that is read: two certificates and a key are under 8 KiB.
const MAX_FILE: u64 = 256 * 1024;
const OWNER_ONLY: u32 = 0o600;

/// Writes a file so that after a crash it has either the old or the new content: a temporary file beside it, synced,
/// renamed, and the folder synced. Readable only by the owner from its first byte.
pub fn write_atomic(path: &Path, content: &[u8]) -> io::Result<()> {
    write_atomic_as(path, content, OWNER_ONLY)
}

/// [`write_atomic`] with other permissions, whatever the process's umask is. It has them only once it is complete.
pub fn write_atomic_as(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let tmp = folder.join(temporary(name));
    remove(&tmp)?; // left by a crash, possibly with other permissions
    let mut file = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(&tmp)?;
    file.write_all(content)?;
    if mode != OWNER_ONLY {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    file.sync_all()?;
    fs::rename(&tmp, path)?;
    sync_folder(folder)
}

fn temporary(name: &std::ffi::OsStr) -> String {
    format!(".{}.tmp", name.to_string_lossy())
}

/// Removes a file durably. Absent: no effect.
pub fn remove_durably(path: &Path) -> io::Result<()> {
    remove(path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Gives a file another name in its folder, durably. A file of that name is replaced.
pub fn rename_durably(path: &Path, name: &str) -> io::Result<()> {
    fs::rename(path, path.with_file_name(name))?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Creates a folder that only the owner may enter, with its parents.
pub fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// The text of a file; `None` if there is none.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8");
    read_bytes(path)?.map(|bytes| String::from_utf8(bytes).map_err(invalid)).transpose()
}

/// The content of a file; `None` if there is none.
pub fn read_bytes(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Ok(meta) if meta.len() > MAX_FILE => {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} bytes, the limit is {MAX_FILE}", meta.len())))
        }
        Ok(_) => fs::read(path).map(Some),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_its_mode_and_a_stale_temporary_one_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.toml");
        fs::write(dir.path().join(".shop.toml.tmp"), "left by a crash, and longer").unwrap();
        for mode in [0o644, OWNER_ONLY, 0o640] {
            write_atomic_as(&path, b"text", mode).unwrap();
            let found = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
            assert_eq!((fs::read(&path).unwrap().as_slice(), found), (&b"text"[..], mode));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
