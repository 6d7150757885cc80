//! `muster events`: past events, and with `--watch` new ones.

use muster_client::{Failure, Outcome};
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, EventKind, EventView, EventsView, ID_LEN, NodeView, Revision, WallTime};
use serde::Deserialize;
use serde_json::Value;

use super::Context;
use crate::cli::args::EventsArgs;
use crate::cli::output::print;
use crate::cli::render;
use crate::cli::screen::Screen;

/// Characters that distinguish an id, as for commands that change a node.
const MIN_ID_PREFIX: usize = 8;

pub async fn run(ctx: &mut Context, args: EventsArgs) -> Outcome<u8> {
    let chosen = Chosen::by(ctx, &args).await?;
    if args.watch {
        return watch(ctx, Revision(args.since), args.last, &chosen).await;
    }
    let mut events = ctx.client.events(Revision(args.since)).await?;
    let is_of_node = |event: &Value| EventView::deserialize(event).is_ok_and(|event| chosen.is_of_node(&event));
    if let Some(unknown) = chosen.unknown.as_ref().filter(|_| !events.items.iter().any(is_of_node)) {
        return Err(unknown.clone());
    }
    let mut own_leases = 0;
    events.items.retain(|event| match chosen.shows(event) {
        Shown::Yes => true,
        Shown::OwnLease => {
            own_leases += 1;
            false
        }
        Shown::Filtered => false,
    });
    let size = (!ctx.out.is_json()).then(Screen::size_of_terminal).flatten();
    // Two lines count the omitted events, and the last one is the next prompt's.
    let fitting = size.filter(|_| !args.all && args.since == 0).map(|(_, rows)| rows.saturating_sub(3));
    let left_out = args.last.or(fitting).map_or(0, |last| events.items.len().saturating_sub(last));
    events.items.drain(..left_out);
    if ctx.out.is_json() {
        print(&serde_json::to_string(&events).map_err(Failure::internal)?);
        return Ok(0);
    }
    let (revision, items, names) = (events.revision, read(events.items)?, ctx.names().await);
    let table = || {
        let mut notes = String::new();
        if own_leases > 0 {
            notes += &format!("{own_leases} events of Muster's own leases are left out; `--all` shows them\n");
        }
        if left_out > 0 && args.last.is_none() {
            notes += &format!("{left_out} earlier events; `--last N` shows more\n");
        }
        notes + &render::events(&items, &names, size.map(|(columns, _)| columns))
    };
    ctx.out.document("", || revision.to_string(), table);
    Ok(0)
}

/// Which events are shown.
struct Chosen {
    kinds: Vec<EventKind>,
    /// Its id, or the beginning of that of a removed node.
    node: Option<String>,
    /// The cluster does not know that node.
    unknown: Option<Failure>,
    after: Option<WallTime>,
    /// The id of a request, or its beginning.
    request: Option<String>,
    own_leases: bool,
}

impl Chosen {
    async fn by(ctx: &mut Context, args: &EventsArgs) -> Outcome<Self> {
        let mut unknown = None;
        let node = match &args.node {
            None => None,
            Some(node) => {
                let request = Request::NodeInspect { node: node.clone(), fresh: false };
                match ctx.client.ask::<NodeView>(request).await {
                    Ok(found) => Some(found.id.to_string()),
                    // Events of a removed node remain.
                    Err(failure) if failure.is(ErrorCode::NotFound) && may_begin_an_id(node) && !args.watch => {
                        unknown = Some(failure);
                        Some(node.clone())
                    }
                    Err(failure) => return Err(failure),
                }
            }
        };
        // Asked for by kind or request, or as JSON: nothing is left out.
        let own_leases =
            args.all || ctx.out.is_json() || args.request.is_some() || args.kind.contains(&EventKind::Lease);
        let kinds = args.kind.clone();
        Ok(Self { kinds, node, unknown, after: args.after, request: args.request.clone(), own_leases })
    }

    fn is_of_node(&self, event: &EventView) -> bool {
        self.node.as_ref().is_none_or(|node| event.node.is_some_and(|id| id.as_str().starts_with(node)))
    }

    fn is_of_kind(&self, event: &EventView) -> bool {
        self.kinds.is_empty() || event.kind.known().is_some_and(|kind| self.kinds.contains(&kind))
    }

    fn is_of_request(&self, event: &EventView) -> bool {
        let Some(begin) = &self.request else { return true };
        event.request.as_ref().is_some_and(|request| request.starts_with(begin))
    }

    /// An event that cannot be read is shown, so that its error is.
    fn shows(&self, event: &Value) -> Shown {
        let Ok(event) = EventView::deserialize(event) else { return Shown::Yes };
        let chosen = self.is_of_kind(&event)
            && self.is_of_node(&event)
            && self.after.is_none_or(|after| event.at > after)
            && self.is_of_request(&event);
        match chosen {
            false => Shown::Filtered,
            true if !self.own_leases && event.is_of_own_lease() => Shown::OwnLease,
            true => Shown::Yes,
        }
    }
}

