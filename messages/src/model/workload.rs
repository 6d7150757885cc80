//! Workloads: programs that are not part of Muster and that get identities of the cluster.
//!
//! Owns        which workload a process may be, by what its node finds out about it, on which nodes.
//! Why a table of its own, and no certificates in it: an entry is written by an operator, and rarely; certificates are renewed every half
//! hour by each node, and the leader remembers only how many.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{BadId, ClusterId, MANAGER_NAME, NodeId, Revision, WallTime, check_labels, check_text, is_dns_subdomain};

/// The most workloads of a cluster. Each node may get all of them, and the host of its session filters them.
pub const MAX_WORKLOADS: usize = 2_000;
/// The most bytes of an entry's texts: all entries together take at most 8 MiB of the state and of an agent's memory.
pub const MAX_WORKLOAD_BYTES: usize = 4 << 10;
/// The most selectors of an entry.
pub const MAX_WORKLOAD_SELECTORS: usize = 16;
/// The most DNS names of an entry, which its certificates carry.
pub const MAX_WORKLOAD_DNS: usize = 16;
/// The most bytes of a hint (SPIFFE Workload API).
pub const MAX_WORKLOAD_HINT: usize = 1024;
/// The most bytes of an executable's path in a selector.
pub const MAX_SELECTOR_PATH: usize = 1024;
/// The most bytes of a systemd unit's name, as in systemd.
pub const MAX_SELECTOR_UNIT: usize = 255;

/// The shortest lifetime of a workload's certificate. It is renewed at half its life, and a leader may be missing for a minute.
pub const MIN_WORKLOAD_TTL: Duration = Duration::from_secs(5 * 60);
/// The longest one. A node that was removed keeps its workloads' certificates until they expire.
pub const MAX_WORKLOAD_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// The lifetime if none is given.
pub const DEFAULT_WORKLOAD_TTL: Duration = Duration::from_secs(60 * 60);

/// The most audiences of one JWT.
pub const MAX_JWT_AUDIENCES: usize = 16;
/// The most bytes of an audience.
pub const MAX_JWT_AUDIENCE: usize = 512;

/// Rejects an audience that no JWT may have. It is never empty: a JWT without one would be good at every program.
///
/// # Errors
/// What is wrong with it.
pub fn check_jwt_audience(audience: &[String]) -> Result<(), String> {
    if audience.is_empty() || audience.iter().any(String::is_empty) {
        return Err("a JWT needs an audience: who is to accept it".to_owned());
    }
    if audience.len() > MAX_JWT_AUDIENCES {
        return Err(format!("a JWT for {} audiences, the limit is {MAX_JWT_AUDIENCES}", audience.len()));
    }
    audience.iter().try_for_each(|of| check_text("an audience", of, MAX_JWT_AUDIENCE))
}

/// The name of a workload: `NAMESPACE/NAME`, each of them one segment of a SPIFFE ID's path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadName {
    namespace: String,
    name: String,
}

impl WorkloadName {
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
    pub fn name(&self) -> &str {
        &self.name
    }
    /// `spiffe://<cluster>/workload/NAMESPACE/NAME`.
    pub fn spiffe_id(&self, cluster: ClusterId) -> String {
        format!("spiffe://{cluster}/workload/{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for WorkloadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for WorkloadName {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let character = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let segment =
            |text: &str| (1..=63).contains(&text.len()) && text.bytes().all(character) && !matches!(text, "." | "..");
        match text.split_once('/') {
            Some((namespace, name)) if segment(namespace) && segment(name) => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(BadId {
                what: "the name of a workload",
                rule: "NAMESPACE/NAME, each 1 to 63 of [a-zA-Z0-9._-] and neither `.` nor `..`",
            }),
        }
    }
}

impl Serialize for WorkloadName {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WorkloadName {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// What a node finds out about a process. As text everywhere: `unix:uid:1000`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadSelector {
    /// `unix:uid:1000`.
    UnixUid(u32),
    /// `unix:gid:1000`: its group, or one of its supplementary groups.
    UnixGid(u32),
    /// `systemd:unit:nginx.service`.
    SystemdUnit(String),
    /// `unix:path:/usr/sbin/nginx`: its executable.
    UnixPath(String),
}

impl fmt::Display for WorkloadSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkloadSelector::UnixUid(uid) => write!(f, "unix:uid:{uid}"),
            WorkloadSelector::UnixGid(gid) => write!(f, "unix:gid:{gid}"),
            WorkloadSelector::SystemdUnit(unit) => write!(f, "systemd:unit:{unit}"),
            WorkloadSelector::UnixPath(path) => write!(f, "unix:path:{path}"),
        }
    }
}

