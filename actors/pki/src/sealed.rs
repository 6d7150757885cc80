//! Sealing of the identity directory: the private key in `credentials.pem`, and the files that hold other secrets.
//!
//! Invariants  SEAL-4  a worker is never locked: what it needs lies in clear.
//! A keyring exists on managers, and wherever a cluster is being founded or recovered. While it does, secrets are written sealed. They are
//! read whichever way they were written, so that a change of role or of keys may be interrupted anywhere.

use std::path::Path;

use muster_messages::{Role, Secret};
use muster_sealing::{KeyUse, KeyringFault, KeysStatus, WrongSeal, is_sealed_text, open_text, seal_text};
use serde::Serialize;

use crate::store::{IdentityFault, IdentityStore};

/// Label of the PEM block that is a whole sealed file.
const FILE: &str = "SEALED FILE";
/// Label of the sealed private key in `credentials.pem`.
const KEY: &str = "SEALED PRIVATE KEY";

const HELP: &str =
    "put identity/keyring.json back as it was when the file was written, or restore the folder from a backup";

/// Files that are sealed as a whole.
const SECRET_FILES: [&str; 3] = ["founding.json", "join.json", "recovery.json"];

impl IdentityStore {
    /// Whether this node needs the unlock key before it can start: its keyring is locked, and what it needs is sealed.
    pub fn is_locked(&self) -> Result<bool, IdentityFault> {
        Ok(matches!(self.keys().status(), KeysStatus::Locked { .. }) && self.holds_sealed()?)
    }

    /// Whether anything in this directory can only be read with the keyring.
    pub fn holds_sealed(&self) -> Result<bool, IdentityFault> {
        let credentials = self.read(&self.path("credentials.pem"), HELP)?;
        if credentials.is_some_and(|text| is_sealed_text(KEY, &text)) {
            return Ok(true);
        }
        for file in SECRET_FILES {
            if self.read(&self.path(file), HELP)?.is_some_and(|text| is_sealed_text(FILE, &text)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes all secrets as they are to be now: sealed with the newest key on a manager, in clear on a worker. Repeated: no effect.
    /// Afterwards no file needs an older key of the keyring.
    pub fn reseal(&self) -> Result<(), IdentityFault> {
        {
            let _only_writer = self.writing();
            if let Some(credentials) = self.load_credentials()? {
                self.write_credentials(&credentials)?;
            }
        }
        for file in SECRET_FILES {
            let path = self.path(file);
            if let Some(text) = self.read_secret(&path, file, HELP)? {
                self.write_secret_text(&path, file, text.expose())?;
            }
        }
        if matches!(self.keys().status(), KeysStatus::Open { .. }) {
            let dropped = self.keys().drop_keys(KeyUse::Identity, &[]);
            dropped.map_err(|source| self.keyring_fault(source))?;
        }
        Ok(())
    }

    /// The private key of a node with this role, as it is written.
    pub(crate) fn stored_key(&self, role: Role, key_pem: &Secret) -> Result<String, IdentityFault> {
        if role == Role::Worker || self.keys().status() == KeysStatus::Absent {
            return Ok(key_pem.expose().to_owned());
        }
        self.sealed(KEY, "credentials.pem", key_pem.expose())
    }

    /// The private key in its block of `credentials.pem`.
    pub(crate) fn read_key(&self, path: &Path, block: &str) -> Result<Secret, IdentityFault> {
        if is_sealed_text(KEY, block) {
            self.opened(path, KEY, "credentials.pem", block)
        } else {
            Ok(Secret::new(block))
        }
    }

    /// The text of a secret file. `None`: there is none.
    pub(crate) fn read_secret(
        &self,
        path: &Path,
        name: &str,
        help: &'static str,
    ) -> Result<Option<Secret>, IdentityFault> {
        let Some(text) = self.read(path, help)? else { return Ok(None) };
        if is_sealed_text(FILE, &text) {
            self.opened(path, FILE, name, &text).map(Some)
        } else {
            Ok(Some(Secret::new(text)))
        }
    }

    pub(crate) fn write_secret<T: Serialize>(&self, name: &str, value: &T) -> Result<(), IdentityFault> {
        let text = serde_json::to_string_pretty(value).expect("identity files serialize as JSON");
        self.write_secret_text(&self.path(name), name, &text)
    }

    fn write_secret_text(&self, path: &Path, name: &str, text: &str) -> Result<(), IdentityFault> {
        if self.keys().status() == KeysStatus::Absent {
            return self.write(path, text.as_bytes());
        }
        self.write(path, self.sealed(FILE, name, text)?.as_bytes())
    }

    fn sealed(&self, label: &str, name: &str, text: &str) -> Result<String, IdentityFault> {
        let keys = self.keys().of(KeyUse::Identity).map_err(|source| self.keyring_fault(source))?;
        let newest = keys.last().ok_or(KeyringFault::Damaged("it has no key for the identity"));
        Ok(seal_text(newest.map_err(|source| self.keyring_fault(source))?, label, &self.place(name)?, text))
    }

    fn opened(&self, path: &Path, label: &str, name: &str, text: &str) -> Result<Secret, IdentityFault> {
        let keys = self.keys().of(KeyUse::Identity).map_err(|source| self.keyring_fault(source))?;
        let opened = open_text(keys, label, &self.place(name)?, text);
        let damaged =
            |why: WrongSeal| IdentityFault::Damaged { path: path.to_owned(), why: why.to_string(), help: HELP };
        opened.map(|text| Secret::new(text.as_str())).map_err(damaged)
    }

    /// Bound to keyring and file.
    fn place(&self, name: &str) -> Result<String, IdentityFault> {
        let id = self.keys().id().map_err(|source| self.keyring_fault(source))?;
        Ok(format!("{id}/identity/{name}"))
    }

    pub(crate) fn keyring_fault(&self, source: KeyringFault) -> IdentityFault {
        IdentityFault::Keyring { path: self.keys().path().to_owned(), source }
    }
}
