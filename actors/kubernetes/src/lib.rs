//! The subset of Kubernetes' REST API that lets unmodified clients elect their leaders here: leases, lease candidates,
//! and the config maps and endpoints that older clients use as locks.
//!
//! A library without runtime, clock or randomness: its inputs are requests and replicas of the state, its outputs
//! commands, answers and lines of watch streams. The API actor owns connections, time and permissions.
//!
//! ```text
//! head ── route ──► Ask ─┬─ Document ──────────────────────► document
//!                        ├─ Identity, Authorization ───────► self_review, access_review / access_answer
//!                        ├─ Read ── replica ───────────────► answer
//!                        ├─ Watch ── replica, changes ─────► Watcher
//!                        └─ Write ── body, leader's replica ► plan ──► Plan ── command ──► done | refused
//! ```
//!
//! Every refusal is a [`Status`], which turns into a `KubeAnswer`; so does every `ErrorBody`.

mod answer;
mod body;
mod discovery;
mod document;
mod events;
mod fields;
mod negotiate;
mod openapi;
mod patch;
mod plan;
mod proto;
mod query;
mod resource;
mod review;
mod route;
mod select;
mod status;
mod table;
mod time;
mod validate;
mod watch;

pub use self::answer::{answer, content_type};
pub use self::discovery::document;
pub use self::document::FENCING_TOKEN;
pub use self::events::{event_dropped, no_events};
pub use self::openapi::openapi;
pub use self::plan::{Context, Plan, Refused, check_object_quota, plan};
pub use self::resource::{COORDINATION, Resource, SERVED};
pub use self::review::{AccessQuestion, Rules, access_answer, access_review, rules_answer, rules_review, self_review};
pub use self::route::{Ask, Freshness, Head, Takes, Verb, route};
pub use self::status::{Cause, Reason, Status};
pub use self::watch::Watcher;
