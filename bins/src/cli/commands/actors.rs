//! `muster actors …`: the live actor tree.

use muster_client::{Outcome, parse};
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use muster_messages::{ActorActionView, ActorNode, ID_LEN, Name, OfNodeView, word};

use super::{Context, watching};
use crate::cli::args::{ActorTarget, ActorsArgs, ActorsCommand};
use crate::cli::output::{print, printable};
use crate::cli::render::{self, Trees};

pub async fn run(ctx: &mut Context, args: ActorsArgs) -> Outcome<u8> {
    match args.command {
        None => tree(ctx, args).await,
        Some(ActorsCommand::Inspect(at)) => {
            let request = request_at(ctx, at, |path| ActorsAsk::Inspect { path }).await;
            let state = |of: &OfNodeView<ActorNode>| word(of.answer.state);
            ctx.show_named(request, state, render::actor).await
        }
        Some(ActorsCommand::Restart(at)) => {
            let path = at.path.clone();
            let request = request_at(ctx, at, |path| ActorsAsk::Restart { path }).await;
            let sentence = |done: &Done| format!("{} is being restarted{}", printable(&path), on_node(done));
            ctx.show(request, |_| String::new(), sentence).await
        }
        Some(ActorsCommand::Crash { at, how, times }) => {
            let crashing = format!("{} is being crashed ({how:?})", at.path).to_lowercase();
            let request = request_at(ctx, at, |path| ActorsAsk::Crash { path, how: how.times(times) }).await;
            let sentence = |done: &Done| format!("{}{}", printable(&crashing), on_node(done));
            ctx.show(request, |_| String::new(), sentence).await
        }
    }
}

type Done = OfNodeView<ActorActionView>;

/// The node that answered.
fn on_node(done: &Done) -> String {
    done.node_name.as_ref().map_or_else(String::new, |name| format!(" on {name}"))
}

/// The answer to a request for one tree, or for each node's.
fn read(text: &str, all: bool) -> Outcome<Trees> {
    Ok(if all { Trees::All(parse(text)?) } else { Trees::One(parse(text)?) })
}

/// A request for one actor. Without `--node`, the leader answers for actors that only it runs, else the daemon of the socket.
async fn request_at(ctx: &mut Context, at: ActorTarget, ask: impl FnOnce(String) -> ActorsAsk) -> Request {
    let node = match at.node {
        None if runs_on_leader(&at.path) => ActorsOf::Leader,
        node => ActorsOf::asked(node, false),
    };
    let path = match named_node(&at.path) {
        Some((kind, name)) => with_id(ctx, kind, name).await.unwrap_or(at.path),
        None => at.path,
    };
    Request::Actors { node, ask: ask(path) }
}

fn runs_on_leader(path: &str) -> bool {
    path.strip_prefix("node/manager/leader").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Splits the path of an actor named after a node before the node's name: `…/session-n4`, as shown in trees.
fn named_node(path: &str) -> Option<(&str, &str)> {
    let at = path.rfind('/')? + 1;
    let dash = at + path[at..].find('-')? + 1;
    let (kind, name) = (&path[..dash], &path[dash..]);
    matches!(&path[at..dash], "session-" | "peer-").then_some((kind, name)).filter(|(_, name)| name.len() < ID_LEN)
}

async fn with_id(ctx: &mut Context, kind: &str, name: &str) -> Option<String> {
    let request = Request::NodeInspect { node: name.to_owned(), fresh: false };
    let node: muster_messages::NodeView = ctx.client.ask(request).await.ok()?;
    Some(format!("{kind}{}", node.id))
}

async fn tree(ctx: &mut Context, args: ActorsArgs) -> Outcome<u8> {
    let of = match args.node.as_deref() {
        _ if args.all => "every node".to_owned(),
        None => "one node".to_owned(),
        Some("leader") => "the leader".to_owned(),
        Some(node) => printable(node),
    };
    let request = Request::Actors { node: ActorsOf::asked(args.node, args.all), ask: ActorsAsk::Tree };
    if args.watch {
        return watch(ctx, &request, &of, args.all).await;
    }
    let text = ctx.client.call(request).await?;
    if ctx.out.is_json() {
        print(&text);
        return Ok(0);
    }
    let (trees, names) = (read(&text, args.all)?, ctx.names().await);
    ctx.out.document(&text, || render::actor_paths(&trees), || render::actors(&trees, &names));
    Ok(0)
}

/// The trees of one question, with the restarts that were known at the first one.
struct Picture {
    trees: Trees,
    names: render::Names,
    of: String,
    baseline: render::Baseline,
}

impl watching::Picture for Picture {
    fn title(&self) -> String {
        format!("actors of {}", self.of)
    }
    fn brief(&self) -> String {
        render::actor_paths(&self.trees)
    }
    fn text(&self) -> String {
        render::actors(&self.trees, &self.names)
    }
    fn lines(&mut self, size: (usize, usize)) -> Vec<String> {
        render::live(&self.trees, &self.names, &mut self.baseline, size)
    }
    fn follow(&mut self, former: Self) {
        self.baseline = former.baseline;
    }
}

async fn watch(ctx: &mut Context, request: &Request, of: &str, all: bool) -> Outcome<u8> {
    let names = ctx.names().await;
    watching::watch(ctx, async |ctx: &mut Context| {
        let text = ctx.client.call(request.clone()).await?;
        let trees = read(&text, all)?;
        let node = match &trees {
            Trees::One(one) => one.node_name.as_ref(),
            Trees::All(_) => None,
        };
        let of = node.map_or_else(|| of.to_owned(), Name::to_string);
        Ok((text, Picture { trees, names: names.clone(), of, baseline: render::Baseline::default() }))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_leader_actors_go_to_the_leader() {
        for path in ["node/manager/leader", "node/manager/leader/role-manager"] {
            assert!(runs_on_leader(path), "{path}");
        }
        for path in ["node", "node/manager", "node/manager/leader-switch", "node/agent"] {
            assert!(!runs_on_leader(path), "{path}");
        }
    }

    #[test]
    fn actor_path_with_node_name_is_split() {
        assert_eq!(named_node("node/manager/sessions/session-n4"), Some(("node/manager/sessions/session-", "n4")));
        assert_eq!(named_node("node/manager/mesh/peer-web-1"), Some(("node/manager/mesh/peer-", "web-1")));
        for path in ["node/manager/raft-member", "node", "node/x/session-0000000000000000000000001"] {
            assert_eq!(named_node(path), None, "{path}");
        }
    }
}
