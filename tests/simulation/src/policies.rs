//! A declared number of managers: operators who declare, pause, resume, prefer and drain, managers that die for long, and the run about
//! them, with its checks.
//!
//! Checked whenever the autopilot begins or requests something: AUTO-1, AUTO-2, AUTO-3, AUTO-5, AUTO-6, AUTO-7, AUTO-8. AUTO-4 is an
//! invariant of the state. In the end at least as many managers answer as declared, surplus ones only where they may stay, and no role
//! changes any more (AUTO-9). In some runs nothing is declared: then the autopilot changes no role.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_autopilot::Config;
use muster_autopilot::core::{Seen, majority};
use muster_messages::{
    AutopilotAction, AutopilotChange, AutopilotPolicy, AutopilotStep, Change, Command, Liveness, ManagerPreference,
    Moment, NodeId, Principal, Revision, Role,
};

use crate::bugs::Bug;
use crate::checks::violation;
use crate::events::Event;
use crate::faults::TimedFault;
use crate::machine::{Asker, Autopilot, Machine, MachineIdx};
use crate::report::Failure;
use crate::simulation::Simulation;
use crate::world::World;

pub const AUTO_1: &str = "AUTO-1";
pub const AUTO_2: &str = "AUTO-2";
pub const AUTO_3: &str = "AUTO-3";
pub const AUTO_5: &str = "AUTO-5";
pub const AUTO_6: &str = "AUTO-6";
pub const AUTO_7: &str = "AUTO-7";
pub const AUTO_8: &str = "AUTO-8";
pub const AUTO_9: &str = "AUTO-9";

const SECOND: u64 = 1_000_000;
const DECLARED_AT: Moment = Moment(4 * SECOND);
const FAULTS_END: Moment = Moment(70 * SECOND);
/// After faults end: replacements that wait for each other, and promotions that are taken back.
const CONVERGENCE_LIMIT: Duration = Duration::from_secs(180);
/// In which no change may begin afterwards. Longer than every pause in `config`, so that changes without an end are noticed.
const QUIET: Duration = Duration::from_secs(40);

/// What is known of the policies so far.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// The leaders' autopilot runs.
    pub active: bool,
    /// Nothing is declared in this run.
    undeclared: bool,
    /// The last role that an operator's accepted request gave to a node, and the revision at which that was known.
    persons: BTreeMap<NodeId, (Role, Revision)>,
}

/// The product's limits, as a simulated minute needs them.
fn config(world: &World) -> Config {
    Config {
        election_timeout: world.settings.roles.election_timeout,
        session_timeout: world.settings.sessions.down_after(),
        between_changes: Duration::from_secs(1),
        between_replacements: Duration::from_secs(5),
        replacement_window: Duration::from_secs(25),
        settle_within: Duration::from_secs(10),
        backoff: (Duration::from_secs(1), Duration::from_secs(8)),
        readiness_step: Duration::from_secs(5),
        retry: Duration::from_millis(500),
    }
}

fn policy(managers: u8) -> AutopilotPolicy {
    AutopilotPolicy { replace_after_ms: 6_000, stabilize_ms: 1_000, ..AutopilotPolicy::new(managers) }
}

/// Managers die and return under a declared number. `Err`: an invariant is violated.
pub fn simulate(sim: &mut Simulation) -> Result<(), Failure> {
    Policies::activate(&mut sim.world);
    sim.world.policies.undeclared = sim.world.rng.chance(120);
    sim.world.found();
    sim.clients.start(&mut sim.world, 1);
    let managers = [1, 3, 3, 5][sim.world.rng.below(4)];
    for idx in 1..7 + sim.world.rng.below(3) {
        sim.world.join_machine(if idx < managers { Role::Manager } else { Role::Worker });
    }
    sim.run_to(DECLARED_AT)?;
    if !sim.world.policies.undeclared {
        let managers = if sim.world.rng.chance(600) { 3 } else { 5 };
        Policies::declare(&mut sim.world, managers, false);
    }
    // In most runs only what concerns the autopilot happens, so that more of it does.
    let mut events = vec![Event::PolicyFault, Event::PolicyOperator];
    if sim.world.rng.chance(350) {
        events.extend([Event::Fault, Event::Operator]);
    }
    sim.inject(events, 2000, FAULTS_END)?;
    if sim.world.policies.undeclared {
        let moved = sim.world.checks.newest().map_or(0, |tables| tables.autopilot.last_number);
        return match moved {
            0 => Ok(()),
            n => Err(sim.world.failure(&violation(AUTO_1, format!("{n} changes without a declaration")))),
        };
    }
    converge(sim)
}

