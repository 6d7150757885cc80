//! Whether the conditions between waves hold.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;
use serde_json::Value;

use super::{Definition, ManagedKey, ManagedObject, WaveCondition};

/// Characters of what was found that are shown.
const MAX_FOUND_CHARS: usize = 80;

/// Bytes of a body in which a condition is looked for. Every manager looks again whenever an object of the definition is written, before
/// it applies the next entry; what others report is a few words. All managers must agree about this, as about any rule of the log.
const MAX_READ_BYTES: usize = 16 * 1024;

/// A condition that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    pub condition: WaveCondition,
    pub because: UnmetBecause,
}

/// What there is instead of what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnmetBecause {
    NoObject,
    /// The object is too large to be read: this many bytes.
    TooLarge(usize),
    /// The object has no such field.
    Nothing,
    /// JSON, cut to what can be shown.
    Other(String),
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WaveCondition { wave, key, path, equals } = &self.condition;
        write!(f, "what follows wave {wave} waits until {path} of {key} is {equals}; {}", self.because)
    }
}

impl fmt::Display for UnmetBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnmetBecause::NoObject => write!(f, "the object does not exist"),
            UnmetBecause::TooLarge(bytes) => {
                write!(f, "the object is too large to be read: {bytes} bytes, {MAX_READ_BYTES} is the limit")
            }
            UnmetBecause::Nothing => write!(f, "the object has no such field"),
            UnmetBecause::Other(value) => write!(f, "its value is {value}"),
        }
    }
}

/// The table of objects.
type Objects = OrdMap<ManagedKey, Arc<ManagedObject>>;

/// The bodies that were read, by object: several conditions about one read it once.
#[derive(Default)]
struct Bodies<'a>(BTreeMap<&'a ManagedKey, Result<Value, UnmetBecause>>);

impl<'a> Bodies<'a> {
    fn of(&mut self, key: &'a ManagedKey, objects: &Objects) -> &Result<Value, UnmetBecause> {
        self.0.entry(key).or_insert_with(|| match objects.get(key).map(|object| &object.body) {
            None => Err(UnmetBecause::NoObject),
            Some(body) if body.len() > MAX_READ_BYTES => Err(UnmetBecause::TooLarge(body.len())),
            Some(body) => Ok(serde_json::from_str(body).unwrap_or_default()),
        })
    }
}

impl WaveCondition {
    /// `None`: it holds.
    pub fn unmet(&self, objects: &Objects) -> Option<Unmet> {
        self.unmet_in(Bodies::default().of(&self.key, objects))
    }

    fn unmet_in(&self, body: &Result<Value, UnmetBecause>) -> Option<Unmet> {
        let because = match body.as_ref().map(|body| body.pointer(&self.path)) {
            Err(because) => because.clone(),
            Ok(None) => UnmetBecause::Nothing,
            Ok(Some(found)) => {
                let wanted = serde_json::from_str::<Value>(&self.equals).ok();
                if wanted.as_ref() == Some(found) {
                    return None;
                }
                UnmetBecause::Other(super::in_short(&found.to_string(), MAX_FOUND_CHARS))
            }
        };
        Some(Unmet { condition: self.clone(), because })
    }
}

impl Definition {
    /// The first condition, by wave, that does not hold and on which the objects of this wave wait. `None`: they may be written.
    pub fn unmet_before(&self, wave: u32, objects: &Objects) -> Option<Unmet> {
        let mut earlier: Vec<_> = self.options.wave_conditions.iter().filter(|waits| waits.wave < wave).collect();
        earlier.sort_by_key(|condition| condition.wave);
        let mut bodies = Bodies::default();
        earlier.into_iter().find_map(|condition| condition.unmet_in(bodies.of(&condition.key, objects)))
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
        let expected =
            "what follows wave 1 waits until /status/phase of job default/a is \"done\"; its value is \"running\"";
        assert_eq!(running, expected);
        assert!(shown("a", "/status/none").ends_with("the object has no such field"));
        assert!(shown("b", "/status/phase").ends_with("the object does not exist"));
    }

    /// 64 conditions of 256 KiB would be read by every manager at each write.
    #[test]
    fn condition_does_not_look_into_a_large_object() {
        let sized = |bytes: usize| format!(r#"{{"ok": true, "text": "{}"}}"#, "x".repeat(bytes - 24));
        let there = objects(&[("fits", &sized(MAX_READ_BYTES)), ("large", &sized(MAX_READ_BYTES + 1))]);
        assert_eq!(there[&key("fits")].body.len(), MAX_READ_BYTES);
        assert_eq!(condition(0, "fits", "/ok", "true").unmet(&there), None);
        let unmet = condition(0, "large", "/ok", "true").unmet(&there).expect("it is not known");
        assert_eq!(unmet.because, UnmetBecause::TooLarge(MAX_READ_BYTES + 1));
        assert!(unmet.to_string().ends_with("too large to be read: 16385 bytes, 16384 is the limit"), "{unmet}");
    }

    #[test]
    fn conditions_about_one_object_read_it_once() {
        let (a, b) = (key("a"), key("b"));
        let mut bodies = Bodies::default();
        assert!(bodies.of(&a, &objects(&[("a", r#"{"ok": true}"#)])).is_ok());
        assert!(bodies.of(&a, &objects(&[])).is_ok(), "from the first time");
        assert_eq!(bodies.of(&b, &objects(&[])), &Err(UnmetBecause::NoObject));
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
