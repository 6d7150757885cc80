//! The API's decisions: who may ask what, which node a name means, and how the answers look. Values only.

mod audit;
mod authorize;
mod checks;
mod portions;
pub(crate) mod reserved;
mod resolve;
pub(crate) mod speaks;
mod views;

pub use self::audit::{Audited, audited, outcome_of, token_of};
pub use self::authorize::{
    Kind, NO_IDENTITY, authorize, kind_of, lease_name_is_sane, may_touch, may_write, only_reads,
};
pub use self::checks::{labels_are_the_operators, lives_a_while};
pub use self::portions::{portion, user};
pub use self::resolve::{node_digest, node_of, node_ref_is_sane, resolve, resolve_firmly};
pub use self::views::*;
