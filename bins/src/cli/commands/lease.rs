//! `muster lease …`

use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::{LeaseRef, LeaseRequest, Request};
use muster_messages::{ErrorCode, GuardScope, GuardView, LeaseDeletedView, LeaseView, ListView};

use super::Context;
use crate::cli::args::{GuardCommand, LeaseArgs, LeaseCommand};
use crate::cli::duration::{format_duration, millis};
use crate::cli::output::lines;
use crate::cli::render;

pub async fn run(ctx: &mut Context, LeaseArgs { namespace, command }: LeaseArgs) -> Outcome<u8> {
    let named = |name: String| LeaseRef { namespace: namespace.clone(), name };
    match command {
        LeaseCommand::Ls { all_namespaces, watch } => {
            let namespace = (!all_namespaces).then_some(namespace);
            let names = |list: &ListView<LeaseView>| lines(list.items.iter().map(|lease| &lease.name));
            let request = lease(LeaseRequest::List { namespace });
            let ask = async |ctx: &mut Context| ctx.client.call(request.clone()).await;
            ctx.show_or_watch("leases", watch, ask, names, (render::leases, |_: &_| None)).await
        }
        LeaseCommand::Get { name } => one(ctx, LeaseRequest::Get { lease: named(name) }).await,
        LeaseCommand::Create { name, holder, duration } => {
            let duration_ms = duration.map(millis);
            one(ctx, LeaseRequest::Create { lease: named(name), holder, duration_ms }).await
        }
        LeaseCommand::Delete { name, force: true } => delete_held(ctx, named(name)).await,
        LeaseCommand::Delete { name, force: false } => {
            let sentence = format!("{namespace}/{name} is deleted");
            ctx.done(lease(LeaseRequest::Delete { lease: named(name) }), &sentence).await
        }
        LeaseCommand::Guard(GuardCommand::Ls) => {
            let namespaces = |list: &ListView<GuardView>| lines(list.items.iter().map(|guard| &guard.namespace));
            ctx.show(lease(LeaseRequest::Guards), namespaces, render::guards).await
        }
        LeaseCommand::Guard(GuardCommand::Set { mode, name }) => {
            let target = name.as_ref().map_or_else(|| namespace.clone(), |name| format!("{namespace}/{name}"));
            let sentence = match mode.mode() {
                Some(_) => format!("the guard of {target} is {mode}"),
                None => format!("{target} no longer has its own guard"),
            };
            let scope = GuardScope { namespace, lease: name };
            let request = LeaseRequest::SetGuard { scope, mode: mode.mode() };
            ctx.done(lease(request), &sentence).await
        }
    }
}

fn lease(request: LeaseRequest) -> Request {
    Request::Lease(request)
}

/// How often a forced deletion checks whether the name is free.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Deletes a lease that may be held, and waits until its name is free.
async fn delete_held(ctx: &mut Context, named: LeaseRef) -> Outcome<u8> {
    let until = Instant::now() + ctx.client.timeout();
    let text = ctx.client.call(lease(LeaseRequest::DeleteHeld { lease: named.clone() })).await?;
    let deleted: LeaseDeletedView = parse(&text)?;
    if let (Some(placeholder), Some(ms)) = (&deleted.held_by, deleted.available_in_ms) {
        let left = format_duration(Duration::from_millis(ms));
        ctx.out.note(format!("{named} was held; it stays unavailable for up to {left}, until its command has ended"));
        while is_name_taken(ctx, &named, placeholder).await? {
            if Instant::now() + POLL_INTERVAL > until {
                let text = format!(
                    "{named} was taken from its holder; its name becomes free within {left}: retry the deletion then"
                );
                return Err(Failure::new(ErrorCode::TimedOut, text));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    ctx.out.document(&text, String::new, || format!("{named} is deleted"));
    Ok(0)
}

/// Whether the lease's placeholder still exists. Once it has expired, it is deleted.
async fn is_name_taken(ctx: &mut Context, named: &LeaseRef, placeholder: &str) -> Outcome<bool> {
    let seen = match ctx.client.call(lease(LeaseRequest::Get { lease: named.clone() })).await {
        Ok(text) => parse::<LeaseView>(&text)?,
        Err(failure) if failure.is(ErrorCode::NotFound) => return Ok(false),
        Err(failure) => return Err(failure),
    };
    if seen.holder.as_deref() != Some(placeholder) {
        return Ok(false); // the next candidate holds the lease
    }
    if seen.expired {
        // A faster candidate keeps the lease: a lease held by a session is not deleted.
        match ctx.client.call(lease(LeaseRequest::Delete { lease: named.clone() })).await {
            Err(failure) if !failure.is(ErrorCode::Conflict) && !failure.is(ErrorCode::NotFound) => {
                return Err(failure);
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}

async fn one(ctx: &mut Context, request: LeaseRequest) -> Outcome<u8> {
    ctx.show(lease(request), |lease: &LeaseView| lease.holder.clone().unwrap_or_default(), render::lease).await
}
