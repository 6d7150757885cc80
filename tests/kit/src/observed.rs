//! Collects the panics and the ERROR events of one test.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::{Mutex, Once};

use tokio::runtime::Handle;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

use crate::events::Events;
use crate::journal::locked;

/// Panics and errors of each observed runtime, by the runtime's id: tests that run side by side are told apart by it. Threads of its blocking pool
/// belong to a runtime, as does any thread that has entered it.
static OBSERVED: Mutex<BTreeMap<String, Texts>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Texts {
    panics: Vec<String>,
    errors: Vec<String>,
}

/// The observation of a runtime, until dropped.
pub(crate) struct Observed(String);

impl Observed {
    /// `None`: it is observed already.
    pub(crate) fn listen(runtime: &Handle) -> Option<Self> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                record_panic(info);
                before(info);
            }));
            let ours = tracing::subscriber::set_global_default(Events { level: Level::ERROR, note: record_error });
            ours.expect("no other global subscriber is set where harnesses run");
        });
        let key = runtime.id().to_string();
        let mut observed = locked(&OBSERVED);
        if observed.contains_key(&key) {
            return None;
        }
        observed.insert(key.clone(), Texts::default());
        Some(Self(key))
    }
    pub(crate) fn panics(&self) -> Vec<String> {
        locked(&OBSERVED).get(&self.0).map(|texts| texts.panics.clone()).unwrap_or_default()
    }
    pub(crate) fn errors(&self) -> Vec<String> {
        locked(&OBSERVED).get(&self.0).map(|texts| texts.errors.clone()).unwrap_or_default()
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        locked(&OBSERVED).remove(&self.0);
    }
}

/// This thread's runtime, as a key.
fn here() -> Option<String> {
    Handle::try_current().ok().map(|runtime| runtime.id().to_string())
}

fn record(add: impl FnOnce(&mut Texts)) {
    if let Some(here) = here()
        && let Some(texts) = locked(&OBSERVED).get_mut(&here)
    {
        add(texts);
    }
}

fn record_panic(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without text");
    let location = info.location().map(|at| format!(" ({at})")).unwrap_or_default();
    record(|texts| texts.panics.push(format!("{text}{location}")));
}

/// Of the process's subscriber.
fn record_error(event: &Event<'_>) {
    let mut text = Text(event.metadata().target().to_owned());
    event.record(&mut text);
    record(|texts| texts.errors.push(text.0));
}

/// `target: message field=value …`
struct Text(String);
impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _infallible = match field.name() {
            "message" => write!(self.0, ": {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
