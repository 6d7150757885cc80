//! Object sets: the desired objects of a definition, the existing ones, and the writes in between.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::{
    Action, Definition, DesiredObject, ManagedKey, ManagedObject, RECONCILER_LABEL, Reconcilers, Unmet,
};

pub struct Waves<'a> {
    /// By number, then by key.
    waves: BTreeMap<u32, BTreeMap<&'a ManagedKey, &'a DesiredObject>>,
    wanted: BTreeSet<&'a ManagedKey>,
    definition: &'a Definition,
}

impl<'a> Waves<'a> {
    /// The waves of an object set; none for any other action.
    pub fn of(definition: &'a Definition) -> Self {
        let objects = match &definition.action {
            Action::Objects(objects) => objects.as_slice(),
            Action::Command(_) | Action::Handler | Action::Chain(_) => &[],
        };
        let mut waves: BTreeMap<u32, BTreeMap<_, _>> = BTreeMap::new();
        for object in objects {
            waves.entry(object.wave).or_default().insert(&object.key, object);
        }
        let last = waves.keys().next_back().copied();
        let conditions = &definition.options.wave_conditions;
        if last.is_some_and(|last| conditions.iter().any(|condition| condition.wave >= last)) {
            // What waits for them: the deletions, and the completion of the gate.
            waves.insert(u32::MAX, BTreeMap::new());
        }
        Self { waves, wanted: objects.iter().map(|object| &object.key).collect(), definition }
    }
    /// The first condition on which the `nth` wave waits. `None`: it may be written.
    pub fn unmet(&self, all: &Reconcilers, nth: usize) -> Option<Unmet> {
        let number = self.waves.keys().nth(nth).copied().unwrap_or(u32::MAX);
        self.definition.unmet_before(number, &all.objects)
    }
    /// The number of waves. An empty object set has one, which deletes unwanted objects.
    pub fn count(&self) -> usize {
        self.waves.len().max(1)
    }
    /// Their numbers, in order.
    pub fn numbers(&self) -> Vec<u32> {
        if self.waves.is_empty() { vec![0] } else { self.waves.keys().copied().collect() }
    }

    /// The writes of the `nth` wave. The last one deletes unwanted objects.
    pub fn drift(&self, all: &Reconcilers, name: &str, nth: usize) -> Vec<Write> {
        let of_wanted = |desired: &DesiredObject| match all.objects.get(&desired.key) {
            None => Write::Create(desired.clone()),
            Some(there) if there.owner.as_deref() != Some(name) => Write::Taken(desired.key.clone()),
            Some(there) if as_wanted(there, desired, name) => Write::Keep(desired.key.clone()),
            Some(_) => Write::Update(desired.clone()),
        };
        let wave = self.waves.values().nth(nth).into_iter().flat_map(BTreeMap::values);
        let mut writes: Vec<Write> = wave.map(|desired| of_wanted(desired)).collect();
        if nth + 1 >= self.count() {
            let unwanted = |object: &&std::sync::Arc<ManagedObject>| {
                object.owner.as_deref() == Some(name) && !self.wanted.contains(&object.key)
            };
            writes.extend(all.objects.values().filter(unwanted).map(|object| Write::Delete(object.key.clone())));
        }
        writes
    }
}

/// One write of a wave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Create(DesiredObject),
    Update(DesiredObject),
    Delete(ManagedKey),
    /// An object of the same name belongs to another owner.
    Taken(ManagedKey),
    /// The object exists as desired.
    Keep(ManagedKey),
}

impl Write {
    pub fn key(&self) -> &ManagedKey {
        match self {
            Write::Create(object) | Write::Update(object) => &object.key,
            Write::Delete(key) | Write::Taken(key) | Write::Keep(key) => key,
        }
    }
    /// The operation's name in plans.
    pub fn op(&self) -> &'static str {
        match self {
            Write::Create(_) => "create",
            Write::Update(_) => "update",
            Write::Delete(_) => "delete",
            Write::Taken(_) => "taken",
            Write::Keep(_) => "keep",
        }
    }
}

/// [`Waves::drift`] of a definition.
pub fn drift(all: &Reconcilers, definition: &Definition, nth: usize) -> Vec<Write> {
    Waves::of(definition).drift(all, &definition.reconciler, nth)
}

fn as_wanted(there: &ManagedObject, desired: &DesiredObject, name: &str) -> bool {
    let label = there.labels.get(RECONCILER_LABEL).map(String::as_str) == Some(name);
    let others = there.labels.iter().filter(|(key, _)| *key != RECONCILER_LABEL);
    label && others.eq(desired.labels.iter()) && there.body == desired.body
}
