//! Changes other than those of nodes: the cluster itself, tokens, users.

use muster_messages::{ClusterRecord, Member, RaftId, UserKind};

use super::*;
use crate::guards::token;

pub(super) fn found(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    cluster: &ClusterRecord,
    founder: &NodeRecord,
    tokens: &[Token],
) -> Result<(), CommandRefusal> {
    if tables.cluster.is_some() {
        return Err(CommandRefusal::AlreadyFounded);
    }
    let manager = NodeRecord { role: Role::Manager, desired_role: Role::Manager, ..founder.clone() };
    nodes::create(tables, stamp, &manager)?;
    // Only at founding a certificate precedes its grant.
    let first = (founder.certificate.clone()).filter(|c| c.granted.is_none() && c.role == Role::Manager);
    if let Some(certificate) = first
        && let Some(record) = tables.nodes.get_mut(&founder.id)
    {
        let record = Arc::make_mut(record);
        record.last_not_after = record.last_not_after.max(certificate.not_after);
        record.certificate = Some(certificate);
    }
    let member = Member { node: founder.id, raft_id: RaftId(1), addr: founder.addr.clone(), voter: true };
    tables.members.insert(member.raft_id, member);
    tables.next_raft_id = RaftId(2);
    let text = format!("founded {} as {}", cluster.name, cluster.id);
    tables.cluster = Some(Arc::new(ClusterRecord { revision: stamp.at, ..cluster.clone() }));
    nodes::separate_report(tables, founder.id);
    stamp.log(tables, EventKind::Cluster, None, None, Some(text));
    for token in tokens {
        put_token(tables, stamp, token);
    }
    Ok(())
}

/// Writes a token. At most one per role is the default one.
pub(super) fn put_token(tables: &mut Tables, stamp: &Stamp<'_>, token: &Token) {
    let new = Token { revision: stamp.at, ..token.clone() };
    let old = tables.tokens.insert(new.id.clone(), new);
    if token.default {
        let displaced =
            (tables.tokens.values()).find(|t| t.default && t.role == token.role && t.id != token.id).cloned();
        if let Some(displaced) = displaced {
            let displaced = Token { default: false, revision: stamp.at, ..displaced };
            tables.tokens.insert(displaced.id.clone(), displaced);
        }
    }
    let (was, is) = (old.as_ref().map(token_text), Some(token_text(token)));
    stamp.log(tables, EventKind::Token, None, was, is);
}

/// Takes one use. A guard checks expiry; a use below zero is refused even without one.
pub(super) fn use_token(tables: &mut Tables, stamp: &Stamp<'_>, id: &str) -> Result<(), CommandRefusal> {
    let old = token(tables, id)?.clone();
    let Some(left) = old.uses_left else {
        return Ok(());
    };
    let Some(left) = left.checked_sub(1) else {
        return Err(CommandRefusal::TokenUsedUp { id: id.to_owned() });
    };
    let was = token_text(&old);
    let new = Token { uses_left: Some(left), revision: stamp.at, ..old };
    let is = token_text(&new);
    tables.tokens.insert(id.to_owned(), new);
    stamp.log(tables, EventKind::Token, None, Some(was), Some(is));
    Ok(())
}

pub(super) fn delete_token(tables: &mut Tables, stamp: &Stamp<'_>, id: &str) {
    if let Some(old) = tables.tokens.remove(id) {
        let was = Some(token_text(&old));
        stamp.log(tables, EventKind::Token, None, was, None);
    }
}

pub(super) fn put_user(tables: &mut Tables, stamp: &Stamp<'_>, user: &User) {
    let new = User { revision: stamp.at, ..user.clone() };
    // A pin belongs to one certificate: the next change of the same command writes the new one's.
    if tables.user_pins.get(&user.name).is_some_and(|pin| pin.serial != user.serial) {
        tables.user_pins.remove(&user.name);
    }
    let old = tables.users.insert(new.name.clone(), new);
    let (was, is) = (old.as_ref().map(user_text), Some(user_text(user)));
    stamp.log(tables, EventKind::User, None, was, is);
}

pub(super) fn delete_user(tables: &mut Tables, stamp: &Stamp<'_>, name: &Name) {
    if let Some(old) = tables.users.remove(name) {
        let was = Some(user_text(&old));
        stamp.log(tables, EventKind::User, None, was, None);
        // Revoking a user also revokes the user's tokens and pins.
        let theirs = tables.access_tokens.values().filter(|token| token.user == *name).map(|token| token.id.clone());
        for id in theirs.collect::<Vec<_>>() {
            tables.access_tokens.remove(&id);
            tables.token_rights.remove(&id);
        }
        tables.user_pins.remove(name);
    }
}

/// Never the secret.
fn token_text(token: &Token) -> String {
    let default = if token.default { "default " } else { "" };
    match token.uses_left {
        None => format!("{default}{} token {}", token.role, token.id),
        Some(n) => format!("{default}{} token {}, {n} uses left", token.role, token.id),
    }
}

fn user_text(user: &User) -> String {
    let kind = match user.kind {
        UserKind::User => "user",
        UserKind::Operator => "operator",
        UserKind::ReadOnly => "read-only operator",
    };
    format!("{kind} {} {}", user.name, user.serial)
}
