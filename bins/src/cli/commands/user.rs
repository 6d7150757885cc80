//! `muster user …`: identity files. The key is made here and never travels.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use muster_client::{Client, Failure, Identity, Outcome, parse};
use muster_messages::wire::{ListOf, Request};
use muster_messages::{ErrorCode, Name, UserKind};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Asking;
use crate::cli::args::UserCommand;
use crate::cli::duration::millis;
use crate::cli::output::{try_print, unwritten};
use crate::cli::render;

pub async fn run(asking: &mut Asking, command: UserCommand) -> Outcome<u8> {
    match command {
        UserCommand::Ls => asking.show_list(ListOf::Users, true, "name", render::users).await,
        UserCommand::Revoke { name } => {
            let sentence = format!("{name} is revoked");
            asking.show(Request::UserRevoke { name }, |_| String::new(), |_| sentence).await
        }
        UserCommand::Create { name, admin, read_only, namespace, ttl, out } => {
            let path = path_of(&name, out);
            let to_stdout = path == Path::new("-");
            if !to_stdout && path.exists() {
                let message = format!("{} exists already; name another file with --out", path.display());
                return Err(Failure::refused("file_exists", message));
            }
            // Before the user is made: a user whose key is nowhere can only be revoked.
            let place = if to_stdout { None } else { Some(Place::reserve(&path)?) };
            let kind = match (admin, read_only) {
                (true, _) => UserKind::Operator,
                (_, true) => UserKind::ReadOnly,
                _ => UserKind::User,
            };
            let wanted = NewUser { name, kind, namespaces: namespace, ttl_ms: ttl.map(millis) };
            let (identity, document) = create(&mut asking.client, wanted).await?;
            let written = match &place {
                Some(_) => identity.write(&path),
                None => try_print(&identity.to_json()).map_err(|error| unwritten(&error)),
            };
            if let Err(failure) = written {
                return Err(undo(asking, &identity.name, failure).await);
            }
            if let Some(place) = place {
                place.keep();
                report(asking, &identity, document, &path);
            }
            Ok(0)
        }
        UserCommand::Renew { name, ttl, out } => renew(asking, name, ttl.map(millis), out).await,
    }
}

fn path_of(name: &Name, out: Option<PathBuf>) -> PathBuf {
    out.unwrap_or_else(|| PathBuf::from(format!("{name}.identity.json")))
}

/// A fresh identity takes the place of the user's own one. Should it not get there, the user is renewed again.
async fn renew(asking: &mut Asking, name: Name, ttl_ms: Option<u64>, out: Option<PathBuf>) -> Outcome<u8> {
    let path = path_of(&name, out);
    let to_stdout = path == Path::new("-");
    if !to_stdout && path.exists() {
        let own = Identity::read(&path).ok().filter(|identity| identity.name == name);
        if own.is_none() {
            let message = format!("{} is no identity of {name}; name another file with --out", path.display());
            return Err(Failure::refused("file_exists", message));
        }
    }
    let beside = beside(&path);
    // Before the certificate is replaced: the room for the new one.
    let _place = if to_stdout { None } else { Some(Place::reserve(&beside)?) };
    let make = |name, csr_pem| Request::UserRenew { name, ttl_ms, csr_pem };
    let (identity, document) = certified(&mut asking.client, name, make).await?;
    let written = match to_stdout {
        true => try_print(&identity.to_json()).map_err(|error| unwritten(&error)),
        false => identity.write(&path),
    };
    if let Err(mut failure) = written {
        let name = &identity.name;
        failure.message += &format!("; the old identity of {name} has ended: run `muster user renew {name}` again");
        return Err(failure);
    }
    if !to_stdout {
        report(asking, &identity, document, &path);
    }
    Ok(0)
}

/// Where room for a file is kept.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

/// The file that an identity will be in: made before the user is, so that it can be. Gone when dropped, unless it is kept.
struct Place<'a>(Option<&'a Path>);

impl<'a> Place<'a> {
    fn reserve(path: &'a Path) -> Outcome<Self> {
        let reserve = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            // As much as an identity needs, so that a full disk is found out now.
            file.write_all(&[b' '; 8192])?;
            file.sync_all()
        };
        let failed = |error| Failure::io(format!("cannot write {}; no certificate was made", path.display()), &error);
        // The file goes again if it could be made and not filled.
        let place = Self(Some(path));
        match reserve() {
            Ok(()) => Ok(place),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                place.keep();
                Err(failed(error))
            }
            Err(error) => Err(failed(error)),
        }
    }
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _not_there = std::fs::remove_file(path);
        }
    }
}

/// The key of this user is lost: it is revoked, and the failure says so.
async fn undo(asking: &mut Asking, name: &Name, mut failure: Failure) -> Failure {
    failure.message += &match asking.client.call(Request::UserRevoke { name: name.clone() }).await {
        Ok(_) => format!("; the user {name} was revoked again"),
        Err(error) => format!("; the key of user {name} was not saved: run `muster user revoke {name}` ({error})"),
    };
    failure
}

fn report(asking: &Asking, identity: &Identity, mut document: Value, path: &Path) {
    document["identity"] = json!(path.display().to_string());
    let not_after = render::when(&document["not_after"]);
    asking.out.document(
        &document.to_string(),
        || path.display().to_string(),
        || {
            format!(
                "identity of {} written to {} (valid until {not_after}); use it with --identity",
                identity.name,
                path.display()
            )
        },
    );
}

/// A user to be made.
pub struct NewUser {
    pub name: Name,
    pub kind: UserKind,
    pub namespaces: Vec<String>,
    pub ttl_ms: Option<u64>,
}

/// Makes a user: its identity, and the server's document.
pub async fn create(client: &mut Client, user: NewUser) -> Outcome<(Identity, Value)> {
    let NewUser { name, kind, namespaces, ttl_ms } = user;
    certified(client, name, |name, csr_pem| Request::UserCreate { name, kind, namespaces, ttl_ms, csr_pem }).await
}

/// Makes a key, has its certificate signed, and returns the identity with the server's document.
async fn certified(
    client: &mut Client,
    name: Name,
    request: impl FnOnce(Name, String) -> Request,
) -> Outcome<(Identity, Value)> {
    #[derive(Deserialize)]
    struct Signed {
        cert_pem: String,
        root_pem: String,
        managers: Vec<String>,
    }
    let key_pem = muster_pki::new_key();
    let csr_pem = muster_pki::make_csr(&key_pem)
        .map_err(|e| Failure::new(ErrorCode::Internal, format!("cannot make a key: {e}")))?;
    let text = client.call(request(name.clone(), csr_pem)).await?;
    let Signed { cert_pem, root_pem, managers } = parse(&text)?;
    Ok((Identity { name, cert_pem, key_pem, root_pem, managers }, parse(&text)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_file_goes_unless_it_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ann.identity.json");
        drop(Place::reserve(&path).unwrap());
        assert!(!path.exists());
        Place::reserve(&path).unwrap().keep();
        assert!(Place::reserve(&path).is_err() && path.exists(), "what is there is left alone");
        let failure = Place::reserve(&folder.path().join("no/such/folder")).err().unwrap();
        assert!(failure.message.contains("no certificate was made"), "{failure}");
        assert!(Place::reserve(Path::new("/dev/full")).is_err() && Path::new("/dev/full").exists());
    }
}
