//! Certificates of users: made and renewed by the authority, shown with what a client needs to use them.

use muster_messages::protocol::{CertAuthorityMsg, UserRights};
use muster_messages::{ErrorBody, Name, Principal};
use serde_json::{Value, json};

use crate::core::{self, lives_a_while};
use crate::ports::ManagerPorts;
use crate::service::{Asked, Service};

impl Service {
    /// A signed certificate for a new user, or for one that is there.
    pub(crate) async fn sign_user(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        name: &Name,
        rights: UserRights,
        lifetime_ms: Option<u64>,
        csr_pem: &str,
    ) -> Result<Value, ErrorBody> {
        lives_a_while(lifetime_ms)?;
        let (name, csr_pem) = (name.clone(), csr_pem.to_owned());
        let (by, request) = (asked.caller.clone(), asked.request_id);
        let make =
            |reply| CertAuthorityMsg::SignUser { name: name.clone(), rights, lifetime_ms, csr_pem, by, request, reply };
        let signed = self.ask(asked, &manager.leader.authority, make).await?;
        // What was signed is applied here, but may be changed again already.
        let copy = manager.replica.borrow().clone();
        let mut view = copy.tables.users.get(&name).map_or_else(|| json!({"name": name}), core::user);
        view["cert_pem"] = json!(signed.cert_pem);
        view["root_pem"] = json!(signed.root_pem);
        view["serial"] = json!(signed.serial);
        view["not_after"] = json!(signed.not_after);
        view["managers"] = json!(copy.tables.members.values().map(|m| &m.addr).collect::<Vec<_>>());
        Ok(view)
    }
}

/// A renewed certificate ends the connections of the one before: whoever asks over one would never get the answer, and be left
/// with neither.
pub(crate) fn renews_another(caller: &Principal, name: &Name) -> Result<(), ErrorBody> {
    match caller {
        Principal::Admin(own) if own == name => Err(ErrorBody::forbidden(format!(
            "{name} cannot renew the certificate that it asks with: the answer would be lost with it; renew it on a manager's \
             socket, or with another operator's identity"
        ))),
        _ => Ok(()),
    }
}