/// AUTO-9: as many managers answer as declared, and still do after a time in which no change begins. A surplus manager may go once every
/// manager answers again: then the time begins anew.
fn converge(sim: &mut Simulation) -> Result<(), Failure> {
    let limit = sim.world.now() + CONVERGENCE_LIMIT;
    let mut tidied = Moment(0);
    let begun = |sim: &Simulation| sim.world.checks.newest().map_or(0, |tables| tables.autopilot.last_number);
    loop {
        sim.finish(limit, AUTO_9, |sim| {
            let why = Policies::unfinished(&sim.world).or_else(|| sim.unsettled())?;
            if sim.world.now().since(tidied) >= Duration::from_secs(5) {
                tidied = sim.world.now();
                Policies::tidy_up(&mut sim.world);
            }
            Some(why)
        })?;
        let before = begun(sim);
        sim.run_to(sim.world.now() + QUIET)?;
        let unfinished = Policies::unfinished(&sim.world);
        if begun(sim) == before && unfinished.is_none() {
            return Ok(());
        }
        if sim.world.now() >= limit {
            let after = begun(sim);
            let detail = format!("changes {before} to {after} begin although nothing has happened; {unfinished:?}");
            return Err(sim.world.failure(&violation(AUTO_9, detail)));
        }
    }
}

impl Policies {
    /// From the next leader on, the leaders' autopilot runs.
    pub(crate) fn activate(world: &mut World) {
        world.policies.active = true;
        world.settings.autopilot = config(world);
    }

    // ---- operators ------------------------------------------------------------------------------------------------

    fn propose(world: &mut World, step: AutopilotStep) {
        let Some(idx) = world.leading().filter(|idx| world.machines[*idx].runs()) else { return };
        world.log(format!("an operator proposes {step:?}"));
        let command = Command::idempotent(world.wall(idx), Principal::Operator, "autopilot");
        let command = command.change(Change::Autopilot(Box::new(step)));
        world.propose(idx, Asker::Internal, command, Duration::from_secs(3));
    }

    pub(crate) fn declare(world: &mut World, managers: u8, shrink: bool) {
        let generation = world
            .checks
            .newest()
            .and_then(|tables| tables.autopilot.policy.as_ref())
            .map_or_else(Default::default, |policy| policy.generation);
        Self::propose(
            world,
            AutopilotStep::Declare(Box::new(AutopilotPolicy { generation, shrink, ..policy(managers) })),
        );
    }

    /// A random action of an operator.
    pub(crate) fn operator(world: &mut World) {
        if !world.faults_active || world.policies.undeclared {
            return;
        }
        let next = world.rng.millis(1500, 7000);
        world.time.after(next, Event::PolicyOperator);
        let Some(tables) = world.checks.newest().cloned() else { return };
        let nodes: Vec<NodeId> = tables.nodes.keys().copied().collect();
        let Some(node) = world.rng.pick(&nodes) else { return };
        let step = match world.rng.below(14) {
            0 | 12 | 13 => {
                let (managers, shrink) = (if world.rng.chance(600) { 3 } else { 5 }, world.rng.chance(600));
                return Self::declare(world, managers, shrink);
            }
            1 => AutopilotStep::Pause { why: "maintenance".to_owned(), gave_up: false },
            2..=5 => AutopilotStep::Resume,
            6 => {
                let all = [ManagerPreference::Prefer, ManagerPreference::Allow, ManagerPreference::Never];
                AutopilotStep::Prefer { node, preference: all[world.rng.below(3)] }
            }
            7 | 8 => {
                let replace = world.rng.chance(500);
                let lasts = Duration::from_millis(world.rng.sample() % 15_000 + 1000);
                let until = (!replace || world.rng.chance(500)).then(|| world.today().plus(lasts));
                world.totals.count("nodes drained");
                AutopilotStep::Drain { node, until, replace }
            }
            9 | 10 => AutopilotStep::Undrain { node, ends: None },
            _ => AutopilotStep::Prefer { node, preference: ManagerPreference::Allow },
        };
        Self::propose(world, step);
    }

