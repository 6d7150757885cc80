//! A node's identity on disk, below `<data>/identity/`.
//!
//! Owns        `credentials.pem` (private key, certificate and its root in one file, so that they change together), `roots.pem`
//!             (all trusted roots, while there are several), `former-roots.json` (digests of those that left it), `node.json` (the node's other local state), `join.json` (an attempt to join, while it lasts), `founding.json` (a cluster being
//!             founded, until its first entry is applied), `recovery.json` (a recovery in progress), `starts.json` (the
//!             processes that ran on this directory). All 0600, all written whole or not at all.
//! Invariants  PKI-6: after a crash at any moment, either the old or the new credentials exist, and they are consistent.
//! A damaged file is named and never used in part: a new identity would be a second node.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_messages::protocol::NodeCredentials;
use muster_messages::wire::Starts;
use muster_messages::{CertIdentity, Name, NodeId, RaftId, RefusalReason, Role, Secret, WallTime};
use muster_sealing::{KEYRING, KeyId, KeyringFault, Keys, KeysStatus, files};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::csr::key_pair;
use crate::encoding;
use crate::identity::{self, identity_of_pem};
use crate::private::{NotPrivate, check_folder};
use crate::sealed::{CREDENTIALS, HELP_SEALED, IdentitySeal, SECRET_FILES};
use crate::tls;
use crate::token;
use crate::trust::{Bundle, MAX_CHAIN};

/// Why the identity on disk cannot be used. The text names the file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum IdentityFault {
    #[error("cannot access {path}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is damaged: {why}; {help}")]
    Damaged { path: PathBuf, why: String, help: &'static str },
    #[error(transparent)]
    NotPrivate(#[from] NotPrivate),
    /// Most likely the keyring is another node's, or an older copy. A changed key id in the file looks the same.
    #[error(
        "{path} is sealed with key {key}, which is not in {keyring}: that file is another node's or an older copy; put it back from a \
         backup of this node, or remove the node from the cluster, empty the data directory and join again"
    )]
    OtherKeyring { path: PathBuf, key: KeyId, keyring: PathBuf },
    #[error("cannot read what is sealed with the keys in {path}")]
    Keyring { path: PathBuf, source: KeyringFault },
}

/// Where the identity is, below the data directory.
pub const IDENTITY_FOLDER: &str = "identity";
const ROOTS: &str = "roots.pem";
const NODE: &str = "node.json";
const STARTS: &str = "starts.json";

const HELP_CREDENTIALS: &str = "restore the file from a backup, or remove the node from the cluster, empty the data \
     directory and join again";
const HELP_ROOTS: &str =
    "delete the file: the node then trusts only the root in credentials.pem until a manager sends the others";
const FORMER_ROOTS: &str = "former-roots.json";
const HELP_FORMER_ROOTS: &str = "delete the file: tokens of earlier roots are then taken for another cluster's";
/// Many more rotations than happen while a unit file keeps its token.
const MAX_FORMER_ROOTS: usize = 32;
const HELP_STARTS: &str =
    "delete the file, and `raft` beside its folder if the managers then reject this directory as a copy";
const HELP_NODE: &str = "delete the file: the node then starts without its record of managers and member id";
pub(crate) const HELP_JOIN: &str = "delete the file and join again";
pub(crate) const HELP_FOUNDING: &str = "the founding did not finish: empty the data directory and found again";

/// A node's local state besides its credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalNode {
    /// `host:port` of the last known managers.
    pub managers: Vec<String>,
    /// Its name. `None`: not recorded, by an earlier build.
    pub name: Option<Name>,
    /// Its last Raft member id. If this is set and the Raft data is missing, the data was lost.
    #[serde(alias = "held_seat")]
    pub held_member_id: Option<RaftId>,
    /// The cluster's final refusal: this node is no longer part of it.
    pub ended: Option<Ended>,
    /// This node restored a backup, and its operator has not yet opened the cluster to others.
    pub admission_closed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub reason: RefusalReason,
    pub message: String,
    pub at: WallTime,
}

/// What [`IdentityStore::leave_keyring`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftKeyring {
    /// It is needed, or there is none.
    Kept,
    /// It is beside the former one's place, for data that was set aside.
    SetAside,
    Removed,
}

