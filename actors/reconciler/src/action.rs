//! One action of a run: the program's handler, or a command.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::Term;
use muster_messages::wire::RunKey;
use muster_messages::{Action, CommandOptions, WallTime};
use tokio_util::sync::CancellationToken;

use crate::core::run::{Ended, Outcome, Work};
use crate::ports::{ApplyCtx, CommandEnd, CommandOrder, CommandRunner, environment};
use crate::wiring::Setup;

/// What begins the work under this term.
pub(crate) fn action(
    setup: &Setup,
    run: RunKey,
    held: &Term,
    Work { from, definition, attempt, step, .. }: Work,
    now: WallTime,
) -> impl FnOnce(CancellationToken) -> BoxFuture<'static, Ended> + Send + 'static {
    let ctx = ApplyCtx {
        reconciler: run.reconciler.clone(),
        fence: held.token().unwrap_or_default(),
        from,
        target: definition.release.clone(),
        attempt,
        cancelled: CancellationToken::new(),
        term: Some(held.clone()),
    };
    let nothing = |why: &str| std::future::ready(Outcome::Failed(why.to_owned()).into()).boxed();
    let limit = Some(definition.run_timeout_ms).filter(|ms| *ms > 0).map(Duration::from_millis);
    let deadline = limit.map(|limit| now.plus(limit));
    let (commands, handler) = (setup.commands.clone(), setup.handlers.get(&run.reconciler).cloned());
    move |cancelled| {
        let ctx = ApplyCtx { cancelled, ..ctx };
        let command = match &definition.action {
            Action::Command(command) => Some(command),
            Action::Chain(_) => step.as_ref().map(|step| &step.command),
            Action::Objects(_) | Action::Handler => None,
        };
        match (&definition.action, command, commands, handler) {
            // The term was over in the replica that this definition comes from.
            (_, Some(command), ..) if command.is_redacted() => {
                nothing("the command's arguments are redacted on this node")
            }
            (_, Some(command), Some(commands), _) => {
                let mut env = command.env.clone();
                env.extend(environment(&ctx, deadline));
                env.extend(step.as_ref().map(|step| ("MUSTER_STEP".to_owned(), step.name.clone())));
                run_command(commands, run, (command.argv.clone(), env), &definition.options.command, ctx)
            }
            (Action::Handler, .., Some(handler)) => async move {
                let applied = handler.apply(ctx).await;
                applied.map_or_else(Outcome::from, |()| Outcome::Done).into()
            }
            .boxed(),
            _ => nothing("this process cannot carry out this kind of action"),
        }
    }
}

fn run_command(
    commands: Arc<dyn CommandRunner>,
    run: RunKey,
    (argv, env): (Vec<String>, BTreeMap<String, String>),
    options: &CommandOptions,
    ctx: ApplyCtx,
) -> BoxFuture<'static, Ended> {
    let options = options.clone();
    async move {
        let Some(term) = &ctx.term else {
            return Outcome::Failed("the command has no term".to_owned()).into();
        };
        let order = CommandOrder { run, argv, env, options, hold: term.hold(), cancelled: ctx.cancelled.clone() };
        let CommandEnd { exit, head, output } = commands.run(order).await.kept();
        Ended { outcome: exit.outcome(), exit: exit.recorded(), head, output }
    }
    .boxed()
}
