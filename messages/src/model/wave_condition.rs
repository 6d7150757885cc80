//! Whether the conditions between waves hold.

use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;

use super::{Definition, ManagedKey, ManagedObject, WaveCondition};

/// Characters of what was found that are shown.
const MAX_FOUND_CHARS: usize = 80;

/// A condition that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    pub condition: WaveCondition,
    /// What the object has there, as JSON. `None`: the object does not exist.
    pub found: Option<String>,
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WaveCondition { wave, key, path, equals } = &self.condition;
        write!(f, "what follows wave {wave} waits until {path} of {key} is {equals}; ")?;
        match &self.found {
            None => write!(f, "the object does not exist"),
            Some(found) => write!(f, "it is {found}"),
        }
    }
}

impl WaveCondition {
    /// `None`: it holds.
    pub fn unmet(&self, objects: &OrdMap<ManagedKey, Arc<ManagedObject>>) -> Option<Unmet> {
        let Some(object) = objects.get(&self.key) else {
            return Some(Unmet { condition: self.clone(), found: None });
        };
        let body: serde_json::Value = serde_json::from_str(&object.body).unwrap_or_default();
        let found = body.pointer(&self.path);
        let wanted = serde_json::from_str::<serde_json::Value>(&self.equals).ok();
        if wanted.is_some() && found == wanted.as_ref() {
            return None;
        }
        let found = found.map_or_else(|| "not there".to_owned(), ToString::to_string);
        Some(Unmet { condition: self.clone(), found: Some(super::in_short(&found, MAX_FOUND_CHARS)) })
    }
}

impl Definition {
    /// The first condition, by wave, that does not hold and on which the objects of this wave wait. `None`: they may be written.
    pub fn unmet_before(&self, wave: u32, objects: &OrdMap<ManagedKey, Arc<ManagedObject>>) -> Option<Unmet> {
        let mut earlier: Vec<_> = self.options.wave_conditions.iter().filter(|waits| waits.wave < wave).collect();
        earlier.sort_by_key(|condition| condition.wave);
        earlier.into_iter().find_map(|condition| condition.unmet(objects))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, FencingToken, Revision, Triple};

    fn key(name: &str) -> ManagedKey {
        ManagedKey { kind: "job".into(), namespace: "default".into(), name: name.into() }
    }
    fn condition(wave: u32, name: &str, path: &str, equals: &str) -> WaveCondition {
        WaveCondition { wave, key: key(name), path: path.into(), equals: equals.into() }
    }
    fn objects(all: &[(&str, &str)]) -> OrdMap<ManagedKey, Arc<ManagedObject>> {
        let object = |(name, body): &(&str, &str)| {
            let (labels, owner, term, revision) = (Default::default(), None, FencingToken(0), Revision(1));
            let body = (*body).to_owned();
            let object = ManagedObject { key: key(name), labels, body, owner, term, created: revision, revision };
            (key(name), Arc::new(object))
        };
        all.iter().map(object).collect()
    }

    #[test]
    fn condition_compares_values_and_says_what_it_found() {
        let there = objects(&[("a", r#"{"status": {"phase": "running", "n": 3, "list": [true]}}"#)]);
        for (path, equals) in [("/status/phase", "\"running\""), ("/status/n", "3"), ("/status/list/0", "true")] {
            assert_eq!(condition(0, "a", path, equals).unmet(&there), None, "{path}");
        }
        let shown = |name: &str, path: &str| {
            condition(1, name, path, "\"done\"").unmet(&there).expect("it does not hold").to_string()
        };
        let running = shown("a", "/status/phase");
        let expected = "what follows wave 1 waits until /status/phase of job default/a is \"done\"; it is \"running\"";
        assert_eq!(running, expected);
        assert!(shown("a", "/status/none").ends_with("it is not there"));
        assert!(shown("b", "/status/phase").ends_with("the object does not exist"));
    }

    #[test]
    fn objects_of_a_wave_wait_for_conditions_of_earlier_waves() {
        let release = "1.0.0".parse().expect("a release");
        let mut definition = Definition::new("schema", release, "db", Triple::default(), Action::Objects(vec![]));
        definition.options.wave_conditions = vec![condition(2, "b", "/ok", "true"), condition(0, "a", "/ok", "true")];
        let none = objects(&[]);
        assert_eq!(definition.unmet_before(0, &none), None);
        let first = |wave, there: &OrdMap<_, _>| definition.unmet_before(wave, there).map(|unmet| unmet.condition.wave);
        assert_eq!((first(1, &none), first(3, &none)), (Some(0), Some(0)));
        let a = objects(&[("a", r#"{"ok": true}"#)]);
        assert_eq!((first(1, &a), first(2, &a), first(3, &a)), (None, None, Some(2)));
    }
}
