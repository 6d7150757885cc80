//! The identifiers that an actor needs whatever it does.

/// Length of a node or cluster id: 25 base-36 digits hold 128 bits.
pub const ID_LEN: usize = 25;

/// A request whose reply port an actor's shell keeps. Its core answers under this id and never sees the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(pub u64);