    /// Faults have ended: operators withdraw what keeps nodes from becoming managers.
    fn tidy_up(world: &mut World) {
        let Some(tables) = world.checks.newest().cloned() else { return };
        if tables.autopilot.policy.is_none() {
            return Self::declare(world, 3, false);
        }
        Self::propose(world, AutopilotStep::Resume);
        for node in tables.nodes.keys().copied() {
            if tables.autopilot.drains.contains_key(&node) {
                Self::propose(world, AutopilotStep::Undrain { node, ends: None });
            }
            if tables.autopilot.preference(node) != ManagerPreference::Prefer {
                Self::propose(world, AutopilotStep::Prefer { node, preference: ManagerPreference::Prefer });
            }
        }
    }

    // ---- faults ---------------------------------------------------------------------------------------------------

    pub(crate) fn fault(world: &mut World) {
        if !world.faults_active {
            return;
        }
        let next = world.rng.millis(1000, 6000);
        world.time.after(next, Event::PolicyFault);
        world.last_fault_at = world.now();
        let voters: Vec<MachineIdx> =
            (0..world.machines.len()).filter(|idx| world.machines[*idx].member_id().is_some()).collect();
        match world.rng.below(10) {
            // In most cases for long enough to be replaced. The quorum survives it, so a loss of quorum is the autopilot's.
            0..=4 => {
                let up = voters.iter().filter(|idx| world.machines[**idx].runs()).count();
                let victim = world.rng.pick(&voters).filter(|_| up > voters.len() / 2 + 1);
                if let Some(idx) = victim.filter(|idx| world.machines[*idx].up) {
                    let takes = world.rng.millis(5000, 30_000);
                    Self::kill(world, idx, takes);
                }
            }
            5 => {
                let idx = world.rng.below(world.machines.len());
                if world.machines[idx].up && !voters.contains(&idx) {
                    let takes = world.rng.millis(500, 20_000);
                    Self::kill(world, idx, takes);
                }
            }
            6 | 7 => {
                let in_a_step = world.rng.chance(600);
                let Some(idx) = world.leading() else { return };
                match Autopilot::at(world, idx).filter(|_| in_a_step) {
                    Some(autopilot) => autopilot.doomed = true,
                    None => Autopilot::crash(world, idx),
                }
            }
            8 => {
                if let Some(idx) = world.leading().filter(|_| voters.len() > 2) {
                    let takes = world.rng.millis(100, 2000);
                    Self::kill(world, idx, takes);
                }
            }
            _ => {
                let idx = world.rng.below(world.machines.len());
                let takes = world.rng.millis(500, 4000);
                Machine::freeze(world, idx, takes);
            }
        }
    }

    fn kill(world: &mut World, idx: MachineIdx, takes: Duration) {
        world.totals.count("fault: node lost for long");
        Machine::crash(world, idx, false);
        world.time.after(takes, Event::TimedFaultEnds(TimedFault::Down(idx, world.machines[idx].life)));
    }

    // ---- checks ---------------------------------------------------------------------------------------------------

    /// An operator's request was accepted, and changed the desired role.
    pub(crate) fn person_requested(world: &mut World, idx: MachineIdx, node: NodeId, role: Role) {
        let Some(tables) = world.machines[idx].runtime.as_ref().map(|h| h.core.tables().clone()) else { return };
        let is_so = tables.nodes.get(&node).is_some_and(|record| record.desired_role == role);
        if world.policies.active && tables.autopilot.policy.is_some() && is_so {
            world.policies.persons.insert(node, (role, tables.revision));
        }
    }

    pub(crate) fn check_request(world: &mut World, idx: MachineIdx, node: NodeId, role: Role) {
        let Some(tables) = world.machines[idx].runtime.as_ref().map(|h| h.core.tables().clone()) else { return };
        // An operator's accepted request promises nothing about this node any more.
        world.model.changed_by_others(node);
        let begun = tables.autopilot.outstanding();
        let takes_back = |action| action == AutopilotAction::Promote && role == Role::Worker;
        let expected = begun
            .is_some_and(|change| change.node == node && (change.action.role() == role || takes_back(change.action)));
        if !expected {
            let detail = format!("n{} requests that {node} be a {role}, and has begun {begun:?}", idx + 1);
            return world.require(Err(violation(AUTO_2, detail)));
        }
        if let Some(change) = begun.filter(|change| change.action == AutopilotAction::Demote) {
            Self::check_demotion(world, idx, change, tables.autopilot.policy.as_deref());
        }
    }

