//! Access tokens: checked on every HTTP request that carries one.

use muster_messages::{AccessToken, Principal, Tables, UserKind, WallTime};
use muster_pki::BearerToken;

pub(crate) fn is_over(token: &AccessToken, now: WallTime) -> bool {
    token.expires_at.is_some_and(|at| at <= now)
}

/// The principal of an `Authorization` header, according to this replica. `None`: unknown.
pub(crate) fn bearer(tables: &Tables, header: &str, now: WallTime) -> Option<Principal> {
    let token = known(tables, header).filter(|token| !is_over(token, now))?;
    let user = tables.users.get(&token.user)?;
    if !tables.remembers_callers() {
        return Some(user.kind.principal(user.name.clone()));
    }
    // Users created by `muster kubeconfig` have no certificate and therefore no expiry.
    if !user.serial.is_empty() && user.not_after <= now {
        return None;
    }
    // RIGHTS-1. The lesser of the user's rights at the token's creation and now.
    let kinds = [tables.token_rights.get(&token.id)?.kind, user.kind];
    Some(match kinds {
        [UserKind::Operator, UserKind::Operator] => Principal::Admin(user.name.clone()),
        _ if kinds.iter().all(|kind| kind.reads_everything()) => Principal::Reader(user.name.clone()),
        _ => Principal::Bearer { user: user.name.clone(), token: token.id.clone() },
    })
}

/// The token in an `Authorization` header, known or not. `None`: the header holds none.
pub(crate) fn bearer_token(header: &str) -> Option<BearerToken> {
    let (scheme, text) = header.split_once(' ')?;
    BearerToken::parse(text.trim()).filter(|_| scheme.eq_ignore_ascii_case("bearer"))
}

/// The expiry of a header's token, if the token is known and expires.
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
    use muster_messages::{Name, Revision, User};

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
    fn token_is_valid_until_expiry_or_revocation_of_its_user() {
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

    /// At the feature level that records rights, with a token created for the namespace `default`.
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
        assert!(crate::core::may_access(&state, &who, "default").is_ok());
        assert!(crate::core::may_access(&state, &who, "ops").is_err());
        let other = User { namespaces: vec!["ops".to_owned()], ..user.clone() };
        state.users.insert(user.name.clone(), other);
        assert!(crate::core::may_access(&state, &who, "default").is_err(), "the token loses what its user loses");
    }

    /// RIGHTS-1, RIGHTS-2: the lesser of both rights, in every combination.
    #[test]
    fn token_rights_are_the_lesser_of_creation_and_user() {
        use UserKind::{Operator, ReadOnly, User as Plain};
        // Created for `default`; its user now has `default` and `ops`: what the token may read and write in each.
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
                let reads = crate::core::may_access(&state, &who, namespace).is_ok();
                let writes = reads && crate::core::may_write(&state, &[], &who, namespace).is_ok();
                [if reads { "r" } else { "" }, if writes { "w" } else { "" }].concat()
            });
            assert_eq!(may, expected, "made for {made:?}, now {now:?}: {who}");
            assert_eq!(who.is_operator(), (made, now) == (Operator, Operator));
            let reads_all = crate::core::may_access(&state, &who, "*").is_ok();
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
    fn guessed_token_or_other_scheme_identifies_no_caller() {
        let token = BearerToken::random();
        let state = tables(&token, None);
        let now = WallTime(1);
        assert!(
            bearer(&state, &format!("bearer {}", token.to_text()), now).is_some(),
            "schemes are case-insensitive (RFC 9110)"
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
