//! Sealing of the identity directory: the private key in `credentials.pem`, and the files that hold other secrets.
//!
//! Invariants  SEAL-4  a worker is never locked: what it needs lies in clear.
//! A keyring exists on managers, and wherever a cluster is being founded or recovered. While it does, secrets are written sealed. They are
//! read whichever way they were written, so that a change of role or of keys may be interrupted anywhere.

use std::path::Path;

use muster_messages::{Role, Secret};
use muster_sealing::{
    DataKey, KeyId, KeyUse, KeyringFault, Keys, KeysStatus, WrongSeal, is_sealed_text, key_of_text, open_text,
    seal_text,
};

use crate::store::IdentityFault;

/// Label of the PEM block that is a whole sealed file.
const FILE: &str = "SEALED FILE";
/// Label of the sealed private key in `credentials.pem`.
const KEY: &str = "SEALED PRIVATE KEY";
/// The place of that key.
pub(crate) const CREDENTIALS: &str = "credentials.pem";

pub(crate) const HELP_SEALED: &str =
    "put identity/keyring.json back as it was when the file was written, or restore the folder from a backup";

/// Files that are sealed as a whole.
pub(crate) const SECRET_FILES: [&str; 3] = ["founding.json", "join.json", "recovery.json"];

/// Seals and opens the secrets in one identity directory.
#[derive(Clone, Debug)]
pub(crate) struct IdentitySeal {
    keys: Keys,
}

impl IdentitySeal {
    pub fn new(keys: Keys) -> Self {
        Self { keys }
    }
    pub fn keys(&self) -> &Keys {
        &self.keys
    }
    /// Whether the content of a file can be read only with the keyring.
    pub fn is_needed_for(text: &str) -> bool {
        is_sealed_text(KEY, text) || is_sealed_text(FILE, text)
    }
    /// Whether the private key in this block of `credentials.pem` is as it is to be now.
    pub fn is_current_key(&self, role: Role, block: &str) -> bool {
        self.is_current(KEY, block, role == Role::Manager)
    }
    /// Whether a secret file is as it is to be now.
    pub fn is_current_file(&self, text: &str) -> bool {
        self.is_current(FILE, text, true)
    }
    /// Sealed with the newest key, or not at all.
    fn is_current(&self, label: &str, text: &str, is_secret: bool) -> bool {
        key_of_text(label, text) == self.newest_key().filter(|_| is_secret)
    }
    /// The private key of a node with this role, as it is written.
    pub fn stored_key(&self, role: Role, key_pem: &Secret) -> Result<String, IdentityFault> {
        if role == Role::Worker || self.keys.status() == KeysStatus::Absent {
            return Ok(key_pem.expose().to_owned());
        }
        self.sealed(KEY, CREDENTIALS, key_pem.expose())
    }
    /// The private key in its block of `credentials.pem`.
    pub fn open_key(&self, path: &Path, block: &str) -> Result<Secret, IdentityFault> {
        if is_sealed_text(KEY, block) { self.opened(path, KEY, CREDENTIALS, block) } else { Ok(Secret::new(block)) }
    }
    /// A secret file as it is written.
    pub fn stored_file(&self, name: &str, text: &str) -> Result<String, IdentityFault> {
        if self.keys.status() == KeysStatus::Absent { Ok(text.to_owned()) } else { self.sealed(FILE, name, text) }
    }
    /// The text of a file, sealed or not.
    pub fn open_file(&self, path: &Path, text: String) -> Result<Secret, IdentityFault> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_sealed_text(FILE, &text) { self.opened(path, FILE, &name, &text) } else { Ok(Secret::new(text)) }
    }
    /// The newest key, if the keyring is open.
    pub fn newest_key(&self) -> Option<KeyId> {
        self.keys.newest(KeyUse::Identity)
    }
    /// SEAL-3: no file needs a key that is older than this one. A newer one may have come meanwhile, and does not count: what was just
    /// written is not under it.
    pub fn drop_older_than(&self, oldest: KeyId) -> Result<(), IdentityFault> {
        self.keys.drop_older_than(KeyUse::Identity, oldest).map_err(|source| self.fault(source))
    }
    /// A keyring with a clear slot, if there is none.
    pub fn ensure(&self) -> Result<(), IdentityFault> {
        self.keys.ensure().map_err(|source| self.fault(source))
    }

    fn sealed(&self, label: &str, name: &str, text: &str) -> Result<String, IdentityFault> {
        let newest = self.all()?.pop().ok_or(KeyringFault::Damaged("it has no key for the identity"));
        Ok(seal_text(&newest.map_err(|source| self.fault(source))?, label, &self.place(name)?, text))
    }
    fn opened(&self, path: &Path, label: &str, name: &str, text: &str) -> Result<Secret, IdentityFault> {
        let damaged = |why: WrongSeal| match why {
            WrongSeal::UnknownKey(key) => {
                let (path, keyring) = (path.to_owned(), self.keys.path().to_owned());
                IdentityFault::OtherKeyring { path, key, keyring }
            }
            why => IdentityFault::Damaged { path: path.to_owned(), why: why.to_string(), help: HELP_SEALED },
        };
        let opened = open_text(self.all()?, label, &self.place(name)?, text).map_err(damaged)?;
        Ok(Secret::new(opened.as_str()))
    }
    fn all(&self) -> Result<Vec<DataKey>, IdentityFault> {
        self.keys.of(KeyUse::Identity).map_err(|source| self.fault(source))
    }
    /// Bound to keyring and file.
    fn place(&self, name: &str) -> Result<String, IdentityFault> {
        let id = self.keys.id().map_err(|source| self.fault(source))?;
        Ok(format!("{id}/identity/{name}"))
    }
    pub fn fault(&self, source: KeyringFault) -> IdentityFault {
        IdentityFault::Keyring { path: self.keys.path().to_owned(), source }
    }
}
