//! A recovery in progress: the decisions made once, before its first write.
//!
//! The order: `recovery.json` (incarnation, certificate), the rewritten Raft data, the credentials, the node's local
//! state; then the file is removed. Each step continues from what an earlier, interrupted run decided.

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

const HELP: &str = "the recovery did not finish: delete the file and repeat the recovery";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovering {
    pub incarnation: Incarnation,
    pub node: NodeId,
    /// The name of a new node: its state comes from a backup, which is needed again if this is interrupted.
    pub admit_as: Option<Name>,
    pub advertise: String,
    pub at: WallTime,
    pub key_pem: Secret,
    pub cert_pem: String,
    pub root_pem: String,
    pub certificate: CertificateRecord,
}

impl Recovering {
    /// Decides. `cluster`: its future record. The remaining manager has the root key, and signs for itself what its certificate
    /// authority would: its role, as of `granted`. No other manager can.
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
        let presented = identity::identity_of_pem(&self.cert_pem).map_err(|e| SignError::Signer(e.to_string()))?;
        let CertificateRecord { role, serial, granted, not_after, .. } = self.certificate.clone();
        let issuer = Some(identity::root_id_of_pem(&self.root_pem).map_err(|_| SignError::Root)?);
        Ok(IssuedCertificate { serial, role, granted, not_after, pin: presented.pin, issuer })
    }

    pub fn credentials(&self) -> Result<NodeCredentials, &'static str> {
        credentials(self.key_pem.clone(), self.cert_pem.clone(), self.root_pem.clone())
    }
}

/// A manager's self-issued certificate. Without a grant it is ignored where a replica knows the node, and is replaced in the
/// first session: see [`Founding`](crate::Founding). `key_pem`: managers with a certificate of this node on record accept this
/// one only for the same key.
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
    pub fn load_recovery(&self) -> Result<Option<Recovering>, IdentityFault> {
        self.read_json(&self.path("recovery.json"), HELP)
    }
    /// From now on the recovery will be finished, by any later start.
    pub fn begin_recovery(&self, decided: &Recovering) -> Result<(), IdentityFault> {
        self.seal.ensure()?;
        self.write_secret("recovery.json", decided)
    }
    pub fn finish_recovery(&self) -> Result<(), IdentityFault> {
        let _only_writer = self.writing();
        self.remove(&self.path("recovery.json"))
    }
}
