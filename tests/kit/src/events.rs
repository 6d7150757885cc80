//! Subscribers of tracing events. Spans are not enabled.

use std::sync::{Arc, Mutex};

use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::journal::locked;

/// Calls a function with each event of this level or a more severe one.
pub(crate) struct Events<F> {
    pub(crate) level: Level,
    pub(crate) note: F,
}

impl<F: Fn(&Event<'_>) + 'static> Subscriber for Events<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level
    }
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level.into())
    }
    fn event(&self, event: &Event<'_>) {
        (self.note)(event);
    }
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1) // never asked: spans are not enabled
    }
    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

/// The levels of what one module logs on this thread, in their order, until dropped.
pub struct LoggedLevels {
    levels: Arc<Mutex<Vec<Level>>>,
    _guard: DefaultGuard,
}

impl LoggedLevels {
    /// `module`: as `module_path!` names it.
    pub fn of(module: &'static str) -> Self {
        let levels = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&levels);
        let note = move |event: &Event<'_>| {
            if event.metadata().target() == module {
                locked(&noted).push(*event.metadata().level());
            }
        };
        Self { levels, _guard: tracing::subscriber::set_default(Events { level: Level::TRACE, note }) }
    }
    /// The levels so far.
    pub fn levels(&self) -> Vec<Level> {
        locked(&self.levels).clone()
    }
}
