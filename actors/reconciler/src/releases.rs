//! Which release of each application a process can run: declared by the application, by scope. Nothing restarts when it changes.

use std::collections::BTreeMap;
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

/// The releases that are declared, as a watched value. Clones share it.
#[derive(Clone)]
pub struct Releases(Arc<watch::Sender<Arc<Declared>>>);

impl Default for Releases {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Arc::default())))
    }
}

impl Releases {
    /// From now on these are all. Candidates of a scope whose release changes end in order and stand again with the new one.
    pub fn declare_all(&self, declared: Declared) {
        let declared = Arc::new(declared);
        self.0.send_if_modified(|known| {
            let differs = *known != declared;
            *known = Arc::clone(&declared);
            differs
        });
    }
    /// Declares the release of one scope. `None`: nothing of it can be run here.
    pub fn declare(&self, scope: &str, release: impl Into<Option<Release>>) {
        let mut declared = Declared::clone(&self.declared());
        declared.scopes.insert(scope.to_owned(), release.into());
        self.declare_all(declared);
    }
    /// The release of the process counts for this scope again.
    pub fn withdraw(&self, scope: &str) {
        let mut declared = Declared::clone(&self.declared());
        declared.scopes.remove(scope);
        self.declare_all(declared);
    }
    /// What is declared now.
    pub fn declared(&self) -> Arc<Declared> {
        self.0.borrow().clone()
    }
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Declared>> {
        self.0.subscribe()
    }
}
