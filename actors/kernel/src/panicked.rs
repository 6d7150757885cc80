//! A panic of an actor's code, as a value.

use std::any::Any;

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic without text".to_owned())
}

/// A handler or task of an actor panicked. A type of its own, so that the supervisor can tell a panic from a returned
/// error.
#[derive(Debug)]
pub(crate) struct Panicked(pub String);
impl std::fmt::Display for Panicked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "panicked: {}", self.0)
    }
}
impl std::error::Error for Panicked {}
