//! The services that currently run behind the port. The manager runtime starts and stops; its services register while they run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_messages::protocol::Service;
use tokio::sync::mpsc;

use crate::connection::Connection;

type Entries = BTreeMap<Service, (u64, mpsc::Sender<Connection>)>;

/// The registered services. Clones share one table.
#[derive(Clone, Debug, Default)]
pub struct Services {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    closed: bool,
    registrations: u64,
    entries: Entries,
}

impl Services {
    pub fn new() -> Self {
        Self::default()
    }
    /// `service` receives its connections at `sink`, which bounds how many may wait. The newest registration of a service
    /// wins; a restarted actor registers again.
    #[must_use = "dropping the registration ends it"]
    pub fn register(&self, service: Service, sink: mpsc::Sender<Connection>) -> Registration {
        let mut inner = self.lock();
        inner.registrations += 1;
        let number = inner.registrations;
        inner.entries.insert(service, (number, sink));
        Registration { services: self.clone(), service, number }
    }
    /// While closed, the port admits only this node itself.
    pub fn close_to_others(&self, closed: bool) {
        self.lock().closed = closed;
    }
    /// Whether the port admits only this node itself.
    pub fn is_closed_to_others(&self) -> bool {
        self.lock().closed
    }
    pub fn serves(&self, service: Service) -> bool {
        self.sink(service).is_some()
    }
    pub fn sink(&self, service: Service) -> Option<mpsc::Sender<Connection>> {
        let sink = self.lock().entries.get(&service).map(|(_, s)| s.clone());
        sink.filter(|s| !s.is_closed())
    }
    pub fn running(&self) -> Vec<Service> {
        Service::ALL.into_iter().filter(|s| self.serves(*s)).collect()
    }
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a service registered until dropped, unless a newer registration has replaced this one.
#[derive(Debug)]
pub struct Registration {
    services: Services,
    service: Service,
    number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut inner = self.services.lock();
        let mine = inner.entries.get(&self.service).is_some_and(|(number, _)| *number == self.number);
        if mine {
            inner.entries.remove(&self.service);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ending_old_registration_keeps_the_newer_one() {
        let services = Services::new();
        let (sink, _inbox) = mpsc::channel(1);
        let old = services.register(Service::Mesh, sink.clone());
        let new = services.register(Service::Mesh, sink);
        drop(old);
        assert!(services.serves(Service::Mesh));
        assert_eq!(services.running(), [Service::Mesh]);
        drop(new);
        assert!(!services.serves(Service::Mesh));
    }

    #[test]
    fn service_with_closed_inbox_does_not_run() {
        let services = Services::new();
        let (sink, inbox) = mpsc::channel(1);
        let _registered = services.register(Service::Agent, sink);
        drop(inbox);
        assert!(!services.serves(Service::Agent));
    }
}
