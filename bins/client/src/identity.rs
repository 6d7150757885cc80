//! Identity files: the credentials of a person or a program, and the managers' addresses at the time of creation.

use std::path::Path;
use std::sync::Arc;

use muster_gateway::{DialError, Dialer};
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::{ErrorBody, ErrorCode, Name, Secret};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::connection::Connection;
use crate::failure::{Failure, Outcome};

/// The file that `muster user create` writes and `--identity` reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The user's name.
    pub name: Name,
    /// The user's certificate, in PEM.
    pub cert_pem: String,
    /// The private key, in PEM.
    pub key_pem: Secret,
    /// The cluster's roots, in PEM.
    pub root_pem: String,
    /// `host:port` of the managers when the file was created; a local daemon's socket has newer ones.
    pub managers: Vec<String>,
}

impl Identity {
    /// Reads an identity file.
    pub fn read(path: &Path) -> Outcome<Self> {
        let bad =
            |why: String| Failure::new(ErrorCode::Invalid, format!("invalid identity file {}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
        serde_json::from_str(&text).map_err(|e| bad(e.to_string()))
    }

    /// The file's content.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("an identity is plain text");
        text.push('\n');
        text
    }

    /// Writes the file, readable only by its owner.
    pub fn write(&self, path: &Path) -> Outcome {
        let write = || muster_pki::write_atomic(&std::path::absolute(path)?, self.to_json().as_bytes());
        write().map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))
    }

    /// A dialer with this identity.
    pub fn dialer(&self) -> Outcome<Dialer> {
        let identity = muster_pki::identity_of_pem(&self.cert_pem)
            .map_err(|e| Failure::new(ErrorCode::Invalid, format!("invalid certificate of {}: {e}", self.name)))?;
        let credentials = NodeCredentials {
            cert_pem: self.cert_pem.clone(),
            key_pem: self.key_pem.clone(),
            root_pem: self.root_pem.clone(),
            identity,
        };
        // The watch outlives its sender here: an identity file is not renewed while a command runs.
        Ok(Dialer::new(watch::Sender::new(Arc::new(credentials)).subscribe()))
    }
}

/// Connects to the first manager that accepts this identity; returns its address too.
pub async fn connect(dialer: &Dialer, managers: &[String]) -> Result<(Connection, String), ErrorBody> {
    let mut troubles = Vec::new();
    for manager in managers {
        match dialer.dial(manager, Service::Api, None).await {
            Ok(dialed) => return Ok((Connection::over(dialed.stream), manager.clone())),
            Err(error) => match final_refusal(&error) {
                Some(body) => return Err(body),
                None => troubles.push(format!("{manager}: {}", chain(&error))),
            },
        }
    }
    let why = if troubles.is_empty() { "no manager address is known".to_owned() } else { troubles.join("; ") };
    Err(ErrorBody::new(ErrorCode::Unreachable, format!("no manager accepted this identity: {why}")))
}

/// A refusal that every manager would repeat.
fn final_refusal(error: &DialError) -> Option<ErrorBody> {
    let refusal = error.refusal()?;
    let code = refusal.reason.code();
    let elsewhere =
        [ErrorCode::NotKnownHereYet, ErrorCode::NotAManager, ErrorCode::Unreachable, ErrorCode::TooManyRequests];
    (!elsewhere.contains(&code)).then(|| ErrorBody::new(code, refusal.message.clone()))
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn identity_file_is_private_and_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alice.identity.json");
        let identity = Identity {
            name: "alice".parse().unwrap(),
            cert_pem: "cert".into(),
            key_pem: Secret::new("key"),
            root_pem: "root".into(),
            managers: vec!["127.0.0.1:4400".into()],
        };
        identity.write(&path).unwrap();
        let read = Identity::read(&path).unwrap();
        assert_eq!((read.key_pem.expose(), read.managers.len()), ("key", 1));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(Identity::read(&path).unwrap_err().exit, 2);
    }
}
