//! The commands, one file per object.

mod actors;
mod autolock;
mod autopilot;
mod backup;
mod ca;
mod dashboard;
mod events;
mod kubeconfig;
mod lease;
mod node;
mod object;
mod raft;
mod reconciler;
pub(super) mod release;
mod run_logs;
mod security;
mod shell_support;
mod token;
pub(super) mod user;
mod watching;
mod workload;

use std::time::Duration;

use futures_util::future::join_all;
use muster_client::{Client, Outcome, parse};
use muster_messages::wire::{ListOf, Request};
use muster_messages::{AdmissionOpenedView, LockedView, NodeId, NodeListView, NodeView, StatusView};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use self::watching::Text;
use super::args::{Cli, Command, RecoveryCommand, WatchedArgs};
use super::duration::millis;
use super::output::{Out, print};
use super::{bench, dev, discover, elect, render, wait_ready};

/// The time limit for node names: a manager without a quorum answers from its replica after 1.5 s.
const NAMES_TIMEOUT: Duration = Duration::from_secs(3);

/// The pause between two attempts of a watch whose daemon restarts.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The client and the output of a command that calls a daemon.
pub(super) struct Context {
    pub client: Client,
    pub out: Out,
}

impl Context {
    /// The nodes' names, by id; empty if the daemon cannot list them.
    async fn names(&mut self) -> render::Names {
        if self.out.is_json() || self.out.quiet {
            return render::Names::new();
        }
        // A cluster without a quorum is still shown, with ids.
        let nodes = tokio::time::timeout(NAMES_TIMEOUT, self.client.list(ListOf::Nodes, false)).await;
        let nodes = nodes.ok().and_then(|text| parse::<NodeListView>(&text.ok()?).ok());
        nodes.into_iter().flat_map(|nodes| nodes.items).map(|node| (node.id, node.name)).collect()
    }

    /// [`Context::show`] with node names for tables.
    async fn show_named<T: DeserializeOwned>(
        &mut self,
        request: Request,
        brief: impl FnOnce(&T) -> String,
        table: impl FnOnce(&T, &render::Names) -> String,
    ) -> Outcome<u8> {
        let text = self.client.call(request).await?;
        let names = self.names().await;
        self.print(&text, brief, |document| table(document, &names))
    }

    /// Sends the request and prints the answer, or what the functions render from it.
    async fn show<T: DeserializeOwned>(
        &mut self,
        request: Request,
        brief: impl FnOnce(&T) -> String,
        table: impl FnOnce(&T) -> String,
    ) -> Outcome<u8> {
        let text = self.client.call(request).await?;
        self.print(&text, brief, table)
    }

    /// [`Context::show`], with `watch` until interrupted; `narrow` renders what fits a screen.
    async fn show_or_watch<T: DeserializeOwned>(
        &mut self,
        title: &'static str,
        watch: bool,
        ask: impl AsyncFn(&mut Context) -> Outcome<String>,
        brief: impl Fn(&T) -> String,
        (table, narrow): (impl Fn(&T) -> String, impl Fn(&T) -> Option<String>),
    ) -> Outcome<u8> {
        if !watch {
            let text = ask(self).await?;
            return self.print(&text, brief, table);
        }
        watching::watch(self, async |ctx: &mut Context| {
            let json = ask(ctx).await?;
            let document: T = parse(&json)?;
            let (brief, text, narrow) = (brief(&document), table(&document), narrow(&document));
            Ok((json, Text { title, brief, text, narrow }))
        })
        .await
    }

    /// The same for a list, which may take several answers.
    async fn show_list<T: DeserializeOwned>(
        &mut self,
        of: ListOf,
        fresh: bool,
        brief: impl FnOnce(&T) -> String,
        table: impl FnOnce(&T) -> String,
    ) -> Outcome<u8> {
        let text = self.client.list(of, fresh).await?;
        self.print(&text, brief, table)
    }

    /// Sends the request and prints the answer as JSON, or a sentence.
    async fn done(&mut self, request: Request, sentence: &str) -> Outcome<u8> {
        let text = self.client.call(request).await?;
        self.out.document(&text, String::new, || sentence.to_owned());
        Ok(0)
    }

