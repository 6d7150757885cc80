//! Supervision, fences and introspection with real actors.

mod fences;
mod introspection;
mod levels;
mod parts;
mod restarts;
mod supervision;
