//! Collects the panics of one test.

use std::collections::BTreeMap;
use std::panic::PanicHookInfo;
use std::sync::{Mutex, Once};

use tokio::runtime::{Handle, Id};

use crate::journal::locked;

/// What panicked on each runtime that a universe listens to. Threads of the blocking pool belong to their runtime too.
static HEARD: Mutex<BTreeMap<String, Vec<String>>> = Mutex::new(BTreeMap::new());

/// A runtime's id, as a key.
fn key(id: Id) -> String {
    id.to_string()
}

/// Listens to this runtime from its making to its end.
pub(crate) struct Panics(String);

impl Panics {
    /// `None`: somebody listens already.
    pub(crate) fn collect() -> Option<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                note(info);
                before(info);
            }));
        });
        let here = key(Handle::current().id());
        let mut heard = locked(&HEARD);
        if heard.contains_key(&here) {
            return None;
        }
        heard.insert(here.clone(), Vec::new());
        Some(Self(here))
    }
    pub(crate) fn texts(&self) -> Vec<String> {
        locked(&HEARD).get(&self.0).cloned().unwrap_or_default()
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        locked(&HEARD).remove(&self.0);
    }
}

fn note(info: &PanicHookInfo<'_>) {
    let Ok(runtime) = Handle::try_current() else { return };
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without text");
    let place = info.location().map(|at| format!(" ({at})")).unwrap_or_default();
    if let Some(texts) = locked(&HEARD).get_mut(&key(runtime.id())) {
        texts.push(format!("{text}{place}"));
    }
}
