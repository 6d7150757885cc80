//! Query parameters of requests. Unknown ones are ignored, known ones are validated.

use std::time::Duration;

use crate::resource::Resource;
use crate::select::{FieldSelector, LabelSelector};
use crate::status::{Cause, Status};

/// The longest watch, whatever the client requests: when it reconnects, its rights and its permit are checked again.
const MAX_WATCH_DURATION: Duration = Duration::from_secs(3600);

/// The longest name of a field manager.
const MAX_MANAGER_NAME_BYTES: usize = 128;

/// Parameters as sent. Empty ones (`?&k=v`) are ignored; of repeated ones the first counts.
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    pub(crate) fn parse(query: &str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }
    /// The same, with one more term of the field selector.
    pub(crate) fn selecting(mut self, term: &str) -> Self {
        let terms = self.get("fieldSelector").filter(|terms| !terms.is_empty()).map(|terms| format!("{terms},{term}"));
        self.0.retain(|(key, _)| key != "fieldSelector");
        self.0.push(("fieldSelector".to_owned(), terms.unwrap_or_else(|| term.to_owned())));
        self
    }
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
    fn nonempty(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }
    /// Anything but `0` and `false` is true, `?watch` and `?watch=` included.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        self.get(name).map(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }
    fn seconds(&self, name: &str) -> Result<Option<Duration>, Status> {
        let Some(text) = self.nonempty(name) else {
            return Ok(None);
        };
        let secs: i64 = text.parse().map_err(|_| bad(name, text, "must be a number of seconds"))?;
        Ok(u64::try_from(secs).ok().filter(|secs| *secs > 0).map(Duration::from_secs))
    }
    /// The longest time that the client waits (`?timeout=5s`).
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, Status> {
        let Some(text) = self.nonempty("timeout") else {
            return Ok(None);
        };
        let given = duration(text).ok_or_else(|| bad("timeout", text, "must be a duration such as 5s or 1m30s"))?;
        Ok(Some(given).filter(|given| !given.is_zero()))
    }
    /// All values of a parameter that may be repeated.
    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }
}

fn bad(name: &str, text: &str, rule: &str) -> Status {
    Status::bad_request(format!("{name}={text}: {rule}"))
}

/// Durations as Go writes them: `1h15m30.5s`.
fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit_ends = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_ends);
        let secs = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * secs).ok()?;
        total = total.checked_add(part)?;
        rest = next;
    }
    (!text.is_empty()).then_some(total)
}

/// A resource version as clients name one: opaque to them, decimal here. Empty: none.
pub(crate) fn resource_version(text: &str) -> Option<Option<u64>> {
    match text {
        "" => Some(None),
        text if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok().map(Some),
        _ => None,
    }
}

/// How a list relates to the revision that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    NotOlderThan,
    Exact,
}

/// How much of an object a table's row contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Include {
    #[default]
    Metadata,
    Object,
    None,
}

/// Parameters of get, list, watch, and of deleting a collection.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReadOptions {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
    /// `None`: current. 0: any available state.
    pub resource_version: Option<u64>,
    pub matching: Option<Match>,
    pub watch_duration: Option<Duration>,
    pub bookmarks: bool,
    pub initial_events: Option<bool>,
    pub include: Include,
}

impl ReadOptions {
    pub(crate) fn parse(params: &Params, resource: Resource, watch: bool) -> Result<Self, Status> {
        if params.nonempty("continue").is_some() {
            // This server never splits lists: the token is from another server.
            return Err(Status::new(crate::Reason::Expired, "the continue token is not from this cluster; list again"));
        }
        let version = params.get("resourceVersion").unwrap_or_default();
        let resource_version =
            resource_version(version).ok_or_else(|| bad("resourceVersion", version, "must be a revision"))?;
        let options = Self {
            labels: LabelSelector::parse(params.get("labelSelector").unwrap_or_default())?,
            fields: FieldSelector::parse(params.get("fieldSelector").unwrap_or_default(), resource)?,
            resource_version,
            matching: None,
            watch_duration: params.seconds("timeoutSeconds")?.map(|asked| asked.min(MAX_WATCH_DURATION)),
            bookmarks: watch && params.flag("allowWatchBookmarks").unwrap_or(false),
            initial_events: params.flag("sendInitialEvents"),
            include: match params.nonempty("includeObject") {
                None | Some("Metadata") => Include::Metadata,
                Some("Object") => Include::Object,
                Some("None") => Include::None,
                Some(other) => return Err(bad("includeObject", other, "must be None, Metadata or Object")),
            },
        };
        options.validated(params.nonempty("resourceVersionMatch"), watch)
    }