#[derive(Clone, Debug)]
pub struct IdentityStore {
    folder: PathBuf,
    pub(crate) seal: IdentitySeal,
    /// Held while `credentials.pem` is replaced: by the agent, or because it is sealed anew.
    writing: Arc<Mutex<()>>,
}

impl IdentityStore {
    /// Opens `<data>/identity`, and creates it if necessary.
    pub fn open(data: &Path) -> Result<Self, IdentityFault> {
        let folder = data.join(IDENTITY_FOLDER);
        files::private_folder(&folder).map_err(|source| IdentityFault::Io { path: folder.clone(), source })?;
        check_folder(&folder)?;
        let keys =
            Keys::open(&folder).map_err(|source| IdentityFault::Keyring { path: folder.join(KEYRING), source })?;
        Ok(Self { folder, seal: IdentitySeal::new(keys), writing: Arc::default() })
    }

    /// Whether a node's identity is in this directory. Creates nothing.
    ///
    /// # Errors
    /// The directory cannot be read: there may be an identity that a start would use.
    pub fn exists(data: &Path) -> io::Result<bool> {
        data.join(IDENTITY_FOLDER).join(CREDENTIALS).try_exists()
    }

    /// The keys with which this node's secrets are sealed. Its clones share them: unlocked once, they are unlocked everywhere.
    pub fn keys(&self) -> &Keys {
        self.seal.keys()
    }

    /// Ends the use of the keyring on a worker, unless a file in this directory is sealed. `in_use`: data that was set aside is. Then a
    /// keyring with a clear slot stays, and a sealed one is set aside: a node that is promoted again needs one that it can open.
    /// Excludes the agent, which may be writing a manager's key: a sealed one would be lost.
    pub fn leave_keyring(&self, in_use: bool) -> Result<LeftKeyring, IdentityFault> {
        let _only_writer = self.writing();
        if self.node_on_disk()?.map(|(_, role)| role) != Some(Role::Worker) || self.holds_sealed()? {
            return Ok(LeftKeyring::Kept);
        }
        let (left, how) = match (in_use, self.keys().status()) {
            (_, KeysStatus::Absent) | (true, KeysStatus::Open { sealed: false, .. }) => (Ok(()), LeftKeyring::Kept),
            // The cluster no longer keeps this version of the key for a worker: one that is promoted needs a keyring that it can open.
            (true, KeysStatus::Open { sealed: true, .. } | KeysStatus::Locked { .. }) => {
                (self.keys().set_aside(), LeftKeyring::SetAside)
            }
            (false, KeysStatus::Open { .. } | KeysStatus::Locked { .. }) => {
                (self.keys().remove(), LeftKeyring::Removed)
            }
        };
        left.map(|()| how).map_err(|source| self.seal.fault(source))
    }

    /// This node by its certificate, which is never sealed. `None`: without one, or it cannot be read.
    pub fn node_on_disk(&self) -> Result<Option<(NodeId, Role)>, IdentityFault> {
        let text = self.read(&self.path(CREDENTIALS), HELP_CREDENTIALS)?.unwrap_or_default();
        let identity = split_credentials(&text).ok().and_then(|(_, chain, _)| identity_of_pem(&chain).ok());
        Ok(identity.and_then(|identity| identity.node()))
    }

