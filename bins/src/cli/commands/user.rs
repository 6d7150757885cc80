//! `muster user …`: identity files. The key is generated here and never sent.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use muster_client::{Client, Failure, Identity, Outcome, parse};
use muster_messages::wire::{ListOf, Request};
use muster_messages::{ErrorCode, ListView, Name, UserCertificateView, UserKind, UserView, WallTime};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Context;
use crate::cli::args::UserCommand;
use crate::cli::duration::millis;
use crate::cli::output::{lines, output_failure, try_print};
use crate::cli::render;

pub async fn run(ctx: &mut Context, command: UserCommand) -> Outcome<u8> {
    match command {
        UserCommand::Ls => {
            let names = |list: &ListView<UserView>| lines(list.items.iter().map(|user| &user.name));
            ctx.show_list(ListOf::Users, true, names, render::users).await
        }
        UserCommand::Revoke { name } => {
            let sentence = format!("{name} is revoked");
            ctx.done(Request::UserRevoke { name }, &sentence).await
        }
        UserCommand::Create { name, admin, read_only, namespace, ttl, out } => {
            let path = path_of(&name, out);
            let to_stdout = path == Path::new("-");
            if !to_stdout && path.exists() {
                let message = format!("{} already exists; choose another file with --out", path.display());
                return Err(Failure::refused("file_exists", message));
            }
            // Before the user is created: a user whose key is lost can only be revoked.
            let reserved = if to_stdout { None } else { Some(ReservedFile::reserve(&path)?) };
            let kind = match (admin, read_only) {
                (true, _) => UserKind::Operator,
                (_, true) => UserKind::ReadOnly,
                _ => UserKind::User,
            };
            let wanted = NewUser { name, kind, namespaces: namespace, ttl_ms: ttl.map(millis) };
            let Issued { identity, not_after, answer } = create(&mut ctx.client, wanted).await?;
            let written = match &reserved {
                Some(_) => identity.write(&path),
                None => try_print(&identity.to_json()).map_err(|error| output_failure(&error)),
            };
            if let Err(failure) = written {
                return Err(undo(ctx, &identity.name, failure).await);
            }
            if let Some(reserved) = reserved {
                reserved.keep();
                report(ctx, &identity.name, not_after, &Written { answer, identity: path.display().to_string() })?;
            }
            Ok(0)
        }
        UserCommand::Renew { name, ttl, out } => renew(ctx, name, ttl.map(millis), out).await,
    }
}

fn path_of(name: &Name, out: Option<PathBuf>) -> PathBuf {
    out.unwrap_or_else(|| PathBuf::from(format!("{name}.identity.json")))
}

/// Replaces the user's identity file. If the new one cannot be written, the user must be renewed again.
async fn renew(ctx: &mut Context, name: Name, ttl_ms: Option<u64>, out: Option<PathBuf>) -> Outcome<u8> {
    let path = path_of(&name, out);
    let to_stdout = path == Path::new("-");
    if !to_stdout && path.exists() {
        let own = Identity::read(&path).ok().filter(|identity| identity.name == name);
        if own.is_none() {
            let message = format!("{} is not an identity of {name}; choose another file with --out", path.display());
            return Err(Failure::refused("file_exists", message));
        }
    }
    let reservation_path = reservation_path(&path);
    // Reserves space for the new file before the certificate is replaced.
    let _reserved = if to_stdout { None } else { Some(ReservedFile::reserve(&reservation_path)?) };
    let make = |name, csr_pem| Request::UserRenew { name, ttl_ms, csr_pem };
    let Issued { identity, not_after, answer } = certified(&mut ctx.client, name, make).await?;
    let written = match to_stdout {
        true => try_print(&identity.to_json()).map_err(|error| output_failure(&error)),
        false => identity.write(&path),
    };
    if let Err(mut failure) = written {
        let name = &identity.name;
        failure.message += &format!("; the old identity of {name} is invalid: run `muster user renew {name}` again");
        return Err(failure);
    }
    if !to_stdout {
        report(ctx, &identity.name, not_after, &Written { answer, identity: path.display().to_string() })?;
    }
    Ok(0)
}

