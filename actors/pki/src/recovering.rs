//! A recovery under way: what was decided once, before the first of its writes.
//!
//! The order: `recovery.json` (incarnation, certificate), the Raft data written anew, the credentials, what the node
//! remembers, and then the file goes. Each step finds what an earlier, interrupted run decided and goes on from there.

use std::net::IpAddr;
use std::time::Duration;

use muster_messages::protocol::NodeCredentials;
use muster_messages::{
    CertificateRecord, CertificateState, ClusterRecord, Incarnation, IssuedCertificate, Name, NodeId, Revision, Role,
    Secret, WallTime,
};
use serde::{Deserialize, Serialize};

use crate::csr::{CsrKey, make_csr, new_key};
use crate::identity;
use crate::issue::{Issuer, NodeProfile, SignError, Signed};
use crate::store::{IdentityFault, IdentityStore, credentials};

const HELP: &str = "the recovery did not finish: delete the file and recover again";

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovering {
    pub incarnation: Incarnation,
    pub node: NodeId,
    /// What a new node is to be called: the state comes from a backup, which is needed again if this is interrupted.
    pub admit_as: Option<Name>,
    pub advertise: String,
    pub at: WallTime,
    pub key_pem: Secret,
    pub cert_pem: String,
    pub root_pem: String,
    pub certificate: CertificateRecord,
}

impl Recovering {
    /// Decides. `cluster`: as it will be. The manager that goes on holds the root key, and signs for itself what its own
    /// authority would: its role, as of `granted`. Nobody else is there to ask.
    pub fn decide(
        cluster: &ClusterRecord,
        node: NodeId,
        granted: Revision,
        advertise: &str,
        lifetime: Duration,
        at: WallTime,
    ) -> Result<Self, SignError> {
        let key_pem = new_key();
        let signed = sign_for_itself(cluster, node, Some(granted), advertise, lifetime, (at, &key_pem))?;
        Ok(Self {
            incarnation: cluster.incarnation,
            node,
            advertise: advertise.to_owned(),
            at,
            admit_as: None,
            key_pem,
            cert_pem: signed.cert_pem,
            root_pem: cluster.root_cert_pem.clone(),
            certificate: CertificateRecord {
                role: Role::Manager,
                serial: signed.serial,
                granted: Some(granted),
                not_after: signed.not_after,
                state: CertificateState::Issued,
            },
        })
    }

    /// The certificate as feature level 3 records it.
    pub fn issued(&self) -> Result<IssuedCertificate, SignError> {
        let shown = identity::identity_of_pem(&self.cert_pem).map_err(|e| SignError::Signer(e.to_string()))?;
        let CertificateRecord { role, serial, granted, not_after, .. } = self.certificate.clone();
        let issuer = Some(identity::root_id_of_pem(&self.root_pem).map_err(|_| SignError::Root)?);
        Ok(IssuedCertificate { serial, role, granted, not_after, pin: shown.pin, issuer })
    }

    /// The credentials of the new incarnation.
    pub fn credentials(&self) -> Result<NodeCredentials, &'static str> {
        credentials(self.key_pem.clone(), self.cert_pem.clone(), self.root_pem.clone())
    }
}

/// A manager's certificate by its own hand. Without a grant it counts for nothing where a copy knows the node, and is
/// replaced in the first session: see [`Founding`](crate::Founding). `key_pem`: where others have a certificate of this node
/// on record, they take this one for it only if it is for the same key.
pub fn sign_for_itself(
    cluster: &ClusterRecord,
    node: NodeId,
    granted: Option<Revision>,
    advertise: &str,
    lifetime: Duration,
    (now, key_pem): (WallTime, &Secret),
) -> Result<Signed, SignError> {
    let ip = advertise.parse::<std::net::SocketAddr>().ok().map(|a| a.ip());
    let ips: Vec<IpAddr> = ip.into_iter().filter(|ip| !ip.is_unspecified()).collect();
    let (incarnation, role) = (cluster.incarnation, Role::Manager);
    let profile = NodeProfile { cluster: cluster.id, node, role, granted, incarnation, ips, lifetime, now };
    let csr = make_csr(key_pem).and_then(|pem| CsrKey::parse(&pem)).map_err(|e| SignError::Signer(e.to_string()))?;
    Issuer::from_pem(&cluster.root_cert_pem, &cluster.root_key_pem)?.sign_node(&profile, &csr)
}

impl IdentityStore {
    /// A recovery that did not finish.
    pub fn load_recovery(&self) -> Result<Option<Recovering>, IdentityFault> {
        self.read_json(&self.path("recovery.json"), HELP)
    }
    /// From here on it is finished, by whichever start comes next.
    pub fn begin_recovery(&self, decided: &Recovering) -> Result<(), IdentityFault> {
        self.write_json(&self.path("recovery.json"), decided)
    }
    /// Everything is written.
    pub fn finish_recovery(&self) -> Result<(), IdentityFault> {
        self.remove(&self.path("recovery.json"))
    }
}
