//! Pages of lists that may be too long for one answer.
//!
//! Invariants  API-5  a client that follows `continue` to its end gets each item that existed all the time exactly once, whatever
//!                    is created or deleted meanwhile: a page starts after the last key of the one before, not after a number
//!                    of items.

use std::ops::Bound;

use muster_messages::wire::{ListOf, Page};
use muster_messages::{
    BlockedView, ErrorBody, ListView, Name, NodeCertificateView, NodeId, NodeRecord, TokenView, UserView,
    WorkloadEntry, WorkloadEntryView, WorkloadName,
};
use serde::Serialize;
use serde_json::Value;

use super::roots::Issuers;
use super::views::Source;

/// Bytes of items after which a page ends: a quarter of a frame, so that it does not delay the answers behind it.
const MAX_PAGE_BYTES: usize = 256 * 1024;

/// A list as text: what surrounds it, and as many of its items as the page requests and fit; without a page, all of them.
pub fn list(source: &Source<'_>, of: ListOf, page: Option<&Page>) -> Result<String, ErrorBody> {
    let tables = &source.replica.tables;
    let after = page.and_then(|page| page.after.as_deref());
    let mut items = Items::new(page);
    match of {
        ListOf::Nodes => {
            let after = after.map(node_position).transpose()?;
            let mut nodes: Vec<((&str, NodeId), &NodeRecord)> =
                tables.nodes.values().map(|n| ((n.name.as_str(), n.id), &**n)).collect();
            nodes.retain(|(position, _)| after.is_none_or(|after| *position > after));
            nodes.sort_unstable_by_key(|(position, _)| *position);
            for ((name, id), node) in nodes {
                if !items.add(&source.node(node), || format!("{name}/{id}"))? {
                    break;
                }
            }
            items.document(&source.no_nodes())
        }
        ListOf::Blocklist => {
            let after = key::<NodeId>(after)?;
            items.add_all(tables.blocklist.range(after).map(|(id, b)| (id, BlockedView::from(b))))?;
            items.document(&source.no_blocks())
        }
        ListOf::Certificates => {
            let after = key::<NodeId>(after)?;
            let issuers = Issuers::of(tables);
            let lifetime_secs = source.certificate_lifetime.map(|lifetime| lifetime.as_secs());
            let view = |node: &NodeRecord| NodeCertificateView {
                // No certificate: nothing that has a lifetime.
                lifetime_secs: lifetime_secs.filter(|_| node.certificate.is_some()),
                ..NodeCertificateView::new(node, issuers.of_node(node))
            };
            items.add_all(tables.nodes.range(after).map(|(id, node)| (id, view(node))))?;
            items.document(&ListView::<NodeCertificateView>::of([]))
        }
        ListOf::Tokens => {
            let after = key::<String>(after)?;
            items.add_all(tables.tokens.range(after).map(|(id, t)| (id, TokenView::from(t))))?;
            items.document(&ListView::<TokenView>::of([]))
        }
        ListOf::Users => {
            let after = key::<Name>(after)?;
            let issuers = Issuers::of(tables);
            items.add_all(tables.users.range(after).map(|(name, user)| (name, issuers.user_view(user))))?;
            items.document(&ListView::<UserView>::of([]))
        }
        ListOf::Workloads => {
            let after = key::<WorkloadName>(after)?;
            let view = |entry: &WorkloadEntry| WorkloadEntryView::of(entry, tables);
            items.add_all(tables.workloads.entries.range(after).map(|(name, entry)| (name, view(entry))))?;
            items.document(&ListView::<WorkloadEntryView>::of([]))
        }
    }
}

fn not_ours() -> ErrorBody {
    ErrorBody::invalid("continue: pass the value from the previous page unchanged")
}

fn key<K: std::str::FromStr>(after: Option<&str>) -> Result<(Bound<K>, Bound<K>), ErrorBody> {
    let after = after.map(|text| text.parse().map_err(|_| not_ours())).transpose()?;
    Ok((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded))
}

fn node_position(text: &str) -> Result<(&str, NodeId), ErrorBody> {
    let (name, id) = text.rsplit_once('/').ok_or_else(not_ours)?;
    Ok((name, id.parse().map_err(|_| not_ours())?))
}

/// The items so far, as JSON.
struct Items {
    text: String,
    count: u32,
    max_items: u32,
    max_bytes: usize,
    last: String,
    more: bool,
}

impl Items {
    fn new(page: Option<&Page>) -> Self {
        let max_items = page.map(|page| page.limit).filter(|limit| *limit > 0).unwrap_or(u32::MAX);
        let max_bytes = page.map_or(usize::MAX, |_| MAX_PAGE_BYTES);
        Self { text: String::new(), count: 0, max_items, max_bytes, last: String::new(), more: false }
    }

    /// False: the item did not fit, and there is more.
    fn add(&mut self, item: &impl Serialize, key: impl FnOnce() -> String) -> Result<bool, ErrorBody> {
        if self.text.len() >= self.max_bytes || self.count >= self.max_items {
            self.more = true;
            return Ok(false);
        }
        if self.count > 0 {
            self.text.push(',');
        }
        self.text += &crate::reads::to_text(item)?;
        self.count += 1;
        self.last = key();
        Ok(true)
    }

    fn add_all<K: ToString>(&mut self, rows: impl Iterator<Item = (K, impl Serialize)>) -> Result<(), ErrorBody> {
        for (key, item) in rows {
            if !self.add(&item, || key.to_string())? {
                break;
            }
        }
        Ok(())
    }

    /// `empty` is a list without items, which are its last field.
    fn document(self, empty: &impl Serialize) -> Result<String, ErrorBody> {
        let mut text = crate::reads::to_text(empty)?;
        debug_assert!(text.ends_with("\"items\":[]}"), "{text}");
        text.truncate(text.len().saturating_sub("]}".len()));
        text += &self.text;
        text.push(']');
        if self.more {
            text += &format!(",\"continue\":{}", Value::from(self.last));
        }
        text.push('}');
        Ok(text)
    }
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
