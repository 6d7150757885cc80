//! The list of hops on a walk's page. Process scenarios read it, too.

use std::collections::BTreeMap;

/// The hops of each row, from the items `- row N: …`: names in backticks, as node/actor.
pub fn hops<'a>(text: &'a str) -> BTreeMap<usize, Vec<&'a str>> {
    let items = text.lines().filter_map(|line| line.strip_prefix("- row ")?.split_once(": "));
    let named = |item: &'a str| item.split('`').skip(1).step_by(2).collect::<Vec<_>>();
    items.filter_map(|(row, item)| Some((row.parse::<usize>().ok()?, named(item)))).collect()
}
