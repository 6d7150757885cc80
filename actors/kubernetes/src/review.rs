//! Self reviews: identity and permissions of the caller.

use muster_messages::wire::KubeAnswer;
use serde::Deserialize;
use serde_json::json;

use crate::answer::json_answer;
use crate::body;
use crate::events;
use crate::resource::{COORDINATION, Resource, SERVED};
use crate::route::{Ask, Verb};
use crate::status::Status;

/// Answers a `SelfSubjectReview`.
pub fn self_review(user: &str, groups: &[String]) -> KubeAnswer {
    json_answer(
        201,
        &json!({
            "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
            "status": {"userInfo": {"username": user, "groups": groups}},
        }),
    )
}

/// The question of a `SelfSubjectAccessReview`: may the caller do this? Texts as the client wrote them; `*` means any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AccessQuestion {
    /// As [`crate::Verb`] spells them, or anything else.
    pub verb: String,
    pub group: String,
    /// The plural; empty if the question is about [`AccessQuestion::path`].
    pub resource: String,
    pub subresource: String,
    /// Empty: all namespaces.
    pub namespace: String,
    /// Empty: any object.
    pub name: String,
    /// For questions that are not about a resource.
    pub path: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    resource_attributes: Option<AccessQuestion>,
    non_resource_attributes: Option<AccessQuestion>,
}

/// Reads the body of a `SelfSubjectAccessReview`.
pub fn access_review(ask: &Ask, body: &[u8]) -> Result<AccessQuestion, Status> {
    let mut review = body::read(ask.encoding, body, "SelfSubjectAccessReview")?;
    let spec = review.get_mut("spec").map(serde_json::Value::take).unwrap_or_default();
    let spec: Option<Spec> =
        serde_json::from_value(spec).map_err(|error| Status::bad_request(format!("spec is invalid: {error}")))?;
    let spec = spec.unwrap_or_default();
    let question = spec.resource_attributes.or(spec.non_resource_attributes);
    question.ok_or_else(|| Status::bad_request("spec names neither a resource nor a path"))
}

impl AccessQuestion {
    /// Whether the operation exists here at all.
    pub fn is_served(&self) -> bool {
        let known = |verb: &str| VERBS.iter().any(|known| known.to_string() == verb);
        let resource = |r: &Resource| {
            (self.group == "*" || self.group == r.group) && (self.resource == "*" || self.resource == r.plural())
        };
        let event = events::GROUPS.contains(&self.group.as_str())
            && self.resource == events::PLURAL
            && events::VERBS.contains(&self.verb.as_str());
        let served = (self.verb == "*" || known(&self.verb)) && SERVED.iter().any(resource);
        self.subresource.is_empty() && (served || event)
    }
}

/// The operations on objects.
const VERBS: [Verb; 8] =
    [Verb::Get, Verb::List, Verb::Watch, Verb::Create, Verb::Update, Verb::Patch, Verb::Delete, Verb::DeleteCollection];

/// Answers a `SelfSubjectAccessReview`.
pub fn access_answer(question: &AccessQuestion, allowed: bool, reason: &str) -> KubeAnswer {
    let AccessQuestion { verb, group, resource, subresource, namespace, name, path } = question;
    let spec = if path.is_empty() {
        json!({"resourceAttributes": {"verb": verb, "group": group, "resource": resource, "subresource": subresource,
                                       "namespace": namespace, "name": name}})
    } else {
        json!({"nonResourceAttributes": {"verb": verb, "path": path}})
    };
    let review = json!({
        "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": spec,
        "status": {"allowed": allowed, "reason": reason},
    });
    json_answer(201, &review)
}

/// The namespace of a `SelfSubjectRulesReview`.
pub fn rules_review(ask: &Ask, body: &[u8]) -> Result<String, Status> {
    let review = body::read(ask.encoding, body, "SelfSubjectRulesReview")?;
    let namespace = review.pointer("/spec/namespace").and_then(serde_json::Value::as_str).unwrap_or_default();
    if namespace.is_empty() { Err(Status::bad_request("no namespace on request")) } else { Ok(namespace.to_owned()) }
}

/// What a caller may do with everything in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    None,
    Read,
    All,
}

