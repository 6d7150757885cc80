//! Writes: from a request and the stored state to a command, and from the command's outcome to an answer.
//!
//! Invariants  PLAN-1  an object is replaced only at the revision that the plan was made on, whatever is written meanwhile.
//!             PLAN-2  a client that names a revision or a uid never writes to another one.
//!             PLAN-3  the cluster learns of every update whether its client named a revision or the holder (`ClientWrite`).
//! A change alone would not suffice as plan: a patch without a revision is read, changed and written again until it
//! succeeds, and only the plan knows whether that is allowed.

mod delete;
mod guard;
mod quota;
mod written;

use std::sync::Arc;

use muster_messages::wire::KubeAnswer;
use muster_messages::{Change, CommandRefusal, Guard, Object, Tables, Uid, WallTime};
use serde_json::json;

pub(crate) use self::guard::names_holder;
pub use self::quota::check_object_quota;
use crate::answer::{json_answer, list_answer, object_answer};
use crate::resource::Resource;
use crate::route::{Ask, Verb};
use crate::status::Status;

/// Values that the proposer adds.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    pub now: WallTime,
    /// Random bits for a new object's uid and the end of a generated name.
    pub entropy: u128,
}

/// How to carry out a write.
#[derive(Clone, Debug)]
pub struct Plan {
    pub guards: Vec<Guard>,
    pub changes: Vec<Change>,
    /// The command creates an object. If the verb is not `create`, that permission is needed as well.
    pub creates: bool,
    /// Nothing is proposed: [`Plan::done`] already has the answer.
    pub dry_run: bool,
    /// More must be deleted than fits in one command: plan again once this one is done.
    pub more: bool,
    resource: Resource,
    name: String,
    /// The client named a revision, so a newer one is a conflict.
    names_revision: bool,
    /// The object was posted: a conflict with an existing object is final, unless the name was generated.
    posted: bool,
    generated: bool,
    warnings: Vec<String>,
    outcome: Outcome,
}

/// The answer to a completed plan.
#[derive(Clone, Debug)]
enum Outcome {
    /// The object, if the command leaves it in this state.
    Written(Box<Object>),
    Deleted(Uid),
    Cleared(Vec<Arc<Object>>),
}

/// What a refusal leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Plan again, on a replica that has applied the refusal, until the client's deadline.
    Replan,
    Final(Status),
}

/// Plans a write on the leader's replica. A replica behind what this client has seen would refuse wrongly.
pub fn plan(ask: &Ask, body: &[u8], tables: &Tables, context: Context) -> Result<Plan, Status> {
    let resource = ask.resource.ok_or_else(Status::no_such_path)?;
    let plan = match ask.verb {
        Verb::Create => written::create(ask, resource, body, tables, context),
        Verb::Update => written::update(ask, resource, body, tables, context),
        Verb::Patch => written::patch(ask, resource, body, tables, context),
        Verb::Delete => delete::one(ask, resource, body, tables),
        Verb::DeleteCollection => delete::many(ask, resource, body, tables),
        Verb::None | Verb::Get | Verb::List | Verb::Watch => Err(Status::bad_request("this request does not write")),
    }?;
    if let Outcome::Written(object) = &plan.outcome {
        quota::quota(tables, object, tables.objects.get(&object.key()).map(AsRef::as_ref))?;
    }
    Ok(plan)
}

impl Plan {
    fn empty(resource: Resource, name: String, dry_run: bool) -> Self {
        Self {
            guards: Vec::new(),
            changes: Vec::new(),
            creates: false,
            dry_run,
            more: false,
            resource,
            name,
            names_revision: false,
            posted: false,
            generated: false,
            warnings: Vec::new(),
            outcome: Outcome::Cleared(Vec::new()),
        }
    }

    /// What a refusal of the command leads to.
    pub fn refused(&self, refusal: &CommandRefusal) -> Refused {
        let (resource, name) = (self.resource, self.name.as_str());
        let deleting = matches!(self.outcome, Outcome::Deleted(_));
        Refused::Final(match refusal {
            CommandRefusal::Stale { .. } if !self.names_revision => return Refused::Replan,
            CommandRefusal::Stale { .. } => Status::modified(resource, name),
            CommandRefusal::NotFound { .. } if deleting => Status::not_found(resource, name),
            CommandRefusal::NotFound { .. } => return Refused::Replan,
            CommandRefusal::Exists { .. } if self.posted && !self.generated => Status::exists(resource, name),
            CommandRefusal::Exists { .. } => return Refused::Replan,
            CommandRefusal::LeaseHeld { key, holder, token } => guard::held(resource, &key.name, holder, *token),
            other => Status::conflict(resource, name, &other.to_string()),
        })
    }

    /// The answer to a dry run or to an applied command. `stored` is the object exactly as this command left it, from
    /// the history of changes: a later state, written by another client, would hand this client a revision that it must
    /// not write on. `None`: the command changed nothing.
    pub fn done(&self, ask: &Ask, stored: Option<&Object>, now: WallTime) -> KubeAnswer {
        let resource = self.resource;
        let mut answer = match &self.outcome {
            Outcome::Written(object) => {
                let status = if self.creates { 201 } else { 200 };
                object_answer(ask, resource, stored.unwrap_or(object), status, now)
            }
            Outcome::Deleted(uid) => {
                let details = json!({"name": self.name, "group": resource.group, "kind": resource.plural(),
                                     "uid": uid.to_string()});
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                                    "details": details});
                json_answer(200, &status)
            }
            Outcome::Cleared(objects) => {
                let newest = objects.iter().map(|object| object.meta.revision).max().unwrap_or_default();
                list_answer(ask, resource, objects.iter().map(AsRef::as_ref), newest, now)
            }
        };
        answer.warnings = self.warnings.clone();
        answer
    }
}
