//! `muster cluster set` and `muster autopilot …`

use muster_client::{Failure, Outcome};
use muster_messages::wire::{AutopilotRequest, Request};
use muster_messages::{AutopilotChangedView, AutopilotView, ErrorCode, Generation, NodeView};
use serde_json::Value;

use super::Context;
use crate::cli::args::{AutopilotCommand, ClusterCommand, Declared, SetArgs};
use crate::cli::render;

pub async fn cluster(ctx: &mut Context, command: ClusterCommand) -> Outcome<u8> {
    let ClusterCommand::Set(args) = command;
    set(ctx, args).await
}

async fn set(ctx: &mut Context, args: SetArgs) -> Outcome<u8> {
    let generation = args.generation.map(Generation);
    let declared = args.declared().map_err(|why| Failure::new(ErrorCode::Invalid, why))?;
    let request = match declared {
        Declared::Off if args.dry_run => {
            return Err(Failure::new(
                ErrorCode::Invalid,
                "managers=off changes no role: --dry-run has nothing to show",
            ));
        }
        Declared::Off => AutopilotRequest::Withdraw { generation },
        Declared::Settings(settings) if args.dry_run => {
            let request = Request::Autopilot(AutopilotRequest::Preview { settings, generation });
            return ctx.show_named(request, next, render::autopilot_preview).await;
        }
        Declared::Settings(settings) => AutopilotRequest::Set { settings, generation },
    };
    let table = |view: &AutopilotChangedView, names: &render::Names| {
        render::autopilot_changed(view, names) + render::autopilot_warning(view)
    };
    ctx.show_named(Request::Autopilot(request), is_changed, table).await
}

async fn changed(ctx: &mut Context, request: AutopilotRequest) -> Outcome<u8> {
    ctx.show_named(Request::Autopilot(request), is_changed, render::autopilot_changed).await
}

fn is_changed(view: &AutopilotChangedView) -> String {
    view.changed.to_string()
}

fn next(view: &AutopilotView) -> String {
    view.next
        .action
        .map(muster_messages::word)
        .unwrap_or_else(|| view.next.reason.as_ref().map(ToString::to_string).unwrap_or_default())
}

pub async fn autopilot(ctx: &mut Context, command: AutopilotCommand) -> Outcome<u8> {
    let state = || Request::Autopilot(AutopilotRequest::State);
    match command {
        AutopilotCommand::State { watch } => {
            let ask = async |ctx: &mut Context| ctx.client.call(state()).await;
            let names = ctx.names().await;
            let table = |view: &AutopilotView| render::autopilot(view, &names);
            ctx.show_or_watch("autopilot", watch, ask, next, (table, |_| None)).await
        }
        AutopilotCommand::Explain { node: None } => ctx.show_named(state(), next, render::autopilot_explained).await,
        AutopilotCommand::Explain { node: Some(node) } => {
            // Resolved as by other commands.
            let node: NodeView = ctx.client.ask(Request::NodeInspect { node, fresh: false }).await?;
            let mut document: Value = ctx.client.ask(state()).await?;
            keep_only(node.id.as_str(), &mut document);
            let names = ctx.names().await;
            let table = |view: &AutopilotView| render::autopilot_explained_of(view, &names, node.name.as_str());
            ctx.print(&document.to_string(), render::autopilot_brief_of, table)
        }
        AutopilotCommand::Pause { why } => changed(ctx, AutopilotRequest::Pause { why }).await,
        AutopilotCommand::Resume => changed(ctx, AutopilotRequest::Resume).await,
    }
}

/// Leaves out all other nodes. Fields that this release does not know stay, as in every other answer.
fn keep_only(node: &str, state: &mut Value) {
    for list in ["managers", "candidates"] {
        if let Some(nodes) = state.get_mut(list).and_then(Value::as_array_mut) {
            nodes.retain(|of| of["node"] == node);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn explanation_of_one_node_keeps_unknown_fields() {
        let mut state = json!({"healthy": true, "later": 1, "managers": [{"node": "a", "later": 2}, {"node": "b"}],
            "candidates": [{"node": "c"}]});
        keep_only("a", &mut state);
        let expected = json!({"healthy": true, "later": 1, "managers": [{"node": "a", "later": 2}], "candidates": []});
        assert_eq!(state, expected);
    }
}
