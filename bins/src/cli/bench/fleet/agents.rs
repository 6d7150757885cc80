//! Many agents in one process. Each is a node's own: it joins with a token, has an identity in a folder of its own, and keeps its
//! session to a manager. What a node's daemon has beside its agent (port, API, manager runtime) does not run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use muster_agent::{
    AgentConfig, AgentPorts, AgentSetup, JoinArgs, JoinConfig, JoinProgress, NodeMemory, agent_address, agent_spec,
    join,
};
use muster_client::{Failure, Outcome};
use muster_gateway::Dialer;
use muster_kernel::{Fault, Intensity, Supervisor, Tree};
use muster_messages::wire::ActorsAsk;
use muster_messages::{ErrorBody, ErrorCode, Name, NodeId};
use muster_pki::IdentityStore;
use muster_reconciler::{Link, Managers, Release, Setup, reconcilers_spec};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::delays::Delays;
use super::sessions::{Sessions, follow};
use super::traffic::{CountingDialer, Traffic};
use crate::cli::bench::stats::Times;

/// Where no agent listens: a worker's address is shown, but not dialled.
const ADVERTISED: &str = "127.0.0.1:9";

/// How agents join.
#[derive(Clone)]
pub struct Joining {
    pub agents: u32,
    /// How many join at once.
    pub at_once: u32,
    /// The folder of their folders.
    pub folder: PathBuf,
    /// The managers' addresses, in the same order for all, as in the units of a fleet.
    pub seeds: Vec<String>,
    pub token: String,
    /// Whether they wait for definitions of reconcilers.
    pub reconcilers: bool,
}

/// The agents of this process, also those that still join. [`Fleet::shut_down`] ends them.
#[derive(Default)]
pub struct Fleet {
    agents: Vec<Agent>,
    /// The time that joining took comes with each agent.
    joining: JoinSet<Outcome<(Agent, Duration)>>,
    pub sessions: Arc<Sessions>,
    pub traffic: Arc<Traffic>,
    pub delays: Arc<Delays>,
}

struct Agent {
    root: Supervisor,
    ports: AgentPorts,
    tree: Tree,
    name: Name,
}

/// What joining took.
#[derive(Default)]
pub struct Joined {
    /// Of each agent from its start until its credentials were on disk.
    pub times: Times,
    pub took: Duration,
}

impl Fleet {
    /// Joins all agents and starts them.
    pub async fn join(&mut self, plan: &Joining, limit: Duration) -> Outcome<Joined> {
        let (begun, mut seen) = (Instant::now(), Joined::default());
        let permits = Arc::new(Semaphore::new(plan.at_once as usize));
        for number in 0..plan.agents {
            let (plan, permits, delays) = (plan.clone(), Arc::clone(&permits), Arc::clone(&self.delays));
            let (sessions, traffic) = (Arc::clone(&self.sessions), Arc::clone(&self.traffic));
            self.joining.spawn(async move {
                let _permit = permits.acquire_owned().await;
                one(&plan, number, sessions, traffic, &delays).await
            });
        }
        let until = tokio::time::Instant::now() + limit;
        loop {
            let Ok(next) = tokio::time::timeout_at(until, self.joining.join_next()).await else {
                let (joined, all, why) = (self.agents.len(), plan.agents, self.delays.most_frequent());
                let text = format!("joining: {joined} of {all} agents have joined after {limit:?}; {why}");
                return Err(Failure::new(ErrorCode::TimedOut, text));
            };
            let Some(one) = next else { break };
            let (agent, took) = one.map_err(Failure::internal)??;
            self.agents.push(agent);
            seen.times.add(took);
        }
        seen.took = begun.elapsed();
        Ok(seen)
    }

    /// Ends all agents in order. Afterwards none of them writes into its folder.
    pub async fn shut_down(&mut self) {
        self.joining.abort_all();
        while let Some(ended) = self.joining.join_next().await {
            // An agent that has joined runs, also if the wait for the others ended first.
            self.agents.extend(ended.ok().and_then(Result::ok).map(|(agent, _)| agent));
        }
        join_all(self.agents.iter().map(|agent| agent.root.shut_down())).await;
        self.agents.clear();
    }

    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Waits until each agent has a session, and none of them is with the manager `lost`.
    pub async fn all_in_session(&self, what: &str, lost: Option<NodeId>, limit: Duration) -> Outcome {
        let Err(missing) = self.sessions.wait(self.len(), lost, limit).await else { return Ok(()) };
        let why = self.why_without_session().await;
        let text = format!("{what}: {missing} of {} agents have no session after {limit:?}{why}", self.len());
        Err(Failure::new(ErrorCode::TimedOut, text))
    }

    /// What the first agent without a session says about itself.
    async fn why_without_session(&self) -> String {
        let without = self.agents.iter().find(|agent| agent.ports.session().borrow().is_none());
        let Some(agent) = without else { return String::new() };
        let view = agent.tree.inspect("node/agent").await.map(|agent| agent.view).unwrap_or_default();
        let (name, to, loss) = (&agent.name, &view["connecting_to"], &view["last_loss"]);
        format!("; of {name}: connecting to {to}, the last failure was {loss}")
    }

