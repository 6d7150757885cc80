//! A manager whose certificate has expired, and nobody to renew it: the only one, or all of them were off too long.

use muster_agent::NodeMemory;
use muster_kernel::Clock;
use muster_messages::Role;
use muster_messages::protocol::NodeCredentials;
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
    let Some((node, Role::Manager)) = expired.identity.node() else { return Ok(None) };
    // Whatever is wrong with the data is said where they are opened to be used.
    let Ok(survey) = survey(&config.data_dir.join("raft")) else { return Ok(None) };
    let tables = survey.tables;
    let Some(cluster) = tables.cluster.clone().filter(|c| c.incarnation == expired.identity.incarnation) else {
        return Ok(None);
    };
    let is_manager = tables.nodes.get(&node).is_some_and(|record| record.role == Role::Manager);
    let is_seated = tables.seat_of(node).is_some_and(|member| member.raft_id == survey.seat);
    if !is_manager || !is_seated || tables.blocklist.contains_key(&node) {
        return Ok(None);
    }
    let (key_pem, signed) = sign_for_itself(&cluster, node, None, advertise, MIN_NODE_LIFETIME, Clock.wall())?;
    let made = credentials(key_pem, signed.cert_pem, cluster.root_cert_pem.clone());
    let made =
        made.map_err(|why| Exit::new(1, format!("the certificate that this manager signed for itself: {why}")))?;
    memory.store().save_credentials(&made)?;
    say("the certificate had expired; this manager signed another for itself");
    Ok(Some(made))
}
