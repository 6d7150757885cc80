//! One action of a run: the program's handler, or a command.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::Term;
use muster_messages::{Action, WallTime};
use tokio_util::sync::CancellationToken;

use crate::action_slot::Ended;
use crate::core::run::{Outcome, Work};
use crate::ports::{ApplyCtx, CommandEnd, CommandOrder, CommandRunner, environment};
use crate::wiring::Setup;

/// What begins the work under this term.
pub(crate) fn action(
    setup: &Setup,
    name: &str,
    held: &Term,
    Work { from, definition, attempt }: Work,
    now: WallTime,
) -> impl FnOnce(CancellationToken) -> BoxFuture<'static, Ended> + Send + 'static {
    let ctx = ApplyCtx {
        reconciler: name.to_owned(),
        fence: held.token().unwrap_or_default(),
        from,
        target: definition.release.clone(),
        attempt,
        cancelled: CancellationToken::new(),
        term: Some(held.clone()),
    };
    let nothing = |why: &str| {
        let ended = (Outcome::Failed(why.to_owned()), String::new());
        std::future::ready(ended).boxed()
    };
    let limit = Some(definition.run_timeout_ms).filter(|ms| *ms > 0).map(Duration::from_millis);
    let deadline = limit.map(|limit| now.plus(limit));
    let (commands, handler) = (setup.commands.clone(), setup.handlers.get(name).cloned());
    move |cancelled| {
        let ctx = ApplyCtx { cancelled, ..ctx };
        match (&definition.action, commands, handler) {
            // The term was over in the replica that this definition comes from.
            (Action::Command(command), ..) if command.is_redacted() => {
                nothing("the command's arguments are redacted on this node")
            }
            (Action::Command(command), Some(commands), _) => {
                let mut env = command.env.clone();
                env.extend(environment(&ctx, deadline));
                run_command(commands, command.argv.clone(), env, ctx)
            }
            (Action::Handler, _, Some(handler)) => async move {
                let applied = handler.apply(ctx).await;
                (applied.map_or_else(Outcome::from, |()| Outcome::Done), String::new())
            }
            .boxed(),
            _ => nothing("this process cannot carry out this kind of action"),
        }
    }
}

fn run_command(
    commands: Arc<dyn CommandRunner>,
    argv: Vec<String>,
    env: BTreeMap<String, String>,
    ctx: ApplyCtx,
) -> BoxFuture<'static, Ended> {
    async move {
        let Some(term) = &ctx.term else {
            return (Outcome::Failed("the command has no term".to_owned()), String::new());
        };
        let order = CommandOrder { argv, env, hold: term.hold(), cancelled: ctx.cancelled.clone() };
        let CommandEnd { exit, output } = commands.run(order).await.kept();
        (exit.outcome(), output)
    }
    .boxed()
}
