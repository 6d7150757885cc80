//! The examples of the documentation, as tests.

mod points;
mod script;
mod whole;
