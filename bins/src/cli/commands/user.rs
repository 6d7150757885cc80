//! `muster user …`: identity files. The key is made here and never travels.

use std::path::{Path, PathBuf};

use muster_client::{Client, Failure, Identity, Outcome, parse};
use muster_messages::wire::{ListOf, Request};
use muster_messages::{ErrorCode, Name};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Asking;
use crate::cli::args::UserCommand;
use crate::cli::duration::millis;
use crate::cli::output::print;
use crate::cli::render;

pub async fn run(asking: &mut Asking, command: UserCommand) -> Outcome<u8> {
    match command {
        UserCommand::Ls => asking.show_list(ListOf::Users, true, "name", render::users).await,
        UserCommand::Revoke { name } => {
            let sentence = format!("{name} is revoked");
            asking.show(Request::UserRevoke { name }, |_| String::new(), |_| sentence).await
        }
        UserCommand::Create { name, admin, namespace, ttl, out } => {
            let path = out.unwrap_or_else(|| PathBuf::from(format!("{name}.identity.json")));
            let to_stdout = path == Path::new("-");
            if !to_stdout && path.exists() {
                let message = format!("{} exists already; name another file with --out", path.display());
                return Err(Failure::refused("file_exists", message));
            }
            let wanted = NewUser { name, admin, namespaces: namespace, ttl_ms: ttl.map(millis) };
            let (identity, document) = create(&mut asking.client, wanted).await?;
            if to_stdout {
                print(&identity.to_json());
            } else {
                identity.write(&path)?;
                report(asking, &identity, document, &path);
            }
            Ok(0)
        }
    }
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
    pub admin: bool,
    pub namespaces: Vec<String>,
    pub ttl_ms: Option<u64>,
}

/// Makes a key, has its certificate signed, and returns the identity with the server's document.
pub async fn create(client: &mut Client, user: NewUser) -> Outcome<(Identity, Value)> {
    #[derive(Deserialize)]
    struct Signed {
        cert_pem: String,
        root_pem: String,
        managers: Vec<String>,
    }
    let NewUser { name, admin, namespaces, ttl_ms } = user;
    let key_pem = muster_pki::new_key();
    let csr_pem = muster_pki::make_csr(&key_pem)
        .map_err(|e| Failure::new(ErrorCode::Internal, format!("cannot make a key: {e}")))?;
    let request = Request::UserCreate { name: name.clone(), admin, namespaces, ttl_ms, csr_pem };
    let text = client.call(request).await?;
    let Signed { cert_pem, root_pem, managers } = parse(&text)?;
    Ok((Identity { name, cert_pem, key_pem, root_pem, managers }, parse(&text)?))
}
