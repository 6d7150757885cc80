//! The faults of a cluster.

use std::time::Duration;

use muster_messages::wire::Request;
use muster_messages::{Rng, Role};

use super::cluster::{Cleanup, Cluster, MAX_NODES, Machine, WITNESS};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Managers' certificates are valid from an hour before their issue: two clocks must differ by less.
const MAX_CLOCK_OFFSET: u64 = 1500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Killed,
    /// TERM, then a restart.
    Restarted,
    /// SIGSTOP, then SIGCONT.
    Frozen,
    /// A partition between two groups of nodes.
    Partitioned,
    /// A one-way partition: a node receives from another but cannot send to it.
    OneWay,
    DiskFull,
    /// Every write is delayed.
    DiskSlow,
    /// The wall clock jumps.
    ClockJumped,
    Promoted,
    Demoted,
    Removed,
    Joined,
}

const ALL: [Fault; 12] = [
    Fault::Killed,
    Fault::Restarted,
    Fault::Frozen,
    Fault::Partitioned,
    Fault::OneWay,
    Fault::DiskFull,
    Fault::DiskSlow,
    Fault::ClockJumped,
    Fault::Promoted,
    Fault::Demoted,
    Fault::Removed,
    Fault::Joined,
];

/// All faults in random order, repeated: even a short run covers every one.
#[derive(Default)]
pub struct ShuffledFaults(Vec<Fault>);

impl ShuffledFaults {
    pub fn draw(&mut self, rng: &mut Rng) -> Fault {
        if self.0.is_empty() {
            self.0 = ALL.to_vec();
        }
        self.0.swap_remove(rng.index(self.0.len()))
    }
}

impl Fault {
    /// Injects the fault and describes it. `None` without a suitable target.
    pub fn inject(self, cluster: &mut Cluster) -> Option<String> {
        match self {
            Fault::Killed => {
                let name = untouched_node(cluster, |name, _| name != WITNESS)?;
                cluster.world.node(&name).kill();
                schedule_cleanup(cluster, &name, "is killed", secs(4), Cleanup::Start)
            }
            Fault::Restarted => {
                let name = untouched_node(cluster, |name, machine| name != WITNESS && machine.served)?;
                if !cluster.world.node(&name).listens_to_signals() {
                    return None; // it has just been started
                }
                let (code, took) = cluster.world.node(&name).exits_by_itself();
                // A node removed meanwhile may exit with 6.
                assert!(matches!(code, Some(0 | 6)), "{name} stops cleanly: {code:?}");
                schedule_cleanup(cluster, &name, &format!("stopped cleanly within {took:?}"), secs(2), Cleanup::Start)
            }
            Fault::Frozen => {
                let name = untouched_node(cluster, |_, _| true)?;
                cluster.world.node(&name).freeze();
                cluster.machine(&name).was_frozen = true;
                schedule_cleanup(cluster, &name, "is frozen", secs(8), Cleanup::Thaw)
            }
            Fault::Partitioned | Fault::OneWay => self.cut(cluster),
            Fault::DiskFull => {
                let name = untouched_node(cluster, |_, machine| machine.served)?;
                cluster.world.node(&name).disk_is_full(true);
                cluster.machine(&name).disk_was_full = true;
                schedule_cleanup(cluster, &name, "has a full disk", secs(6), Cleanup::EmptyDisk)
            }
            Fault::DiskSlow => {
                let name = untouched_node(cluster, |_, _| true)?;
                std::fs::write(&cluster.machines[&name].hang, "").expect("the world's folder is writable");
                schedule_cleanup(cluster, &name, "has a slow disk", secs(4), Cleanup::EndHang)
            }
            Fault::ClockJumped => {
                let name = any(cluster, |_, _| true)?;
                let ahead = cluster.rng.below(2 * MAX_CLOCK_OFFSET).cast_signed() - MAX_CLOCK_OFFSET.cast_signed();
                cluster.machines[&name].clock.set(ahead);
                Some(format!("{name}'s clock is {ahead} s ahead"))
            }
            Fault::Promoted | Fault::Demoted => {
                let role = if self == Fault::Promoted { Role::Manager } else { Role::Worker };
                let name = any(cluster, |_, _| true)?;
                let asked = cluster.ask_a_manager(&Request::SetRole { node: name.clone(), role })?;
                Some(format!("{name} is requested as {role} at {asked}"))
            }
            Fault::Removed => {
                if cluster.machines.len() < MAX_NODES {
                    return None;
                }
                let name = any(cluster, |name, machine| name != WITNESS && machine.served)?;
                let asked = cluster.ask_a_manager(&Request::NodeRemove { node: name.clone(), force: true })?;
                Some(format!("removal of {name} is requested at {asked}"))
            }
            Fault::Joined => {
                if cluster.machines.len() >= MAX_NODES {
                    return None;
                }
                let role = if cluster.rng.one_in(2) { Role::Manager } else { Role::Worker };
                let joins = cluster.joins(role);
                let name = cluster.make(joins);
                Some(format!("{name} joins as {role}"))
            }
        }
    }

    /// At most one partition at a time.
    fn cut(self, cluster: &mut Cluster) -> Option<String> {
        if cluster.cleanups.iter().any(|(_, cleanup)| matches!(cleanup, Cleanup::RestoreNetwork)) {
            return None;
        }
        let names: Vec<String> = cluster.machines.keys().cloned().collect();
        let one = cluster.rng.index(names.len());
        let what = if self == Fault::OneWay {
            let other = (one + 1 + cluster.rng.index(names.len() - 1)) % names.len();
            cluster.world.network().cut([(names[one].clone(), names[other].clone())]);
            format!("{} cannot send to {}", names[one], names[other])
        } else {
            let many = 1 + cluster.rng.index(names.len() / 2);
            let (mut near, mut far) = (Vec::new(), Vec::new());
            for (index, name) in names.iter().enumerate() {
                let inside = (index + names.len() - one) % names.len() < many;
                if inside { near.push(name.as_str()) } else { far.push(name.as_str()) }
            }
            cluster.world.network().part(&near, &far);
            format!("{near:?} and {far:?} are partitioned")
        };
        let lasts = cluster.schedule(secs(8), Cleanup::RestoreNetwork);
        Some(format!("{what} for {lasts:?}"))
    }
}

/// A random node whose process runs.
fn any(cluster: &mut Cluster, fits: impl Fn(&str, &Machine) -> bool) -> Option<String> {
    let fit = cluster.machines.iter().filter(|(name, machine)| fits(name, machine));
    let fit: Vec<&String> = fit.map(|(name, _)| name).collect();
    let name = (*fit.get(cluster.rng.index(fit.len()))?).clone();
    cluster.world.node(&name).is_running().then_some(name)
}

/// A random node without an active fault.
fn untouched_node(cluster: &mut Cluster, fits: impl Fn(&str, &Machine) -> bool) -> Option<String> {
    any(cluster, |name, machine| !machine.under_fault && fits(name, machine))
}

fn schedule_cleanup(
    cluster: &mut Cluster,
    name: &str,
    what: &str,
    longest: Duration,
    cleanup: impl Fn(String) -> Cleanup,
) -> Option<String> {
    cluster.machine(name).under_fault = true;
    let lasts = cluster.schedule(longest, cleanup(name.to_owned()));
    Some(format!("{name} {what} for {lasts:?}"))
}