/// Digits only: `+1` and `01` would be a second text of the same number.
fn id_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id: &u32| id.to_string() == text)
}

impl FromStr for WorkloadSelector {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        const FORMS: &str = "unix:uid:NUMBER, unix:gid:NUMBER, systemd:unit:NAME or unix:path:PATH";
        let bad = |rule| BadId { what: "a selector", rule };
        let number = |digits| id_number(digits).ok_or_else(|| bad("unix:uid: or unix:gid: and a number below 2^32"));
        if let Some(uid) = text.strip_prefix("unix:uid:") {
            number(uid).map(Self::UnixUid)
        } else if let Some(gid) = text.strip_prefix("unix:gid:") {
            number(gid).map(Self::UnixGid)
        } else if let Some(unit) = text.strip_prefix("systemd:unit:") {
            let character = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b':' | b'_' | b'.' | b'\\' | b'@' | b'-');
            let legal = (1..=MAX_SELECTOR_UNIT).contains(&unit.len()) && unit.bytes().all(character);
            let legal = legal.then(|| Self::SystemdUnit(unit.to_owned()));
            legal.ok_or_else(|| bad("systemd:unit: and up to 255 of [a-zA-Z0-9:_.\\@-]"))
        } else if let Some(path) = text.strip_prefix("unix:path:") {
            let legal = path.starts_with('/') && check_text("a path", path, MAX_SELECTOR_PATH).is_ok();
            let legal = legal.then(|| Self::UnixPath(path.to_owned()));
            legal.ok_or_else(|| bad("unix:path: and an absolute path of up to 1024 bytes, without control characters"))
        } else {
            Err(bad(FORMS))
        }
    }
}