    /// Resolves once each agent has learned that this is a manager, or no longer is: to the times of the first view and of the last one
    /// that say so.
    pub fn learns(
        &self,
        addr: &str,
        is_manager: bool,
        limit: Duration,
    ) -> impl Future<Output = Outcome<(Instant, Instant)>> + use<> {
        let mut waits = JoinSet::new();
        for agent in &self.agents {
            let (mut managers, addr) = (agent.ports.managers(), addr.to_owned());
            waits.spawn(async move {
                let known = |all: &Vec<String>| all.contains(&addr) == is_manager;
                managers.wait_for(known).await.ok().map(|_| Instant::now())
            });
        }
        let (all, addr) = (self.agents.len(), addr.to_owned());
        async move {
            let (mut times, until) = (Vec::new(), tokio::time::Instant::now() + limit);
            while let Ok(Some(learned)) = tokio::time::timeout_at(until, waits.join_next()).await {
                times.extend(learned.ok().flatten());
            }
            match (times.iter().min(), times.iter().max()) {
                (Some(first), Some(last)) if times.len() == all => Ok((*first, *last)),
                _ => {
                    let (known, change) = (times.len(), if is_manager { "is" } else { "is no longer" });
                    let text =
                        format!("only {known} of {all} agents know after {limit:?} that {addr} {change} a manager");
                    Err(Failure::new(ErrorCode::TimedOut, text))
                }
            }
        }
    }
}

/// One agent: returns it with the time that joining took.
async fn one(
    plan: &Joining,
    number: u32,
    sessions: Arc<Sessions>,
    traffic: Arc<Traffic>,
    delays: &Delays,
) -> Outcome<(Agent, Duration)> {
    let begun = Instant::now();
    let name = Name::sanitized(&format!("agent-{number}"));
    let memory = NodeMemory::new(open(&plan.folder.join(name.as_str()))?);
    let release = env!("CARGO_PKG_VERSION").to_owned();
    let args = JoinArgs {
        addrs: plan.seeds.clone(),
        token: plan.token.clone(),
        name: name.clone(),
        advertise: ADVERTISED.to_owned(),
        release: release.clone(),
        labels: BTreeMap::new(),
        rekey: None,
    };
    let recorded = Mutex::new(false);
    let progress = |progress: &JoinProgress| {
        delays.report(&mut recorded.lock().unwrap_or_else(PoisonError::into_inner), progress);
    };
    let joined = join(&memory, args, &JoinConfig::default(), progress).await;
    let joined = joined.map_err(|error| {
        let text = format!("{name} could not join: {}", Fault::from(error).0);
        Failure::new(ErrorCode::Unreachable, text)
    })?;
    let took = begun.elapsed();
    let (me, _) = joined.credentials.identity.node().ok_or_else(|| Failure::internal("it joined without an id"))?;
    let credentials = Arc::new(watch::Sender::new(Arc::new(joined.credentials)));
    let dialer = Dialer::new(credentials.subscribe());
    let ports = AgentPorts::new(AgentSetup {
        config: AgentConfig::default(),
        memory,
        instance: rand::random(),
        dial: Arc::new(CountingDialer { dialer: dialer.clone(), traffic }),
        credentials,
        inspector: Arc::new(only_an_agent),
        name: name.clone(),
        advertise: ADVERTISED.to_owned(),
        release: release.clone(),
        labels: BTreeMap::new(),
        seeds: plan.seeds.clone(),
    });
    let mut specs = vec![agent_spec(agent_address(), ports.clone())];
    if plan.reconcilers {
        // At another manager than most: a worker's own requests go to any.
        let mut managers = plan.seeds.clone();
        managers.rotate_left(number as usize % plan.seeds.len().max(1));
        let release: Release = release.parse().map_err(Failure::internal)?;
        let setup = Setup::new(Arc::new(Link::new(Managers::new(dialer, managers))), me.to_string(), release);
        let (spec, _) = reconcilers_spec(Setup { node: Some(me), objects: true, ..setup })
            .map_err(|error| Failure::internal(format!("cannot wait for reconcilers: {error}")))?;
        specs.push(spec);
    }
    let tree = Tree::new();
    let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.map_err(Failure::internal)?;
    // From here on nothing fails or waits: an agent that has started is always returned, so that its end can be waited for.
    specs.into_iter().for_each(|spec| root.children().start(spec));
    tokio::spawn(follow(ports.session(), sessions));
    Ok((Agent { root, ports, tree, name }, took))
}

fn open(folder: &Path) -> Outcome<IdentityStore> {
    IdentityStore::open(folder).map_err(|fault| Failure::internal(Fault::from(fault).0))
}

/// The answer to requests about actors of an agent's process.
fn only_an_agent(_: ActorsAsk) -> BoxFuture<'static, Result<muster_agent::Inspected, ErrorBody>> {
    async { Err(ErrorBody::new(ErrorCode::NotFound, "this node is an agent of a benchmark and has no other actors")) }
        .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ended_fleet_has_no_agent_that_still_joins() {
        let mut fleet = Fleet::default();
        let folder = Arc::new(());
        let used = Arc::clone(&folder);
        fleet.joining.spawn(async move {
            let _used = used;
            std::future::pending().await
        });
        let ended = tokio::time::timeout(Duration::from_secs(60), fleet.shut_down()).await;
        assert!(ended.is_ok(), "it does not wait until agents have joined");
        assert_eq!(Arc::strong_count(&folder), 1, "a join that continues would write into the folder");
    }
}
