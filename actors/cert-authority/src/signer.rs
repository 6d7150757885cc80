//! The signing root, as the replicated state names it.

use muster_messages::Tables;
use muster_pki::{CsrKey, Issuer, SignError, Signed};
use tracing::warn;

use crate::core::{Profile, WorkloadSigned, WorkloadWork};

#[derive(Default)]
pub(crate) struct Signer {
    /// With the certificate from which it was made.
    issuer: Option<(String, Issuer)>,
}

impl Signer {
    pub fn sign(&mut self, tables: &Tables, profile: &Profile, key: &CsrKey) -> Result<Signed, SignError> {
        let issuer = self.issuer(tables)?;
        let signed = match profile {
            Profile::Node(profile) => issuer.sign_node(profile, key),
            Profile::User(profile) => issuer.sign_user(profile, key),
        };
        if let Err(why) = &signed {
            warn!(%why, "certificate signing failed");
        }
        signed
    }

    pub fn sign_workload(&mut self, tables: &Tables, work: &WorkloadWork) -> Result<WorkloadSigned, SignError> {
        let issuer = self.issuer(tables)?;
        let (workload, signed) = match work {
            WorkloadWork::Certificate(profile, key) => {
                (&profile.workload, issuer.sign_workload(profile, key).map(WorkloadSigned::Certificate))
            }
            WorkloadWork::Jwt(profile) => (&profile.workload, issuer.sign_jwt(profile).map(WorkloadSigned::Jwt)),
        };
        if let Err(why) = &signed {
            warn!(%why, %workload, "signing for a workload failed");
        }
        signed
    }

    fn issuer(&mut self, tables: &Tables) -> Result<&Issuer, SignError> {
        let cluster = tables.cluster.as_ref().ok_or(SignError::Root)?;
        let current = matches!(&self.issuer, Some((pem, _)) if *pem == cluster.root_cert_pem);
        if !current {
            let issuer = Issuer::from_pem(&cluster.root_cert_pem, &cluster.root_key_pem)?;
            self.issuer = Some((cluster.root_cert_pem.clone(), issuer));
        }
        let (_, issuer) = self.issuer.as_ref().ok_or(SignError::Root)?;
        Ok(issuer)
    }
}