impl Serialize for WorkloadSelector {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WorkloadSelector {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Which processes are a workload, on which nodes, and what its certificates say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadEntry {
    pub name: WorkloadName,
    /// A process must match all of them. Never empty.
    pub selectors: BTreeSet<WorkloadSelector>,
    /// A node must have all of these labels, given by the operator: a machine chooses those that it reports. Empty: every node.
    pub node_labels: BTreeMap<String, String>,
    /// The lifetime of a certificate.
    pub ttl: Duration,
    /// Names that its certificates carry beside the SPIFFE ID.
    pub dns: Vec<String>,
    /// Informs a process with several identities what this one is for.
    pub hint: Option<String>,
    /// It may have JWTs, too.
    pub jwt: bool,
    /// Set at apply time, and kept when the entry is changed.
    pub created_by: String,
    /// Set at apply time.
    pub revision: Revision,
}

impl WorkloadEntry {
    /// An entry with these selectors, for every node, and otherwise as if nothing was asked for.
    pub fn new(name: WorkloadName, selectors: impl IntoIterator<Item = WorkloadSelector>) -> Self {
        Self {
            name,
            selectors: selectors.into_iter().collect(),
            node_labels: BTreeMap::new(),
            ttl: DEFAULT_WORKLOAD_TTL,
            dns: Vec::new(),
            hint: None,
            jwt: false,
            created_by: String::new(),
            revision: Revision(0),
        }
    }
    /// Whether it applies to a node to which the operator gave these labels.
    pub fn applies_to(&self, labels: &BTreeMap<String, String>) -> bool {
        self.node_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
    /// Whether both are equal apart from who wrote them and when.
    pub fn same_content(&self, other: &Self) -> bool {
        let plain = |entry: &Self| Self { created_by: String::new(), revision: Revision(0), ..entry.clone() };
        plain(self) == plain(other)
    }
    /// Rejects an entry that no cluster may have. Its name and its selectors are legal already, each by itself.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        if self.selectors.is_empty() {
            return Err("a workload needs a selector: without one, every process would be this workload".to_owned());
        }
        at_most("selectors", self.selectors.len(), MAX_WORKLOAD_SELECTORS)?;
        if !(MIN_WORKLOAD_TTL..=MAX_WORKLOAD_TTL).contains(&self.ttl) {
            return Err("the lifetime of a workload's certificates must be 5 minutes to 24 hours".to_owned());
        }
        check_labels(&self.node_labels)?;
        at_most("DNS names", self.dns.len(), MAX_WORKLOAD_DNS)?;
        for (n, dns) in self.dns.iter().enumerate() {
            if !is_dns_subdomain(dns) {
                return Err(format!("DNS name {}: must be at most 253 of {}", n + 1, super::DNS_SUBDOMAIN));
            }
            if is_reserved(dns) {
                return Err(format!(
                    "the DNS name {dns} is one of the nodes' own: a workload must not pass for a node"
                ));
            }
            if self.dns[..n].contains(dns) {
                return Err(format!("the DNS name {dns} is given twice"));
            }
        }
        if let Some(hint) = &self.hint {
            check_text("the hint", hint, MAX_WORKLOAD_HINT)?;
            if hint.is_empty() {
                return Err("the hint is empty".to_owned());
            }
        }
        at_most("bytes of text", self.text_bytes(), MAX_WORKLOAD_BYTES)
    }
    /// At least as many bytes as it takes in a frame.
    pub fn encoded_bytes(&self) -> usize {
        /// Lengths and numbers: 3 bytes for each text, 10 for each number.
        const OVERHEAD: usize = 512;
        let dns_and_labels = 3 * (self.dns.len() + 2 * self.node_labels.len());
        let (namespace, name) = (self.name.namespace().len(), self.name.name().len());
        self.text_bytes() + namespace + name + self.created_by.len() + dns_and_labels + OVERHEAD
    }
    fn text_bytes(&self) -> usize {
        let selectors = self.selectors.iter().map(|selector| selector.to_string().len());
        let labels = self.node_labels.iter().map(|(key, value)| key.len() + value.len());
        let dns = self.dns.iter().map(String::len);
        selectors.chain(labels).chain(dns).chain(self.hint.iter().map(String::len)).sum()
    }
}

/// Names in the certificates of nodes, and texts of addresses, which some clients compare with an address.
fn is_reserved(dns: &str) -> bool {
    let is_local = dns == "localhost" || dns.ends_with(".localhost");
    dns == MANAGER_NAME || is_local || dns.parse::<NodeId>().is_ok() || dns.parse::<std::net::IpAddr>().is_ok()
}

fn at_most(what: &str, count: usize, limit: usize) -> Result<(), String> {
    if count > limit { Err(format!("a workload with {count} {what}, the limit is {limit}")) } else { Ok(()) }
}

/// The workloads of a cluster. Empty until the first one is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workloads {
    pub entries: OrdMap<WorkloadName, Arc<WorkloadEntry>>,
    /// The revision of the last change. 0: there never was a workload.
    pub changed: Revision,
    /// The end of the last certificate that may have been signed for an entry that is deleted, or has a shorter lifetime now.
    pub former_until: WallTime,
}

/// A change of the workloads. From [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkloadChange {
    /// Writes an entry. The same one again: no change, no new revision.
    Set(WorkloadEntry),
    /// Deletes an entry. Refused as `NotFound` without such an entry.
    Remove(WorkloadName),
}

/// Why a change of the workloads is refused, besides `NotFound`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum WorkloadRefusal {
    #[error("the cluster has {MAX_WORKLOADS} workloads already, which is the limit")]
    TooMany,
    #[error("{0}")]
    Malformed(String),
}

