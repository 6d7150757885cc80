//! Load: many clients, each asking again as soon as it has its answer, over TLS to the leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use muster_messages::wire::{LeaseRef, LeaseRequest, Request};
use muster_messages::{ErrorCode, LeaseView, Name, NodeId, NodeListView, RaftStatusView, Revision};
use serde::Deserialize;
use serde_json::{Value, json};

use super::stats::Times;
use crate::cli::args::{BenchArgs, BenchOp, Global};
use crate::cli::client::{Client, Target, parse};
use crate::cli::commands::user::{NewUser, create};
use crate::cli::duration::millis;
use crate::cli::failure::{Failure, Outcome, Tally};
use crate::cli::identity::Identity;
use crate::cli::output::{Out, Table, print};
use crate::cli::signals::Interrupts;

/// Where runs keep their leases; deleted again at the end.
const NAMESPACE: &str = "muster-bench";

/// The label that writes change; removed again at the end.
const LABEL: &str = "bench";

/// How long the identity of a run lives if nobody takes it back: longer than any run.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

pub async fn run(args: &BenchArgs, out: Out, global: &Global) -> Outcome<u8> {
    let mut interrupts = Interrupts::listen()?;
    let mut control = Client::from_flags(global).await?;
    let node = some_node(&mut control).await?;
    let access = Access::prepare(&mut control, global).await?;
    let told = tokio::select! {
        told = runs(args, out, &mut control, &access, &node) => told,
        word = interrupts.next() => Err(Failure::internal(word)),
    };
    access.give_back(&mut control, &node).await;
    let (documents, exit) = told?;
    if out.is_json() {
        print(&json!({"runs": documents}).to_string());
    }
    Ok(exit)
}

/// How the load reaches the cluster.
struct Access {
    target: Target,
    transport: &'static str,
    /// A user made for this run.
    user: Option<Name>,
}

impl Access {
    /// An operator identity of its own, over TLS; the socket where no manager can be reached that way.
    async fn prepare(control: &mut Client, global: &Global) -> Outcome<Self> {
        let (identity, user) = match &global.identity {
            Some(file) => (Identity::read(file)?, None),
            None => {
                let name: Name = format!("bench-{:08x}", rand::random::<u32>()).parse().expect("a legal name");
                let wanted =
                    NewUser { name: name.clone(), admin: true, namespaces: Vec::new(), ttl_ms: Some(millis(LIFETIME)) };
                (create(control, wanted).await?.0, Some(name))
            }
        };
        let managers = leader_first(control, identity.managers.clone()).await?;
        let tls = Target::Managers { dialer: Box::new(identity.dialer()?), managers };
        match Client::to(tls.clone(), global.timeout).call(Request::Contact).await {
            Ok(_) => Ok(Self { target: tls, transport: "tls", user }),
            Err(failure) if failure.is(ErrorCode::Unreachable) => {
                Ok(Self { target: control.target().clone(), transport: "socket", user })
            }
            Err(failure) => Err(failure),
        }
    }

    /// Leaves the cluster as it was. What cannot be taken back now expires within a day.
    async fn give_back(&self, control: &mut Client, node: &NodeId) {
        for lease in leases(control).await {
            let _ = control.call(Request::Lease(LeaseRequest::Delete { lease })).await;
        }
        let remove = vec![LABEL.to_owned()];
        let request = Request::NodeUpdate { node: node.to_string(), add: BTreeMap::new(), remove, generation: None };
        let _ = control.call(request).await;
        if let Some(name) = &self.user {
            let _ = control.call(Request::UserRevoke { name: name.clone() }).await;
        }
    }
}

/// What runs have created.
async fn leases(control: &mut Client) -> Vec<LeaseRef> {
    #[derive(Deserialize)]
    struct Listed {
        items: Vec<LeaseView>,
    }
    let all = LeaseRequest::List { namespace: Some(NAMESPACE.to_owned()) };
    let listed: Outcome<Listed> = control.ask(Request::Lease(all)).await;
    let items = listed.map(|listed| listed.items).unwrap_or_default();
    items.into_iter().map(|lease| LeaseRef { namespace: lease.namespace, name: lease.name }).collect()
}

async fn some_node(control: &mut Client) -> Outcome<NodeId> {
    let list: NodeListView = control.ask(Request::NodeList { fresh: true }).await?;
    list.items.first().map(|node| node.id).ok_or_else(|| Failure::internal("the cluster has no node"))
}

/// The managers' addresses, the leader's first.
async fn leader_first(control: &mut Client, mut managers: Vec<String>) -> Outcome<Vec<String>> {
    let raft: RaftStatusView = control.ask(Request::RaftStatus { fresh: true }).await?;
    let leader = raft.members.iter().find(|member| Some(member.node) == raft.leader);
    if let Some(leader) = leader {
        managers.retain(|addr| *addr != leader.addr);
        managers.insert(0, leader.addr.clone());
    }
    Ok(managers)
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
                node: *node,
                limit: args.lasting.map_or(Limit::Ops(args.ops), Limit::For),
                done: AtomicU64::new(0),
            };
            let ran = one_run(Arc::new(load), &access.target, *clients).await?;
            let changes = term(control).await?.saturating_sub(before);
            let document = ran.document(op, *clients, access.transport, changes);
            out.say(line(&document));
            if let Some(error) = ran.error {
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
    node: NodeId,
    limit: Limit,
    /// Operations begun by all clients together.
    done: AtomicU64,
}

