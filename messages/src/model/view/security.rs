//! Tokens, certificates, users, blocks.

use serde::{Deserialize, Serialize};

use crate::model::{
    Blocked, CertificateState, Name, NodeId, NodeRecord, Revision, Role, RootId, Token, User, WallTime,
};

/// A join token without its secret: an item of `muster token ls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenView {
    /// The short public id.
    pub id: String,
    /// The role of nodes that join with it.
    pub role: Role,
    /// Whether `muster token show ROLE` prints it.
    #[serde(default)]
    pub default: bool,
    #[serde(default)]
    pub created_at: WallTime,
    /// `None`: never.
    pub expires_at: Option<WallTime>,
    /// How many more nodes it admits. `None`: any number.
    pub uses_left: Option<u32>,
}

impl From<&Token> for TokenView {
    fn from(token: &Token) -> Self {
        Self {
            id: token.id.clone(),
            role: token.role,
            default: token.default,
            created_at: token.created_at,
            expires_at: token.expires_at,
            uses_left: token.uses_left,
        }
    }
}

/// A join token with its text, as `muster token create` and `muster token show` print it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenTextView {
    /// The short public id.
    pub id: String,
    /// The role of nodes that join with it.
    pub role: Role,
    /// The secret text with which a node joins.
    pub token: String,
    /// `None`: never.
    pub expires_at: Option<WallTime>,
    /// How many more nodes it admits. `None`: any number.
    pub uses_left: Option<u32>,
}

/// A node's certificate: an item of `muster cert ls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCertificateView {
    pub node: NodeId,
    /// The node's name. Absent in the answers of earlier releases.
    pub name: Option<Name>,
    /// The role for which it is signed. `None`: the node has no certificate, as for the fields below.
    pub role: Option<Role>,
    pub state: CertificateState,
    /// Lower-case hexadecimal.
    pub serial: Option<String>,
    /// The revision at which the role was written. `None` also in a founder's first certificate.
    pub granted: Option<Revision>,
    pub not_after: Option<WallTime>,
    /// For how long the answering manager signs nodes' certificates. Absent in the answers of earlier releases.
    #[serde(default)]
    pub lifetime_secs: Option<u64>,
    /// The root that signed it. Absent in the answers of earlier releases.
    #[serde(default)]
    pub issuer: Option<RootId>,
}

impl NodeCertificateView {
    /// The view of a node whose newest certificate is of this root. The lifetime is not on record.
    pub fn new(node: &NodeRecord, issuer: Option<RootId>) -> Self {
        let certificate = node.certificate.as_ref();
        Self {
            node: node.id,
            name: Some(node.name.clone()),
            role: certificate.map(|c| c.role),
            state: node.certificate_state(),
            serial: certificate.map(|c| c.serial.clone()),
            granted: certificate.and_then(|c| c.granted),
            not_after: certificate.map(|c| c.not_after),
            lifetime_secs: None,
            issuer,
        }
    }
}

/// A node that was asked to renew its certificate: `muster cert rotate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateRotationView {
    pub node: NodeId,
    pub state: CertificateState,
    /// Present and true: earlier certificates end once the node has renewed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoking: bool,
}

/// The cluster's root certificate: `muster ca show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaView {
    /// SHA-256 of the certificate, in base 36, as join tokens contain it.
    pub digest: String,
    pub not_after: WallTime,
    /// The certificate of the root that signs.
    pub pem: String,
    /// The certificates of all roots that nodes trust. Absent in the answers of earlier releases.
    #[serde(default)]
    pub bundle: String,
}

/// A user: an item of `muster user ls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserView {
    pub name: Name,
    /// Whether it has all rights.
    pub admin: bool,
    /// Whether it reads everything except secrets, and changes nothing.
    #[serde(default)]
    pub read_only: bool,
    pub namespaces: Vec<String>,
    /// Of the valid certificate, in lower-case hexadecimal. Empty: none.
    pub serial: String,
    #[serde(default)]
    pub created_at: WallTime,
    pub not_after: WallTime,
    /// The root that signed it. `None`: the user has no certificate. Absent in the answers of earlier releases.
    #[serde(default)]
    pub issuer: Option<RootId>,
    /// It is of another root than the active one, and to be renewed.
    #[serde(default)]
    pub outdated: bool,
}

impl UserView {
    /// The view of a user whose certificate is of this root. `outdated`: another one signs now.
    pub fn new(user: &User, issuer: Option<RootId>, outdated: bool) -> Self {
        Self {
            name: user.name.clone(),
            admin: user.kind.is_operator(),
            read_only: user.kind.is_read_only(),
            namespaces: user.namespaces.clone(),
            serial: user.serial.clone(),
            created_at: user.created_at,
            not_after: user.not_after,
            issuer,
            outdated,
        }
    }
}

/// A signed certificate of a user, with what its identity file needs: `muster user create`, `muster user renew`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserCertificateView {
    pub name: Name,
    /// As in [`UserView`], like the three fields below. Absent if the user was revoked meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<WallTime>,
    /// Of the new certificate, in lower-case hexadecimal.
    pub serial: String,
    pub not_after: WallTime,
    pub cert_pem: String,
    /// The certificates of the roots that the cluster's nodes trust.
    pub root_pem: String,
    /// The managers' `host:port`.
    pub managers: Vec<String>,
}

/// A new access token of a user, with what a kubeconfig needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessTokenView {
    pub user: Name,
    pub namespace: String,
    /// The short public id.
    pub id: String,
    /// The bearer token, which is kept nowhere.
    pub token: String,
    /// `None`: never.
    pub expires_at: Option<WallTime>,
    /// The certificates of the roots that the cluster's nodes trust. `None`: not known to the answering node yet.
    pub root_pem: Option<String>,
    /// The cluster's name. `None`: not known to the answering node yet.
    pub cluster: Option<Name>,
    /// The managers' `host:port`.
    pub managers: Vec<String>,
}

/// A blocked node: an item of `muster blocklist ls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedView {
    pub node_id: NodeId,
    pub blocked_at: WallTime,
    /// When the block ends.
    pub expires_at: WallTime,
}

impl From<&Blocked> for BlockedView {
    fn from(blocked: &Blocked) -> Self {
        Self { node_id: blocked.node, blocked_at: blocked.blocked_at, expires_at: blocked.expires_at }
    }
}

/// `muster blocklist ls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedListView {
    /// Whether it was answered from a local replica without a quorum.
    pub stale: bool,
    /// The time at which that replica was last current. `None` unless stale.
    pub as_of: Option<WallTime>,
    /// The last field: pages are written item by item.
    pub items: Vec<BlockedView>,
}
