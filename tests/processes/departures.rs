//! Managers that are demoted or removed right after another manager was lost: never at the cost of the quorum.
//!
//! The quorum check must not rely on acknowledgements from before the request: a voter lost a moment ago has sent some.
//! `MUSTER_DEPARTURE_ROUNDS` is the number of rounds of each combination; the delays are spread over five seconds, most of them
//! within the first.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muster_messages::wire::Request;
use muster_messages::{ErrorCode, Liveness, Membership, NodeView, Role};
use rustix::process::Signal;

use crate::harness::{World, eventually, eventually_so, scenario_pause};
use crate::roles::{facts, four};

const MAX_DELAY: Duration = Duration::from_secs(5);
/// A frozen manager is declared down soon, so that a round takes seconds.
const SHORT_HEARTBEAT: &str = "[agent]\nheartbeat = \"500ms\"\n";

fn rounds() -> u32 {
    std::env::var("MUSTER_DEPARTURE_ROUNDS").ok().map_or(3, |rounds| rounds.parse().expect("a number"))
}

/// How a manager leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Demotion,
    /// Forced removal of a manager that was frozen until it was declared down and runs again when it is removed. The removal of any
    /// other running manager is always refused.
    Removal,
}

/// Managers only.
struct Departures {
    world: World,
    managers: Vec<String>,
    /// Nodes so far: a new node replaces each removed manager.
    made: usize,
    token: String,
}

/// The results of one kind of rounds.
#[derive(Default)]
struct Tally {
    outcomes: BTreeMap<String, usize>,
    writable: Vec<Duration>,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut took = self.writable.clone();
        took.sort();
        let shown = |at: usize| took.get(at).copied().unwrap_or_default();
        write!(f, "{} rounds, {:?}; ", took.len(), self.outcomes)?;
        let (median, longest) = (shown(took.len() / 2), shown(took.len().saturating_sub(1)));
        write!(f, "writable after {median:.1?} (median), {longest:.1?} (longest)")
    }
}

impl Departures {
    fn among(managers: usize) -> Self {
        let world = World::with_timing_and_settings(SHORT_HEARTBEAT, managers, 0);
        let token = world.token(Role::Manager);
        let names = (1..=managers).map(|n| format!("n{n}")).collect();
        Self { world, managers: names, made: managers, token }
    }

    fn rounds(&mut self, signal: Signal) {
        let rounds = rounds();
        for change in [Change::Demotion, Change::Removal] {
            let mut tally = Tally::default();
            for round in 0..rounds {
                // Squared: a lost voter's last acknowledgement counts as recent for an election timeout, half a second.
                let delay = MAX_DELAY * (round * round) / (rounds * rounds);
                self.round((signal, delay), change, round, &mut tally);
            }
            println!("{} managers, {signal:?}, {change:?}: {tally}", self.managers.len());
        }
    }

    /// A manager other than these.
    fn manager_besides(&self, not: &[&str]) -> String {
        let mut fit = self.managers.iter().filter(|name| !not.contains(&name.as_str()));
        fit.next().expect("three managers at least").clone()
    }

    /// Loses a manager, lets another one leave, and restores both.
    fn round(&mut self, (signal, delay): (Signal, Duration), change: Change, round: u32, tally: &mut Tally) {
        let leader = self.world.leader_seen_by(&self.managers[0]);
        let (lost, leaving) = match (round % 3, change) {
            (0, _) => (leader.clone(), self.manager_besides(&[&leader])),
            (1, Change::Demotion) => (self.manager_besides(&[&leader]), leader.clone()),
            _ => {
                let lost = self.manager_besides(&[&leader]);
                let leaving = self.manager_besides(&[&leader, &lost]);
                (lost, leaving)
            }
        };
        let by = self.manager_besides(&[&lost, &leaving]);
        let about = format!("{signal:?} of {lost} (leader: {leader}), {delay:?} later: {change:?} of {leaving}");
        if change == Change::Removal {
            self.world.node(&leaving).freeze();
            let down = |node: NodeView| node.state == Liveness::Down;
            eventually_so("the frozen manager is declared down", || self.world.seen(&by, &leaving).is_some_and(down));
        }
        if signal == Signal::STOP {
            self.world.node(&lost).freeze();
        } else {
            self.world.node(&lost).signal(signal).exit(); // a process that is shutting down responds until it ends
        }
        scenario_pause("the time between the fault and the departure", delay);
        if change == Change::Removal {
            self.world.node(&leaving).signal(Signal::CONT);
        }
        let asked = if change == Change::Demotion && round % 2 == 1 { &leaving } else { &by };
        let refusal = self.request_departure(asked, &leaving, change);
        let outcome = refusal.clone().unwrap_or_else(|| "accepted".to_owned());
        *tally.outcomes.entry(outcome).or_default() += 1;

        let began = Instant::now();
        if refusal.is_none() {
            let (stay, run) = (self.managers.len() - 1, self.managers.len() - 2);
            assert!(2 * run > stay, "{about} was accepted, but {run} of {stay} are no quorum");
            eventually_so("it is removed", || self.is_removed(&by, &leaving));
        }
        self.writes(&by, &about);
        tally.writable.push(began.elapsed());
        self.bring_back(&by, (signal, &lost), (change, &leaving), refusal.is_none());
        for name in &self.managers {
            assert_eq!(facts(&self.world, &by, name), four("manager"), "{about}");
        }
    }

