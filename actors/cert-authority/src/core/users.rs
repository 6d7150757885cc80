//! Certificates for people and programs.

use muster_messages::protocol::UserCertificate;
use muster_messages::{
    Change, Command, DNS_LABEL, ErrorBody, ErrorCode, Guard, Principal, RequestId, Revision, User, UserPin, WallTime,
    is_dns_label,
};
use muster_pki::{Signed, UserProfile};

use super::CertAuthority;
use super::pending::Phase;
use super::values::{AskId, Effect, Profile, UserWish, request_id};

const MAX_NAMESPACES: usize = 64;

impl CertAuthority {
    pub(super) fn sign_user(
        &mut self,
        ask: AskId,
        wish: &UserWish,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) -> Result<(), ErrorBody> {
        let cluster = self.cluster()?;
        if wish.namespaces.len() > MAX_NAMESPACES || !wish.namespaces.iter().all(|n| is_dns_label(n)) {
            return Err(ErrorBody::invalid(format!("at most {MAX_NAMESPACES} namespaces, each {DNS_LABEL}")));
        }
        self.guard_of(wish, wall)?;
        let profile = UserProfile {
            cluster: cluster.id,
            name: wish.name.clone(),
            admin: wish.admin,
            incarnation: cluster.incarnation,
            lifetime: wish.lifetime.unwrap_or(self.config.user_lifetime),
            now: wall,
        };
        let seen = self.tables.revision;
        let step = self.next_step(ask);
        self.enter(ask, Phase::Signing { step, seen, grant: None });
        let (profile, key) = (Profile::User(profile), wish.key.clone());
        out.push(Effect::Sign { step, profile, key });
        Ok(())
    }

    pub(super) fn record_user(
        &mut self,
        ask: AskId,
        wish: &UserWish,
        signed: Signed,
        wall: WallTime,
        out: &mut Vec<Effect>,
    ) {
        let (guard, request) = match self.guard_of(wish, wall) {
            Ok(found) => found,
            Err(refusal) => return self.answer(ask, Err(refusal), out),
        };
        let user = User {
            name: wish.name.clone(),
            admin: wish.admin,
            namespaces: wish.namespaces.clone(),
            serial: signed.serial.clone(),
            created_at: wall,
            not_after: signed.not_after,
            revision: Revision(0),
        };
        let mut command = Command::idempotent(wall, wish.by.clone(), "user certificate signed")
            .with_request(request)
            .guard(guard)
            .change(Change::PutUser(user));
        if self.tables.records_identities() {
            let pin = UserPin { serial: signed.serial.clone(), pin: signed.pin, issuer: signed.issuer };
            command = command.change(Change::PinUser { name: wish.name.clone(), pin });
        }
        let seen = self.tables.revision;
        let step = self.next_step(ask);
        self.enter(ask, Phase::Recording { step, seen, signed });
        out.push(Effect::Propose { step, command });
    }

    /// A name belongs to one certificate. It is written when it is free, when its certificate has expired, or again by
    /// the request that wrote it (the answer was lost, and with it the certificate).
    fn guard_of(&self, wish: &UserWish, wall: WallTime) -> Result<(Guard, RequestId), ErrorBody> {
        let name = wish.name.clone();
        let request = first_time(wish);
        let first = self.tables.outcome_of(&Principal::Cluster, request);
        let written = first.is_some_and(|outcome| outcome.refused.is_none());
        match self.tables.users.get(&name) {
            None if written => Err(ErrorBody::new(
                ErrorCode::Conflict,
                format!("user {name} was created by this request and revoked since"),
            )),
            None => Ok((Guard::UserAbsent(name), request)),
            Some(user) if written => Ok((replaces(user), RequestId(0))),
            Some(user) if user.not_after <= wall => Ok((replaces(user), request)),
            Some(_) => Err(ErrorBody::new(
                ErrorCode::Conflict,
                format!("user {name} exists; revoke it first, or choose another name"),
            )),
        }
    }
}

pub(super) fn certificate(signed: Signed, root_pem: String) -> UserCertificate {
    UserCertificate { cert_pem: signed.cert_pem, root_pem, serial: signed.serial, not_after: signed.not_after }
}

fn replaces(user: &User) -> Guard {
    Guard::UserSerial { name: user.name.clone(), serial: user.serial.clone() }
}

fn first_time(wish: &UserWish) -> RequestId {
    request_id(&[b"muster-user/1", &wish.request.0.to_be_bytes(), wish.name.as_str().as_bytes(), wish.key.spki()])
}
