//! Changes of reconcilers' objects, as they happen.

use std::sync::Arc;

use muster_gates::{ObjectFilter, object_changes};
use muster_messages::{ErrorBody, ErrorCode, ManagedKey, Revision, Tables};
use muster_store::Deleted;

use super::ReconcilerRequests;
use crate::reads::to_text;

/// Deletions after `seen` are no longer known here, or this state is an earlier one than that which was seen: a cluster that was
/// restored counts from an earlier revision.
fn expired(seen: Revision, oldest: Revision) -> ErrorBody {
    let text = format!(
        "changes of objects after revision {seen} are no longer known here (they are from {oldest} on); list again without a revision, \
         and continue from the revision of that answer"
    );
    ErrorBody::new(ErrorCode::Expired, text)
}

impl ReconcilerRequests<'_> {
    pub(super) async fn object_changes(
        &self,
        filter: ObjectFilter<'_>,
        seen: Revision,
        wait_ms: u64,
    ) -> Result<String, ErrorBody> {
        let feed = &self.work.manager.feed;
        let mut looked = seen;
        let has_news = |tables: &Tables| {
            // Other changes of reconcilers wake this, too: objects and deletions are looked through once for each.
            let changed = tables.reconcilers.changed;
            if changed <= looked {
                return false;
            }
            let before = std::mem::replace(&mut looked, changed);
            let objects = &tables.reconcilers.objects;
            let is_gone = |(at, key): &(Revision, Arc<ManagedKey>)| *at > before && filter.wants(key);
            objects.values().any(|object| object.revision > before && filter.wants(&object.key))
                || feed.deleted_since(seen).map_or(true, |deleted| deleted.iter().any(is_gone))
        };
        let replica = self.changed(wait_ms, has_news).await?;
        let tables = &replica.tables;
        let deleted = match feed.deleted_since(seen) {
            _ if seen == Revision(0) => Deleted::default(),
            _ if seen > tables.revision => return Err(expired(seen, tables.revision)),
            Err(gone) => return Err(expired(seen, gone.oldest)),
            Ok(deleted) => deleted,
        };
        to_text(&object_changes(tables, deleted, filter, seen))
    }
}