    /// The rules on requesting initial events: honoured or refused, because an ignored client would wait forever.
    fn validated(mut self, matching: Option<&str>, watch: bool) -> Result<Self, Status> {
        const FIELD: &str = "resourceVersionMatch";
        let mut causes = Vec::new();
        let supported: &[&str] = if watch { &["NotOlderThan"] } else { &["Exact", "NotOlderThan"] };
        self.matching = match matching {
            None => None,
            Some("NotOlderThan") => Some(Match::NotOlderThan),
            Some("Exact") if !watch => Some(Match::Exact),
            Some(other) => {
                causes.push(Cause::unsupported(FIELD, other, supported));
                None
            }
        };
        if watch {
            if matching.is_some() && self.initial_events.is_none() {
                causes.push(Cause::forbidden(FIELD, "a watch allows it only with sendInitialEvents"));
            }
            if self.initial_events.is_some() && self.matching != Some(Match::NotOlderThan) {
                causes.push(Cause::forbidden(FIELD, "sendInitialEvents requires resourceVersionMatch=NotOlderThan"));
            }
        } else {
            if self.initial_events.is_some() {
                causes.push(Cause::forbidden("sendInitialEvents", "a list has no initial events"));
            }
            if matching.is_some() && self.resource_version.is_none() {
                causes.push(Cause::forbidden(FIELD, "it requires a resourceVersion to match"));
            }
            if self.matching == Some(Match::Exact) && self.resource_version == Some(0) {
                causes.push(Cause::forbidden(FIELD, "an exact list at resourceVersion 0 does not exist"));
            }
        }
        if causes.is_empty() { Ok(self) } else { Err(Status::invalid_options("ListOptions", causes)) }
    }
}

/// How fields unknown to the kind are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UnknownFields {
    #[default]
    Drop,
    Warn,
    Refuse,
}

/// Parameters of writes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WriteOptions {
    pub dry_run: bool,
    pub manager: Option<String>,
    pub force: bool,
    pub unknown: UnknownFields,
}

impl WriteOptions {
    /// `kind` as Kubernetes names these parameters: `UpdateOptions`.
    pub(crate) fn parse(params: &Params, kind: &'static str, apply: bool) -> Result<Self, Status> {
        let mut causes = Vec::new();
        let dry_run = dry_run(params.all("dryRun"), &mut causes);
        let manager = params.nonempty("fieldManager").map(str::to_owned);
        match &manager {
            Some(name) if name.chars().count() > MAX_MANAGER_NAME_BYTES || name.chars().any(|c| c.is_control()) => {
                let rule = "must be at most 128 printable characters";
                causes.push(Cause::invalid("fieldManager", name.as_str(), rule));
            }
            None if apply => causes.push(Cause::required("fieldManager", "an apply requires a manager name")),
            _ => {}
        }
        let force = params.flag("force");
        if force.is_some() && !apply && kind == "PatchOptions" {
            causes.push(Cause::forbidden("force", "only an apply can be forced"));
        }
        let unknown = match params.nonempty("fieldValidation") {
            None | Some("Ignore") => UnknownFields::Drop,
            Some("Warn") => UnknownFields::Warn,
            Some("Strict") => UnknownFields::Refuse,
            Some(other) => {
                causes.push(Cause::unsupported("fieldValidation", other, &["Ignore", "Strict", "Warn"]));
                UnknownFields::Drop
            }
        };
        if !causes.is_empty() {
            return Err(Status::invalid_options(kind, causes));
        }
        Ok(Self { dry_run, manager, force: force.unwrap_or(false), unknown })
    }
}