impl Load {
    /// The next operation's number, if there is one.
    fn next(&self, begun: Instant) -> Option<u64> {
        let number = self.done.fetch_add(1, Ordering::Relaxed);
        let goes_on = match self.limit {
            Limit::Ops(ops) => number < ops,
            Limit::For(time) => begun.elapsed() < time,
        };
        goes_on.then_some(number)
    }
    /// `held`: the client's own lease and the revision it saw last.
    fn request(&self, number: u64, held: &Option<(LeaseRef, Revision)>) -> Request {
        let node = self.node.to_string();
        match (self.op, held) {
            (BenchOp::Cas, Some((lease, revision))) => {
                let (lease, revision) = (lease.clone(), *revision);
                Request::Lease(LeaseRequest::Update { lease, revision, holder: None, duration_ms: None })
            }
            (BenchOp::Read | BenchOp::Cas, _) => Request::NodeInspect { node, fresh: true },
            (BenchOp::Write, _) => {
                let add = BTreeMap::from([(LABEL.to_owned(), number.to_string())]);
                Request::NodeUpdate { node, add, remove: Vec::new(), generation: None }
            }
        }
    }
}

struct Ran {
    times: Times,
    errors: u64,
    /// One of the errors, to be shown.
    error: Option<Failure>,
    took: Duration,
}

impl Ran {
    fn document(&self, op: BenchOp, clients: u32, transport: &str, leader_changes: u64) -> Value {
        let summary = self.times.clone().summary();
        let op = match op {
            BenchOp::Write => "write",
            BenchOp::Cas => "cas",
            BenchOp::Read => "read",
        };
        let per_s = self.times.len() as f64 / self.took.as_secs_f64().max(1e-9);
        json!({"op": op, "via": "native", "clients": clients, "per_s": per_s.round(), "p50_ms": summary.p50_ms,
            "p99_ms": summary.p99_ms, "max_ms": summary.max_ms, "ops": self.times.len(), "errors": self.errors,
            "seconds": (self.took.as_secs_f64() * 1000.0).round() / 1000.0, "transport": transport,
            "leader_changes": leader_changes})
    }
}

async fn one_run(load: Arc<Load>, target: &Target, clients: u32) -> Outcome<Ran> {
    // Everybody is connected before the clock starts.
    let mut ready = Vec::new();
    for number in 0..clients {
        let mut client = Client::to(target.clone(), Duration::from_secs(30));
        client.call(Request::Contact).await?;
        let held = if load.op == BenchOp::Cas { Some(hold(&mut client, number).await?) } else { None };
        ready.push((client, held));
    }
    let begun = Instant::now();
    let start = |(client, held)| tokio::spawn(one_client(load.clone(), client, held, begun));
    let tasks: Vec<_> = ready.into_iter().map(start).collect();
    let mut ran = Ran { times: Times::default(), errors: 0, error: None, took: Duration::ZERO };
    for task in tasks {
        let (times, errors, error) = task.await.map_err(Failure::internal)?;
        ran.times.append(times);
        ran.errors += errors;
        ran.error = ran.error.or(error);
    }
    ran.took = begun.elapsed();
    Ok(ran)
}

/// What a run needs of a lease.
#[derive(Deserialize)]
struct Seen {
    revision: Revision,
}

/// Makes sure that there is a lease for the client of this number.
async fn hold(client: &mut Client, number: u32) -> Outcome<(LeaseRef, Revision)> {
    let lease = LeaseRef { namespace: NAMESPACE.to_owned(), name: format!("client-{number}") };
    let holder = Some(lease.name.clone());
    // A minute: what a run that was killed leaves behind is free soon.
    let create = LeaseRequest::Create { lease: lease.clone(), holder, duration_ms: Some(60_000) };
    let seen: Outcome<Seen> = client.ask(Request::Lease(create)).await;
    let seen = match seen {
        Err(failure) if failure.is(ErrorCode::Conflict) => {
            client.ask(Request::Lease(LeaseRequest::Get { lease: lease.clone() })).await?
        }
        seen => seen?,
    };
    Ok((lease, seen.revision))
}

async fn one_client(
    load: Arc<Load>,
    mut client: Client,
    mut held: Option<(LeaseRef, Revision)>,
    begun: Instant,
) -> (Times, u64, Option<Failure>) {
    let (mut times, mut errors, mut error) = (Times::default(), 0, None);
    while let Some(number) = load.next(begun) {
        let asked = Instant::now();
        match client.call(load.request(number, &held)).await {
            Ok(text) => {
                times.add(asked.elapsed());
                if let (Some((_, revision)), Ok(seen)) = (&mut held, parse::<Seen>(&text)) {
                    *revision = seen.revision;
                }
            }
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
    let number = |key: &str, digits: usize| format!("{:.digits$}", document[key].as_f64().unwrap_or(0.0));
    table.row([
        format!("{:<5} {:>4} clients", document["op"].as_str().unwrap_or(""), document["clients"]),
        format!("{:>8} per s", number("per_s", 0)),
        format!("p50 {:>8} ms", number("p50_ms", 3)),
        format!("p99 {:>8} ms", number("p99_ms", 3)),
        format!("{} errors", document["errors"]),
        format!("{} leader changes", document["leader_changes"]),
    ]);
    table.render().trim_end().to_owned()
}