/// Answers a `SelfSubjectRulesReview`.
pub fn rules_answer(rules: Rules) -> KubeAnswer {
    let allowed = |verb: &String| {
        rules == Rules::All || rules == Rules::Read && matches!(verb.as_str(), "get" | "list" | "watch")
    };
    let rule = |verbs: &[String], group: &str, resources: &[&str]| json!({"verbs": verbs, "apiGroups": [group], "resources": resources});
    let create = ["create".to_owned()];
    let mut listed = vec![
        rule(&create, "authentication.k8s.io", &["selfsubjectreviews"]),
        rule(&create, "authorization.k8s.io", &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
    ];
    if rules != Rules::None {
        let verbs: Vec<String> = VERBS.map(|verb| verb.to_string()).into_iter().filter(allowed).collect();
        let of_events: Vec<String> = events::VERBS.map(str::to_owned).into_iter().filter(allowed).collect();
        let plurals = |group: &str| {
            let mut plurals: Vec<&str> = SERVED.iter().filter(|r| r.group == group).map(|r| r.plural()).collect();
            plurals.dedup();
            plurals
        };
        listed.extend([COORDINATION, ""].map(|group| rule(&verbs, group, &plurals(group))));
        listed.extend(events::GROUPS.map(|group| rule(&of_events, group, &[events::PLURAL])));
    }
    let urls = ["/", "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi/*", "/readyz", "/version"];
    let review = json!({
        "kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": {},
        "status": {"resourceRules": listed, "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": urls}],
                   "incomplete": false},
    });
    json_answer(201, &review)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{Head, Takes, route};
    use serde_json::Value;

    #[test]
    fn self_reviews_report_permissions() {
        let target = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let ask = route(Head { method: "POST", target, ..Head::default() }).unwrap();
        assert_eq!((ask.takes, ask.is_write()), (Takes::Authorization, false));
        let body = json!({"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes":
            {"verb": "update", "group": "coordination.k8s.io", "resource": "leases", "namespace": "ns"}}});
        let question = access_review(&ask, body.to_string().as_bytes()).unwrap();
        assert_eq!(
            (question.verb.as_str(), question.resource.as_str(), question.namespace.as_str()),
            ("update", "leases", "ns")
        );
        assert!(question.is_served());
        let other = |edit: fn(&mut AccessQuestion)| {
            let mut other = question.clone();
            edit(&mut other);
            other.is_served()
        };
        assert!(other(|q| q.verb = "*".into()) && other(|q| (q.group, q.resource) = ("*".into(), "*".into())));
        assert!(other(|q| (q.group, q.resource) = (String::new(), "configmaps".into())));
        assert!(!other(|q| q.resource = "pods".into()) && !other(|q| q.group = "apps".into()));
        assert!(!other(|q| q.verb = "impersonate".into()) && !other(|q| q.subresource = "status".into()));
        let answer: Value = serde_json::from_str(&access_answer(&question, true, "because").body).unwrap();
        assert_eq!(answer["status"], json!({"allowed": true, "reason": "because"}));

        let body = json!({"spec": {"nonResourceAttributes": {"verb": "get", "path": "/version"}}});
        assert_eq!(access_review(&ask, body.to_string().as_bytes()).unwrap().path, "/version");
        for bad in ["{}", "{\"spec\": {}}", "{\"spec\": 1}", "[]", ""] {
            assert_eq!(access_review(&ask, bad.as_bytes()).unwrap_err().reason.code(), 400, "{bad}");
        }
        // A read-only caller may ask for its rules as well, and gets no verb that writes.
        let rules = |rules| -> Value { serde_json::from_str(&rules_answer(rules).body).unwrap() };
        for (may, leases, events) in [
            (Rules::Read, json!(["get", "list", "watch"]), json!(["get", "list"])),
            (Rules::All, json!(VERBS.map(|verb| verb.to_string())), json!(events::VERBS)),
        ] {
            let listed = rules(may)["status"]["resourceRules"].as_array().cloned().unwrap();
            let of = |resource: &str| -> Value {
                let found = listed.iter().find(|rule| rule["resources"].as_array().unwrap().contains(&json!(resource)));
                found.map_or(Value::Null, |rule| rule["verbs"].clone())
            };
            assert_eq!((of("leases"), of("events")), (leases, events), "{may:?}");
        }
        assert_eq!(rules(Rules::None)["status"]["resourceRules"].as_array().unwrap().len(), 2);
        let me: Value = serde_json::from_str(&self_review("ann", &["g".to_owned()]).body).unwrap();
        assert_eq!(me["status"]["userInfo"], json!({"username": "ann", "groups": ["g"]}));
    }
}
