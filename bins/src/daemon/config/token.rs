//! Where the join token comes from: a flag, the environment, the file of `--config`, or a credential of systemd, in this order.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use muster_messages::Secret;

/// The name of the credential in the folder that systemd names.
pub const CREDENTIAL: &str = "muster-join-token";
/// Ten times the length of any token.
const MAX_TOKEN_BYTES: u64 = 1024;

/// The token that a start would use, and where it was found.
#[derive(Clone, Debug, Default)]
pub struct Token {
    /// The token, or why its file cannot be read. A directory with an identity needs neither.
    pub text: Option<Result<Secret, String>>,
    pub from: TokenSource,
    /// Where other users of this machine can read it; `None`: nowhere known.
    pub is_exposed: Option<String>,
}

/// What gave the token, or the reason why there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenSource {
    /// It was not given.
    #[default]
    Nowhere,
    /// A flag, a variable or a key.
    Text,
    File,
    /// A credential of systemd.
    Credential,
    /// A credential that holds nothing, as the unit's default does.
    EmptyCredential,
}

/// A token, and a file with one, of the same place.
#[derive(Default)]
pub struct Pair {
    pub token: Option<String>,
    pub file: Option<PathBuf>,
}

impl Pair {
    /// The token wins over its file.
    fn found(self) -> Option<Token> {
        let text = |text| Token { text: Some(Ok(Secret::new(text))), from: TokenSource::Text, is_exposed: None };
        self.token.map(text).or_else(|| self.file.map(|file| of_file(&file)))
    }
}

/// What was given, in the order in which it counts.
pub struct Given {
    pub flags: Pair,
    pub environment: Pair,
    pub file: Pair,
    /// The folder of credentials.
    pub credentials: Option<PathBuf>,
}

impl Given {
    pub fn found(self) -> Token {
        let in_the_command_line = self.flags.token.is_some();
        let exposed = || in_the_command_line.then(|| "in the command line".to_owned());
        let flag = self.flags.found().map(|token| Token { is_exposed: exposed().or(token.is_exposed), ..token });
        let given = flag.or_else(|| self.environment.found()).or_else(|| self.file.found());
        given.or_else(|| of_credential(&self.credentials?.join(CREDENTIAL))).unwrap_or_default()
    }
}

fn of_file(file: &Path) -> Token {
    let text = match read(file) {
        Err(error) => Err(format!("cannot read the join token from {}: {error}", file.display())),
        Ok(None) => Err(format!("{} holds no join token: it is empty", file.display())),
        Ok(Some(token)) => Ok(token),
    };
    Token { text: Some(text), from: TokenSource::File, is_exposed: exposed(file) }
}

/// `None`: systemd passes no such credential.
fn of_credential(file: &Path) -> Option<Token> {
    let (text, from) = match read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Ok(None) => (None, TokenSource::EmptyCredential),
        Ok(Some(token)) => (Some(Ok(token)), TokenSource::Credential),
        Err(error) => {
            let why = format!("cannot read the join token from the credential {}: {error}", file.display());
            (Some(Err(why)), TokenSource::Credential)
        }
    };
    Some(Token { text, from, is_exposed: exposed(file) })
}

/// Reads a file that holds one line with a token and nothing else. `None`: it is empty.
fn read(file: &Path) -> io::Result<Option<Secret>> {
    let mut text = String::new();
    match file.to_str() {
        Some("-") => io::stdin().take(MAX_TOKEN_BYTES).read_to_string(&mut text)?,
        _ => File::open(file)?.take(MAX_TOKEN_BYTES).read_to_string(&mut text)?,
    };
    let token = text.trim();
    Ok((!token.is_empty()).then(|| Secret::new(token)))
}

