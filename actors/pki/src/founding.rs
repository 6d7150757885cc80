//! Founding a cluster: all decisions that must be made once are made and written before Raft's first entry.
//!
//! The order: `founding.json` (ids and root), the founder's own certificate, Raft with one voter, the first entry;
//! then the file is removed, because from then on only the replicated state holds the root key. Each step continues
//! from what an earlier, interrupted run wrote.

use std::net::IpAddr;
use std::time::Duration;

use muster_messages::protocol::NodeCredentials;
use muster_messages::{
    ClusterId, ClusterRecord, FEATURE_LEVEL, FIRST_INCARNATION, Name, NodeId, Revision, Role, Secret, WallTime,
};
use serde::{Deserialize, Serialize};

use crate::csr::{CsrKey, make_csr, new_key};
use crate::issue::{Issuer, NodeProfile, Root, SignError};
use crate::random::entropy;
use crate::store::{HELP_FOUNDING, IdentityFault, IdentityStore, credentials};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Founding {
    pub cluster: ClusterId,
    pub name: Name,
    pub node: NodeId,
    pub at: WallTime,
    pub root_cert_pem: String,
    pub root_key_pem: Secret,
}

impl Founding {
    /// The record that the first entry writes.
    pub fn cluster_record(&self) -> ClusterRecord {
        ClusterRecord {
            id: self.cluster,
            name: self.name.clone(),
            incarnation: FIRST_INCARNATION,
            feature_level: FEATURE_LEVEL,
            root_cert_pem: self.root_cert_pem.clone(),
            root_key_pem: self.root_key_pem.clone(),
            founded_at: self.at,
            revision: Revision(0),
        }
    }
}

impl IdentityStore {
    pub fn load_founding(&self) -> Result<Option<Founding>, IdentityFault> {
        self.read_json(&self.path("founding.json"), HELP_FOUNDING)
    }

    /// Decides ids and root once: a repeated call returns the first decision.
    pub fn begin_founding(&self, name: Name, now: WallTime) -> Result<Founding, IdentityFault> {
        if let Some(founding) = self.load_founding()? {
            return Ok(founding);
        }
        let cluster = ClusterId::from_entropy(entropy());
        let root = Root::create(cluster, now).map_err(|e| self.cannot_found(&e))?;
        let founding = Founding {
            cluster,
            name,
            node: NodeId::from_entropy(entropy()),
            at: now,
            root_cert_pem: root.cert_pem,
            root_key_pem: root.key_pem,
        };
        self.seal.ensure()?;
        self.write_secret("founding.json", &founding)?;
        Ok(founding)
    }

    /// The founder's own first certificate, created once: manager, without a granted revision, because there is no grant yet.
    pub fn founder_credentials(
        &self,
        founding: &Founding,
        ips: Vec<IpAddr>,
        lifetime: Duration,
        now: WallTime,
    ) -> Result<NodeCredentials, IdentityFault> {
        if let Some(creds) = self.load_credentials()? {
            return Ok(creds);
        }
        let key_pem = new_key();
        let profile = NodeProfile {
            cluster: founding.cluster,
            node: founding.node,
            role: Role::Manager,
            granted: None,
            incarnation: FIRST_INCARNATION,
            ips,
            lifetime,
            now,
        };
        let csr = make_csr(&key_pem).and_then(|pem| CsrKey::parse(&pem));
        let csr = csr.expect("a new key can sign its own request");
        let signed = Issuer::from_pem(&founding.root_cert_pem, &founding.root_key_pem)
            .and_then(|issuer| issuer.sign_node(&profile, &csr))
            .map_err(|e| self.cannot_found(&e))?;
        let creds = credentials(key_pem, signed.cert_pem, founding.root_cert_pem.clone())
            .map_err(|why| self.damaged_founding(why))?;
        self.save_credentials(&creds)?;
        Ok(creds)
    }

    /// The first entry is applied: from now on the replicated state is the only source.
    pub fn finish_founding(&self) -> Result<(), IdentityFault> {
        let _only_writer = self.writing();
        self.remove(&self.path("founding.json"))
    }

    fn cannot_found(&self, e: &SignError) -> IdentityFault {
        self.damaged_founding(&e.to_string())
    }

    fn damaged_founding(&self, why: &str) -> IdentityFault {
        IdentityFault::Damaged { path: self.path("founding.json"), why: why.to_owned(), help: HELP_FOUNDING }
    }
}
