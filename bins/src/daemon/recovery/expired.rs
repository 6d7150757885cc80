//! A manager whose certificate has expired, and nobody to renew it: the only one, or all of them were off too long.

use std::sync::Arc;

use muster_agent::NodeMemory;
use muster_kernel::Clock;
use muster_messages::protocol::NodeCredentials;
use muster_messages::{ClusterRecord, NodeId, Role};
use muster_pki::{MIN_NODE_LIFETIME, credentials, sign_for_itself};
use muster_raft_member::recovery::survey;

use super::{Exit, say};
use crate::daemon::config::Config;

/// Credentials that its own copy entitles it to: it holds the root key, a seat, and its record says manager. `None`: it
/// does not, and needs a token.
///
/// Its copy may be old, and it may have been demoted or removed since. So the certificate speaks of no grant: wherever a copy knows
/// better, that copy decides. It lives for as short as any may, and its first session replaces it by one that is on record.
pub fn sign_again(
    config: &Config,
    advertise: &str,
    memory: &NodeMemory,
    expired: &NodeCredentials,
) -> Result<Option<NodeCredentials>, Exit> {
    let Some((node, cluster)) = seated(config, expired) else { return Ok(None) };
    // For the key that is on record: others know it by that.
    let key_pem = expired.key_pem.clone();
    let signed = sign_for_itself(&cluster, node, None, advertise, MIN_NODE_LIFETIME, (Clock.wall(), &key_pem))?;
    let made = credentials(key_pem, signed.cert_pem, cluster.root_cert_pem.clone());
    let made =
        made.map_err(|why| Exit::new(1, format!("the certificate that this manager signed for itself: {why}")))?;
    memory.store().save_credentials(&made)?;
    say("the certificate had expired; this manager signed another for itself");
    Ok(Some(made))
}

/// Whether this node's own copy says that it is a manager with a seat.
pub fn is_seated_manager(config: &Config, credentials: &NodeCredentials) -> bool {
    seated(config, credentials).is_some()
}

/// The node and its cluster, if its own copy, which may be old, says that it is a manager with a seat.
fn seated(config: &Config, credentials: &NodeCredentials) -> Option<(NodeId, Arc<ClusterRecord>)> {
    let (node, Role::Manager) = credentials.identity.node()? else { return None };
    // Whatever is wrong with the data is said where they are opened to be used.
    let survey = survey(&config.data_dir.join("raft")).ok()?;
    let tables = survey.tables;
    let cluster = tables.cluster.clone().filter(|c| c.incarnation == credentials.identity.incarnation)?;
    let is_manager = tables.nodes.get(&node).is_some_and(|record| record.role == Role::Manager);
    let is_seated = tables.seat_of(node).is_some_and(|member| member.raft_id == survey.seat);
    (is_manager && is_seated && !tables.blocklist.contains_key(&node)).then_some((node, cluster))
}
