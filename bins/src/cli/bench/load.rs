//! Load: many clients, each with one request in flight, over TLS to the leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use muster_client::{Client, Failure, Outcome, Target};
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, NodeId, NodeListView, RaftStatusView};
use serde_json::{Value, json};

use super::access::Access;
use super::native::NativeClient;
use super::rest::RestClient;
use super::stats::{Times, per_second, seconds};
use crate::cli::args::{BenchArgs, BenchCaller, BenchOp, Global, Via};
use crate::cli::discover;
use crate::cli::output::{Out, Table, print};
use crate::cli::signals::Interrupts;
use crate::cli::tally::Tally;

pub async fn run(args: &BenchArgs, out: Out, global: &Global) -> Outcome<u8> {
    if args.caller == BenchCaller::User && !matches!(args.op, Some(BenchOp::Cas | BenchOp::Read)) {
        let text = "a user changes no labels and reads no actors: add --op cas or --op read";
        return Err(Failure::new(ErrorCode::Invalid, text));
    }
    let mut interrupts = Interrupts::listen()?;
    let mut control = discover::client(global).await?;
    let node = some_node(&mut control).await?;
    let access = Access::prepare(&mut control, global, args.caller).await?;
    let outcome = interrupts.during(runs(args, out, &mut control, &access, &node)).await;
    access.clean_up(&mut control, &node).await;
    let (documents, exit) = outcome?;
    if out.is_json() {
        print(&json!({"runs": documents}).to_string());
    }
    Ok(exit)
}

async fn some_node(control: &mut Client) -> Outcome<NodeId> {
    let list: NodeListView = control.ask(Request::NodeList { fresh: true }).await?;
    list.items.first().map(|node| node.id).ok_or_else(|| Failure::internal("the cluster has no node"))
}

async fn runs(
    args: &BenchArgs,
    out: Out,
    control: &mut Client,
    access: &Access,
    node: &NodeId,
) -> Outcome<(Vec<Value>, u8)> {
    let ops = args.op.map_or(vec![BenchOp::Write, BenchOp::Read], |op| vec![op]);
    let (mut documents, mut tally) = (Vec::new(), Tally::default());
    for op in ops {
        for clients in &args.clients {
            let before = term(control).await?;
            let load = Load {
                op,
                via: args.via,
                caller: args.caller,
                node: *node,
                limit: args.lasting.map_or(Limit::Ops(args.ops), Limit::For),
                done: AtomicU64::new(0),
            };
            let result = one_run(Arc::new(load), &access.target, *clients).await?;
            let changes = term(control).await?.saturating_sub(before);
            let document = result.document((op, args.via, args.caller), *clients, access.transport(), changes);
            out.say(line(&document));
            if let Some(error) = result.error {
                tally.note::<()>(out.format, Err(error));
            }
            documents.push(document);
        }
    }
    Ok((documents, tally.exit()))
}

async fn term(control: &mut Client) -> Outcome<u64> {
    let raft: RaftStatusView = control.ask(Request::RaftStatus { fresh: true }).await?;
    Ok(raft.term.0)
}

enum Limit {
    Ops(u64),
    For(Duration),
}

struct Load {
    op: BenchOp,
    via: Via,
    caller: BenchCaller,
    node: NodeId,
    limit: Limit,
    /// Operations started by all clients together.
    done: AtomicU64,
}

impl Load {
    /// The next operation's number, unless the run is over.
    fn next(&self, begun: Instant) -> Option<u64> {
        let number = self.done.fetch_add(1, Ordering::Relaxed);
        let continues = match self.limit {
            Limit::Ops(ops) => number < ops,
            Limit::For(time) => begun.elapsed() < time,
        };
        continues.then_some(number)
    }
    async fn client(&self, target: &Target, number: u32) -> Outcome<AnyClient> {
        Ok(match self.via {
            Via::Native => AnyClient::Native(
                NativeClient::connect(target.clone(), (self.op, self.caller), self.node, number).await?,
            ),
            Via::Rest => AnyClient::Rest(RestClient::connect(target, self.op, self.node, number).await?),
        })
    }
}

enum AnyClient {
    Native(NativeClient),
    Rest(RestClient),
}

impl AnyClient {
    async fn once(&mut self, number: u64) -> Outcome {
        match self {
            AnyClient::Native(client) => client.once(number).await,
            AnyClient::Rest(client) => client.once(number).await,
        }
    }
}

struct RunResult {
    times: Times,
    errors: u64,
    /// The first error, to be shown.
    error: Option<Failure>,
    took: Duration,
}

impl RunResult {
    fn document(
        &self,
        (op, via, caller): (BenchOp, Via, BenchCaller),
        clients: u32,
        transport: &str,
        leader_changes: u64,
    ) -> Value {
        let summary = self.times.clone().summary();
        let per_s = per_second(self.times.len() as f64, self.took);
        json!({"op": word(op), "via": word(via), "as": word(caller), "clients": clients, "per_s": per_s.round(), "p50_ms": summary.p50_ms,
            "p99_ms": summary.p99_ms, "max_ms": summary.max_ms, "ops": self.times.len(), "errors": self.errors,
            "seconds": seconds(self.took), "transport": transport,
            "leader_changes": leader_changes})
    }
}

/// As on the command line.
fn word(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

async fn one_run(load: Arc<Load>, target: &Target, clients: u32) -> Outcome<RunResult> {
    // All clients are connected before the measurement starts.
    let mut ready = Vec::new();
    for number in 0..clients {
        ready.push(load.client(target, number).await?);
    }
    let begun = Instant::now();
    let start = |client| tokio::spawn(one_client(load.clone(), client, begun));
    let tasks: Vec<_> = ready.into_iter().map(start).collect();
    let mut result = RunResult { times: Times::default(), errors: 0, error: None, took: Duration::ZERO };
    for task in tasks {
        let (times, errors, error) = task.await.map_err(Failure::internal)?;
        result.times.append(times);
        result.errors += errors;
        result.error = result.error.or(error);
    }
    result.took = begun.elapsed();
    Ok(result)
}

async fn one_client(load: Arc<Load>, mut client: AnyClient, begun: Instant) -> (Times, u64, Option<Failure>) {
    let (mut times, mut errors, mut error) = (Times::default(), 0, None);
    while let Some(number) = load.next(begun) {
        let asked = Instant::now();
        match client.once(number).await {
            Ok(()) => times.add(asked.elapsed()),
            Err(failure) => {
                errors += 1;
                error.get_or_insert(failure);
            }
        }
    }
    (times, errors, error)
}

fn line(document: &Value) -> String {
    let mut table = Table::bare();
    let word = |key: &str| document[key].as_str().unwrap_or("").to_owned();
    let number = |key: &str, digits: usize| format!("{:.digits$}", document[key].as_f64().unwrap_or(0.0));
    table.row([
        format!("{:<6} {:<6} {:>4} clients", word("op"), word("via"), document["clients"]),
        format!("{:>8} per s", number("per_s", 0)),
        format!("p50 {:>8} ms", number("p50_ms", 3)),
        format!("p99 {:>8} ms", number("p99_ms", 3)),
        format!("{} errors", document["errors"]),
        format!("{} leader changes", document["leader_changes"]),
    ]);
    table.render().trim_end().to_owned()
}
