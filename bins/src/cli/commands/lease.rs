//! `muster lease …`

use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::{LeaseRef, LeaseRequest, Request};
use muster_messages::{ErrorCode, GuardScope, LeaseView};
use serde_json::Value;

use super::Asking;
use super::node::ids;
use crate::cli::args::{GuardCommand, LeaseArgs, LeaseCommand};
use crate::cli::duration::{millis, spoken};
use crate::cli::render;

pub async fn run(asking: &mut Asking, LeaseArgs { namespace, command }: LeaseArgs) -> Outcome<u8> {
    let named = |name: String| LeaseRef { namespace: namespace.clone(), name };
    match command {
        LeaseCommand::Ls { all_namespaces } => {
            let namespace = (!all_namespaces).then_some(namespace);
            asking.show(lease(LeaseRequest::List { namespace }), |d| ids(&d["items"], "name"), render::leases).await
        }
        LeaseCommand::Get { name } => one(asking, LeaseRequest::Get { lease: named(name) }).await,
        LeaseCommand::Create { name, holder, duration } => {
            let duration_ms = duration.map(millis);
            one(asking, LeaseRequest::Create { lease: named(name), holder, duration_ms }).await
        }
        LeaseCommand::Delete { name, force: true } => delete_held(asking, named(name)).await,
        LeaseCommand::Delete { name, force: false } => {
            let sentence = format!("{namespace}/{name} is deleted");
            asking.show(lease(LeaseRequest::Delete { lease: named(name) }), |_| String::new(), |_| sentence).await
        }
        LeaseCommand::Guard(GuardCommand::Ls) => {
            asking.show(lease(LeaseRequest::Guards), |d| ids(&d["items"], "namespace"), render::guards).await
        }
        LeaseCommand::Guard(GuardCommand::Set { mode, name }) => {
            let place = name.as_ref().map_or_else(|| namespace.clone(), |name| format!("{namespace}/{name}"));
            let sentence = match mode.mode() {
                Some(_) => format!("the guard of {place} is {mode}"),
                None => format!("{place} has no guard of its own any more"),
            };
            let scope = GuardScope { namespace, lease: name };
            let request = LeaseRequest::SetGuard { scope, mode: mode.mode() };
            asking.show(lease(request), |_| String::new(), |_| sentence).await
        }
    }
}

fn lease(request: LeaseRequest) -> Request {
    Request::Lease(request)
}

/// How often a deletion by force looks whether the name is free.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Deletes a lease that may be held, and waits until its name is free.
async fn delete_held(asking: &mut Asking, named: LeaseRef) -> Outcome<u8> {
    let until = Instant::now() + asking.client.timeout();
    let text = asking.client.call(lease(LeaseRequest::DeleteHeld { lease: named.clone() })).await?;
    let document: Value = parse(&text)?;
    if let (Some(barrier), Some(ms)) = (document["held_by"].as_str(), document["available_in_ms"].as_u64()) {
        let left = spoken(Duration::from_millis(ms));
        asking
            .out
            .note(format!("{named} was held; it stays unavailable for up to {left}, until its command has ended"));
        while is_barred(asking, &named, barrier).await? {
            if Instant::now() + LOOK_EVERY > until {
                let text = format!(
                    "{named} is taken from its holder; its name is free in {left} at most: delete it again then"
                );
                return Err(Failure::new(ErrorCode::TimedOut, text));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    asking.out.document(&text, String::new, || format!("{named} is deleted"));
    Ok(0)
}

/// Whether what keeps the name taken is still there. Once its time is over, it is deleted.
async fn is_barred(asking: &mut Asking, named: &LeaseRef, barrier: &str) -> Outcome<bool> {
    let seen = match asking.client.call(lease(LeaseRequest::Get { lease: named.clone() })).await {
        Ok(text) => parse::<LeaseView>(&text)?,
        Err(failure) if failure.is(ErrorCode::NotFound) => return Ok(false),
        Err(failure) => return Err(failure),
    };
    if seen.holder.as_deref() != Some(barrier) {
        return Ok(false); // the next candidate has it
    }
    if seen.expired {
        // A candidate that is faster keeps it: what a session holds is not deleted.
        match asking.client.call(lease(LeaseRequest::Delete { lease: named.clone() })).await {
            Err(failure) if !failure.is(ErrorCode::Conflict) && !failure.is(ErrorCode::NotFound) => {
                return Err(failure);
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}

async fn one(asking: &mut Asking, request: LeaseRequest) -> Outcome<u8> {
    let text = asking.client.call(lease(request)).await?;
    let view: LeaseView = parse(&text)?;
    let holder = view.holder.clone().unwrap_or_default();
    let document: Value = parse(&text)?;
    asking.out.document(&text, || holder, || render::lease(&document));
    Ok(0)
}
