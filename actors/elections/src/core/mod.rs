//! The decisions: the clock over all leases ([`keeper`]), which leases are contended ([`board`]), and who should hold one of
//! them ([`coordination`]).

pub mod board;
pub mod coordination;
pub mod keeper;
pub mod rate;
