//! The data model: values only. Nothing here knows a clock, a socket or an actor.

mod actor_tree;
mod command;
mod dice;
mod dns;
mod error;
mod event;
mod ids;
mod node;
mod object;
mod principal;
mod raft;
mod reconciler;
mod records;
mod release;
mod secret;
mod tables;
mod time;
mod view;

pub use self::actor_tree::*;
pub use self::command::*;
pub use self::dice::*;
pub use self::dns::*;
pub use self::error::*;
pub use self::event::*;
pub use self::ids::*;
pub use self::node::*;
pub use self::object::*;
pub use self::principal::*;
pub use self::raft::*;
pub use self::reconciler::*;
pub use self::records::*;
pub use self::release::*;
pub use self::secret::*;
pub use self::tables::*;
pub use self::time::*;
pub use self::view::*;