fn may_begin_an_id(text: &str) -> bool {
    let is_digit = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (MIN_ID_PREFIX..=ID_LEN).contains(&text.len()) && text.bytes().all(is_digit)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Yes,
    Filtered,
    /// Left out unless asked for.
    OwnLease,
}

/// The newest ones, if some are asked for, and all that follow. Events that are no longer kept are reported, and left out.
async fn watch(ctx: &mut Context, mut since: Revision, last: Option<usize>, chosen: &Chosen) -> Outcome<u8> {
    let mut names = ctx.names().await;
    if let Some(last) = last {
        let mut past = ctx.client.events(since).await?;
        past.items.retain(|event| chosen.shows(event) == Shown::Yes);
        past.items.drain(..past.items.len().saturating_sub(last));
        since = past.revision;
        print_new(ctx, past.items, &mut names).await?;
    }
    let mut events = ctx.client.watch_events(since).skipping_lost();
    loop {
        let since = events.position();
        let mut page: EventsView<Value> = events.next().await?;
        if let Some(before) = page.incomplete_before.filter(|_| since != Revision(0)) {
            ctx.out.note(format!("some events between revisions {since} and {before} are no longer kept"));
        }
        page.items.retain(|event| chosen.shows(event) == Shown::Yes);
        print_new(ctx, page.items, &mut names).await?;
    }
}

/// Prints events that follow those printed before.
async fn print_new(ctx: &mut Context, items: Vec<Value>, names: &mut render::Names) -> Outcome {
    if ctx.out.is_json() {
        items.iter().for_each(|event| print(&event.to_string()));
    } else if !items.is_empty() {
        let events = read(items)?;
        // Nodes join and are renamed.
        if events.iter().any(|event| event.kind == EventKind::Node) {
            names.extend(ctx.names().await);
        }
        print(&render::event_lines(&events, names, Screen::size_of_terminal().map(|(columns, _)| columns)));
    }
    Ok(())
}

/// The events, for tables. As JSON they are printed as they came.
fn read(items: Vec<Value>) -> Outcome<Vec<EventView>> {
    items.into_iter().map(|item| serde_json::from_value(item).map_err(Failure::internal)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NODE: &str = "0123456789abcdefghijklmno";

    fn event(kind: &str, node: Option<&str>, at: &str, after: &str) -> Value {
        json!({"revision": 7, "at": at, "kind": kind, "node": node, "by": {"kind": "cluster", "id": null}, "reason": "r",
            "before": null, "after": after})
    }

    fn chosen() -> Chosen {
        Chosen { kinds: vec![], node: None, unknown: None, after: None, request: None, own_leases: false }
    }

    #[test]
    fn events_are_chosen_by_kind_node_and_time() {
        let role = event("role", Some(NODE), "2024-01-01T00:00:10Z", "manager");
        let lease = event("lease", None, "2024-01-01T00:00:10Z", "muster-members/a held by b, token 1");
        assert_eq!((chosen().shows(&role), chosen().shows(&lease)), (Shown::Yes, Shown::OwnLease));
        let all = Chosen { own_leases: true, ..chosen() };
        assert_eq!(all.shows(&lease), Shown::Yes);
        let (role_kind, others) = (vec![EventKind::Role], vec![EventKind::Node, EventKind::Lease]);
        for (kinds, shown) in [(role_kind, Shown::Yes), (others, Shown::Filtered)] {
            assert_eq!(Chosen { kinds, ..chosen() }.shows(&role), shown);
        }
        for (node, shown) in [("01234567", Shown::Yes), (NODE, Shown::Yes), ("12345678", Shown::Filtered)] {
            assert_eq!(Chosen { node: Some(node.to_owned()), ..chosen() }.shows(&role), shown, "{node}");
        }
        for (after, shown) in [("2024-01-01T00:00:09Z", Shown::Yes), ("2024-01-01T00:00:10Z", Shown::Filtered)] {
            let after = serde_json::from_value(after.into()).unwrap();
            assert_eq!(Chosen { after, ..chosen() }.shows(&role), shown);
        }
        let mut of_request = role.clone();
        of_request["request"] = json!("01932f1c7c00700080000000000000ff");
        for (begin, shown) in [("01932f1c", Shown::Yes), ("01932f1d", Shown::Filtered)] {
            let chosen = Chosen { request: Some(begin.to_owned()), ..chosen() };
            assert_eq!((chosen.shows(&of_request), chosen.shows(&role)), (shown, Shown::Filtered));
        }
        assert_eq!(chosen().shows(&json!({"kind": 7})), Shown::Yes, "its error is");
    }

    #[test]
    fn only_beginnings_of_ids_may_name_removed_nodes() {
        assert!(may_begin_an_id(&NODE[..8]) && may_begin_an_id(NODE));
        for other in ["0123456", "web-server", "0123456789abcdefghijklmnop", "Managers"] {
            assert!(!may_begin_an_id(other), "{other}");
        }
    }
}
