//! What `/v1` has promised: compares an earlier description with the present one, and names what would break a client that was written for
//! the earlier one. More may be added; nothing may be taken away.
//!
//! A client may leave out what was optional, send whatever was described, and read whatever was described. So of what it sends, the new
//! description must accept all that the old one did, and of what it reads, the new one must still have all that the old one had.

use serde_json::Value;

/// Which way a value goes: what suits the one breaks the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Sent,
    Read,
}

/// Two descriptions, and what has been found.
struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    broken: Vec<String>,
    /// Schemas that refer to themselves, while they are being compared.
    open: Vec<(String, String, bool)>,
}

/// What a client of `old` finds broken in `new`, by its place in the description.
pub fn broken(old: &Value, new: &Value) -> Vec<String> {
    let mut comparison = Comparison { old, new, broken: Vec::new(), open: Vec::new() };
    for (path, methods) in members(&old["paths"]) {
        for (method, was) in members(methods) {
            let place = format!("{} {path}", method.to_uppercase());
            match new["paths"][path].get(method) {
                None => comparison.says(&place, "is gone"),
                Some(is) => comparison.operation(&place, was, is),
            }
        }
    }
    comparison.broken
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn words(value: &Value) -> Vec<&Value> {
    value.as_array().map_or_else(Vec::new, |all| all.iter().collect())
}

/// The types of a schema; `None`: any.
fn types(schema: &Value) -> Option<Vec<&str>> {
    match &schema["type"] {
        Value::String(one) => Some(vec![one]),
        Value::Array(several) => Some(several.iter().filter_map(Value::as_str).collect()),
        _ => None,
    }
}

/// Whether each of `these` is one of `those`.
fn are_among(these: &Option<Vec<&str>>, those: &Option<Vec<&str>>) -> bool {
    let Some(those) = those else { return true };
    let is_one = |it: &&str| those.contains(it) || *it == "integer" && those.contains(&"number");
    these.as_ref().is_some_and(|these| these.iter().all(is_one))
}

/// What a schema allows, where it lists it.
fn values(schema: &Value) -> Option<Vec<&Value>> {
    schema.get("const").map(|one| vec![one]).or_else(|| schema.get("enum").map(words))
}

fn alternatives(schema: &Value) -> Option<&Vec<Value>> {
    ["oneOf", "anyOf"].into_iter().find_map(|word| schema[word].as_array())
}

impl<'a> Comparison<'a> {
    fn says(&mut self, place: &str, what: &str) {
        self.broken.push(format!("{place}: {what}"));
    }

    fn operation(&mut self, place: &str, was: &'a Value, is: &'a Value) {
        self.parameters(place, was, is);
        let (had_body, has_body) = (&was["requestBody"], &is["requestBody"]);
        if has_body["required"] == true && had_body["required"] != true {
            self.says(place, "a body is required");
        }
        if had_body.is_object() {
            self.content(&format!("{place}, body"), Way::Sent, had_body, has_body);
        }
        for (status, answer) in members(&was["responses"]) {
            let place = format!("{place}, answer {status}");
            let (answer, now) = (resolved(self.old, answer).1, resolved(self.new, &is["responses"][status]).1);
            if now.is_null() {
                self.says(&place, "is gone");
                continue;
            }
            for (header, _) in members(&answer["headers"]) {
                if now["headers"].get(header).is_none() {
                    self.says(&place, &format!("the header {header} is gone"));
                }
            }
            self.content(&place, Way::Read, answer, now);
        }
    }

    /// Those of the path, the query and the headers.
    fn parameters(&mut self, place: &str, was: &'a Value, is: &'a Value) {
        let all = |document: &'a Value, operation: &'a Value| -> Vec<&'a Value> {
            words(&operation["parameters"]).into_iter().map(|parameter| resolved(document, parameter).1).collect()
        };
        let (old, new) = (all(self.old, was), all(self.new, is));
        let same = |one: &Value, other: &Value| one["name"] == other["name"] && one["in"] == other["in"];
        for parameter in &old {
            let place = format!("{place}, parameter {}", parameter["name"].as_str().unwrap_or_default());
            match new.iter().find(|now| same(now, parameter)) {
                None => self.says(&place, "is gone"),
                Some(now) => self.schema(&place, Way::Sent, &parameter["schema"], &now["schema"]),
            }
        }
        for parameter in new.iter().filter(|now| now["required"] == true) {
            if !old.iter().any(|was| same(was, parameter) && was["required"] == true) {
                let name = parameter["name"].as_str().unwrap_or_default();
                self.says(place, &format!("the parameter {name} is required"));
            }
        }
    }

    fn content(&mut self, place: &str, way: Way, was: &'a Value, is: &'a Value) {
        for (media, was) in members(&was["content"]) {
            match is["content"].get(media) {
                None => self.says(place, &format!("{media} is gone")),
                Some(is) => self.schema(place, way, &was["schema"], &is["schema"]),
            }
        }
    }

    fn schema(&mut self, place: &str, way: Way, was: &'a Value, is: &'a Value) {
        let ((old_name, was), (new_name, is)) = (resolved(self.old, was), resolved(self.new, is));
        let named = (old_name.to_owned(), new_name.to_owned(), way == Way::Sent);
        let is_named = !old_name.is_empty() && !new_name.is_empty();
        if is_named && self.open.contains(&named) {
            return;
        }
        if is_named {
            self.open.push(named);
        }
        self.alike(place, way, was, is);
        if is_named {
            self.open.pop();
        }
    }

    /// Two schemas, neither of which is a reference.
    fn alike(&mut self, place: &str, way: Way, was: &'a Value, is: &'a Value) {
        match (alternatives(was), alternatives(is)) {
            (None, None) => {}
            // What could be one thing can be several now, or the other way round.
            (old, new) => {
                let (one_old, one_new) = (std::slice::from_ref(was), std::slice::from_ref(is));
                let (old, new) = (old.map_or(one_old, Vec::as_slice), new.map_or(one_new, Vec::as_slice));
                return self.choice(place, way, old, new);
            }
        }
        let (old, new) = (types(was), types(is));
        let fits = if way == Way::Sent { are_among(&old, &new) } else { are_among(&new, &old) };
        if !fits {
            return self.says(place, &format!("its type was {}, and is {}", was["type"], is["type"]));
        }
        self.allowed_values(place, way, was, is);
        self.fields(place, way, was, is);
        if was["items"].is_object() || is["items"].is_object() && way == Way::Sent {
            self.schema(&format!("{place}[]"), way, &was["items"], &is["items"]);
        }
        match (&was["additionalProperties"], &is["additionalProperties"]) {
            (old, Value::Bool(false)) if way == Way::Sent && *old != Value::Bool(false) => {
                self.says(place, "other fields are refused");
            }
            (old @ Value::Object(_), new) => self.schema(&format!("{place}.*"), way, old, new),
            _ => {}
        }
    }

    /// Each thing that could be sent must have a place now, and each that is read now must have had one.
    fn choice(&mut self, place: &str, way: Way, old: &'a [Value], new: &'a [Value]) {
        let (these, those) = if way == Way::Sent { (old, new) } else { (new, old) };
        for this in these {
            let fits = those.iter().any(|that| {
                let (was, is) = if way == Way::Sent { (this, that) } else { (that, this) };
                let mut alone = Comparison { broken: Vec::new(), open: self.open.clone(), ..*self };
                alone.schema("", way, was, is);
                alone.broken.is_empty()
            });
            if !fits {
                let (name, _) = resolved(if way == Way::Sent { self.old } else { self.new }, this);
                let name = if name.is_empty() { this.to_string() } else { name.to_owned() };
                let what = if way == Way::Sent { "is not accepted any more" } else { "is answered now" };
                self.says(place, &format!("the alternative {name} {what}"));
            }
        }
    }

    /// Words that are answered may become more: clients must take unknown ones. Those that are accepted may not become fewer.
    fn allowed_values(&mut self, place: &str, way: Way, was: &'a Value, is: &'a Value) {
        if way == Way::Read {
            return;
        }
        if let Some(new) = values(is) {
            match values(was) {
                None => self.says(place, "only some values are accepted now"),
                Some(old) => {
                    for value in old.into_iter().filter(|value| !new.contains(value)) {
                        self.says(place, &format!("{value} is not accepted any more"));
                    }
                }
            }
        }
        for limit in ["maximum", "maxLength", "maxItems", "minimum", "minLength", "minItems"] {
            let (old, new) = (was[limit].as_f64(), is[limit].as_f64());
            let rose = if limit.starts_with("max") { new < old } else { new > old };
            if new.is_some() && (old.is_none() || rose) {
                self.says(place, &format!("{limit} was {}, and is {}", was[limit], is[limit]));
            }
        }
        if !is["pattern"].is_null() && is["pattern"] != was["pattern"] {
            self.says(place, "its pattern is another one");
        }
    }

    fn fields(&mut self, place: &str, way: Way, was: &'a Value, is: &'a Value) {
        for (field, old) in members(&was["properties"]) {
            let place = format!("{place}.{field}");
            match is["properties"].get(field) {
                None => self.says(&place, "is gone"),
                Some(new) => self.schema(&place, way, old, new),
            }
        }
        let (old, new) = (words(&was["required"]), words(&is["required"]));
        let (more, of, what) = match way {
            Way::Sent => (&new, &old, "is required"),
            Way::Read => (&old, &new, "may be missing now"),
        };
        for field in more.iter().filter(|field| !of.contains(field)) {
            self.says(&format!("{place}.{}", field.as_str().unwrap_or_default()), what);
        }
    }
}

/// A value of this document, with the reference that led to it; empty without one. Null if it leads nowhere.
fn resolved<'a>(document: &'a Value, value: &'a Value) -> (&'a str, &'a Value) {
    static NOTHING: Value = Value::Null;
    let Some(reference) = value.as_object().and_then(|map| map.get("$ref")?.as_str()) else {
        return ("", value);
    };
    let found = reference.strip_prefix('#').and_then(|pointer| document.pointer(pointer)).unwrap_or(&NOTHING);
    (reference, found)
}

#[cfg(test)]
#[path = "promised_tests.rs"]
mod tests;
