//! The part of JSON Schema that the description of `/v1` uses. Another keyword fails the test instead of being ignored.

use std::collections::BTreeSet;

use serde_json::Value;

/// Annotations, and limits on requests.
const IGNORED: [&str; 5] = ["description", "maxItems", "minimum", "maximum", "pattern"];

/// The schemas of a description, and which of them were met.
pub struct Schemas {
    /// The OpenAPI document.
    pub described: Value,
    /// The names of the schemas that a value matched.
    pub met: BTreeSet<String>,
}

impl Schemas {
    /// The schemas of this document, none of them met.
    pub fn of(described: Value) -> Self {
        Self { described, met: BTreeSet::new() }
    }
    /// The schemas that no value matched.
    pub fn unmet(&self) -> BTreeSet<String> {
        let all = self.described["components"]["schemas"].as_object();
        all.into_iter().flat_map(|all| all.keys().cloned()).filter(|name| !self.met.contains(name)).collect()
    }
    /// Fails where the value is not as the schema says, with its place.
    pub fn check(&mut self, schema: &Value, value: &Value) -> Result<(), String> {
        let mut met = BTreeSet::new();
        check(&self.described, schema, value, "", &mut met)?;
        self.met.append(&mut met);
        Ok(())
    }
}

fn check(all: &Value, schema: &Value, value: &Value, at: &str, met: &mut BTreeSet<String>) -> Result<(), String> {
    let wrong = |why: String| Err(format!("{at}: {why}: {value}"));
    let keywords = schema.as_object().ok_or_else(|| format!("{at}: {schema} is not a schema"))?;
    for (keyword, says) in keywords {
        match keyword.as_str() {
            "$ref" => {
                let reference = says.as_str().unwrap_or_default();
                let target =
                    all.pointer(reference.trim_start_matches('#')).ok_or(format!("{reference} leads nowhere"))?;
                check(all, target, value, at, met)?;
                met.extend(reference.strip_prefix("#/components/schemas/").map(str::to_owned));
            }
            "type" => {
                let names = says.as_array().cloned().unwrap_or_else(|| vec![says.clone()]);
                if !names.iter().any(|name| is(name.as_str().unwrap_or_default(), value)) {
                    return wrong(format!("not {says}"));
                }
            }
            "const" if says != value => return wrong(format!("not {says}")),
            "enum" if !says.as_array().is_some_and(|words| words.contains(value)) => {
                return wrong(format!("not of {says}"));
            }
            "const" | "enum" => {}
            "format" => {
                assert!(["date-time", "binary"].contains(&says.as_str().unwrap_or_default()), "format {says}");
                let time = |text: &str| text.ends_with('Z') && text.as_bytes().get(10) == Some(&b'T');
                if says == "date-time" && value.as_str().is_some_and(|text| !time(text)) {
                    return wrong("not a time".to_owned());
                }
            }
            "required" => {
                let missing = says
                    .as_array()
                    .into_iter()
                    .flatten()
                    .find(|name| value.get(name.as_str().unwrap_or_default()).is_none());
                if let (Some(missing), true) = (missing, value.is_object()) {
                    return wrong(format!("without {missing}"));
                }
            }
            "properties" => {
                for (name, schema) in says.as_object().into_iter().flatten() {
                    if let Some(field) = value.get(name) {
                        check(all, schema, field, &format!("{at}/{name}"), met)?;
                    }
                }
            }
            "additionalProperties" => {
                let known = schema["properties"].as_object();
                for (name, field) in value.as_object().into_iter().flatten() {
                    if known.is_some_and(|known| known.contains_key(name)) {
                        continue;
                    }
                    if says == false {
                        return wrong(format!("unknown {name}"));
                    }
                    check(all, says, field, &format!("{at}/{name}"), met)?;
                }
            }
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(all, says, item, &format!("{at}/{n}"), met)?;
                }
            }
            "oneOf" => {
                let (mut fits, mut faults) = (0, Vec::new());
                for schema in says.as_array().into_iter().flatten() {
                    let mut own = BTreeSet::new();
                    match check(all, schema, value, at, &mut own) {
                        Ok(()) => (fits, _) = (fits + 1, met.append(&mut own)),
                        Err(why) => faults.push(why),
                    }
                }
                if fits != 1 {
                    return Err(format!("{at}: fits {fits} of the alternatives: {}", faults.join("; ")));
                }
            }
            "not" => {
                if check(all, says, value, at, &mut BTreeSet::new()).is_ok() {
                    return wrong(format!("fits {says}"));
                }
            }
            ignored if IGNORED.contains(&ignored) => {}
            other => panic!("{at}: the keyword {other} is not supported"),
        }
    }
    Ok(())
}

fn is(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("no type {other}"),
    }
}
