//! Which release of each application a process can run: declared by the application, by scope. Nothing restarts when it changes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use muster_messages::Release;
use tokio::sync::watch;

/// In place of a release: nothing of the scope can be run here.
pub const NOT_INSTALLED: &str = "none";

/// The releases that are declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// By scope. `None`: nothing of the scope can be run here, whatever the release of the process.
    pub scopes: BTreeMap<String, Option<Release>>,
    /// More may be declared than is known: nothing of a scope that is missing in `scopes` can be run.
    pub incomplete: bool,
}

impl Declared {
    /// What can be run of a scope by a process of this release.
    pub fn of_scope(&self, scope: &str, release: &Release) -> Option<Release> {
        match self.scopes.get(scope) {
            Some(declared) => declared.clone(),
            None => (!self.incomplete).then(|| release.clone()),
        }
    }
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (scope, release)) in self.scopes.iter().enumerate() {
            let between = if n == 0 { "" } else { ", " };
            match release {
                Some(release) => write!(f, "{between}{scope} {release}")?,
                None => write!(f, "{between}{scope} {NOT_INSTALLED}")?,
            }
        }
        if self.scopes.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

/// The releases that are declared, as a watched value. Clones share it.
#[derive(Clone)]
pub struct Releases(Arc<watch::Sender<Arc<Declared>>>);

impl Default for Releases {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Arc::default())))
    }
}

impl Releases {
    /// From now on these are all. Candidates of a scope whose release changes end their terms and campaign again with the new
    /// release.
    pub fn declare_all(&self, declared: Declared) {
        self.modify(|known| *known = declared);
    }
    /// Declares the release of one scope. `None`: nothing of it can be run here.
    pub fn declare(&self, scope: &str, release: impl Into<Option<Release>>) {
        self.modify(|declared| drop(declared.scopes.insert(scope.to_owned(), release.into())));
    }
    /// The release of the process counts for this scope again.
    pub fn withdraw(&self, scope: &str) {
        self.modify(|declared| drop(declared.scopes.remove(scope)));
    }
    /// Under the lock of the value: two clones that change it at once lose nothing.
    fn modify(&self, change: impl FnOnce(&mut Declared)) {
        self.0.send_if_modified(|known| {
            let mut declared = Declared::clone(known);
            change(&mut declared);
            let differs = **known != declared;
            if differs {
                *known = Arc::new(declared);
            }
            differs
        });
    }
    /// What is declared now.
    pub fn declared(&self) -> Arc<Declared> {
        self.0.borrow().clone()
    }
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Declared>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two applications of one node declare theirs at the same time.
    #[test]
    fn clones_that_declare_at_once_lose_nothing() {
        let releases = Releases::default();
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let releases = releases.clone();
                threads.spawn(move || {
                    for n in 0..500 {
                        releases.declare(&format!("{thread}-{n}"), None);
                        releases.withdraw(&format!("{thread}-{}", n - n % 2));
                    }
                });
            }
        });
        assert_eq!(releases.declared().scopes.len(), 4 * 250);
    }

    #[test]
    fn what_is_declared_already_is_no_change() {
        let releases = Releases::default();
        let mut changes = releases.changes();
        for (declared, changed) in [("1.0.0", true), ("1.0.0", false), ("2.0.0", true)] {
            releases.declare("db", declared.parse::<Release>().unwrap());
            assert_eq!(changes.has_changed().unwrap(), changed, "{declared}");
            changes.mark_unchanged();
        }
    }
}
