//! One message enum per actor. Each variant states what acceptance means and what happens when it is lost, repeated or
//! late, and to an actor of the leader also what an old leader answers; a tidy test checks that.
//!
//! - *Lost*: the mailbox was full, the receiver was not running, or it crashed with the message in its mailbox. A message
//!   with a reply port then ends in an error for the asker: not delivered, or a closed port.
//! - *Repeated*: the sender sends it again, because it does not know the outcome of the first one.
//! - *Late*: it rests on facts that have changed, or its sender has given up waiting.
//! - *From an old leader*: its answer is that of a manager which led, and which has not noticed yet that another leads now. Until
//!   then its actors run on an older state, and no majority commits what they propose or confirms what they read. Once it has
//!   noticed, they are gone, and it refuses the message as not leading.

mod agent;
mod audit;
mod autopilot;
mod cert_authority;
mod elections;
mod gateway;
mod mesh;
mod raft_member;
mod role_manager;
mod root_rotation;
mod sessions;

pub use self::agent::*;
pub use self::audit::*;
pub use self::autopilot::*;
pub use self::cert_authority::*;
pub use self::elections::*;
pub use self::gateway::*;
pub use self::mesh::*;
pub use self::raft_member::*;
pub use self::role_manager::*;
pub use self::root_rotation::*;
pub use self::sessions::*;
pub use crate::base::{Named, Reply};
