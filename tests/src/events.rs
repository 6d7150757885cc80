//! Collects the ERROR events of one test.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, Interest};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

use crate::journal::locked;

/// Collects from its making to its end, on this thread.
///
/// A default of the thread is enough, and the only thing that tells tests apart: on a current-thread runtime every task,
/// those of the tree included, is polled by the thread of its test. What runs on the blocking pool is not heard.
pub(crate) struct Errors {
    texts: Texts,
    _guard: DefaultGuard,
}

type Texts = Arc<Mutex<Vec<String>>>;

impl Errors {
    pub(crate) fn collect() -> Self {
        let texts = Texts::default();
        let outer = tracing::dispatcher::get_default(Dispatch::clone);
        let collector = Collector { texts: Arc::clone(&texts), outer };
        Self { texts, _guard: tracing::subscriber::set_default(collector) }
    }
    pub(crate) fn texts(&self) -> Vec<String> {
        locked(&self.texts).clone()
    }
}

/// Stands before the subscriber that was there, which hears what it always heard.
struct Collector {
    texts: Texts,
    outer: Dispatch,
}

impl Subscriber for Collector {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let _asked_each_time = self.outer.register_callsite(metadata);
        Interest::sometimes()
    }
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == Level::ERROR || self.outer.enabled(metadata)
    }
    fn event(&self, event: &Event<'_>) {
        if *event.metadata().level() == Level::ERROR {
            let mut text = Text(event.metadata().target().to_owned());
            event.record(&mut text);
            locked(&self.texts).push(text.0);
        }
        if self.outer.enabled(event.metadata()) {
            self.outer.event(event);
        }
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.outer.new_span(span)
    }
    fn record(&self, span: &Id, values: &Record<'_>) {
        self.outer.record(span, values);
    }
    fn record_follows_from(&self, span: &Id, follows: &Id) {
        self.outer.record_follows_from(span, follows);
    }
    fn enter(&self, span: &Id) {
        self.outer.enter(span);
    }
    fn exit(&self, span: &Id) {
        self.outer.exit(span);
    }
    fn clone_span(&self, span: &Id) -> Id {
        self.outer.clone_span(span)
    }
    fn try_close(&self, span: Id) -> bool {
        self.outer.try_close(span)
    }
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