    /// Whether anything in this directory can only be read with the keyring.
    pub fn holds_sealed(&self) -> Result<bool, IdentityFault> {
        for file in [CREDENTIALS].iter().chain(&SECRET_FILES) {
            if self.read(&self.path(file), HELP_SEALED)?.is_some_and(|text| IdentitySeal::is_needed_for(&text)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes all secrets as they are to be now: sealed with the newest key on a manager, in clear on a worker. Repeated: no effect.
    /// Afterwards no file needs an older key of the keyring.
    pub fn reseal(&self) -> Result<(), IdentityFault> {
        let _only_writer = self.writing();
        let newest = self.seal.newest_key();
        if let Some(credentials) = self.load_credentials()? {
            let (_, role) = credentials.identity.node().expect("credentials are a node's");
            let text = self.read(&self.path(CREDENTIALS), HELP_CREDENTIALS)?.unwrap_or_default();
            let is_current = split_credentials(&text).is_ok_and(|(key, ..)| self.seal.is_current_key(role, &key));
            if !is_current {
                self.write_credentials(&credentials)?;
            }
        }
        for file in SECRET_FILES {
            let path = self.path(file);
            let text = self.read(&path, HELP_SEALED)?;
            if let Some(text) = text.filter(|text| !self.seal.is_current_file(text)) {
                let text = self.seal.open_file(&path, text)?;
                self.write(&path, self.seal.stored_file(file, text.expose())?.as_bytes())?;
            }
        }
        newest.map_or(Ok(()), |newest| self.seal.drop_older_than(newest))
    }

    /// The credentials on disk, `None` if there are none. Expired ones are returned too: the caller decides.
    pub fn load_credentials(&self) -> Result<Option<NodeCredentials>, IdentityFault> {
        let path = self.path(CREDENTIALS);
        let Some(text) = self.read(&path, HELP_CREDENTIALS)? else {
            return Ok(None);
        };
        let damaged =
            |why: &str| IdentityFault::Damaged { path: path.clone(), why: why.to_owned(), help: HELP_CREDENTIALS };
        let (key, chain, root) = split_credentials(&text).map_err(damaged)?;
        let key = self.seal.open_key(&path, &key)?;
        let mut found = credentials(key, chain, root).map_err(damaged)?;
        let path = self.path(ROOTS);
        if let Some(roots) = self.read(&path, HELP_ROOTS)? {
            let bundle = Bundle::from_pem(&roots).and_then(|bundle| bundle.with(&found.root_pem));
            let bundle =
                bundle.map_err(|why| IdentityFault::Damaged { path, why: why.to_string(), help: HELP_ROOTS })?;
            found.root_pem = bundle.to_pem();
        }
        Ok(Some(found))
    }

    /// Replaces key, certificate and the root that issued it in one step; the other trusted roots follow in their own file, and
    /// until then both the earlier and the new ones are trusted. Refuses those that `load_credentials` would report as damaged.
    pub fn save_credentials(&self, creds: &NodeCredentials) -> Result<(), IdentityFault> {
        let _only_writer = self.writing();
        self.write_credentials(creds)
    }

    /// The caller holds [`IdentityStore::writing`].
    fn write_credentials(&self, creds: &NodeCredentials) -> Result<(), IdentityFault> {
        let path = self.path(CREDENTIALS);
        let refused =
            |why| IdentityFault::Io { path: path.clone(), source: io::Error::new(io::ErrorKind::InvalidData, why) };
        let (root, alone) = issuing_root(&creds.cert_pem, &creds.root_pem).map_err(refused)?;
        let (_, role) = creds.identity.node().ok_or(refused("the certificate is not a node's"))?;
        let key = self.seal.stored_key(role, &creds.key_pem)?;
        let parts = [&key, &creds.cert_pem, &root];
        let text: String = parts.iter().map(|p| format!("{}\n", p.trim_end())).collect();
        let (_, chain, root) = split_credentials(&text).map_err(refused)?;
        credentials(creds.key_pem.clone(), chain, root).map_err(refused)?;
        self.remember_former(&creds.root_pem)?;
        self.write(&path, text.as_bytes())?;
        // Last: until then the root in the file above is trusted beside the former ones, so that a crash between the two leaves
        // no certificate whose root is not trusted.
        let roots = self.path(ROOTS);
        if alone { self.remove(&roots) } else { self.write(&roots, creds.root_pem.as_bytes()) }
    }

    /// The digests of the roots of this node's cluster, as tokens name them: of the one that issued its certificate, of the other
    /// trusted ones, and of those that it trusted before. Empty: it has no credentials.
    pub fn root_digests(&self) -> Result<Vec<String>, IdentityFault> {
        let Some(creds) = self.load_credentials()? else { return Ok(Vec::new()) };
        let own = own_root_pem(&creds);
        let trusted = own.into_iter().chain(each_root(&creds.root_pem));
        let mut digests: Vec<String> = trusted.filter_map(|root| token::digest(&root).ok()).collect();
        // Damage to a convenience must not keep a node from starting.
        digests.extend(self.load_former().unwrap_or_default());
        Ok(digests)
    }

    /// Roots that are not trusted any more: a token of one of them, in a unit file for example, is still for this cluster.
    fn remember_former(&self, root_pem: &str) -> Result<(), IdentityFault> {
        // Damaged credentials are replaced; what they trusted is not known.
        let Ok(Some(present)) = self.load_credentials() else { return Ok(()) };
        let kept: Vec<String> = each_root(root_pem).collect();
        let left = each_root(&present.root_pem).filter(|root| !kept.contains(root));
        let left: Vec<String> = left.filter_map(|root| token::digest(&root).ok()).collect();
        if left.is_empty() {
            return Ok(());
        }
        // A convenience for unit files: damage must not keep a certificate from being renewed.
        let mut former = self.load_former().unwrap_or_default();
        former.retain(|digest| !left.contains(digest));
        former.splice(..0, left);
        former.truncate(MAX_FORMER_ROOTS);
        self.write_json(&self.path(FORMER_ROOTS), &former)
    }

    fn load_former(&self) -> Result<Vec<String>, IdentityFault> {
        Ok(self.read_json(&self.path(FORMER_ROOTS), HELP_FORMER_ROOTS)?.unwrap_or_default())
    }

    /// The node's local state; the default if none was written.
    pub fn load_node(&self) -> Result<LocalNode, IdentityFault> {
        let path = self.path(NODE);
        Ok(self.read_json(&path, HELP_NODE)?.unwrap_or_default())
    }

    pub fn save_node(&self, node: &LocalNode) -> Result<(), IdentityFault> {
        self.write_json(&self.path(NODE), node)
    }

    /// The starts of this directory so far; `None`: none, or only by earlier builds, which did not count them.
    pub fn load_starts(&self) -> Result<Option<Starts>, IdentityFault> {
        self.read_json(&self.path(STARTS), HELP_STARTS)
    }

    /// A process starts on this directory. Its start is on disk before any other node learns of it.
    pub fn begin_start(&self, nonce: u64) -> Result<Starts, IdentityFault> {
        let starts = match self.load_starts()?.filter(|old| old.this().is_some()) {
            Some(old) => old.next(nonce),
            None => Starts::first(nonce),
        };
        self.write_json(&self.path(STARTS), &starts)?;
        Ok(starts)
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    pub(crate) fn read_json<T: DeserializeOwned>(
        &self,
        path: &Path,
        help: &'static str,
    ) -> Result<Option<T>, IdentityFault> {
        let Some(text) = self.read(path, help)? else {
            return Ok(None);
        };
        let text = self.seal.open_file(path, text)?;
        // Only the position: an error text of the parser may quote a key.
        serde_json::from_str(text.expose()).map(Some).map_err(|e| IdentityFault::Damaged {
            path: path.to_owned(),
            why: format!("line {}, column {}", e.line(), e.column()),
            help,
        })
    }

    fn write_json<T: Serialize>(&self, path: &Path, value: &T) -> Result<(), IdentityFault> {
        let text = serde_json::to_vec_pretty(value).expect("identity files serialize as JSON");
        self.write(path, &text)
    }

    /// The same for a file of [`SECRET_FILES`].
    pub(crate) fn write_secret<T: Serialize>(&self, name: &str, value: &T) -> Result<(), IdentityFault> {
        let text = serde_json::to_string_pretty(value).expect("identity files serialize as JSON");
        let _only_writer = self.writing();
        self.write(&self.path(name), self.seal.stored_file(name, &text)?.as_bytes())
    }

    fn write(&self, path: &Path, content: &[u8]) -> Result<(), IdentityFault> {
        files::write_atomic(path, content).map_err(|source| IdentityFault::Io { path: path.to_owned(), source })
    }

    pub(crate) fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remove(&self, path: &Path) -> Result<(), IdentityFault> {
        files::remove_durably(path).map_err(|source| IdentityFault::Io { path: path.to_owned(), source })
    }

    fn read(&self, path: &Path, help: &'static str) -> Result<Option<String>, IdentityFault> {
        files::read(path).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData => {
                IdentityFault::Damaged { path: path.to_owned(), why: "not UTF-8 text, or too large".to_owned(), help }
            }
            _ => IdentityFault::Io { path: path.to_owned(), source },
        })
    }
}

/// Credentials from key, certificate and root, which must belong together.
pub fn credentials(key_pem: Secret, cert_pem: String, root_pem: String) -> Result<NodeCredentials, &'static str> {
    let identity = identity_of_pem(&cert_pem).map_err(|_| "the certificate cannot be read")?;
    check(&identity, &key_pem, &cert_pem, &root_pem)?;
    Ok(NodeCredentials { cert_pem, key_pem, root_pem, identity })
}

fn each_root(root_pem: &str) -> impl Iterator<Item = String> {
    let bundle = Bundle::from_pem(root_pem).ok();
    let roots = bundle.map(|bundle| bundle.ids().filter_map(|id| bundle.root_pem(id)).collect::<Vec<_>>());
    roots.unwrap_or_default().into_iter()
}

/// The same certificate with another bundle. If no root of the bundle leads to the certificate, the one that issued it stays
/// trusted: it leaves with the certificate. [`IdentityStore::save_credentials`] then replaces only the bundle on disk.
pub fn with_bundle(credentials: &NodeCredentials, bundle: &Bundle) -> NodeCredentials {
    let is_issued = issuing_root(&credentials.cert_pem, &bundle.to_pem()).is_ok();
    let own = own_root_pem(credentials).filter(|_| !is_issued);
    let kept = own.and_then(|root| bundle.clone().with(&root).ok());
    NodeCredentials { root_pem: kept.as_ref().unwrap_or(bundle).to_pem(), ..credentials.clone() }
}

/// The root that issued the certificate, even if that has expired. `None`: the credentials are damaged.
pub fn own_root_pem(credentials: &NodeCredentials) -> Option<String> {
    issuing_root(&credentials.cert_pem, &credentials.root_pem).ok().map(|(root, _)| root)
}

fn check(identity: &CertIdentity, key_pem: &Secret, cert_pem: &str, root_pem: &str) -> Result<(), &'static str> {
    identity.node().ok_or("the certificate is not a node's")?;
    let key = key_pair(key_pem).ok_or("the private key cannot be read")?;
    let unreadable = "the certificate cannot be read";
    let presented = encoding::certificates(cert_pem, MAX_CHAIN).map_err(|_| unreadable)?;
    let leaf = presented.first().expect("at least one was read");
    let cert = identity::parse(leaf).map_err(|_| unreadable)?;
    if cert.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
        return Err("the private key does not belong to the certificate");
    }
    if tls::issued_by(root_pem, &presented) { Ok(()) } else { Err("the certificate was not issued by a trusted root") }
}

