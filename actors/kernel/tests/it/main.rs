//! Supervision, fences and introspection with real actors.

mod fences;
mod introspection;
mod parts;
mod restarts;
mod supervision;
mod tasks;
mod watched_values;
