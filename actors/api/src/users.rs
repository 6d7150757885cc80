//! Certificates and access tokens of users: made by the leader, returned with what a client needs to use them.

use std::time::Duration;

use muster_kernel::Clock;
use muster_messages::protocol::{CertAuthorityMsg, UserRights};
use muster_messages::wire::LeaseRef;
use muster_messages::{
    AccessToken, AccessTokenView, Change, ErrorBody, ErrorCode, Guard, Name, Principal, Revision, User,
    UserCertificateView, UserKind,
};
use muster_pki::BearerToken;

use crate::access::is_over;
use crate::core::{Issuers, check_lease_name, check_lifetime};
use crate::work::Work;

/// Maximum number of tokens of one user; a new token replaces no older one.
const MAX_TOKENS_PER_USER: usize = 64;

/// A request about one user, to the leader.
pub(crate) struct UserRequests<'a> {
    pub work: Work<'a>,
    pub user: &'a Name,
}

impl UserRequests<'_> {
    /// A signed certificate for a new or an existing user.
    pub async fn sign(
        &self,
        rights: UserRights,
        lifetime_ms: Option<u64>,
        csr_pem: &str,
    ) -> Result<UserCertificateView, ErrorBody> {
        check_lifetime(lifetime_ms)?;
        let Work { manager, asked, .. } = self.work;
        let (name, csr_pem) = (self.user.clone(), csr_pem.to_owned());
        let (by, request) = (asked.caller.clone(), asked.request_id);
        let make = |reply| CertAuthorityMsg::SignUser { name, rights, lifetime_ms, csr_pem, by, request, reply };
        let signed = self.work.ask(&manager.leader.authority, make).await?;
        // The signed certificate is applied here, but may have changed again since.
        let replica = self.work.local();
        let issuers = Issuers::of(&replica.tables);
        let user = replica.tables.users.get(self.user).map(|user| issuers.user_view(user));
        Ok(UserCertificateView {
            name: self.user.clone(),
            admin: user.as_ref().map(|user| user.admin),
            read_only: user.as_ref().map(|user| user.read_only),
            created_at: user.as_ref().map(|user| user.created_at),
            namespaces: user.map(|user| user.namespaces),
            serial: signed.serial,
            not_after: signed.not_after,
            cert_pem: signed.cert_pem,
            root_pem: replica.tables.bundle_pem(),
            managers: replica.tables.members.values().map(|member| member.addr.clone()).collect(),
        })
    }

    /// A renewed certificate ends the connections of the previous one: a caller that asks over one of these would never
    /// get the answer, and would be left with neither certificate.
    pub async fn renew(&self, lifetime_ms: Option<u64>, csr_pem: &str) -> Result<UserCertificateView, ErrorBody> {
        let name = self.user;
        if matches!(&self.work.asked.caller, Principal::Admin(own) if own == name) {
            return Err(ErrorBody::forbidden(format!(
                "{name} cannot renew the certificate of its own connection: the answer would be lost with it; renew it on a manager's \
                 socket, or with another operator's identity"
            )));
        }
        self.sign(UserRights::Kept, lifetime_ms, csr_pem).await
    }

    /// Creates a token for a user who may access `namespace`.
    pub async fn create_token(&self, namespace: &str, ttl_ms: Option<u64>) -> Result<AccessTokenView, ErrorBody> {
        check_lifetime(ttl_ms)?;
        let (work, user) = (self.work, self.user);
        check_lease_name(&LeaseRef { namespace: namespace.to_owned(), name: "any".to_owned() })?;
        let replica = work.confirmed().await?;
        let tables = &replica.tables;
        let now = Clock.wall();
        let of_user = |token: &&AccessToken| token.user == *user;
        if tables.access_tokens.values().filter(of_user).filter(|token| !is_over(token, now)).count()
            >= MAX_TOKENS_PER_USER
        {
            let text =
                format!("{user} has {MAX_TOKENS_PER_USER} access tokens; `muster user revoke {user}` revokes them all");
            return Err(ErrorBody::new(ErrorCode::Conflict, text));
        }
        let bearer = BearerToken::random();
        let token = AccessToken {
            id: bearer.id.clone(),
            user: user.clone(),
            digest: bearer.digest(),
            created_at: now,
            expires_at: ttl_ms.map(|ms| now.plus(Duration::from_millis(ms))),
        };
        let mut command = work.command("access token created");
        command = match tables.users.get(user) {
            Some(known) => {
                let command = command.guard(Guard::UserSerial { name: user.clone(), serial: known.serial.clone() });
                let reaches =
                    known.kind.reads_everything() || known.namespaces.iter().any(|own| own == namespace || own == "*");
                if reaches { command } else { command.change(Change::PutUser(with_namespace(known, namespace))) }
            }
            None => {
                let made = User {
                    name: user.clone(),
                    kind: UserKind::User,
                    namespaces: vec![namespace.to_owned()],
                    serial: String::new(),
                    created_at: now,
                    not_after: now,
                    revision: Revision(0),
                };
                command.guard(Guard::UserAbsent(user.clone())).change(Change::PutUser(made))
            }
        };
        let over = tables.access_tokens.values().filter(of_user).filter(|token| is_over(token, now));
        command = over.fold(command, |command, token| command.change(Change::DeleteAccessToken(token.id.clone())));
        let replica = work.propose(command.change(Change::PutAccessToken(token.clone()))).await?;
        if !replica.tables.access_tokens.get(&token.id).is_some_and(|kept| bearer.is(&kept.digest)) {
            // The retry of a request that was carried out: its token was written, but the token's text is kept nowhere.
            let text = "the token was created but its text was lost with the answer; create another token";
            return Err(ErrorBody::new(ErrorCode::Conflict, text));
        }
        let cluster = replica.tables.cluster.as_ref();
        Ok(AccessTokenView {
            user: user.clone(),
            namespace: namespace.to_owned(),
            id: token.id,
            token: bearer.to_text(),
            expires_at: token.expires_at,
            root_pem: cluster.map(|_| replica.tables.bundle_pem()),
            cluster: cluster.map(|c| c.name.clone()),
            managers: replica.tables.members.values().map(|member| member.addr.clone()).collect(),
        })
    }
}

fn with_namespace(known: &User, namespace: &str) -> User {
    let mut user = known.clone();
    user.namespaces.push(namespace.to_owned());
    user
}