const CONTENT: &str =
    "it must contain a private key, a certificate (with those that lead to older roots) and a root, in this order";

/// The trusted root that issued a certificate, and whether it is the only one.
fn issuing_root(cert_pem: &str, root_pem: &str) -> Result<(String, bool), &'static str> {
    let presented = encoding::certificates(cert_pem, MAX_CHAIN).map_err(|_| "the certificate cannot be read")?;
    let bundle = Bundle::from_pem(root_pem).map_err(|_| "the roots cannot be read")?;
    let by = tls::issuer(&bundle, &presented).ok_or("the certificate was not issued by a trusted root")?;
    let root = bundle.root_pem(by).expect("the bundle has the root that it named");
    Ok((root, bundle.ids().count() == 1))
}

/// The private key, sealed or not, the certificates and the root.
fn split_credentials(text: &str) -> Result<(String, String, String), &'static str> {
    let blocks = pem_blocks(text);
    let [key, chain @ .., root] = &blocks[..] else { return Err(CONTENT) };
    if chain.is_empty() || !key.contains("PRIVATE KEY") {
        return Err(CONTENT);
    }
    Ok((key.clone(), chain.concat(), root.clone()))
}

/// The PEM blocks of a text, each with its armour; an unterminated block is ignored.
fn pem_blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        if line.starts_with("-----BEGIN ") {
            open = Some(String::new());
        }
        if let Some(block) = &mut open {
            block.push_str(line);
            block.push('\n');
        }
        if line.starts_with("-----END ") {
            blocks.extend(open.take());
        }
    }
    blocks
}