/// The file that reserves the space.
fn reservation_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

/// The output file of an identity, created before the user, so that writing it cannot fail later. Removed when dropped, unless
/// it is kept.
struct ReservedFile<'a>(Option<&'a Path>);

impl<'a> ReservedFile<'a> {
    fn reserve(path: &'a Path) -> Outcome<Self> {
        let reserve = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            // As much as an identity needs, so that a full disk is detected now.
            file.write_all(&[b' '; 8192])?;
            file.sync_all()
        };
        let failed = |error| Failure::io(format!("cannot write {}; no certificate was issued", path.display()), &error);
        // Removes a file that was created but could not be filled.
        let reserved = Self(Some(path));
        match reserve() {
            Ok(()) => Ok(reserved),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                reserved.keep();
                Err(failed(error))
            }
            Err(error) => Err(failed(error)),
        }
    }
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for ReservedFile<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _missing = std::fs::remove_file(path);
        }
    }
}

/// Revokes a user whose key could not be saved, and adds this to the failure.
async fn undo(ctx: &mut Context, name: &Name, mut failure: Failure) -> Failure {
    failure.message += &match ctx.client.call(Request::UserRevoke { name: name.clone() }).await {
        Ok(_) => format!("; user {name} was revoked"),
        Err(error) => format!("; the key of user {name} was not saved: run `muster user revoke {name}` ({error})"),
    };
    failure
}

/// A user whose identity was written to a file, as it is printed.
#[derive(Serialize)]
struct Written {
    /// The answer, with fields of newer daemons.
    #[serde(flatten)]
    answer: Map<String, Value>,
    /// The file.
    identity: String,
}

fn report(ctx: &Context, name: &Name, not_after: WallTime, written: &Written) -> Outcome<()> {
    let (file, until) = (&written.identity, render::when(not_after));
    ctx.out.document(
        &serde_json::to_string(written).map_err(Failure::internal)?,
        || file.clone(),
        || format!("identity of {name} written to {file} (valid until {until}); use it with --identity"),
    );
    Ok(())
}

/// A user to create.
pub struct NewUser {
    pub name: Name,
    pub kind: UserKind,
    pub namespaces: Vec<String>,
    pub ttl_ms: Option<u64>,
}

/// A new identity, and the answer with its certificate.
pub struct Issued {
    pub identity: Identity,
    not_after: WallTime,
    answer: Map<String, Value>,
}

/// Creates a user.
pub async fn create(client: &mut Client, user: NewUser) -> Outcome<Issued> {
    let NewUser { name, kind, namespaces, ttl_ms } = user;
    certified(client, name, |name, csr_pem| Request::UserCreate { name, kind, namespaces, ttl_ms, csr_pem }).await
}

/// Generates a key, and has its certificate signed.
async fn certified(client: &mut Client, name: Name, request: impl FnOnce(Name, String) -> Request) -> Outcome<Issued> {
    let key_pem = muster_pki::new_key();
    let csr_pem = muster_pki::make_csr(&key_pem)
        .map_err(|e| Failure::new(ErrorCode::Internal, format!("cannot create a certificate request: {e}")))?;
    let text = client.call(request(name.clone(), csr_pem)).await?;
    let UserCertificateView { cert_pem, root_pem, managers, not_after, .. } = parse(&text)?;
    let identity = Identity { name, cert_pem, key_pem, root_pem, managers };
    Ok(Issued { identity, not_after, answer: parse(&text)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_file_is_removed_unless_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ann.identity.json");
        drop(ReservedFile::reserve(&path).unwrap());
        assert!(!path.exists());
        ReservedFile::reserve(&path).unwrap().keep();
        assert!(ReservedFile::reserve(&path).is_err() && path.exists(), "an existing file is left alone");
        let failure = ReservedFile::reserve(&folder.path().join("no/such/folder")).err().unwrap();
        assert!(failure.message.contains("no certificate was issued"), "{failure}");
        assert!(ReservedFile::reserve(Path::new("/dev/full")).is_err() && Path::new("/dev/full").exists());
    }
}
