//! Tests of the sealing library.

mod keyrings;
mod records;
mod unlock_keys;
