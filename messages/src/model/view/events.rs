//! Events, as `muster events` prints them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::{
    Event, EventKind, MEMBERS_NAMESPACE, NodeId, Principal, PrincipalKind, RUNNERS_NAMESPACE, Revision, WallTime, Word,
};

/// The author of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrincipalView {
    /// `node`, `user`, `admin`, `operator`, `anonymous`, `cluster`, `reader`, `workload`, or a word of a newer release.
    pub kind: Word<PrincipalKind>,
    /// The node's id or the user's name, if the kind has one.
    pub id: Option<String>,
}

impl From<&Principal> for PrincipalView {
    fn from(principal: &Principal) -> Self {
        let (kind, id) = match principal {
            Principal::Node(id) => (PrincipalKind::Node, Some(id.to_string())),
            Principal::User(name) => (PrincipalKind::User, Some(name.to_string())),
            Principal::Admin(name) => (PrincipalKind::Admin, Some(name.to_string())),
            Principal::Operator => (PrincipalKind::Operator, None),
            Principal::Anonymous => (PrincipalKind::Anonymous, None),
            Principal::Cluster => (PrincipalKind::Cluster, None),
            Principal::Bearer { user, .. } => (PrincipalKind::User, Some(user.to_string())),
            Principal::Reader(name) => (PrincipalKind::Reader, Some(name.to_string())),
            Principal::Workload(name) => (PrincipalKind::Workload, Some(name.to_string())),
        };
        Self { kind: kind.into(), id }
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    pub revision: Revision,
    pub at: WallTime,
    /// The word of an [`EventKind`], or one of a newer release.
    pub kind: Word<EventKind>,
    /// The node that changed, if it was one.
    pub node: Option<NodeId>,
    pub by: PrincipalView,
    pub reason: String,
    /// What changed, before and after; `None` where there was nothing.
    pub before: Option<String>,
    pub after: Option<String>,
    /// The id of the request that made the change, 32 hexadecimal digits, as logs and the audit log have it. Absent: the
    /// cluster made it by itself, or has forgotten the outcome of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

impl EventView {
    /// Whether it is about a lease that Muster's own members and elections keep: each start of a manager causes some.
    pub fn is_of_own_lease(&self) -> bool {
        let text = self.after.as_ref().or(self.before.as_ref());
        let namespace = text.and_then(|text| text.split('/').next());
        self.kind == EventKind::Lease
            && namespace.is_some_and(|namespace| [MEMBERS_NAMESPACE, RUNNERS_NAMESPACE].contains(&namespace))
    }
}

impl From<&Event> for EventView {
    fn from(event: &Event) -> Self {
        Self {
            revision: event.revision,
            at: event.at,
            kind: event.kind.into(),
            node: event.node,
            by: PrincipalView::from(&event.by),
            reason: event.reason.clone(),
            before: event.before.clone(),
            after: event.after.clone(),
            request: None,
        }
    }
}

/// A page of events, or all of them. Programs that pass events on read them as [`Value`]: unknown fields are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventsView<E> {
    /// Oldest first.
    pub items: Vec<E>,
    /// Where the next page begins.
    pub revision: Revision,
    /// Whether later events exist already. Absent: no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// Events of some kinds before this revision are no longer kept. Absent: all are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete_before: Option<Revision>,
    /// Fields of newer releases.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl<E> EventsView<E> {
    /// Appends a page to the pages before it, and returns where the next one begins, if there is one.
    pub fn joined(whole: Option<Self>, mut page: Self) -> (Self, Option<Revision>) {
        let next = std::mem::take(&mut page.more).then_some(page.revision);
        let Some(mut whole) = whole else { return (page, next) };
        whole.items.append(&mut page.items);
        whole.revision = page.revision;
        // Some may be dropped between two pages.
        whole.incomplete_before = whole.incomplete_before.max(page.incomplete_before);
        (whole, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_with_words_of_newer_releases_keep_their_json() {
        for (kind, by, known) in [("lease", "cluster", true), ("of-a-newer-release", "of-that-too", false)] {
            let json = format!(
                r#"{{"revision":7,"at":"2024-01-01T00:00:00.000Z","kind":"{kind}","node":null,"by":{{"kind":"{by}","id":null}},"reason":"r","before":null,"after":null}}"#
            );
            let event: EventView = serde_json::from_str(&json).unwrap();
            assert_eq!((event.kind.known().is_some(), event.by.kind.known().is_some()), (known, known));
            assert_eq!(serde_json::to_string(&event).unwrap(), json);
        }
    }

    #[test]
    fn events_dropped_between_two_pages_are_known_of_the_whole() {
        let page = |revision, more, incomplete_before| EventsView {
            items: vec![revision],
            revision: Revision(revision),
            more,
            incomplete_before,
            rest: Map::new(),
        };
        let (whole, next) = EventsView::joined(None, page(4, true, None));
        assert_eq!(next, Some(Revision(4)));
        let (whole, next) = EventsView::joined(Some(whole), page(9, true, Some(Revision(7))));
        assert_eq!(next, Some(Revision(9)));
        let (whole, next) = EventsView::joined(Some(whole), page(12, false, None));
        assert_eq!(next, None);
        assert_eq!(whole, EventsView { items: vec![4, 9, 12], ..page(12, false, Some(Revision(7))) });
    }
}
