//! The reconcilers of a process: which ones it runs, each as which release.
//!
//! Owns        the definitions of each release that the process can run; the groups that run, or are being stopped.
//! Inputs      the declared releases, their definitions, the end of a group, the request to retire ([`Facts`], [`Input`]).
//! Outputs     watches of definitions; groups to start and to stop; that everything has ended.
//! Invariants  one group of a name at a time: with another release it is stopped, and started again once it has ended.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::wire::Definitions;
use muster_messages::{LEVEL_RECONCILER, Release, Triple};

use crate::releases::Declared;

/// What a process can do for reconcilers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// What it can run where nothing else is declared.
    pub release: Release,
    /// Names that it has an action of its own for.
    pub handlers: BTreeSet<String>,
    /// It applies sets of objects, or runs commands.
    pub others: bool,
}

impl Abilities {
    /// Whether this process could ever run a reconciler of this name.
    fn may_run(&self, name: &str) -> bool {
        let managers_own = name == LEVEL_RECONCILER;
        self.handlers.contains(name) || !managers_own && self.others
    }
}

/// What holds when an input arrives.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The declared releases.
    pub declared: &'a Declared,
    /// Everything is to end, and nothing starts.
    pub retiring: bool,
}

#[derive(Clone, Debug)]
pub enum Input {
    /// Other releases are declared than before.
    Declared,
    /// Of a release that is watched: its definitions, or why they cannot be read.
    Definitions(Triple, Result<Definitions, String>),
    /// A group has ended.
    Stopped(String),
    /// The facts say so from now on.
    Retire,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Answered by [`Input::Definitions`], again and again.
    Watch(Triple),
    Unwatch(Triple),
    Start {
        name: String,
        release: Release,
    },
    /// Answered by [`Input::Stopped`].
    Stop(String),
    /// Every group has ended, and none starts.
    Retired,
}

/// What is known of one release's definitions.
#[derive(Clone, Debug, Default, PartialEq)]
struct Watched {
    definitions: Option<Definitions>,
    trouble: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Group {
    release: Release,
    stopping: bool,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Groups {
    abilities: Abilities,
    watched: BTreeMap<Triple, Watched>,
    groups: BTreeMap<String, Group>,
}

impl Groups {
    pub fn new(abilities: Abilities) -> Self {
        Self { abilities, watched: BTreeMap::new(), groups: BTreeMap::new() }
    }

    pub fn step(&mut self, facts: Facts<'_>, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Declared => self.watch(facts.declared, out),
            Input::Definitions(release, answer) => {
                let Some(watched) = self.watched.get_mut(&release) else { return };
                match answer {
                    Ok(definitions) => *watched = Watched { definitions: Some(definitions), trouble: None },
                    Err(why) => watched.trouble = Some(why),
                }
            }
            Input::Stopped(name) => drop(self.groups.remove(&name)),
            Input::Retire => {}
        }
        self.settle(facts, out);
    }

    /// Names of the groups that run or are being stopped.
    pub fn running(&self) -> impl Iterator<Item = &String> {
        self.groups.keys()
    }

    /// Why the definitions of some release cannot be read.
    pub fn trouble(&self) -> Option<&String> {
        self.watched.values().find_map(|watched| watched.trouble.as_ref())
    }

    /// Watches the definitions of every release that is declared now, and of no other.
    fn watch(&mut self, declared: &Declared, out: &mut Vec<Effect>) {
        let declared = declared.scopes.values().flatten().chain([&self.abilities.release]);
        let releases: BTreeSet<Triple> = declared.map(|release| release.triple).collect();
        self.watched.retain(|release, _| {
            let wanted = releases.contains(release);
            if !wanted {
                out.push(Effect::Unwatch(*release));
            }
            wanted
        });
        for release in releases {
            self.watched.entry(release).or_insert_with(|| {
                out.push(Effect::Watch(release));
                Watched::default()
            });
        }
    }

    /// The reconcilers to run, each as the release that is declared for its scope.
    fn wanted(&self, declared: &Declared) -> BTreeMap<&String, Release> {
        let mut wanted = BTreeMap::new();
        for (release, definitions) in self.watched.iter().filter_map(|(r, w)| Some((r, w.definitions.as_ref()?))) {
            for name in definitions.items.keys().filter(|name| self.abilities.may_run(name)) {
                let own = &self.abilities.release;
                let ours = match definitions.scopes.get(name) {
                    Some(scope) => declared.of_scope(scope, own),
                    // A manager of an older build names no scope: as for such a build, the process has one release.
                    None => Some(own.clone()),
                };
                if let Some(ours) = ours.filter(|ours| ours.triple == *release) {
                    wanted.insert(name, ours);
                }
            }
        }
        wanted
    }

    /// Starts and stops groups until they match what is wanted. The only place that does.
    fn settle(&mut self, facts: Facts<'_>, out: &mut Vec<Effect>) {
        let wanted = if facts.retiring { BTreeMap::new() } else { self.wanted(facts.declared) };
        let missing = wanted.iter().filter(|(name, _)| !self.groups.contains_key(**name));
        let missing: Vec<(String, Release)> =
            missing.map(|(name, release)| ((*name).clone(), release.clone())).collect();
        let unwanted = |name: &String, group: &Group| wanted.get(name) != Some(&group.release);
        let ending: Vec<String> = self
            .groups
            .iter()
            .filter(|(name, group)| unwanted(name, group) && !group.stopping)
            .map(|(name, _)| name.clone())
            .collect();
        for (name, release) in missing {
            out.push(Effect::Start { name: name.clone(), release: release.clone() });
            self.groups.insert(name, Group { release, stopping: false });
        }
        for name in ending {
            if let Some(group) = self.groups.get_mut(&name) {
                group.stopping = true;
            }
            out.push(Effect::Stop(name));
        }
        if facts.retiring && self.groups.is_empty() {
            out.push(Effect::Retired);
        }
    }
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
