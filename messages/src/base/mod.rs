//! What any actor works with, of Muster or not: times, random numbers, errors, the live actor tree, why a message
//! was not delivered. Values only.

mod actor_tree;
mod error;
mod ids;
mod rng;
mod time;
mod undelivered;

pub use self::actor_tree::*;
pub use self::error::*;
pub use self::ids::*;
pub use self::rng::*;
pub use self::time::*;
pub use self::undelivered::*;