    /// The answer to a request that waits for news, for [`Context::poll_wait_ms`] at most. Asked again across restarts of daemons and changes
    /// of the leader; fails once the time limit has passed without an answer.
    async fn poll(&mut self, request: &Request) -> Outcome<String> {
        let began = Instant::now();
        loop {
            match self.client.call(request.clone()).await {
                Err(failure) if failure.may_pass() && began.elapsed() < self.client.timeout() => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Half of the time limit: a quiet cluster answers well before the call times out.
    fn poll_wait_ms(&self) -> u64 {
        millis(self.client.timeout() / 2)
    }

    /// Prints an answer: as JSON the daemon's text, unchanged, with what only its release knows; otherwise what is read from it.
    fn print<T: DeserializeOwned>(
        &self,
        text: &str,
        brief: impl FnOnce(&T) -> String,
        table: impl FnOnce(&T) -> String,
    ) -> Outcome<u8> {
        if self.out.is_json() {
            print(text);
            return Ok(0);
        }
        let document = parse(text)?;
        self.out.document(text, || brief(&document), || table(&document));
        Ok(0)
    }
}

/// Runs one command; the result is the exit status.
pub(super) async fn run(cli: Cli) -> Outcome<u8> {
    let out = Out::new(&cli.global);
    match cli.command {
        Command::Dev(command) => return dev::run(command, out, &cli.global).await,
        Command::Bench(args) => return bench::run(args, out, &cli.global).await,
        Command::Elect(args) => return elect::run(args, out, &cli.global).await,
        Command::WaitReady(args) => return wait_ready::run(args, out, &cli.global).await,
        Command::Completion { shell } => return shell_support::completion(shell),
        Command::Man { dir } => return shell_support::manual_pages(&dir),
        _ => {}
    }
    let mut client = discover::client(&cli.global).await?;
    if !out.is_json() && !out.quiet {
        client = client.when_slow(|target| {
            crate::stderr::say(format_args!(
                "still waiting for an answer from {target}; the managers may be electing a leader"
            ));
        });
    }
    let mut ctx = Context { client, out };
    match cli.command {
        Command::Status(args) => status(&mut ctx, args).await,
        Command::Node(command) => node::run(&mut ctx, command).await,
        Command::Token(command) => token::run(&mut ctx, command).await,
        Command::Cert(command) => security::cert(&mut ctx, command).await,
        Command::Ca(command) => ca::run(&mut ctx, command).await,
        Command::Autolock(command) => autolock::run(&mut ctx, command).await,
        Command::Cluster(command) => autopilot::cluster(&mut ctx, command).await,
        Command::Autopilot(command) => autopilot::autopilot(&mut ctx, command).await,
        Command::Unlock(args) => autolock::unlock(&mut ctx, args).await,
        Command::Blocklist(command) => security::blocklist(&mut ctx, command).await,
        Command::User(command) => user::run(&mut ctx, command).await,
        Command::Workload(command) => workload::run(&mut ctx, command).await,
        Command::Lease(args) => lease::run(&mut ctx, args).await,
        Command::Kubeconfig(args) => kubeconfig::run(&mut ctx, args).await,
        Command::Raft(command) => raft::run(&mut ctx, command).await,
        Command::Actors(args) => actors::run(&mut ctx, args).await,
        Command::Reconciler(command) => reconciler::run(&mut ctx, command).await,
        Command::Release(command) => release::run(&mut ctx, command).await,
        Command::Member(command) => reconciler::member(&mut ctx, command).await,
        Command::Object(command) => object::run(&mut ctx, command).await,
        Command::Dashboard(args) => dashboard::run(&ctx, args).await,
        Command::Events(args) => events::run(&mut ctx, args).await,
        Command::Backup { file } => backup::run(&ctx, &file).await,
        Command::Recovery(RecoveryCommand::Open) => {
            let sentence = |opened: &AdmissionOpenedView| match opened.changed {
                false => "the cluster is already open".to_owned(),
                true => "the cluster is open: nodes, joins and users are admitted".to_owned(),
            };
            ctx.show(Request::OpenAdmission, sentence, sentence).await
        }
        Command::Dev(_)
        | Command::Bench(_)
        | Command::Elect(_)
        | Command::WaitReady(_)
        | Command::Completion { .. }
        | Command::Man { .. } => unreachable!("these returned above"),
    }
}

async fn status(ctx: &mut Context, args: WatchedArgs) -> Outcome<u8> {
    let fresh = args.fresh.fresh;
    if args.watch {
        let mut known = render::Names::new();
        return watching::watch(ctx, async |ctx: &mut Context| ask_status(ctx, fresh, &mut known).await).await;
    }
    let (json, status) = ask_status(ctx, fresh, &mut render::Names::new()).await?;
    ctx.out.document(&json, || status.brief, || status.text);
    Ok(0)
}

/// The status as JSON, and as text. `known`: names that are known already.
async fn ask_status(ctx: &mut Context, fresh: bool, known: &mut render::Names) -> Outcome<(String, Text)> {
    let json = ctx.client.call(Request::Status { fresh }).await?;
    let title = "status";
    if let Ok(locked) = parse::<LockedView>(&json) {
        let brief = if locked.locked { "locked" } else { "unlocked" }.to_owned();
        return Ok((json, Text { title, brief, text: render::locked(&locked), narrow: None }));
    }
    if ctx.out.is_json() {
        return Ok((json, Text { title, brief: String::new(), text: String::new(), narrow: None }));
    }
    let status: StatusView = parse(&json)?;
    let brief = status.raft.leader.map_or_else(|| "no leader".to_owned(), |id| id.to_string());
    // A daemon that cannot list the names still has a status, with ids.
    let quiet = ctx.out.quiet;
    let members = status.raft.voters.iter().chain(&status.raft.learners).filter(|_| !quiet);
    let of_node = |id: NodeId| Request::NodeInspect { node: id.to_string(), fresh: false };
    if status.stale {
        // Without a quorum each answer takes a moment, and no node is renamed: what is unknown is asked at the same time.
        let asked = members.filter(|id| !known.contains_key(id)).map(|id| {
            let (id, mut client) = (*id, ctx.client.clone());
            async move { client.ask::<NodeView>(of_node(id)).await.ok().map(|node| (id, node.name)) }
        });
        let names = join_all(asked).await;
        known.extend(names.into_iter().flatten());
    } else {
        for id in members {
            match ctx.client.ask::<NodeView>(of_node(*id)).await {
                Ok(node) => known.insert(*id, node.name),
                Err(_) => break,
            };
        }
    }
    Ok((json, Text { title, brief, text: render::status(&status, known), narrow: None }))
}
