//! Tables: objects in columns, for people.

use muster_messages::{Object, ObjectBody, WallTime};
use serde_json::{Value, json};

use crate::document::Document;
use crate::query::Include;
use crate::resource::Resource;

/// How rows are built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Of `meta.k8s.io`.
    pub version: &'static str,
    pub include: Include,
    pub now: WallTime,
}

impl Rows {
    /// A table of these rows. `columns`: whether it describes the columns; in a watch only the first table does.
    pub(crate) fn table(self, resource: Resource, rows: Vec<Value>, columns: bool, revision: &str) -> Value {
        let columns: Vec<Value> = if columns { definitions(resource) } else { Vec::new() };
        json!({
            "kind": "Table", "apiVersion": format!("meta.k8s.io/{}", self.version),
            "metadata": {"resourceVersion": revision}, "columnDefinitions": columns, "rows": rows,
        })
    }

    pub(crate) fn row(self, object: &Object, resource: Resource) -> Value {
        let mut row = json!({"cells": cells(object, self.now)});
        match self.include {
            Include::None => {}
            Include::Object => row["object"] = Document::of(object).to_json(resource),
            Include::Metadata => row["object"] = metadata(object, resource, self.version),
        }
        row
    }
}

/// `PartialObjectMetadata`: only an object's metadata.
pub(crate) fn metadata(object: &Object, resource: Resource, version: &str) -> Value {
    let mut document = Document::of(object).to_json(resource);
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": document["metadata"].take(),
    })
}

fn columns(resource: Resource) -> &'static [(&'static str, &'static str)] {
    use muster_messages::ObjectKind::{ConfigMap, Endpoints, Lease, LeaseCandidate};
    match resource.kind {
        Lease => &[("Holder", "the holder of the lease")],
        LeaseCandidate => &[
            ("LeaseName", "the lease that it is a candidate for"),
            ("BinaryVersion", "the version of the candidate's binary"),
            ("EmulationVersion", "the version that the candidate emulates"),
        ],
        ConfigMap => &[("Data", "the number of entries")],
        Endpoints => &[("Endpoints", "the number of subsets")],
    }
}

fn definitions(resource: Resource) -> Vec<Value> {
    let column = |name: &str, format: &str, description: &str| json!({"name": name, "type": "string", "format": format, "description": description, "priority": 0});
    let own = columns(resource).iter().map(|(name, description)| column(name, "", description));
    std::iter::once(column("Name", "name", "unique within its namespace"))
        .chain(own)
        .chain([column("Age", "", "the time since its creation")])
        .collect()
}

fn cells(object: &Object, now: WallTime) -> Vec<Value> {
    let own: Vec<Value> = match &object.body {
        ObjectBody::Lease(lease) => vec![lease.spec.held_by().unwrap_or_default().into()],
        ObjectBody::LeaseCandidate(spec) => vec![
            spec.lease_name.as_str().into(),
            spec.binary_version.as_str().into(),
            spec.emulation_version.as_str().into(),
        ],
        ObjectBody::ConfigMap(map) => vec![(map.data.len() + map.binary_data.len()).to_string().into()],
        ObjectBody::Endpoints(subsets) => {
            let subsets: Vec<Value> = serde_json::from_str(subsets).unwrap_or_default();
            vec![subsets.len().to_string().into()]
        }
    };
    let age = age(now.0.saturating_sub(object.meta.created_at.0));
    std::iter::once(object.name.as_str().into()).chain(own).chain([age.into()]).collect()
}

/// A span of time as people write it: the longer, the coarser.
fn age(millis: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let secs = millis.max(0) / 1000;
    let two = |big: i64, unit: char, small: i64, minor: char| {
        let (first, second) = (secs / big, secs % big / small);
        if second == 0 { format!("{first}{unit}") } else { format!("{first}{unit}{second}{minor}") }
    };
    match secs {
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(MINUTE, 'm', 1, 's'),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(HOUR, 'h', MINUTE, 'm'),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(DAY, 'd', HOUR, 'h'),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => two(YEAR, 'y', DAY, 'd'),
        s => format!("{}y", s / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_written_in_kubectl_units() {
        for (secs, text) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (660, "11m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (30 * 3600, "30h"),
            (49 * 3600, "2d1h"),
            (100 * 86_400, "100d"),
            (800 * 86_400, "2y70d"),
            (10 * 365 * 86_400, "10y"),
        ] {
            assert_eq!(age(secs * 1000), text, "{secs}");
        }
    }
}
