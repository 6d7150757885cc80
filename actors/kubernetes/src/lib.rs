//! The REST subset of Kubernetes that lets unmodified clients elect their leaders here: leases and lease candidates,
//! and the config maps and endpoints that older clients lock with.
//!
//! A library without runtime, clock or randomness: requests and copies of the state go in, commands, answers and lines
//! of watch streams come out. The API actor owns connections, time and permissions.
//!
//! ```text
//! head ── route ──► Ask ─┬─ Document ──────────────────────► document
//!                        ├─ Identity, Authorization ───────► self_review, access_review / access_answer
//!                        ├─ Read ── copy ──────────────────► answer
//!                        ├─ Watch ── copy, changes ────────► Watcher
//!                        └─ Write ── body, leader's copy ──► plan ──► Plan ── command ──► done | refused
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
pub use self::plan::{Context, Plan, Refused, plan, room_for_another};
pub use self::resource::{COORDINATION, Resource, SERVED};
pub use self::review::{AccessQuestion, Rules, access_answer, access_review, rules_answer, rules_review, self_review};
pub use self::route::{Ask, Freshness, Head, Takes, Verb, route};
pub use self::status::{Cause, Reason, Status};
pub use self::watch::Watcher;
