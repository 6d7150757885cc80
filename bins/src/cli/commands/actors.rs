//! `muster actors …`: the live tree.

use std::time::Duration;

use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use serde_json::Value;

use super::Asking;
use crate::cli::args::{ActorAt, ActorsArgs, ActorsCommand};
use crate::cli::client::parse;
use crate::cli::failure::Outcome;
use crate::cli::output::{cell, print};
use crate::cli::render;

/// How often `--watch` looks.
const WATCH_EVERY: Duration = Duration::from_secs(1);

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
        Some(ActorsCommand::Crash { at, how }) => {
            let sentence = format!("{} was told to fail ({how:?})", at.path).to_lowercase();
            let request = at_path(at, |path| ActorsAsk::Crash { path, how: how.into() });
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
    let request = Request::Actors { node: whose(args.node, args.all), ask: ActorsAsk::Tree };
    if !args.watch {
        return asking.show(request, render::actor_paths, render::actors).await;
    }
    loop {
        let text = asking.client.call(request.clone()).await?;
        let document: Value = parse(&text)?;
        if asking.out.is_json() {
            print(&document.to_string());
        } else {
            // Home and clear, so that the tree stays in place.
            print(&format!("\x1b[H\x1b[2J{}", render::actors(&document)));
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}
