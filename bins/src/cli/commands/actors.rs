//! `muster actors …`: the live tree.

use std::time::Duration;

use muster_client::{Outcome, parse};
use muster_kernel::Clock;
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use serde_json::Value;

use super::Asking;
use crate::cli::args::{ActorAt, ActorsArgs, ActorsCommand};
use crate::cli::output::{cell, print, print_failure, printable};
use crate::cli::render;
use crate::cli::screen::Screen;
use crate::cli::signals::Interrupts;

/// How often `--watch` looks.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// And how long one look may take before the picture says that it is old.
const LOOK_WITHIN: Duration = Duration::from_secs(3);

pub async fn run(asking: &mut Asking, args: ActorsArgs) -> Outcome<u8> {
    match args.command {
        None => tree(asking, args).await,
        Some(ActorsCommand::Inspect(at)) => {
            let request = at_path(at, |path| ActorsAsk::Inspect { path });
            asking.show(request, |d| cell(&d["state"]), render::actor).await
        }
        Some(ActorsCommand::Restart(at)) => {
            let sentence = format!("{} is being restarted", at.path);
            let request = at_path(at, |path| ActorsAsk::Restart { path });
            asking.show(request, |_| String::new(), |_| sentence).await
        }
        Some(ActorsCommand::Crash { at, how, times }) => {
            let sentence = format!("{} was told to fail ({how:?})", at.path).to_lowercase();
            let request = at_path(at, |path| ActorsAsk::Crash { path, how: how.times(times) });
            asking.show(request, |_| String::new(), |_| sentence).await
        }
    }
}

fn at_path(at: ActorAt, ask: impl FnOnce(String) -> ActorsAsk) -> Request {
    Request::Actors { node: whose(at.node, false), ask: ask(at.path) }
}

fn whose(node: Option<String>, all: bool) -> ActorsOf {
    match node {
        _ if all => ActorsOf::All,
        None => ActorsOf::Here,
        Some(leader) if leader == "leader" => ActorsOf::Leader,
        Some(node) => ActorsOf::Node(node),
    }
}

async fn tree(asking: &mut Asking, args: ActorsArgs) -> Outcome<u8> {
    let of = match args.node.as_deref() {
        _ if args.all => "every node".to_owned(),
        None => "the node that answers".to_owned(),
        Some("leader") => "the leader".to_owned(),
        Some(node) => printable(node),
    };
    let request = Request::Actors { node: whose(args.node, args.all), ask: ActorsAsk::Tree };
    if args.watch {
        return watch(asking, &request, &of).await;
    }
    asking.show(request, render::actor_paths, render::actors).await
}

/// Looks again and again, on a screen of its own where there is a terminal. What passes, such as a node that starts again,
/// is waited for.
async fn watch(asking: &mut Asking, request: &Request, of: &str) -> Outcome<u8> {
    let mut interrupts = Interrupts::listen()?;
    let (mut screen, mut looks, mut picture) = (None, render::Looks::default(), Picture::default());
    let mut pause = Duration::ZERO;
    loop {
        let answer = {
            let look = async {
                tokio::time::sleep(pause).await;
                asking.client.call_within(request.clone(), LOOK_WITHIN).await
            };
            tokio::pin!(look);
            loop {
                tokio::select! {
                    answer = &mut look => break answer,
                    _ = interrupts.next() => return Ok(0),
                    () = changed(&mut screen) => picture.draw(screen.as_ref(), &mut looks),
                }
            }
        };
        pause = WATCH_EVERY;
        match answer {
            Ok(text) if asking.out.is_json() => print(&text),
            Ok(text) => {
                let document = parse(&text)?;
                if asking.out.quiet {
                    print(&render::actor_paths(&document));
                    continue;
                }
                if picture.document.is_null() {
                    screen = Screen::open()?;
                }
                picture = Picture { document, heading: format!("actors of {of} at {}", Clock.wall()) };
                picture.draw(screen.as_ref(), &mut looks);
            }
            // The picture stays, and says how old it is.
            Err(failure) if failure.passes() && !picture.document.is_null() => {
                let old = picture.heading.split("; ").next().unwrap_or_default();
                picture.heading = format!("{old}; no answer since: {}", printable(&failure.message));
                picture.draw(screen.as_ref(), &mut looks);
            }
            Err(failure) if failure.passes() && asking.out.is_json() => print_failure(&failure, asking.out.format),
            Err(failure) => return Err(failure),
        }
    }
}

async fn changed(screen: &mut Option<Screen>) {
    match screen {
        Some(screen) => screen.changed().await,
        None => std::future::pending().await,
    }
}

/// What was seen last.
#[derive(Default)]
struct Picture {
    document: Value,
    heading: String,
}

impl Picture {
    /// On the screen; without one the whole tree, below the trees before.
    fn draw(&self, screen: Option<&Screen>, looks: &mut render::Looks) {
        let Some(screen) = screen else {
            return print(&format!("{}\n{}", self.heading, render::actors(&self.document)));
        };
        let (width, height) = Screen::size();
        let mut lines = vec![self.heading.chars().take(width).collect()];
        lines.extend(render::live(&self.document, looks, (width, height.saturating_sub(1))));
        screen.draw(&lines);
    }
}
