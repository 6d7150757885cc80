//! Text that must not appear in logs, answers, events or metrics.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A secret text (private key, token secret). `Debug` and `Display` hide it; it is serialised only because the
/// replicated state must carry it. Never put one into a view.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
    /// The text itself. Every call is a place to check when secrets leak.
    pub fn expose(&self) -> &str {
        &self.0
    }
}
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}
