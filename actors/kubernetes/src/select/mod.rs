//! Selectors: the objects of a list or a watch.

mod fields;
mod labels;

use std::sync::Arc;

use imbl::OrdMap;
use muster_messages::{Object, ObjectKey, ObjectKind};

pub(crate) use self::fields::FieldSelector;
pub(crate) use self::labels::LabelSelector;

/// Terms of one selector, which is evaluated for every object of a list and for every change of a watch.
const MAX_TERMS: usize = 64;

/// Everything that decides whether an object belongs to a list or a watch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Selection {
    pub kind: ObjectKind,
    /// `None`: all.
    pub namespace: Option<String>,
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selection {
    pub(crate) fn includes(&self, object: &Object) -> bool {
        object.body.kind() == self.kind
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == object.namespace)
            && self.labels.matches(&object.meta.labels)
            && self.fields.matches(object)
    }

    /// The selected objects, by namespace and name, after `last` if given.
    pub(crate) fn of<'a>(
        &'a self,
        objects: &'a OrdMap<ObjectKey, Arc<Object>>,
        last: Option<&ObjectKey>,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Object)> + use<'a> {
        let namespace = self.namespace.clone().unwrap_or_default();
        let first = last.cloned().unwrap_or(ObjectKey { kind: self.kind, namespace, name: String::new() });
        let begun = last.cloned();
        let within = |key: &ObjectKey| {
            key.kind == self.kind && self.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
        };
        objects
            .range(first..)
            .skip_while(move |(key, _)| Some(*key) == begun.as_ref())
            .take_while(move |(key, _)| within(key))
            .map(|(key, object)| (key, object.as_ref()))
            .filter(|(_, object)| self.includes(object))
    }
}
