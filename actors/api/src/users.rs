//! Certificates of users: created and renewed by the authority, returned with what a client needs to use them.

use muster_messages::protocol::{CertAuthorityMsg, UserRights};
use muster_messages::{ErrorBody, Name, Principal, UserCertificateView, UserView};

use crate::core::check_lifetime;
use crate::ports::ManagerPorts;
use crate::service::{Asked, Service};

impl Service {
    /// A signed certificate for a new or an existing user.
    pub(crate) async fn sign_user(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        name: &Name,
        rights: UserRights,
        lifetime_ms: Option<u64>,
        csr_pem: &str,
    ) -> Result<UserCertificateView, ErrorBody> {
        check_lifetime(lifetime_ms)?;
        let (name, csr_pem) = (name.clone(), csr_pem.to_owned());
        let (by, request) = (asked.caller.clone(), asked.request_id);
        let make =
            |reply| CertAuthorityMsg::SignUser { name: name.clone(), rights, lifetime_ms, csr_pem, by, request, reply };
        let signed = self.ask(asked, &manager.leader.authority, make).await?;
        // The signed certificate is applied here, but may have changed again since.
        let replica = manager.replica.borrow().clone();
        let user = replica.tables.users.get(&name).map(UserView::from);
        Ok(UserCertificateView {
            name,
            admin: user.as_ref().map(|user| user.admin),
            read_only: user.as_ref().map(|user| user.read_only),
            created_at: user.as_ref().map(|user| user.created_at),
            namespaces: user.map(|user| user.namespaces),
            serial: signed.serial,
            not_after: signed.not_after,
            cert_pem: signed.cert_pem,
            root_pem: signed.root_pem,
            managers: replica.tables.members.values().map(|member| member.addr.clone()).collect(),
        })
    }
}

/// A renewed certificate ends the connections of the previous one: a caller that asks over one of these would never get
/// the answer, and would be left with neither certificate.
pub(crate) fn check_not_own_certificate(caller: &Principal, name: &Name) -> Result<(), ErrorBody> {
    match caller {
        Principal::Admin(own) if own == name => Err(ErrorBody::forbidden(format!(
            "{name} cannot renew the certificate of its own connection: the answer would be lost with it; renew it on a manager's \
             socket, or with another operator's identity"
        ))),
        _ => Ok(()),
    }
}