    /// The error code of the refusal; `None`: accepted. Without a leader the request is repeated.
    fn request_departure(&self, asked: &str, leaving: &str, change: Change) -> Option<String> {
        let request = match change {
            Change::Demotion => Request::SetRole { node: leaving.to_owned(), role: Role::Worker },
            Change::Removal => Request::NodeRemove { node: leaving.to_owned(), force: true },
        };
        let refusals = [ErrorCode::QuorumAtRisk, ErrorCode::DemoteFirst];
        // An earlier try was sent, and its answer did not arrive in time.
        let mut unanswered = false;
        eventually("the departure is accepted or refused", || match self.world.ask(asked, request.clone()) {
            Ok(_) => Some(None),
            Err(failure) if refusals.iter().any(|code| failure.is(*code)) => Some(Some(failure.code.to_string())),
            Err(failure) if change == Change::Removal && failure.is(ErrorCode::NotFound) && unanswered => Some(None),
            Err(failure) => {
                assert!(failure.is_transient() || failure.is(ErrorCode::Internal), "{leaving}: {failure:?}");
                // Without a quorum nothing was done.
                unanswered |= !failure.is(ErrorCode::NoQuorum);
                None
            }
        })
    }

    fn is_removed(&self, by: &str, leaving: &str) -> bool {
        self.world.seen(by, leaving).is_none_or(|node| node.membership == Membership::None)
    }

    /// Waits until a write is acknowledged.
    fn writes(&self, by: &str, about: &str) {
        let value = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_micros());
        let add = BTreeMap::from([("lost".to_owned(), value.to_string())]);
        let write = Request::NodeUpdate { node: by.to_owned(), add, remove: Vec::new(), generation: None };
        eventually_so(&format!("{about}: the cluster is writable"), || self.world.ask(by, write.clone()).is_ok());
    }

    /// Restores the number of managers, all reachable.
    fn bring_back(&mut self, by: &str, lost: (Signal, &str), leaving: (Change, &str), left: bool) {
        let (signal, lost) = lost;
        if signal == Signal::STOP {
            self.world.node(lost).signal(Signal::CONT);
        } else {
            self.world.node(lost).start(&[]).ready();
        }
        match leaving {
            (Change::Demotion, name) if left => {
                self.world.muster_at(by, &["node", "promote", name, "--wait=300s"]).ended(0);
            }
            (Change::Removal, name) if left => {
                if self.world.node(name).is_running() {
                    self.world.node(name).kill();
                }
                self.made += 1;
                let (new, seed) = (format!("n{}", self.made), self.world.node(by).address().to_string());
                self.world.node(&new).start(&["--join", &seed, "--token", &self.token]).ready();
                self.managers.retain(|manager| manager != name);
                self.managers.push(new);
            }
            _ => {}
        }
        self.world.all_settled();
        let managers = self.managers.len();
        eventually_so("all managers are voters", || {
            let there = |node: &NodeView| {
                node.state == Liveness::Ready && node.manager.as_ref().is_some_and(|manager| manager.reachable)
            };
            self.world.nodes_seen_by(by).iter().filter(|node| there(node)).count() == managers
        });
    }
}

#[test]
#[ignore = "full tier"]
fn demotion_is_refused_after_another_manager_was_killed() {
    Departures::among(3).rounds(Signal::KILL);
}

#[test]
#[ignore = "full tier"]
fn demotion_is_refused_after_another_manager_was_frozen() {
    Departures::among(3).rounds(Signal::STOP);
}

#[test]
#[ignore = "full tier"]
fn demotion_is_refused_after_another_manager_was_stopped() {
    Departures::among(3).rounds(Signal::TERM);
}

/// With four managers two of the remaining three suffice after one was lost.
#[test]
#[ignore = "full tier"]
fn one_of_four_managers_may_leave_after_one_was_lost() {
    let mut departures = Departures::among(4);
    for signal in [Signal::KILL, Signal::STOP, Signal::TERM] {
        departures.rounds(signal);
    }
}
