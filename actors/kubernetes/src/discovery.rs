//! Documents that need no state: what is served, the release, liveness.
//!
//! Plain lists only. Clients that prefer one aggregated document fall back to them.

use muster_messages::wire::KubeAnswer;
use serde_json::{Value, json};

use crate::answer::json_answer;
use crate::events;
use crate::negotiate;
use crate::openapi::OpenApi;
use crate::resource::{COORDINATION, Resource, SERVED};
use crate::route::Ask;
use crate::status::Status;

/// The Kubernetes release whose API this subset implements.
const KUBERNETES: (&str, &str) = ("1", "33");

/// Groups in listing order, with versions, the preferred one first. The core group is separate.
const GROUPS: [(&str, &[&str]); 4] = [
    (COORDINATION, &["v1", "v1beta1", "v1alpha2"]),
    ("authentication.k8s.io", &["v1"]),
    ("authorization.k8s.io", &["v1"]),
    ("events.k8s.io", &["v1"]),
];

/// A document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Document {
    Health,
    Version,
    /// `/`: the paths where discovery starts.
    Paths,
    /// `/api`: versions of the core group.
    Core,
    /// `/apis`.
    Groups,
    Group(&'static str),
    Resources(&'static str, &'static str),
    /// Answered by [`crate::openapi`].
    OpenApi(OpenApi),
}

impl Document {
    pub(crate) fn at(parts: &[&str]) -> Option<Self> {
        let group = |name: &str| GROUPS.into_iter().find(|(group, _)| *group == name);
        if let Some(document) = OpenApi::at(parts) {
            return Some(Self::OpenApi(document));
        }
        match parts {
            [""] => Some(Self::Paths),
            ["healthz" | "livez" | "readyz"] => Some(Self::Health),
            ["version"] => Some(Self::Version),
            ["api"] => Some(Self::Core),
            ["apis"] => Some(Self::Groups),
            ["apis", name] => group(name).map(|(group, _)| Self::Group(group)),
            ["api", "v1"] => Some(Self::Resources("", "v1")),
            ["apis", name, version] => {
                let (group, versions) = group(name)?;
                versions.iter().find(|v| *v == version).map(|version| Self::Resources(group, version))
            }
            _ => None,
        }
    }
    /// Whether it needs no identity.
    pub(crate) fn is_public(&self) -> bool {
        matches!(self, Self::Health | Self::Version)
    }
    /// The form that the client accepts. Probes are text in any case.
    pub(crate) fn accepted(self, accept: Option<&str>) -> Result<Self, Status> {
        match self {
            Self::Health => Ok(self),
            Self::OpenApi(document) => document.accepted(accept).map(Self::OpenApi),
            _ => negotiate::format(accept).map(|_| self),
        }
    }
}

