//! `muster cluster set` and `muster autopilot …`

use muster_client::{Failure, Outcome};
use muster_messages::wire::{AutopilotRequest, Request};
use muster_messages::{AutopilotChangedView, AutopilotView, ErrorCode, Generation};

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
            return Err(Failure::new(ErrorCode::Invalid, "managers=off changes no role: there is nothing to show"));
        }
        Declared::Off => AutopilotRequest::Withdraw { generation },
        Declared::Settings(settings) if args.dry_run => {
            let request = Request::Autopilot(AutopilotRequest::Preview { settings });
            return ctx.show_named(request, next, render::autopilot_preview).await;
        }
        Declared::Settings(settings) => AutopilotRequest::Set { settings, generation },
    };
    changed(ctx, request).await
}

async fn changed(ctx: &mut Context, request: AutopilotRequest) -> Outcome<u8> {
    let brief = |view: &AutopilotChangedView| view.changed.to_string();
    ctx.show(Request::Autopilot(request), brief, render::autopilot_changed).await
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
        AutopilotCommand::Explain { node } => {
            ctx.show_named(state(), next, |view, names| render::autopilot_explained(view, names, node.as_deref())).await
        }
        AutopilotCommand::Pause { why } => changed(ctx, AutopilotRequest::Pause { why }).await,
        AutopilotCommand::Resume => changed(ctx, AutopilotRequest::Resume).await,
    }
}
