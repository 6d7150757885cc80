//! An actor's shell.

use std::future::Future;

use muster_messages::Named;
use serde_json::Value;

use crate::Cx;

/// Why an incarnation cannot continue. It ends; the supervisor decides what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub String);

impl Fault {
    /// A fault with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
// `Fault` deliberately does not implement `std::error::Error`: that is what lets `?` turn every error into one.
impl<E: std::error::Error> From<E> for Fault {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        Self(text)
    }
}

/// The part of an actor that owns ports, timers and files, and makes no domain decision.
///
/// One handler runs at a time. It never awaits I/O or another actor's answer: slow work goes into
/// [`Cx::report`] or [`Cx::spawn`] and reports by message.
pub trait Shell: Sized + Send + 'static {
    /// Its messages, private timers included.
    type Msg: Named + Send + 'static;
    /// The name of this kind of actor in the live tree.
    const KIND: &'static str;

    /// Called once in each incarnation, before its first message. Cheap; an error is a fault.
    fn started(&mut self, cx: &Cx<Self::Msg>) -> impl Future<Output = Result<(), Fault>> + Send {
        let _ = cx;
        async { Ok(()) }
    }

    /// Handles one message. An error ends this incarnation.
    fn handle(&mut self, cx: &Cx<Self::Msg>, msg: Self::Msg) -> impl Future<Output = Result<(), Fault>> + Send;

    /// A typed view of the actor's state for `muster actors inspect`. Cheap: it is taken often.
    fn view(&self) -> Value {
        Value::Null
    }

    /// Called when the actor is asked to stop, within its stop deadline. Its children have stopped already.
    fn stopping(&mut self, cx: &Cx<Self::Msg>) -> impl Future<Output = ()> + Send {
        let _ = cx;
        async {}
    }
}
