//! `muster object …`

use muster_client::{Outcome, parse};
use muster_messages::wire::{ReconcilerRequest, Request};
use muster_messages::{ListView, ManagedKey, ObjectChangesView, ObjectView, Revision};

use super::Context;
use super::reconciler::show;
use crate::cli::args::{ObjectCommand, ObjectName};
use crate::cli::output::print;
use crate::cli::render;

pub async fn run(ctx: &mut Context, command: ObjectCommand) -> Outcome<u8> {
    let key = |name: ObjectName| ManagedKey { kind: name.kind, namespace: name.namespace, name: name.name };
    match command {
        ObjectCommand::Ls { kind, watch: true, since } => watch(ctx, kind, since.unwrap_or(0)).await,
        ObjectCommand::Ls { kind, .. } => {
            let request = ReconcilerRequest::ObjectList { kind, namespace: None };
            show(ctx, request, |_| String::new(), render::objects).await
        }
        ObjectCommand::Get(name) => {
            let body = |object: &ObjectView| object.body.to_string();
            show(ctx, ReconcilerRequest::ObjectGet { key: key(name) }, body, render::object).await
        }
        ObjectCommand::Put { name, body, label } => {
            let labels = label.into_iter().collect();
            let request = ReconcilerRequest::ObjectPut { key: key(name), labels, body };
            // `None`: it was deleted again meanwhile.
            show(ctx, request, |_: &Option<ObjectView>| String::new(), render::object).await
        }
        ObjectCommand::Delete(name) => {
            let key = key(name);
            let sentence = format!("{key} is deleted");
            ctx.done(Request::Reconciler(ReconcilerRequest::ObjectDelete { key }), &sentence).await
        }
    }
}

/// All objects, or what has changed after a revision, then every change. Ends like [`Context::poll`], or when deletions were missed
/// (`expired`).
async fn watch(ctx: &mut Context, kind: Option<String>, since: u64) -> Outcome<u8> {
    let (mut seen, mut is_first) = (Revision(since), true);
    loop {
        let wait_ms = if is_first { 0 } else { ctx.poll_wait_ms() };
        let request = ReconcilerRequest::ObjectChanges { kind: kind.clone(), namespace: None, seen, wait_ms };
        let text = ctx.poll(&Request::Reconciler(request)).await?;
        let page: ObjectChangesView = parse(&text)?;
        seen = page.revision;
        if is_first || !page.items.is_empty() || !page.deleted.is_empty() {
            if ctx.out.is_json() {
                print(&text);
            } else if is_first && since == 0 {
                let mut items = page.items;
                let place = |object: &ObjectView| {
                    let metadata = &object.metadata;
                    (object.kind.clone(), metadata.namespace.clone(), metadata.name.clone())
                };
                items.sort_by_key(place);
                print(&render::objects(&ListView { revision: None, items }));
            } else if let Some(lines) = render::object_changes(&page) {
                print(&lines);
            }
        }
        is_first = false;
    }
}