    /// AUTO-5 and AUTO-8, whichever leader has begun it.
    fn check_demotion(world: &mut World, idx: MachineIdx, change: &AutopilotChange, policy: Option<&AutopilotPolicy>) {
        let Some(facts) = Autopilot::facts(world, idx) else { return };
        let Some(voter) = facts.voters.iter().find(|voter| voter.node == change.node) else { return };
        let surplus = policy.is_some_and(|policy| {
            let goes = policy.shrink || voter.drain.is_some_and(|drain| drain.replace);
            goes && facts.voters.len() > usize::from(policy.managers)
        });
        let fails = |name, what: &str| Err(violation(name, format!("n{} requests {change:?}: {what}", idx + 1)));
        let outcome = match (change.replaces == Some(change.node), voter.seen) {
            (false, _) if !surplus => fails(AUTO_5, "it is not surplus and not drained"),
            (false, _) => Ok(()),
            (true, _) if voter.answers => fails(AUTO_5, "it answers"),
            (true, Some(Seen::Ready(_))) => fails(AUTO_5, "it is ready"),
            (true, Some(Seen::Down(_))) if facts.known => Ok(()),
            (true, _) => fails(AUTO_8, "this leader has not seen it down"),
        };
        world.require(outcome);
    }

    pub(crate) fn check_proposal(world: &mut World, idx: MachineIdx, step: &AutopilotStep) {
        let Some(tables) = world.machines[idx].runtime.as_ref().map(|h| h.core.tables().clone()) else { return };
        let fails = |name, detail: String| Err(violation(name, format!("n{} proposes {step:?}: {detail}", idx + 1)));
        let outcome = match step {
            AutopilotStep::Begin { action, node, .. } => return Self::check_begin(world, idx, *action, *node),
            AutopilotStep::End { .. } | AutopilotStep::Pause { gave_up: true, .. } => Ok(()),
            AutopilotStep::Undrain { node, .. } => {
                // Wall clocks differ by a few seconds, and a term keeps the one of its first moment.
                let over = world.today().plus(Duration::from_secs(8));
                match tables.autopilot.drains.get(node).map(|drain| drain.until) {
                    Some(until) if until.is_none_or(|until| until > over) => fails(AUTO_2, "it is not over".to_owned()),
                    _ => Ok(()),
                }
            }
            _ => fails(AUTO_2, "only an operator may decide that".to_owned()),
        };
        world.require(outcome);
    }

