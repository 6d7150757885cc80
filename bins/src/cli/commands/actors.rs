//! `muster actors …`: the live tree.

use std::time::Duration;

use muster_client::{Outcome, parse};
use muster_kernel::Clock;
use muster_messages::ID_LEN;
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
            let request = at_path(asking, at, |path| ActorsAsk::Inspect { path }).await;
            show(asking, request, |d| cell(&d["state"]), render::actor).await
        }
        Some(ActorsCommand::Restart(at)) => {
            let path = at.path.clone();
            let request = at_path(asking, at, |path| ActorsAsk::Restart { path }).await;
            let sentence = |d: &Value| format!("{} is being restarted{}", printable(&path), on_node(d));
            asking.show(request, |_| String::new(), sentence).await
        }
        Some(ActorsCommand::Crash { at, how, times }) => {
            let told = format!("{} was told to fail ({how:?})", at.path).to_lowercase();
            let request = at_path(asking, at, |path| ActorsAsk::Crash { path, how: how.times(times) }).await;
            let sentence = |d: &Value| format!("{}{}", printable(&told), on_node(d));
            asking.show(request, |_| String::new(), sentence).await
        }
    }
}

/// Which node did it.
fn on_node(document: &Value) -> String {
    document["node_name"].as_str().map_or_else(String::new, |name| format!(" on {}", printable(name)))
}

/// A tree or an actor, with nodes by their names for people.
async fn show(
    asking: &mut Asking,
    request: Request,
    brief: impl FnOnce(&Value) -> String,
    table: impl FnOnce(&Value) -> String,
) -> Outcome<u8> {
    let text = asking.client.call(request).await?;
    let mut document: Value = parse(&text)?;
    let names = asking.names().await;
    render::name_nodes(&mut document, &names);
    asking.out.document(&text, || brief(&document), || table(&document));
    Ok(0)
}

/// Where the daemon that answers matters: what only the leader runs is asked of the leader.
async fn at_path(asking: &mut Asking, at: ActorAt, ask: impl FnOnce(String) -> ActorsAsk) -> Request {
    let node = match at.node {
        None if is_the_leaders(&at.path) => ActorsOf::Leader,
        node => whose(node, false),
    };
    let path = match named_node(&at.path) {
        Some((kind, name)) => with_id(asking, kind, name).await.unwrap_or(at.path),
        None => at.path,
    };
    Request::Actors { node, ask: ask(path) }
}

fn is_the_leaders(path: &str) -> bool {
    path.strip_prefix("node/manager/leader").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Of an actor named after a node: what is before the node's name, and that name. `…/session-n4`, as trees show it.
fn named_node(path: &str) -> Option<(&str, &str)> {
    let at = path.rfind('/')? + 1;
    let dash = at + path[at..].find('-')? + 1;
    let (kind, name) = (&path[..dash], &path[dash..]);
    matches!(&path[at..dash], "session-" | "peer-").then_some((kind, name)).filter(|(_, name)| name.len() < ID_LEN)
}

async fn with_id(asking: &mut Asking, kind: &str, name: &str) -> Option<String> {
    let request = Request::NodeInspect { node: name.to_owned(), fresh: false };
    let node: muster_messages::NodeView = asking.client.ask(request).await.ok()?;
    Some(format!("{kind}{}", node.id))
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
        None => "one node".to_owned(),
        Some("leader") => "the leader".to_owned(),
        Some(node) => printable(node),
    };
    let request = Request::Actors { node: whose(args.node, args.all), ask: ActorsAsk::Tree };
    if args.watch {
        return watch(asking, &request, &of).await;
    }
    show(asking, request, render::actor_paths, render::actors).await
}

/// Looks again and again, on a screen of its own where there is a terminal. What passes, such as a node that starts again,
/// is waited for.
async fn watch(asking: &mut Asking, request: &Request, of: &str) -> Outcome<u8> {
    let mut interrupts = Interrupts::listen()?;
    let (mut screen, mut looks, mut picture) = (None, render::Looks::default(), Picture::default());
    let mut pause = Duration::ZERO;
    let names = asking.names().await;
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
                let mut document = parse(&text)?;
                render::name_nodes(&mut document, &names);
                if asking.out.quiet {
                    print(&render::actor_paths(&document));
                    continue;
                }
                if picture.document.is_null() {
                    screen = Screen::open()?;
                }
                let of = document["node_name"].as_str().map_or_else(|| of.to_owned(), printable);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actors_of_the_leader_are_asked_of_the_leader() {
        for path in ["node/manager/leader", "node/manager/leader/role-manager"] {
            assert!(is_the_leaders(path), "{path}");
        }
        for path in ["node", "node/manager", "node/manager/leader-switch", "node/agent"] {
            assert!(!is_the_leaders(path), "{path}");
        }
    }

    #[test]
    fn an_actor_is_named_after_a_node_as_trees_show_it() {
        assert_eq!(named_node("node/manager/sessions/session-n4"), Some(("node/manager/sessions/session-", "n4")));
        assert_eq!(named_node("node/manager/mesh/peer-web-1"), Some(("node/manager/mesh/peer-", "web-1")));
        for path in ["node/manager/raft-member", "node", "node/x/session-0000000000000000000000001"] {
            assert_eq!(named_node(path), None, "{path}");
        }
    }
}
