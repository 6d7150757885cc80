//! What any actor works with, of Muster or not: times, random numbers, errors, the live actor tree, why a message
//! was not delivered. Values only, except for the reply ports of the feature `protocol`.

mod actor_tree;
mod details;
mod error;
mod ids;
#[cfg(feature = "protocol")]
mod message;
mod rng;
mod time;
mod undelivered;

pub use self::actor_tree::*;
pub use self::details::*;
pub use self::error::*;
pub use self::ids::*;
#[cfg(feature = "protocol")]
pub use self::message::*;
pub use self::rng::*;
pub use self::time::*;
pub use self::undelivered::*;