    fn check_begin(world: &mut World, idx: MachineIdx, action: AutopilotAction, node: NodeId) {
        let Some(facts) = Autopilot::facts(world, idx) else { return };
        let Some(runtime) = world.machines[idx].runtime.as_ref() else { return };
        let tables = runtime.core.tables().clone();
        let led = runtime.leader.as_ref().map(|leader| world.clock(idx).since(leader.since.at)).unwrap_or_default();
        let name = world.name(node);
        let fails = |invariant, detail: String| {
            Err(violation(invariant, format!("n{} begins {action:?} of {name}: {detail}", idx + 1)))
        };
        let Some(policy) = tables.autopilot.policy.clone().filter(|policy| policy.paused.is_none()) else {
            let outcome = fails(AUTO_1, "nothing is declared, or it is paused".to_owned());
            return world.require(outcome);
        };
        // Twice the same question: the answer depends on nothing else.
        let now = world.clock(idx);
        if let Some(autopilot) = Autopilot::at(world, idx) {
            let (first, second) = (autopilot.core.plan(now, None).1, autopilot.core.plan(now, None).1);
            if first.decision != second.decision {
                let outcome = fails(AUTO_7, format!("{:?} and {:?}", first.decision, second.decision));
                return world.require(outcome);
            }
        }
        let (voters, answering) = (facts.voters.len(), facts.answering());
        let voter = facts.voters.iter().find(|voter| voter.node == node);
        let outcome = match action {
            AutopilotAction::Promote => {
                let left = answering + usize::from(voters == 1);
                let person = world.policies.persons.get(&node).filter(|(_, at)| *at <= tables.revision);
                let demoted = person.is_some_and(|(role, _)| *role == Role::Worker);
                if left < majority(voters + 1) {
                    fails(AUTO_3, format!("{answering} of {voters} answer"))
                } else if demoted && tables.autopilot.preference(node) != ManagerPreference::Prefer {
                    fails(AUTO_6, "an operator has made it a worker".to_owned())
                } else {
                    Ok(())
                }
            }
            AutopilotAction::Demote => {
                let answers = voter.is_some_and(|voter| voter.answers);
                let surplus = voters > usize::from(policy.managers);
                let drained = tables.autopilot.drains.get(&node).is_some_and(|drain| drain.replace);
                let down = tables.nodes.get(&node).is_some_and(|record| record.liveness == Liveness::Down);
                let asked = surplus && (policy.shrink || drained);
                let left = answering - usize::from(answers);
                if !asked && (!down || answers) {
                    fails(AUTO_5, "it is not down, not surplus and not drained".to_owned())
                } else if !asked && led < policy.replace_after() {
                    fails(AUTO_8, format!("this leader has led for {led:?} only"))
                } else if left < majority(voters - 1) {
                    fails(AUTO_3, format!("{answering} of {voters} answer"))
                } else if !asked && left - majority(voters - 1) < answering.saturating_sub(majority(voters)) {
                    fails(AUTO_3, format!("{answering} of {voters} answer, and fewer may fail without it"))
                } else {
                    Ok(())
                }
            }
        };
        if outcome.is_ok() {
            world.policies.persons.remove(&node);
        }
        world.require(outcome);
    }

    /// Why the declared number is not reached.
    fn unfinished(world: &World) -> Option<String> {
        let tables = world.checks.newest()?;
        let Some(policy) = tables.autopilot.policy.as_ref() else { return Some("nothing is declared".to_owned()) };
        let voters: Vec<NodeId> = tables.members.values().filter(|m| m.voter).map(|m| m.node).collect();
        let answers = |node: &&NodeId| world.idx_of(**node).is_some_and(|idx| world.machines[idx].runs());
        let (answering, declared) = (voters.iter().filter(answers).count(), usize::from(policy.managers));
        let enough = answering >= declared.min(largest_odd(tables.nodes.len()));
        let surplus = policy.shrink && voters.len() > declared;
        // Not finished before operators have withdrawn it.
        let asked = policy.paused.is_some() || !tables.autopilot.drains.is_empty();
        // Those that an operator has promoted stay.
        let by_hand = tables.autopilot.requested.values().any(|role| *role == Role::Manager);
        let decided = world.leading().and_then(|idx| {
            let runtime = world.machines[idx].runtime.as_ref()?;
            let autopilot = runtime.leader.as_ref()?.autopilot.as_ref()?;
            Some(autopilot.core.view(world.clock(idx), runtime.core.replica()))
        });
        if !enough || asked || (surplus && !by_hand) || tables.autopilot.outstanding().is_some() {
            let changes = &tables.autopilot.changes;
            return Some(format!(
                "{answering} of {} managers answer, {declared} are declared; {decided:?}; {changes:?}",
                voters.len()
            ));
        }
        None
    }
}

fn largest_odd(nodes: usize) -> usize {
    nodes - usize::from(nodes.is_multiple_of(2))
}

/// The switches of the autopilot's bugs.
pub(crate) fn bug(bug: Option<Bug>) -> Option<muster_autopilot::bugs::BugInjection> {
    use muster_autopilot::bugs::BugInjection as B;
    Some(match bug? {
        Bug::ActWhilePaused => B::ActWhilePaused,
        Bug::ResumeByItself => B::ResumeByItself,
        Bug::PromoteBeforeDemotion => B::PromoteFirst,
        Bug::BeginTwice => B::ForgetBegun,
        Bug::DemoteSilentManagers => B::DemoteSilent,
        Bug::PickAnyCandidate => B::PickAnyCandidate,
        Bug::TrustRecordedLiveness => B::TrustTheRecord,
        Bug::OnlyDemote => B::OnlyDemote,
        _ => return None,
    })
}
