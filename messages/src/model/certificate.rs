//! Certificates on record: which ones the cluster has issued, and which of them still count.
//!
//! Owns   for each node the newest certificate and the one that it used before, for each user the one in force.
//! Keeps  CERT-6  a node's certificate counts only while it is on record, where the applied state knows all that were issued.
//! Why two: a certificate is recorded before it is handed out (CERT-2). A node that did not receive the newest one continues
//! with the one that it asked with, however often that happens, so that one is kept and never one that was merely recorded.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CertIdentity, NodeId, Revision, Role, Tables, WallTime};

/// The id of a root: the first 16 hexadecimal digits of the SHA-256 of its public key (`SubjectPublicKeyInfo`, DER).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RootId(pub [u8; 8]);

impl fmt::Display for RootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What identifies a certificate where a serial number does not: a holder of the root key can copy the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CertificatePin {
    /// SHA-256 of the certificate, DER.
    pub fingerprint: [u8; 32],
    /// SHA-256 of its public key (`SubjectPublicKeyInfo`, DER).
    pub key: [u8; 32],
}

/// One certificate of a node, as recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedCertificate {
    /// Lower-case hexadecimal.
    pub serial: String,
    pub role: Role,
    /// As carried in the certificate. `None`: the founder's first one, or one that a manager signed for itself.
    pub granted: Option<Revision>,
    pub not_after: WallTime,
    /// `None`: recorded below feature level 3.
    pub pin: Option<CertificatePin>,
    /// The root that signed it. `None`: recorded below feature level 3, when there was one root.
    pub issuer: Option<RootId>,
}

impl IssuedCertificate {
    /// Whether `shown` is this certificate, or another one of the same key. A manager whose certificate expired signs for
    /// itself, with the key that is on record; a certificate for it is useless without that key.
    pub fn is(&self, shown: &CertIdentity) -> bool {
        match (&self.pin, &shown.pin) {
            (Some(recorded), Some(shown)) => recorded.fingerprint == shown.fingerprint || recorded.key == shown.key,
            _ => self.serial == shown.serial,
        }
    }
}

/// Requests of one node that may be answered in another order than they were made: it makes the next one when the answer to
/// the last one is overdue.
pub const MAX_UNCLAIMED: usize = 3;

/// The certificates of one node that count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCertificates {
    /// The newest one. It may never have reached the node.
    pub current: Option<IssuedCertificate>,
    /// The one that the node showed when it asked for `current`.
    pub previous: Option<IssuedCertificate>,
    /// Issued to a node that showed `previous`, before `current`, oldest first: a request that was delayed may be answered after
    /// a later one, so the node may hold any of these. At most [`MAX_UNCLAIMED`].
    pub unclaimed: Vec<IssuedCertificate>,
    /// The node may hold one that is not recorded here: issued below feature level 3, or after the state that a recovery
    /// went on from. Any certificate counts until the next one is recorded.
    pub incomplete: bool,
    /// An operator revoked what the node holds: `previous` stops to count once the node is seen with `current`.
    pub revoking: bool,
}

impl NodeCertificates {
    /// The recorded certificate that `shown` is.
    pub fn find(&self, shown: &CertIdentity) -> Option<&IssuedCertificate> {
        self.current.iter().chain(&self.previous).chain(&self.unclaimed).find(|issued| issued.is(shown))
    }
    /// CERT-6, as far as this row is complete.
    pub fn counts(&self, shown: &CertIdentity) -> bool {
        self.incomplete || self.find(shown).is_some()
    }
}

/// The certificate of a user that is in force, beside what [`User`](super::User) says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserPin {
    pub serial: String,
    pub pin: CertificatePin,
    pub issuer: RootId,
}

impl Tables {
    /// CERT-6: whether a certificate of `node` counts by these tables. Below feature level 3 every one does. They must have
    /// applied every certificate that was handed out: a replica that is behind its leader may lack the newest.
    pub fn certificate_counts(&self, node: NodeId, shown: &CertIdentity) -> bool {
        if !self.records_identities() {
            return true;
        }
        // Nothing was issued to a node without a row.
        self.certificates.get(&node).is_some_and(|row| row.counts(shown))
    }
    /// The cluster is at [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) or above.
    pub fn records_identities(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.feature_level >= super::IDENTITY_LEVEL)
    }
}
