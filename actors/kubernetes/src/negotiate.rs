//! Media types: the encoding of a body, and the shape of answer that a client accepts.

use crate::status::{Reason, Status};

/// The shape of an answer about objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    #[default]
    Object,
    /// Cells for people, with the version of `meta.k8s.io` in use.
    Table(&'static str),
    /// Only metadata.
    Metadata,
}

/// The encoding of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// Also for a missing content type: Python clients send none.
    #[default]
    Json,
    Protobuf,
    Yaml,
}

/// The type of a PATCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    Strategic,
    Apply,
}

const PATCHES: [(&str, PatchKind); 4] = [
    ("application/json-patch+json", PatchKind::Json),
    ("application/merge-patch+json", PatchKind::Merge),
    ("application/strategic-merge-patch+json", PatchKind::Strategic),
    ("application/apply-patch+yaml", PatchKind::Apply),
];

/// The media type without parameters such as `;charset=utf-8`.
fn essence(content_type: Option<&str>) -> String {
    content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub(crate) fn encoding(content_type: Option<&str>) -> Result<Encoding, Status> {
    match essence(content_type).as_str() {
        "" | "application/json" => Ok(Encoding::Json),
        "application/vnd.kubernetes.protobuf" => Ok(Encoding::Protobuf),
        "application/yaml" => Ok(Encoding::Yaml),
        other => {
            Err(unsupported(other, &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"]))
        }
    }
}

pub(crate) fn patch_kind(content_type: Option<&str>) -> Result<PatchKind, Status> {
    let given = essence(content_type);
    let known = PATCHES.iter().find(|(name, _)| *name == given);
    known.map(|(_, kind)| *kind).ok_or_else(|| unsupported(&given, &PATCHES.map(|(name, _)| name)))
}

fn unsupported(given: &str, accepted: &[&str]) -> Status {
    let given: String = given.chars().take(128).collect();
    let message = format!("the media type of the body is {given:?}; accepted: {}", accepted.join(", "));
    Status::new(Reason::UnsupportedMediaType, message)
}

/// The first available shape in the client's order of preference. Always JSON.
pub(crate) fn format(accept: Option<&str>) -> Result<Format, Status> {
    let accept = accept.map(str::trim).filter(|accept| !accept.is_empty());
    let Some(accept) = accept else {
        return Ok(Format::Object);
    };
    let mut ranges: Vec<(f32, Format)> = accept.split(',').filter_map(range).collect();
    // The sort is stable: equal preferences keep the client's order.
    ranges.sort_by(|a, b| b.0.total_cmp(&a.0));
    ranges.first().map(|(_, format)| *format).ok_or_else(|| {
        Status::new(Reason::NotAcceptable, "only application/json is available: as objects, as a Table, or as metadata")
    })
}

/// The preference and shape of one media range, if it is available.
fn range(range: &str) -> Option<(f32, Format)> {
    let mut parts = range.split(';').map(str::trim);
    let json = ["application/json", "application/*", "*/*"];
    if !json.contains(&parts.next()?.to_ascii_lowercase().as_str()) {
        return None;
    }
    let (mut quality, mut shape, mut group, mut version) = (1.0, None, None, None);
    for parameter in parts {
        match parameter.split_once('=') {
            Some(("q", value)) => quality = value.parse().unwrap_or(0.0),
            Some(("as", value)) => shape = Some(value),
            Some(("g", value)) => group = Some(value),
            Some(("v", value)) => version = Some(value),
            _ => {}
        }
    }
    let meta = group == Some("meta.k8s.io");
    let format = match (shape, version) {
        (None, _) => Format::Object,
        (Some("Table"), Some("v1")) if meta => Format::Table("v1"),
        (Some("Table"), Some("v1beta1")) if meta => Format::Table("v1beta1"),
        (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some("v1")) if meta => Format::Metadata,
        _ => return None,
    };
    (quality > 0.0).then_some((quality, format))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_without_content_type_is_json() {
        for json in [
            None,
            Some(""),
            Some("application/json"),
            Some("application/json; charset=UTF-8"),
            Some("Application/JSON"),
        ] {
            assert_eq!(encoding(json), Ok(Encoding::Json), "{json:?}");
        }
        assert_eq!(encoding(Some("application/vnd.kubernetes.protobuf")), Ok(Encoding::Protobuf));
        for other in ["application/cbor", "text/plain", "application/x-www-form-urlencoded"] {
            assert_eq!(encoding(Some(other)).unwrap_err().reason.code(), 415, "{other}");
        }
        assert_eq!(patch_kind(Some("application/apply-patch+yaml;charset=utf-8")), Ok(PatchKind::Apply));
        for other in [None, Some("application/json"), Some("application/apply-patch+cbor")] {
            let refused = patch_kind(other).unwrap_err();
            assert_eq!(refused.reason.code(), 415);
            assert!(refused.message.contains("application/merge-patch+json"), "{}", refused.message);
        }
    }

    #[test]
    fn answers_have_the_requested_shape() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,\
                     application/json";
        for (accept, format_) in [
            (None, Format::Object),
            (Some("*/*"), Format::Object),
            (Some("application/json"), Format::Object),
            (Some("application/vnd.kubernetes.protobuf,application/json"), Format::Object),
            (Some("application/json, text/plain;q=0.5"), Format::Object),
            (Some(table), Format::Table("v1")),
            (Some("application/json;as=Table;v=v1beta1;g=meta.k8s.io"), Format::Table("v1beta1")),
            (Some("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"), Format::Metadata),
            // Aggregated discovery is not offered; plain JSON, further down the list, is.
            (
                Some("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"),
                Format::Object,
            ),
        ] {
            assert_eq!(format(accept), Ok(format_), "{accept:?}");
        }
        for other in ["application/vnd.kubernetes.protobuf", "text/html", "application/json;q=0", "application/cbor"] {
            assert_eq!(format(Some(other)).unwrap_err().reason.code(), 406, "{other}");
        }
    }
}
