//! A manager whose certificate has expired while no manager can renew it: it is the only one, or all were off too long.

use std::sync::Arc;

use muster_agent::NodeMemory;
use muster_kernel::Clock;
use muster_messages::protocol::NodeCredentials;
use muster_messages::{ClusterRecord, NodeId, Role};
use muster_pki::{IdentityStore, MIN_NODE_LIFETIME, credentials, sign_for_itself};
use muster_raft_member::recovery::survey;

use super::{Exit, say};
use crate::daemon::config::Config;

/// Signs a new certificate if the node's own data entitles it to one: it holds the root key and a member id, and its record says
/// manager. `None`: it does not, and needs a token.
///
/// The data may be old, and the node may have been demoted or removed since. So the certificate names no grant: any replica that
/// knows better decides. It has the shortest lifetime allowed, and the first session replaces it by a recorded certificate.
pub fn self_sign(
    config: &Config,
    advertise: &str,
    memory: &NodeMemory,
    expired: &NodeCredentials,
) -> Result<Option<NodeCredentials>, Exit> {
    let Some((node, cluster)) = recorded_manager(config, memory.store(), expired) else { return Ok(None) };
    // For the recorded key, by which others know this node.
    let key_pem = expired.key_pem.clone();
    let signed = sign_for_itself(&cluster, node, None, advertise, MIN_NODE_LIFETIME, (Clock.wall(), &key_pem))?;
    let made = credentials(key_pem, signed.cert_pem, cluster.root_cert_pem.clone());
    let made =
        made.map_err(|why| Exit::new(1, format!("the certificate that this manager signed for itself: {why}")))?;
    memory.store().save_credentials(&made)?;
    say("the certificate had expired; this manager signed another for itself");
    Ok(Some(made))
}

/// Whether this node's own data says that it is a manager and a Raft member.
pub fn is_recorded_manager(config: &Config, store: &IdentityStore, credentials: &NodeCredentials) -> bool {
    recorded_manager(config, store, credentials).is_some()
}

/// The node and its cluster, if its own data, which may be old, says that it is a manager and a Raft member.
fn recorded_manager(
    config: &Config,
    store: &IdentityStore,
    credentials: &NodeCredentials,
) -> Option<(NodeId, Arc<ClusterRecord>)> {
    let (node, Role::Manager) = credentials.identity.node()? else { return None };
    // Errors in the data are reported where the data is opened for use.
    let survey = survey(&config.data_dir.join("raft"), store.keys()).ok()?;
    let tables = survey.tables;
    let cluster = tables.cluster.clone().filter(|c| c.incarnation == credentials.identity.incarnation)?;
    let is_manager = tables.nodes.get(&node).is_some_and(|record| record.role == Role::Manager);
    let is_member = tables.member_of(node).is_some_and(|member| member.raft_id == survey.member_id);
    (is_manager && is_member && !tables.blocklist.contains_key(&node)).then_some((node, cluster))
}