/// What a node's agent knows of workloads: a watched value. It is complete, and kept while the node has no session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadView {
    pub cluster: ClusterId,
    /// Those that apply to this node, by name.
    pub entries: Arc<Vec<WorkloadEntry>>,
    /// The certificates of the roots that this node trusts, PEM, one each.
    pub bundle: Arc<Vec<String>>,
    /// Grows with each change, for as long as this process lives. 0: nothing was received from the cluster yet.
    pub generation: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> WorkloadName {
        text.parse().unwrap()
    }

    #[test]
    fn workload_names_are_two_segments_of_a_spiffe_path() {
        let cluster = ClusterId::from_entropy(7);
        let id = name("Shop/web_1.a-b").spiffe_id(cluster);
        assert_eq!(id, format!("spiffe://{cluster}/workload/Shop/web_1.a-b"));
        let long = format!("a/{}", "b".repeat(64));
        for bad in ["", "a", "a/", "/b", "a/b/c", "./b", "a/..", "a/b%2f", "a/b c", "a/\u{fc}", "a//b", &long] {
            assert!(bad.parse::<WorkloadName>().is_err(), "{bad:?}");
        }
        let json = serde_json::to_string(&name("a/b")).unwrap();
        assert_eq!((json.as_str(), serde_json::from_str::<WorkloadName>(&json).unwrap()), ("\"a/b\"", name("a/b")));
    }

    #[test]
    fn selectors_round_trip_as_text() {
        for text in ["unix:uid:0", "unix:gid:4294967295", "systemd:unit:a@b\\x2d.service", "unix:path:/usr/bin/a b"] {
            let selector: WorkloadSelector = text.parse().unwrap();
            assert_eq!(selector.to_string(), text);
            let bytes = crate::wire::encode(&selector).unwrap();
            assert_eq!(crate::wire::decode::<WorkloadSelector>(&bytes), Ok(selector));
        }
        let (unit, path) = ("x".repeat(256), "y".repeat(1024));
        for bad in [
            "",
            "unix:uid:",
            "unix:uid:-1",
            "unix:uid:+1",
            "unix:uid:01",
            "unix:uid:4294967296",
            "unix:user:root",
            "systemd:unit:",
            "systemd:unit:a/b",
            "unix:path:bin/a",
            "unix:path:/a\nb",
            &format!("systemd:unit:{unit}"),
            &format!("unix:path:/{path}"),
        ] {
            assert!(bad.parse::<WorkloadSelector>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn workload_entries_are_bounded_in_everything() {
        let good = WorkloadEntry::new(name("a/b"), [WorkloadSelector::UnixUid(1000)]);
        assert_eq!(good.check(), Ok(()));
        let paths = (0..4).map(|n| WorkloadSelector::UnixPath(format!("/{}{n}", "p".repeat(1020))));
        let labels: BTreeMap<String, String> = (0..65).map(|n| (n.to_string(), String::new())).collect();
        let second = Duration::from_secs(1);
        for bad in [
            WorkloadEntry::new(name("a/b"), []),
            WorkloadEntry::new(name("a/b"), (0..17).map(WorkloadSelector::UnixGid)),
            WorkloadEntry::new(name("a/b"), paths),
            WorkloadEntry { ttl: MIN_WORKLOAD_TTL - second, ..good.clone() },
            WorkloadEntry { ttl: MAX_WORKLOAD_TTL + second, ..good.clone() },
            WorkloadEntry { node_labels: labels, ..good.clone() },
            WorkloadEntry { dns: vec!["A.example".to_owned()], ..good.clone() },
            WorkloadEntry { dns: vec!["a.example".to_owned(); 2], ..good.clone() },
            WorkloadEntry { dns: vec![MANAGER_NAME.to_owned()], ..good.clone() },
            WorkloadEntry { dns: vec!["localhost".to_owned()], ..good.clone() },
            WorkloadEntry { dns: vec!["10.0.0.1".to_owned()], ..good.clone() },
            WorkloadEntry { dns: vec![NodeId::from_entropy(7).to_string()], ..good.clone() },
            WorkloadEntry { dns: (0..17).map(|n| format!("n{n}")).collect(), ..good.clone() },
            WorkloadEntry { hint: Some("a\u{1b}[2J".to_owned()), ..good.clone() },
            WorkloadEntry { hint: Some(String::new()), ..good.clone() },
            WorkloadEntry { hint: Some("h".repeat(1025)), ..good.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn jwts_have_an_audience_of_bounded_size() {
        let of = |audiences: &[&str]| audiences.iter().map(|of| (*of).to_owned()).collect::<Vec<_>>();
        assert_eq!(check_jwt_audience(&of(&["spiffe://a/b", "c"])), Ok(()));
        let long = "x".repeat(MAX_JWT_AUDIENCE + 1);
        for bad in [of(&[]), of(&["a", ""]), of(&["a\n"]), of(&[&long]), vec!["a".to_owned(); MAX_JWT_AUDIENCES + 1]] {
            assert!(check_jwt_audience(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn workload_applies_where_all_its_labels_are() {
        let labels = |of: &[(&str, &str)]| of.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut entry = WorkloadEntry::new(name("a/b"), [WorkloadSelector::UnixUid(1)]);
        assert!(entry.applies_to(&BTreeMap::new()));
        entry.node_labels = labels(&[("zone", "a"), ("disk", "")]);
        assert!(entry.applies_to(&labels(&[("zone", "a"), ("disk", ""), ("x", "y")])));
        for other in [&[][..], &[("zone", "a")], &[("zone", "b"), ("disk", "")]] {
            assert!(!entry.applies_to(&labels(other)), "{other:?}");
        }
    }
}
