//! What changed lately.
pub struct History;
