//! What can happen to a cluster.

use std::time::Duration;

use muster_messages::wire::Request;
use muster_messages::{Dice, Role};
use rustix::process::Signal;

use super::cluster::{Cluster, Debt, MOST_NODES, Machine, WITNESS};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Managers' certificates are good from an hour before they were issued: two clocks differ by less.
const MOST_AHEAD: u64 = 1500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Killed,
    /// TERM, and started again.
    Restarted,
    /// SIGSTOP, and CONT.
    Frozen,
    /// Some nodes do not hear the others, nor are heard.
    Parted,
    /// A node hears another and is not heard by it.
    OneWay,
    DiskFull,
    /// Every write waits for so long.
    DiskSlow,
    /// The time of day is another.
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
    Fault::Parted,
    Fault::OneWay,
    Fault::DiskFull,
    Fault::DiskSlow,
    Fault::ClockJumped,
    Fault::Promoted,
    Fault::Demoted,
    Fault::Removed,
    Fault::Joined,
];

/// All of them in any order, and then again: a short run sees every one.
#[derive(Default)]
pub struct Deck(Vec<Fault>);

impl Deck {
    pub fn draw(&mut self, dice: &mut Dice) -> Fault {
        if self.0.is_empty() {
            self.0 = ALL.to_vec();
        }
        self.0.swap_remove(dice.index(self.0.len()))
    }
}

impl Fault {
    /// What was done, in words. Nothing where nobody is left to do it to.
    pub fn strike(self, cluster: &mut Cluster) -> Option<String> {
        match self {
            Fault::Killed => {
                let name = unhurt(cluster, |name, _| name != WITNESS)?;
                cluster.world.node(&name).kill();
                owes(cluster, &name, "is killed", secs(4), Debt::Start)
            }
            Fault::Restarted => {
                let name = unhurt(cluster, |name, machine| name != WITNESS && machine.served)?;
                if !cluster.world.node(&name).listens_to_signals() {
                    return None; // it has only just been started
                }
                let (code, took) = cluster.world.node(&name).ends_of_its_own_accord();
                // One that has been removed meanwhile may end with 6.
                assert!(matches!(code, Some(0 | 6)), "{name} ends in order: {code:?}");
                owes(cluster, &name, &format!("has ended in order within {took:?}"), secs(2), Debt::Start)
            }
            Fault::Frozen => {
                let name = unhurt(cluster, |_, _| true)?;
                cluster.world.node(&name).signal(Signal::STOP);
                cluster.machine(&name).was_frozen = true;
                owes(cluster, &name, "is frozen", secs(8), Debt::Thaw)
            }
            Fault::Parted | Fault::OneWay => self.cut(cluster),
            Fault::DiskFull => {
                let name = unhurt(cluster, |_, machine| machine.served)?;
                cluster.world.node(&name).disk_is_full(true);
                cluster.machine(&name).disk_was_full = true;
                owes(cluster, &name, "has a full disk", secs(6), Debt::EmptyDisk)
            }
            Fault::DiskSlow => {
                let name = unhurt(cluster, |_, _| true)?;
                std::fs::write(&cluster.machines[&name].hang, "").expect("the world's folder is writable");
                owes(cluster, &name, "has a slow disk", secs(4), Debt::EndHang)
            }
            Fault::ClockJumped => {
                let name = any(cluster, |_, _| true)?;
                let ahead = cluster.dice.below(2 * MOST_AHEAD).cast_signed() - MOST_AHEAD.cast_signed();
                cluster.machines[&name].clock.set(ahead);
                Some(format!("{name}'s clock is {ahead} s ahead"))
            }
            Fault::Promoted | Fault::Demoted => {
                let role = if self == Fault::Promoted { Role::Manager } else { Role::Worker };
                let name = any(cluster, |_, _| true)?;
                let asked = cluster.ask_a_manager(&Request::SetRole { node: name.clone(), role })?;
                Some(format!("{name} is to be {role}, asked of {asked}"))
            }
            Fault::Removed => {
                if cluster.machines.len() < MOST_NODES {
                    return None;
                }
                let name = any(cluster, |name, machine| name != WITNESS && machine.served)?;
                let asked = cluster.ask_a_manager(&Request::NodeRemove { node: name.clone(), force: true })?;
                Some(format!("{name} is to be removed, asked of {asked}"))
            }
            Fault::Joined => {
                if cluster.machines.len() >= MOST_NODES {
                    return None;
                }
                let role = if cluster.dice.one_in(2) { Role::Manager } else { Role::Worker };
                let joins = cluster.joins(role);
                let name = cluster.make(joins);
                Some(format!("{name} is to join as {role}"))
            }
        }
    }

    /// One partition at a time.
    fn cut(self, cluster: &mut Cluster) -> Option<String> {
        if cluster.debts.iter().any(|(_, debt)| matches!(debt, Debt::HealNetwork)) {
            return None;
        }
        let names: Vec<String> = cluster.machines.keys().cloned().collect();
        let one = cluster.dice.index(names.len());
        let what = if self == Fault::OneWay {
            let other = (one + 1 + cluster.dice.index(names.len() - 1)) % names.len();
            cluster.world.network().cut([(names[one].clone(), names[other].clone())]);
            format!("{} is not heard by {}", names[one], names[other])
        } else {
            let many = 1 + cluster.dice.index(names.len() / 2);
            let (mut near, mut far) = (Vec::new(), Vec::new());
            for (index, name) in names.iter().enumerate() {
                let inside = (index + names.len() - one) % names.len() < many;
                if inside { near.push(name.as_str()) } else { far.push(name.as_str()) }
            }
            cluster.world.network().part(&near, &far);
            format!("{near:?} and {far:?} are parted")
        };
        let lasts = cluster.owe(secs(8), Debt::HealNetwork);
        Some(format!("{what} for {lasts:?}"))
    }
}

/// One whose process runs.
fn any(cluster: &mut Cluster, fits: impl Fn(&str, &Machine) -> bool) -> Option<String> {
    let fit = cluster.machines.iter().filter(|(name, machine)| fits(name, machine));
    let fit: Vec<&String> = fit.map(|(name, _)| name).collect();
    let name = (*fit.get(cluster.dice.index(fit.len()))?).clone();
    cluster.world.node(&name).is_running().then_some(name)
}

/// One to which nothing else is being done.
fn unhurt(cluster: &mut Cluster, fits: impl Fn(&str, &Machine) -> bool) -> Option<String> {
    any(cluster, |name, machine| !machine.hurt && fits(name, machine))
}

fn owes(
    cluster: &mut Cluster,
    name: &str,
    what: &str,
    longest: Duration,
    debt: impl Fn(String) -> Debt,
) -> Option<String> {
    cluster.machine(name).hurt = true;
    let lasts = cluster.owe(longest, debt(name.to_owned()));
    Some(format!("{name} {what} for {lasts:?}"))
}
