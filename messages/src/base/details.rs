//! The details of an error: a JSON object whose fields programs write and read by name and type.
//!
//! Owns        the fields and their JSON text, which users and scripts see. A field that this build does not know is kept.
//! Why fields with a type instead of one record: an error of another build may have fields of other forms. Each is read by itself, and
//! one that cannot be read takes no other with it.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A field of an error's details: its name in the JSON and the type of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetailField<T> {
    name: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T> DetailField<T> {
    /// The field of this name.
    pub const fn new(name: &'static str) -> Self {
        Self { name, value: PhantomData }
    }
}

/// The fields of an error.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details(Map<String, Value>);

impl Details {
    /// Reads a JSON object. Anything else has no fields.
    pub fn parse(text: &str) -> Self {
        Self(serde_json::from_str(text).unwrap_or_default())
    }
    /// The fields of a JSON object. Anything else has none.
    pub fn of(value: &Value) -> Self {
        Self(value.as_object().cloned().unwrap_or_default())
    }
    /// Adds a field, or replaces its value.
    #[must_use]
    pub fn with<T: Serialize>(mut self, field: DetailField<T>, value: &T) -> Self {
        let value = serde_json::to_value(value).expect("the value of a detail has a JSON form");
        self.0.insert(field.name.to_owned(), value);
        self
    }
    /// The value of a field. `None`: it is not there, or is of another type.
    pub fn get<T: DeserializeOwned>(&self, field: DetailField<T>) -> Option<T> {
        T::deserialize(self.0.get(field.name)?).ok()
    }
}

impl fmt::Display for Details {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.0).map_err(|_| fmt::Error)?)
    }
}
impl From<Details> for Value {
    fn from(details: Details) -> Self {
        Value::Object(details.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDED: DetailField<u32> = DetailField::new("needed");
    const NAMES: DetailField<Vec<String>> = DetailField::new("names");

    #[test]
    fn details_are_sorted_json_as_before() {
        let details = Details::default().with(NEEDED, &2).with(NAMES, &vec!["n3".to_owned()]);
        assert_eq!(details.to_string(), r#"{"names":["n3"],"needed":2}"#);
        assert_eq!(Details::default().to_string(), "{}");
    }

    #[test]
    fn field_of_another_type_takes_no_other_with_it() {
        let details = Details::parse(r#"{"needed":"two","names":["n3"],"later":{"a":1}}"#);
        assert_eq!(details.get(NEEDED), None);
        assert_eq!(details.get(NAMES), Some(vec!["n3".to_owned()]));
        let kept = details.with(NEEDED, &2);
        assert_eq!(kept.to_string(), r#"{"later":{"a":1},"names":["n3"],"needed":2}"#);
        assert_eq!(Details::parse("[]").to_string() + &Details::parse("no").to_string(), "{}{}");
    }
}
