//! `muster lease …`

use muster_client::{Outcome, parse};
use muster_messages::wire::{LeaseRef, LeaseRequest, Request};
use muster_messages::{GuardScope, LeaseView};
use serde_json::Value;

use super::Asking;
use super::node::ids;
use crate::cli::args::{GuardCommand, LeaseArgs, LeaseCommand};
use crate::cli::duration::millis;
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
        LeaseCommand::Delete { name } => {
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

async fn one(asking: &mut Asking, request: LeaseRequest) -> Outcome<u8> {
    let text = asking.client.call(lease(request)).await?;
    let view: LeaseView = parse(&text)?;
    let holder = view.holder.clone().unwrap_or_default();
    let document: Value = parse(&text)?;
    asking.out.document(&text, || holder, || render::lease(&document));
    Ok(0)
}