/// `All` is the only supported stage.
pub(crate) fn dry_run<'a>(stages: impl Iterator<Item = &'a str>, causes: &mut Vec<Cause>) -> bool {
    let mut asked = false;
    for stage in stages {
        if stage != "All" {
            causes.push(Cause::unsupported("dryRun", stage, &["All"]));
        }
        asked = true;
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::SERVED;

    fn read(query: &str, watch: bool) -> Result<ReadOptions, Status> {
        ReadOptions::parse(&Params::parse(query), SERVED[0], watch)
    }

    #[test]
    fn unusual_query_spellings_are_accepted() {
        for query in ["watch=true", "&watch=true", "&watch=1&", "watch", "watch=", "pretty=True&watch=yes&nonsense=1"] {
            assert_eq!(Params::parse(query).flag("watch"), Some(true), "{query}");
        }
        for query in ["watch=0", "watch=False"] {
            assert_eq!(Params::parse(query).flag("watch"), Some(false), "{query}");
        }
        assert_eq!(Params::parse("").flag("watch"), None);
    }

    #[test]
    fn go_durations_are_parsed() {
        let of = |text: &str| duration(text).map(|d| d.as_millis());
        assert_eq!(of("5s"), Some(5_000));
        assert_eq!(of("1m0s"), Some(60_000));
        assert_eq!(of("1h2m3.5s"), Some(3_723_500));
        assert_eq!(of("150ms"), Some(150));
        assert_eq!(of("0"), Some(0));
        for bad in ["", "5", "s", "5x", "-5s", "1..5s", "99999999999999999999999h"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn initial_events_are_honoured_or_refused() {
        assert!(read("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", true).is_ok());
        for (query, watch, field) in [
            ("sendInitialEvents=true", true, "resourceVersionMatch"),
            ("sendInitialEvents=false", true, "resourceVersionMatch"),
            ("sendInitialEvents=true&resourceVersionMatch=Exact", true, "resourceVersionMatch"),
            ("resourceVersionMatch=NotOlderThan", true, "resourceVersionMatch"),
            ("sendInitialEvents=true", false, "sendInitialEvents"),
            ("resourceVersionMatch=Exact", false, "resourceVersionMatch"),
            ("resourceVersionMatch=Exact&resourceVersion=0", false, "resourceVersionMatch"),
            ("resourceVersionMatch=Newest&resourceVersion=5", false, "resourceVersionMatch"),
        ] {
            let status = read(query, watch).unwrap_err();
            assert_eq!((status.reason.code(), status.causes()[0].field.as_str()), (422, field), "{query}");
        }
    }

    #[test]
    fn invalid_write_parameters_are_refused() {
        for query in [
            "resourceVersion=abc",
            "resourceVersion=-1",
            "timeoutSeconds=soon",
            "labelSelector=%3D",
            "fieldSelector=spec.x%3D1",
        ] {
            assert_eq!(read(query, false).unwrap_err().reason.code(), 400, "{query}");
        }
        assert_eq!(read("continue=abc", false).unwrap_err().reason.code(), 410);
        let write = |query: &str, apply| WriteOptions::parse(&Params::parse(query), "PatchOptions", apply);
        assert_eq!(write("", true).unwrap_err().causes()[0].field, "fieldManager");
        assert_eq!(write("force=true", false).unwrap_err().causes()[0].field, "force");
        assert_eq!(write("dryRun=Some", false).unwrap_err().causes()[0].field, "dryRun");
        assert_eq!(write("fieldValidation=Loose", false).unwrap_err().causes()[0].field, "fieldValidation");
        let long = format!("fieldManager={}", "x".repeat(129));
        assert_eq!(write(&long, true).unwrap_err().causes()[0].field, "fieldManager");
        assert!(write("dryRun=All", false).unwrap().dry_run);
    }
}