/// Whether every user may open this file, as far as its own mode and its folder's tell.
fn exposed(file: &Path) -> Option<String> {
    let mode = |path: &Path| std::fs::metadata(path).map(|found| found.permissions().mode()).unwrap_or_default();
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_open = mode(file) & 0o004 != 0 && mode(folder) & 0o001 != 0;
    is_open.then(|| format!("in {}, whose mode lets them", file.display()))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};

    use super::*;

    fn credentials(dir: &Path) -> Given {
        Given {
            flags: Pair::default(),
            environment: Pair::default(),
            file: Pair::default(),
            credentials: Some(dir.to_owned()),
        }
    }

    fn text(token: &Token) -> Option<&str> {
        token.text.as_ref().map(|text| text.as_ref().map_or_else(String::as_str, |token| token.expose()))
    }

    fn at(token: &str) -> Pair {
        Pair { token: Some(token.to_owned()), file: None }
    }

    #[test]
    fn a_credential_counts_when_nothing_else_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(CREDENTIAL);
        let none = credentials(dir.path()).found();
        assert_eq!((text(&none), none.from), (None, TokenSource::Nowhere), "systemd passes none");
        std::fs::write(&file, "MSTR-1-credential\n").unwrap();
        let found = credentials(dir.path()).found();
        assert_eq!((text(&found), found.from), (Some("MSTR-1-credential"), TokenSource::Credential));
        let other = dir.path().join("other");
        std::fs::write(&other, "MSTR-1-file").unwrap();
        let in_file = || Pair { token: None, file: Some(other.clone()) };
        for (given, expected, from) in [
            (Given { flags: at("MSTR-1-flag"), ..credentials(dir.path()) }, "MSTR-1-flag", TokenSource::Text),
            (Given { flags: in_file(), ..credentials(dir.path()) }, "MSTR-1-file", TokenSource::File),
            (Given { environment: at("MSTR-1-env"), ..credentials(dir.path()) }, "MSTR-1-env", TokenSource::Text),
            (Given { file: in_file(), ..credentials(dir.path()) }, "MSTR-1-file", TokenSource::File),
            (
                Given { file: in_file(), environment: at("MSTR-1-env"), ..credentials(dir.path()) },
                "MSTR-1-env",
                TokenSource::Text,
            ),
        ] {
            let found = given.found();
            assert_eq!((text(&found), found.from), (Some(expected), from));
        }
        // A file that was named and is missing is a mistake: the credential does not hide it.
        let missing = Pair { token: None, file: Some("/nowhere".into()) };
        let found = Given { flags: missing, ..credentials(dir.path()) }.found();
        assert!(text(&found).is_some_and(|why| why.contains("/nowhere")), "{found:?}");
    }

    /// The unit passes an empty credential where the operator has put none.
    #[test]
    fn empty_credential_counts_as_absent() {
        let dir = tempfile::tempdir().unwrap();
        for empty in ["", "\n", " \n"] {
            std::fs::write(dir.path().join(CREDENTIAL), empty).unwrap();
            let found = credentials(dir.path()).found();
            assert_eq!((text(&found), found.from), (None, TokenSource::EmptyCredential), "{empty:?}");
        }
    }

    #[test]
    fn a_credential_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(CREDENTIAL);
        std::fs::create_dir(&file).unwrap();
        let found = credentials(dir.path()).found();
        assert!(text(&found).is_some_and(|why| why.contains("credential") && why.contains(CREDENTIAL)), "{found:?}");
        assert_eq!(found.from, TokenSource::Credential);
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, b"MSTR-1-\xff").unwrap();
        let found = credentials(dir.path()).found();
        let why = text(&found).unwrap();
        assert!(why.contains("UTF-8") && !why.contains("MSTR"), "{why}");
    }

    #[test]
    fn exposed_token_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(CREDENTIAL);
        std::fs::write(&file, "MSTR-1-a-b").unwrap();
        for (of_the_folder, of_the_file, is_exposed) in
            [(0o755, 0o644, true), (0o755, 0o640, false), (0o700, 0o644, false), (0o500, 0o400, false)]
        {
            set_permissions(&file, Permissions::from_mode(of_the_file)).unwrap();
            set_permissions(dir.path(), Permissions::from_mode(of_the_folder)).unwrap();
            for given in [
                credentials(dir.path()),
                Given { file: Pair { token: None, file: Some(file.clone()) }, ..credentials(Path::new("/nowhere")) },
            ] {
                let found = given.found().is_exposed;
                assert_eq!(found.is_some(), is_exposed, "{of_the_folder:o} {of_the_file:o}: {found:?}");
            }
        }
        let flag = Given { flags: at("MSTR-1-a-b"), ..credentials(Path::new("/nowhere")) };
        assert_eq!(flag.found().is_exposed.as_deref(), Some("in the command line"));
        let environment = Given { environment: at("MSTR-1-a-b"), ..credentials(Path::new("/nowhere")) };
        assert_eq!(environment.found().is_exposed, None);
    }
}
