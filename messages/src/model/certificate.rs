//! Certificates on record: which ones the cluster has issued, and which of them still count.
//!
//! Owns        for each node the newest certificate and the one that it used before, for each user the valid one.
//! Invariants  CERT-6  a node's certificate counts only while it is on record, if the applied state knows all that were issued.
//! Why two: a certificate is recorded before it is handed out (CERT-2). A node that did not receive the newest one continues
//! with the one it presented, however often that happens, so that one is kept and never one that was merely recorded.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{BadId, CertIdentity, NodeId, Revision, Role, Tables, WallTime};

/// The id of a root: the first 16 hexadecimal digits of the SHA-256 of its public key (`SubjectPublicKeyInfo`, DER).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RootId(pub [u8; 8]);

impl FromStr for RootId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId { what: "a root id", rule: "16 digits of 0-9a-f" };
        let digits = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let number = u64::from_str_radix(text, 16).ok().filter(|_| digits && text.len() == 16);
        number.map(|number| Self(number.to_be_bytes())).ok_or_else(bad)
    }
}

/// Text for people, bytes in the log and on the wire.
impl Serialize for RootId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() { s.collect_str(self) } else { self.0.serialize(s) }
    }
}

impl<'de> Deserialize<'de> for RootId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if d.is_human_readable() {
            let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
            return text.parse().map_err(de::Error::custom);
        }
        Deserialize::deserialize(d).map(Self)
    }
}

impl fmt::Display for RootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Identifies a certificate more strongly than its serial number, which a holder of the root key can copy.
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
    /// Whether `presented` is this certificate, or another one for the same key. A manager whose certificate expired signs for
    /// itself, with the recorded key; a certificate for that key is useless without it.
    pub fn is(&self, presented: &CertIdentity) -> bool {
        match (&self.pin, &presented.pin) {
            (Some(recorded), Some(presented)) => {
                recorded.fingerprint == presented.fingerprint || recorded.key == presented.key
            }
            _ => self.serial == presented.serial,
        }
    }
}

/// Requests of one node that may be answered out of order: it makes the next one when the answer to the last one is
/// overdue.
pub const MAX_UNCLAIMED: usize = 3;

/// The certificates of one node that count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCertificates {
    /// The newest one. It may never have reached the node.
    pub current: Option<IssuedCertificate>,
    /// The one that the node presented when it requested `current`.
    pub previous: Option<IssuedCertificate>,
    /// Issued to a node that presented `previous`, before `current`, oldest first: a delayed request may be answered after a later
    /// one, so the node may hold any of these. At most [`MAX_UNCLAIMED`].
    pub unclaimed: Vec<IssuedCertificate>,
    /// The node may hold one that is not recorded here: issued below feature level 3, or after the state from which a recovery
    /// continued. Any certificate counts until the next one is recorded.
    pub incomplete: bool,
    /// An operator revoked the current certificate: `previous` stops counting once the node is seen with `current`.
    pub revoking: bool,
}

impl NodeCertificates {
    /// The certificates on record besides the newest one.
    pub fn older(&self) -> impl Iterator<Item = &IssuedCertificate> {
        self.previous.iter().chain(&self.unclaimed)
    }
    /// The recorded certificate that matches `presented`.
    pub fn find(&self, presented: &CertIdentity) -> Option<&IssuedCertificate> {
        self.current.iter().chain(&self.previous).chain(&self.unclaimed).find(|issued| issued.is(presented))
    }
    /// CERT-6, as far as this row is complete.
    pub fn counts(&self, presented: &CertIdentity) -> bool {
        self.incomplete || self.find(presented).is_some()
    }
}

/// The valid certificate of a user, beside the fields in [`User`](super::User).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserPin {
    pub serial: String,
    pub pin: CertificatePin,
    pub issuer: RootId,
}

impl Tables {
    /// CERT-6: whether a certificate of `node` counts by these tables. Below feature level 3 every one does. The tables must have
    /// applied every certificate that was handed out: a replica behind its leader may lack the newest.
    pub fn certificate_counts(&self, node: NodeId, presented: &CertIdentity) -> bool {
        if !self.records_identities() {
            return true;
        }
        // No certificate was issued to a node without a row.
        self.certificates.get(&node).is_some_and(|row| row.counts(presented))
    }
    /// The cluster is at [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) or above.
    pub fn records_identities(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.feature_level >= super::IDENTITY_LEVEL)
    }
}
