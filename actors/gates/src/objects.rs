//! Object sets: what a definition wants, what is there, and the writes between the two.

use muster_messages::{Action, Definition, DesiredObject, ManagedKey, ManagedObject, RECONCILER_LABEL, Reconcilers};

/// The waves of a definition.
pub struct Waves<'a> {
    objects: &'a [DesiredObject],
}

impl<'a> Waves<'a> {
    /// Of an object set; none of anything else.
    pub fn of(definition: &'a Definition) -> Self {
        let objects = match &definition.action {
            Action::Objects(objects) => objects.as_slice(),
            Action::Command(_) | Action::Handler => &[],
        };
        Self { objects }
    }
    /// Their numbers, in order. An object set without objects has one, in which what is not wanted any more is deleted.
    pub fn numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.objects.iter().map(|object| object.wave).collect();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.is_empty() { vec![0] } else { numbers }
    }
    /// The objects of the `nth` wave, by name.
    fn wave(&self, nth: usize) -> Vec<&'a DesiredObject> {
        let number = self.numbers().get(nth).copied();
        let mut wave: Vec<_> = self.objects.iter().filter(|object| Some(object.wave) == number).collect();
        wave.sort_by(|a, b| a.key.cmp(&b.key));
        wave
    }
    fn wants(&self, key: &ManagedKey) -> bool {
        self.objects.iter().any(|object| object.key == *key)
    }
}

/// One write of a wave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Create(DesiredObject),
    Update(DesiredObject),
    Delete(ManagedKey),
    /// Somebody else's of the same name is in the way.
    Taken(ManagedKey),
    /// There, as it should be.
    Keep(ManagedKey),
}

impl Write {
    pub fn key(&self) -> &ManagedKey {
        match self {
            Write::Create(object) | Write::Update(object) => &object.key,
            Write::Delete(key) | Write::Taken(key) | Write::Keep(key) => key,
        }
    }
    /// As plans name it.
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

/// What the `nth` wave has to do, from what is there. The last one deletes what is not wanted any more.
pub fn drift(all: &Reconcilers, definition: &Definition, nth: usize) -> Vec<Write> {
    let waves = Waves::of(definition);
    let name = definition.reconciler.as_str();
    let of_wanted = |desired: &DesiredObject| match all.objects.get(&desired.key) {
        None => Write::Create(desired.clone()),
        Some(there) if there.owner.as_deref() != Some(name) => Write::Taken(desired.key.clone()),
        Some(there) if as_wanted(there, desired, name) => Write::Keep(desired.key.clone()),
        Some(_) => Write::Update(desired.clone()),
    };
    let mut writes: Vec<Write> = waves.wave(nth).into_iter().map(of_wanted).collect();
    if nth + 1 >= waves.numbers().len() {
        let unwanted = |object: &&std::sync::Arc<ManagedObject>| {
            object.owner.as_deref() == Some(name) && !waves.wants(&object.key)
        };
        writes.extend(all.objects.values().filter(unwanted).map(|object| Write::Delete(object.key.clone())));
    }
    writes
}

fn as_wanted(there: &ManagedObject, desired: &DesiredObject, name: &str) -> bool {
    let label = there.labels.get(RECONCILER_LABEL).map(String::as_str) == Some(name);
    let others = there.labels.iter().filter(|(key, _)| *key != RECONCILER_LABEL);
    label && others.eq(desired.labels.iter()) && there.body == desired.body
}
