//! Field selectors: `metadata.name=x,metadata.namespace!=y`, and `spec.leaseName` of candidates.

use muster_messages::{Object, ObjectKind};

use super::MAX_TERMS;
use crate::resource::Resource;
use crate::status::Status;

/// All of its terms must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSelector(Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    field: Field,
    equal: bool,
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
    LeaseName,
}

impl FieldSelector {
    pub(crate) fn parse(text: &str, resource: Resource) -> Result<Self, Status> {
        let terms: Vec<&str> = split(text).into_iter().filter(|term| !term.is_empty()).collect();
        if terms.len() > MAX_TERMS {
            return Err(Status::bad_request(format!("a field selector has at most {MAX_TERMS} terms")));
        }
        terms.into_iter().map(|term| Term::parse(term, resource)).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.0.iter().all(|term| {
            let found = match term.field {
                Field::Name => Some(&object.name),
                Field::Namespace => Some(&object.namespace),
                Field::LeaseName => object.candidate().map(|spec| &spec.lease_name),
            };
            (found == Some(&term.value)) == term.equal
        })
    }
}

/// Commas separate terms unless escaped.
fn split(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        if c == ',' && !escaped {
            terms.push(&text[start..at]);
            start = at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    terms.push(&text[start..]);
    terms
}

impl Term {
    fn parse(term: &str, resource: Resource) -> Result<Self, Status> {
        let bad = |why: &str| Status::bad_request(format!("unable to parse the field selector {term:?}: {why}"));
        let at = term.find(['=', '!']).ok_or_else(|| bad("expected field=value"))?;
        let (field, rest) = term.split_at(at);
        let operators = [("==", true), ("!=", false), ("=", true)];
        let found = operators.into_iter().find_map(|(sign, equal)| Some((equal, rest.strip_prefix(sign)?)));
        let (equal, value) = found.ok_or_else(|| bad("expected =, == or !="))?;
        let field = match field.trim() {
            "metadata.name" => Field::Name,
            "metadata.namespace" => Field::Namespace,
            "spec.leaseName" if resource.kind == ObjectKind::LeaseCandidate => Field::LeaseName,
            other => {
                let kind = resource.kind_name();
                return Err(Status::bad_request(format!("{kind} cannot be selected by the field {other:?}")));
            }
        };
        let value =
            unescape(value).ok_or_else(|| bad("a backslash must escape a comma, an equals sign or a backslash"))?;
        Ok(Self { field, equal, value })
    }
}

fn unescape(value: &str) -> Option<String> {
    let (mut plain, mut chars) = (String::new(), value.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => plain.push(chars.next().filter(|c| "\\,=".contains(*c))?),
            '=' => return None,
            c => plain.push(c),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::SERVED;
    use muster_messages::{CandidateSpec, Object, ObjectBody, ObjectMeta, Uid};

    fn candidate(name: &str, lease: &str) -> Object {
        let spec = CandidateSpec { lease_name: lease.into(), ..CandidateSpec::default() };
        let meta = ObjectMeta::fresh(Uid(0));
        Object { namespace: "ns".into(), name: name.into(), meta, body: ObjectBody::LeaseCandidate(spec) }
    }

    #[test]
    fn objects_are_selected_by_name_namespace_and_lease() {
        let matches = |text: &str| FieldSelector::parse(text, SERVED[2]).unwrap().matches(&candidate("a,b", "l"));
        for yes in [
            "",
            "metadata.name=a\\,b",
            "metadata.name==a\\,b,metadata.namespace=ns",
            "spec.leaseName=l",
            "spec.leaseName!=m",
        ] {
            assert!(matches(yes), "{yes}");
        }
        for no in ["metadata.name=a", "metadata.name!=a\\,b", "metadata.namespace=ns,spec.leaseName=m"] {
            assert!(!matches(no), "{no}");
        }
    }

    #[test]
    fn other_fields_are_refused() {
        for bad in [
            "spec.holderIdentity=x",
            "metadata.name",
            "metadata.name!x",
            "metadata.name=a\\b",
            "metadata.name=a=b",
            "=x",
            "\\",
        ] {
            assert_eq!(FieldSelector::parse(bad, SERVED[2]).unwrap_err().reason.code(), 400, "{bad}");
        }
        assert!(FieldSelector::parse("spec.leaseName=l", SERVED[0]).is_err(), "leases have no lease name");
    }
}
