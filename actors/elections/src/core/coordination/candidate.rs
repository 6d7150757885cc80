//! A candidate, as the rules see it.

use muster_messages::{Object, Revision, WallTime};

/// [`super::rules::PRIORITY`] prefers the higher number.
pub const PRIORITY_ANNOTATION: &str = "muster.dev/priority";
/// RFC 3339: from then on the priority counts as none. A date chosen by a person, not a sign of life.
pub const PRIORITY_UNTIL_ANNOTATION: &str = "muster.dev/priority-until";

/// `major.minor.patch`, compared as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub [u64; 3]);

impl Version {
    /// Reads what clients call a version: `1.30.2`, `v1.30`, `1.30.0-rc.1+build`. Later text is ignored, missing numbers are 0.
    pub fn tolerant(text: &str) -> Option<Self> {
        let text = text.trim();
        let numbers = text.strip_prefix('v').unwrap_or(text);
        let numbers = numbers.split(['-', '+']).next().unwrap_or_default();
        let mut version = [0; 3];
        for (at, part) in numbers.split('.').enumerate() {
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            *version.get_mut(at).filter(|_| digits)? = part.parse().ok()?;
        }
        Some(Self(version))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// A candidate's properties that the rules use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub name: String,
    /// The smaller revision is the older candidate; no two are equal.
    pub created: Revision,
    pub binary: Option<Version>,
    pub emulation: Option<Version>,
    pub strategy: String,
    pub priority: i32,
    /// When its priority ends, if in the future.
    pub priority_until: Option<WallTime>,
}

impl Candidate {
    /// Reads a candidate as of `wall`.
    pub fn of(object: &Object, wall: WallTime) -> Option<Self> {
        let spec = object.candidate()?;
        let annotation = |name: &str| object.meta.annotations.get(name).map(String::as_str);
        let until = annotation(PRIORITY_UNTIL_ANNOTATION);
        // An unreadable date was meant to end the priority.
        let ends = until.map(|text| serde_json::from_value(text.into()).unwrap_or(WallTime(i64::MIN)));
        let counts = ends.is_none_or(|at| wall < at);
        let priority = annotation(PRIORITY_ANNOTATION).and_then(|text| text.trim().parse().ok());
        Some(Self {
            name: object.name.clone(),
            created: object.meta.created,
            binary: Version::tolerant(&spec.binary_version),
            emulation: Version::tolerant(&spec.emulation_version),
            strategy: spec.strategy.clone(),
            priority: priority.filter(|_| counts).unwrap_or(0),
            priority_until: ends.filter(|_| counts),
        })
    }
}
