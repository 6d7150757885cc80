//! Autopilot: keeps the number of managers that an operator has declared. Runs under the leader. Without a declaration it changes no role.
//! It also ends drains whose time is over, and gives up leadership on a drained node.
//!
//! Owns        how long this leader has seen each node ready or down. What it has begun is in the replicated state.
//! Inputs      the local replica, the nodes whose state is uncertain, results of its own requests and proposals.
//! Outputs     requests to the role manager, which judges them as it judges an operator's; records of what it has begun and ended;
//!             offers of leadership.
//! Invariants  AUTO-1  without a policy, and while it is paused, it begins no change of roles.
//!             AUTO-2  it changes nothing but roles, through the role manager, and its own records. It never removes or blocks a node.
//!             AUTO-3  after each step of its own, the managers that answer now are a majority; a new one counts once it answers, except
//!                     the second manager. No demotion lowers the number that may fail, unless a person asked for fewer managers or for
//!                     maintenance.
//!             AUTO-5  it demotes a manager only if that is dead, if it is drained to be replaced, if it is surplus and the policy shrinks,
//!                     or to take its own promotion back; and only if that is still so when it requests it.
//!             AUTO-7  the same facts give the same decision, and each decision to wait has a reason.
//!             AUTO-8  no leader decides by a liveness that it has not observed itself.
//!             AUTO-9  with enough candidates, a quorum and quiet, without a pause and without drains, at least as many managers answer as
//!                     declared, and no further change begins. Surplus ones stay only if the policy does not shrink, or persons have
//!                     promoted them.
//!             The store keeps AUTO-4 and AUTO-6.

pub mod bugs;
mod config;
pub mod core;
mod shell;
mod view;

pub use self::config::Config;
pub use self::shell::{AutopilotShell, Msg, Ports};
