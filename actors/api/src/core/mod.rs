//! The API's decisions: who may make which request, which node a name means, and what the answers look like. Values
//! only.

mod audit;
mod authorize;
mod autolock;
mod checks;
pub(crate) mod on_behalf;
mod pages;
pub(crate) mod reserved;
mod resolve;
mod roots;
mod scopes;
mod scrape;
mod views;

pub use self::audit::{class_of, described, object_of, outcome_of};
pub use self::authorize::{
    Kind, NO_IDENTITY, authorize, caller_is_read_only, check_lease_name, kind_of, may_access, may_write,
};
pub use self::autolock::autolock;
pub use self::checks::{check_lifetime, check_removed_labels};
pub use self::pages::list;
pub use self::resolve::{check_node_ref, node_digest, node_of, resolve, resolve_for_irreversible};
pub use self::roots::{Issuers, roots};
pub use self::scopes::{check_definitions, check_scope};
pub use self::scrape::{TargetGroup, may_scrape, targets};
pub use self::views::*;
