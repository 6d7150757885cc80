//! Access tokens: made for a user on request, judged with every HTTP request that carries one.

use std::time::Duration;

use muster_kernel::Clock;
use muster_messages::{
    AccessToken, Change, ErrorBody, ErrorCode, Guard, Name, Principal, Revision, Tables, User, UserKind, WallTime,
};
use muster_pki::BearerToken;
use serde_json::{Value, json};

use crate::core::lease_name_is_sane;
use crate::ports::ManagerPorts;
use crate::service::{Asked, Service};

/// Tokens of one user; a new one takes the place of none.
const MOST_OF_ONE_USER: usize = 64;

impl Service {
    /// A token for a user who may touch `namespace` from now on.
    pub(crate) async fn create_access(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        user: &Name,
        namespace: &str,
        ttl_ms: Option<u64>,
    ) -> Result<Value, ErrorBody> {
        lease_name_is_sane(&muster_messages::wire::LeaseRef {
            namespace: namespace.to_owned(),
            name: "any".to_owned(),
        })?;
        let replica = self.copy(manager, asked.left()).await?;
        let tables = &replica.tables;
        let now = Clock.wall();
        let of_user = |token: &&AccessToken| token.user == *user;
        if tables.access_tokens.values().filter(of_user).filter(|token| !is_over(token, now)).count()
            >= MOST_OF_ONE_USER
        {
            let text =
                format!("{user} has {MOST_OF_ONE_USER} access tokens; `muster user revoke {user}` ends them all");
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
        let mut command = self.command(asked, "access token created");
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
        let replica = self.propose(manager, asked, command.change(Change::PutAccessToken(token.clone()))).await?;
        if !replica.tables.access_tokens.get(&token.id).is_some_and(|kept| bearer.is(&kept.digest)) {
            // A retry of a request that was done before: its token was written, and its text is nowhere any more.
            let text = "a token was made, and its text lost with the answer; ask for another one";
            return Err(ErrorBody::new(ErrorCode::Conflict, text));
        }
        let cluster = replica.tables.cluster.as_ref();
        Ok(json!({
            "user": user,
            "namespace": namespace,
            "id": token.id,
            "token": bearer.to_text(),
            "expires_at": token.expires_at,
            "root_pem": cluster.map(|c| &c.root_cert_pem),
            "cluster": cluster.map(|c| c.name.as_str()),
            "managers": replica.tables.members.values().map(|m| &m.addr).collect::<Vec<_>>(),
        }))
    }
}

fn with_namespace(known: &User, namespace: &str) -> User {
    let mut user = known.clone();
    user.namespaces.push(namespace.to_owned());
    user
}

fn is_over(token: &AccessToken, now: WallTime) -> bool {
    token.expires_at.is_some_and(|at| at <= now)
}

/// Who an `Authorization` header speaks for, by this copy. `None`: nobody.
pub(crate) fn bearer(tables: &Tables, header: &str, now: WallTime) -> Option<Principal> {
    let token = known(tables, header).filter(|token| !is_over(token, now))?;
    let user = tables.users.get(&token.user)?;
    if !tables.remembers_callers() {
        return Some(user.kind.principal(user.name.clone()));
    }
    // Users that `muster kubeconfig` makes have no certificate, and so no end.
    if !user.serial.is_empty() && user.not_after <= now {
        return None;
    }
    // RIGHTS-1. The less of what its user was when it was made, and is now.
    let kinds = [tables.token_rights.get(&token.id)?.kind, user.kind];
    Some(match kinds {
        [UserKind::Operator, UserKind::Operator] => Principal::Admin(user.name.clone()),
        _ if kinds.iter().all(|kind| kind.reads_everything()) => Principal::Reader(user.name.clone()),
        _ => Principal::Bearer { user: user.name.clone(), token: token.id.clone() },
    })
}

/// The token in an `Authorization` header, whether anybody knows it or not. `None`: there is none in it.
pub(crate) fn bearer_token(header: &str) -> Option<BearerToken> {
    let (scheme, text) = header.split_once(' ')?;
    BearerToken::parse(text.trim()).filter(|_| scheme.eq_ignore_ascii_case("bearer"))
}

/// Until when a header's token is good, if it is known and ends at all.
pub(crate) fn ends(tables: &Tables, header: &str) -> Option<WallTime> {
    let token = known(tables, header)?;
    let user = tables.users.get(&token.user).filter(|user| tables.remembers_callers() && !user.serial.is_empty());
    token.expires_at.into_iter().chain(user.map(|user| user.not_after)).min()
}

fn known<'a>(tables: &'a Tables, header: &str) -> Option<&'a AccessToken> {
    let sent = bearer_token(header)?;
    tables.access_tokens.get(&sent.id).filter(|token| sent.is(&token.digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(bearer: &BearerToken, expires_at: Option<WallTime>) -> Tables {
        let name: Name = "ann".parse().unwrap();
        let user = User {
            name: name.clone(),
            kind: UserKind::User,
            namespaces: vec!["default".to_owned()],
            serial: String::new(),
            created_at: WallTime(0),
            not_after: WallTime(0),
            revision: Revision(1),
        };
        let token = AccessToken {
            id: bearer.id.clone(),
            user: name.clone(),
            digest: bearer.digest(),
            created_at: WallTime(0),
            expires_at,
        };
        let mut tables = Tables::default();
        tables.users.insert(name, user);
        tables.access_tokens.insert(token.id.clone(), token);
        tables
    }

    #[test]
    fn a_token_speaks_for_its_user_until_it_is_over_or_the_user_revoked() {
        let token = BearerToken::random();
        let header = format!("Bearer {}", token.to_text());
        let mut state = tables(&token, Some(WallTime(10)));
        let ann = Principal::User("ann".parse().unwrap());
        assert_eq!(bearer(&state, &header, WallTime(9)), Some(ann));
        assert_eq!(bearer(&state, &header, WallTime(10)), None);
        state.users.clear();
        assert_eq!(bearer(&state, &header, WallTime(9)), None);
    }

    fn ann() -> Name {
        "ann".parse().unwrap()
    }

    /// At the level that keeps rights, with a token made for the namespace `default`.
    fn with_rights(bearer: &BearerToken, kind: UserKind) -> Tables {
        let mut tables = tables(bearer, None);
        let cluster = crate::tests::tables()
            .cluster
            .map(|c| muster_messages::ClusterRecord { feature_level: muster_messages::IDENTITY_LEVEL, ..(*c).clone() });
        tables.cluster = cluster.map(std::sync::Arc::new);
        let rights = muster_messages::TokenRights { kind, namespaces: vec!["default".to_owned()] };
        tables.token_rights.insert(bearer.id.clone(), rights);
        tables
    }

    #[test]
    fn old_token_gains_no_rights_of_its_user() {
        let token = BearerToken::random();
        let header = format!("Bearer {}", token.to_text());
        let mut state = with_rights(&token, UserKind::User);
        let user = state.users[&ann()].clone();
        let namespaces = vec!["default".to_owned(), "ops".to_owned()];
        let wider = User { kind: UserKind::Operator, namespaces, ..user.clone() };
        state.users.insert(user.name.clone(), wider);
        let who = bearer(&state, &header, WallTime(1)).unwrap();
        assert!(!who.is_operator(), "{who:?}");
        assert!(crate::core::may_touch(&state, &who, "default").is_ok());
        assert!(crate::core::may_touch(&state, &who, "ops").is_err());
        let other = User { namespaces: vec!["ops".to_owned()], ..user.clone() };
        state.users.insert(user.name.clone(), other);
        assert!(crate::core::may_touch(&state, &who, "default").is_err(), "what its user has lost it has lost");
    }

    /// RIGHTS-1, RIGHTS-2: the less of both, in every direction.
    #[test]
    fn a_token_is_the_less_of_its_making_and_its_user() {
        use UserKind::{Operator, ReadOnly, User as Plain};
        // Made for `default`, its user has `default` and `ops` now: what it reads and writes of them.
        for (made, now, expected) in [
            (Operator, Operator, ["rw", "rw"]),
            (Operator, ReadOnly, ["r", "r"]),
            (ReadOnly, Operator, ["r", "r"]),
            (ReadOnly, ReadOnly, ["r", "r"]),
            (ReadOnly, Plain, ["r", "r"]),
            (Plain, ReadOnly, ["r", ""]),
            (Plain, Operator, ["rw", ""]),
            (Operator, Plain, ["rw", "rw"]),
            (Plain, Plain, ["rw", ""]),
        ] {
            let token = BearerToken::random();
            let mut state = with_rights(&token, made);
            let namespaces = vec!["default".to_owned(), "ops".to_owned()];
            let user = User { kind: now, namespaces, ..state.users[&ann()].clone() };
            state.users.insert(ann(), user);
            let who = bearer(&state, &format!("Bearer {}", token.to_text()), WallTime(1)).unwrap();
            let may = ["default", "ops"].map(|namespace| {
                let reads = crate::core::may_touch(&state, &who, namespace).is_ok();
                let writes = reads && crate::core::may_write(&state, &[], &who, namespace).is_ok();
                [if reads { "r" } else { "" }, if writes { "w" } else { "" }].concat()
            });
            assert_eq!(may, expected, "made for {made:?}, now {now:?}: {who}");
            assert_eq!(who.is_operator(), (made, now) == (Operator, Operator));
            let reads_all = crate::core::may_touch(&state, &who, "*").is_ok();
            assert_eq!(reads_all, made.reads_everything() && now.reads_everything(), "{made:?} {now:?}");
        }
    }

    #[test]
    fn token_ends_with_its_users_certificate() {
        let token = BearerToken::random();
        let header = format!("Bearer {}", token.to_text());
        let mut state = with_rights(&token, UserKind::Operator);
        let (kind, serial, not_after) = (UserKind::Operator, "a1".to_owned(), WallTime(10));
        let user = User { kind, serial, not_after, ..state.users[&ann()].clone() };
        state.users.insert(user.name.clone(), user);
        assert_eq!(bearer(&state, &header, WallTime(9)), Some(Principal::Admin("ann".parse().unwrap())));
        assert_eq!(bearer(&state, &header, WallTime(10)), None);
    }

    #[test]
    fn neither_a_guess_nor_another_scheme_speaks_for_anybody() {
        let token = BearerToken::random();
        let state = tables(&token, None);
        let now = WallTime(1);
        assert!(
            bearer(&state, &format!("bearer {}", token.to_text()), now).is_some(),
            "schemes have no case (RFC 9110)"
        );
        let other = BearerToken::random().to_text();
        let guess = format!("Bearer muster-{}-{}", token.id, other.rsplit('-').next().unwrap());
        for header in
            [guess, format!("Basic {}", token.to_text()), token.to_text(), "Bearer ".to_owned(), String::new()]
        {
            assert_eq!(bearer(&state, &header, now), None, "{header}");
        }
    }
}
