//! Certificates for people and programs.

use muster_messages::protocol::{UserCertificate, UserRights};
use muster_messages::{
    Change, Command, CommandRefusal, DNS_LABEL, ErrorBody, ErrorCode, Guard, IDENTITY_LEVEL, Principal, RequestId,
    Revision, User, UserKind, UserPin, WallTime, is_dns_label,
};
use muster_pki::{Signed, UserProfile};

use super::CertAuthority;
use super::pending::Phase;
use super::values::{AskId, Effect, Profile, UserRequest, request_id};

const MAX_NAMESPACES: usize = 64;

impl CertAuthority {
    pub(super) fn sign_user(
        &mut self,
        ask: AskId,
        cert_request: &UserRequest,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) -> Result<(), ErrorBody> {
        let cluster = self.cluster()?;
        self.guard_of(cert_request, wall)?;
        let kind = self.record_of(cert_request)?.0;
        let profile = UserProfile {
            cluster: cluster.id,
            name: cert_request.name.clone(),
            kind,
            incarnation: cluster.incarnation,
            lifetime: cert_request.lifetime.unwrap_or(self.config.user_lifetime),
            now: wall,
        };
        let seen = self.tables.revision;
        let step = self.next_step(ask);
        self.enter(ask, Phase::Signing { step, seen, grant: None });
        let (profile, key) = (Profile::User(profile), cert_request.key.clone());
        out.push(Effect::Sign { step, profile, key });
        Ok(())
    }

    pub(super) fn record_user(
        &mut self,
        ask: AskId,
        cert_request: &UserRequest,
        signed: Signed,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) {
        let judged = self.guard_of(cert_request, wall).and_then(|guard| Ok((guard, self.record_of(cert_request)?)));
        let ((guard, request), (kind, namespaces, created_at)) = match judged {
            Ok(found) => found,
            Err(refusal) => return self.answer(ask, Err(refusal), out),
        };
        let user = User {
            name: cert_request.name.clone(),
            kind,
            namespaces,
            serial: signed.serial.clone(),
            created_at: created_at.unwrap_or(wall),
            not_after: signed.not_after,
            revision: Revision(0),
        };
        let reason = match cert_request.rights {
            UserRights::New { .. } => "user certificate signed",
            UserRights::Kept => "user certificate renewed",
        };
        let mut command = Command::idempotent(wall, cert_request.by.clone(), reason)
            .with_request(request)
            .guard(guard)
            .change(Change::PutUser(user));
        if self.tables.records_identities() {
            let pin = UserPin { serial: signed.serial.clone(), pin: signed.pin, issuer: signed.issuer };
            command = command.change(Change::PinUser { name: cert_request.name.clone(), pin });
        }
        let seen = self.tables.revision;
        let step = self.next_step(ask);
        self.enter(ask, Phase::Recording { step, seen, signed });
        out.push(Effect::Propose { step, command });
    }

    /// The user's record: kind, namespaces, and creation time if it exists.
    fn record_of(&self, cert_request: &UserRequest) -> Result<(UserKind, Vec<String>, Option<WallTime>), ErrorBody> {
        match &cert_request.rights {
            UserRights::Kept => {
                let user = self.tables.users.get(&cert_request.name).ok_or_else(|| no_such(cert_request))?;
                Ok((user.kind, user.namespaces.clone(), Some(user.created_at)))
            }
            UserRights::New { kind, namespaces } => {
                if namespaces.len() > MAX_NAMESPACES || !namespaces.iter().all(|n| is_dns_label(n)) {
                    return Err(ErrorBody::invalid(format!("at most {MAX_NAMESPACES} namespaces, each {DNS_LABEL}")));
                }
                if kind.is_read_only() {
                    if !namespaces.is_empty() {
                        let text = "a read-only operator reads every namespace and writes in none; name no namespace";
                        return Err(ErrorBody::invalid(text));
                    }
                    if !self.tables.records_identities() {
                        let (needs, level) = (IDENTITY_LEVEL, self.tables.feature_level());
                        return Err(CommandRefusal::FeatureLevel { needs, level }.into());
                    }
                }
                Ok((*kind, namespaces.clone(), None))
            }
        }
    }

    /// A name belongs to one certificate. It is written when it is free, when its certificate has expired, when a valid one is renewed,
    /// or again by the request that wrote it (the answer was lost, and with it the certificate).
    fn guard_of(&self, cert_request: &UserRequest, wall: WallTime) -> Result<(Guard, RequestId), ErrorBody> {
        let name = cert_request.name.clone();
        let request = first_request_id(cert_request);
        let first = self.tables.outcome_of(&Principal::Cluster, request);
        let written = first.is_some_and(|outcome| outcome.refused.is_none());
        let renews = cert_request.rights == UserRights::Kept;
        match self.tables.users.get(&name) {
            None if renews => Err(no_such(cert_request)),
            None if written => Err(ErrorBody::new(
                ErrorCode::Conflict,
                format!("user {name} was created by this request and revoked since"),
            )),
            None => Ok((Guard::UserAbsent(name), request)),
            Some(user) if written => Ok((replaces(user), RequestId(0))),
            // An expired user's access tokens have ended too, and must not become valid again with old rights.
            Some(user) if renews && (user.not_after <= wall || user.serial.is_empty()) => Err(ErrorBody::new(
                ErrorCode::Conflict,
                format!("user {name} has no valid certificate to renew; `muster user create {name}` makes a new one"),
            )),
            Some(user) if renews || user.not_after <= wall => Ok((replaces(user), request)),
            Some(_) => Err(ErrorBody::new(
                ErrorCode::Conflict,
                format!(
                    "user {name} exists; `muster user renew {name}` replaces its certificate; otherwise revoke it first, or choose \
                     another name"
                ),
            )),
        }
    }
}

pub(super) fn certificate(signed: Signed, root_pem: String) -> UserCertificate {
    UserCertificate { cert_pem: signed.cert_pem, root_pem, serial: signed.serial, not_after: signed.not_after }
}

fn no_such(cert_request: &UserRequest) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::NotFound,
        format!("no such user: {}; `muster user ls` lists the users", cert_request.name),
    )
}

fn replaces(user: &User) -> Guard {
    Guard::UserSerial { name: user.name.clone(), serial: user.serial.clone() }
}

fn first_request_id(cert_request: &UserRequest) -> RequestId {
    let what: &[u8] = match cert_request.rights {
        UserRights::New { .. } => b"muster-user/1",
        UserRights::Kept => b"muster-user-renewal/1",
    };
    request_id(&[
        what,
        &cert_request.request.0.to_be_bytes(),
        cert_request.name.as_str().as_bytes(),
        cert_request.key.spki(),
    ])
}