/// Answers a request for a document. `release` is this node's own.
pub fn document(ask: &Ask, release: &str) -> KubeAnswer {
    let body = match ask.document {
        None => return Status::no_such_path().into(),
        Some(Document::Health) => {
            return KubeAnswer { status: 200, retry_after_s: None, warnings: vec![], body: "ok".to_owned() };
        }
        Some(Document::Version) => version(release),
        Some(Document::Paths) => json!({"paths": paths()}),
        // The API actor calls `openapi` first.
        Some(Document::OpenApi(_)) => return Status::no_such_path().into(),
        Some(Document::Core) => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        Some(Document::Groups) => {
            let groups: Vec<Value> = GROUPS.iter().map(|(name, versions)| group(name, versions)).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        Some(Document::Group(name)) => {
            let versions = GROUPS.iter().find(|(group, _)| *group == name).map_or(&[][..], |(_, versions)| versions);
            let mut group = group(name, versions);
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            group
        }
        Some(Document::Resources(group, version)) => resources(group, version),
    };
    json_answer(200, &body)
}

fn version(release: &str) -> Value {
    let (major, minor) = KUBERNETES;
    json!({
        "major": major, "minor": minor, "gitVersion": format!("v{major}.{minor}.0+muster-{release}"), "gitCommit": "",
        "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// Where discovery begins.
fn paths() -> Vec<String> {
    let fixed = ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"];
    let groups = GROUPS.iter().flat_map(|(name, versions)| {
        let versions = versions.iter().map(move |version| format!("/apis/{name}/{version}"));
        std::iter::once(format!("/apis/{name}")).chain(versions)
    });
    fixed.into_iter().map(str::to_owned).chain(groups).collect()
}

fn group(name: &str, versions: &[&str]) -> Value {
    let version = |version: &&str| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let versions: Vec<Value> = versions.iter().map(version).collect();
    json!({"name": name, "preferredVersion": versions.first(), "versions": versions})
}

fn resources(group: &str, version: &str) -> Value {
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let served = SERVED.into_iter().filter(|r| r.group == group && r.version == version).map(resource);
    let review = |name: &str, singular: &str, kind: &str| json!({"name": name, "singularName": singular, "namespaced": false, "kind": kind, "verbs": ["create"]});
    let events = json!({"name": events::PLURAL, "singularName": "event", "namespaced": true, "kind": "Event",
                        "shortNames": ["ev"], "verbs": events::VERBS});
    let events = events::GROUPS.contains(&group).then_some(events);
    let reviews = match group {
        "authentication.k8s.io" => vec![review("selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview")],
        "authorization.k8s.io" => {
            vec![
                review("selfsubjectaccessreviews", "selfsubjectaccessreview", "SelfSubjectAccessReview"),
                review("selfsubjectrulesreviews", "selfsubjectrulesreview", "SelfSubjectRulesReview"),
            ]
        }
        _ => vec![],
    };
    let resources: Vec<Value> = served.chain(events).chain(reviews).collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
}

fn resource(resource: Resource) -> Value {
    let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    let mut json = json!({
        "name": resource.plural(), "singularName": resource.singular(), "namespaced": true,
        "kind": resource.kind_name(), "verbs": verbs,
    });
    if !resource.short_names().is_empty() {
        json["shortNames"] = resource.short_names().into();
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{Head, route};

    fn get(target: &str) -> Value {
        let ask = route(Head { method: "GET", target, ..Head::default() }).unwrap();
        let answer = document(&ask, "0.1.0");
        assert_eq!(answer.status, 200, "{target}");
        serde_json::from_str(&answer.body).unwrap()
    }

    #[test]
    fn kubectl_discovers_the_resources() {
        assert_eq!(get("/api?timeout=32s")["versions"], json!(["v1"]));
        let groups = get("/apis?timeout=32s");
        assert_eq!(groups["groups"][0]["preferredVersion"]["groupVersion"], "coordination.k8s.io/v1");
        let group = get("/apis/coordination.k8s.io/");
        assert_eq!((&group["kind"], &group["versions"][1]["version"]), (&json!("APIGroup"), &json!("v1beta1")));
        // Every advertised version has a list, and no list is empty: an empty one breaks `api-resources`.
        let mut lists = vec!["/api/v1".to_owned()];
        for group in groups["groups"].as_array().unwrap() {
            let versions = group["versions"].as_array().unwrap();
            lists.extend(versions.iter().map(|v| format!("/apis/{}", v["groupVersion"].as_str().unwrap())));
        }
        assert_eq!(lists.len(), 7);
        for path in lists {
            let list = get(&path);
            assert_eq!(list["kind"], "APIResourceList");
            assert!(path.ends_with(list["groupVersion"].as_str().unwrap()));
            assert!(!list["resources"].as_array().unwrap().is_empty(), "{path}");
        }
        let leases = get("/apis/coordination.k8s.io/v1");
        let lease = &leases["resources"][0];
        assert_eq!(
            (&lease["name"], &lease["kind"], &lease["namespaced"]),
            (&json!("leases"), &json!("Lease"), &json!(true))
        );
    }

    #[test]
    fn probes_and_versions_are_public() {
        for target in ["/healthz", "/livez", "/readyz?verbose"] {
            let ask = route(Head { method: "GET", target, accept: Some("text/html"), ..Head::default() }).unwrap();
            assert!(ask.is_public());
            assert_eq!(document(&ask, "0.1.0").body, "ok");
        }
        assert_eq!(get("/version")["gitVersion"], "v1.33.0+muster-0.1.0");
        assert!(!route(Head { method: "GET", target: "/apis", ..Head::default() }).unwrap().is_public());
    }
}
