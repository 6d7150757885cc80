//! This daemon's audit log: a handle for the API and the router, and the actor that owns the file.

use std::sync::Arc;

use muster_audit::{AuditLog, AuditPorts, AuditSetup, LogFile, Msg, Sink, audit_address, audit_spec};
use muster_kernel::{Address, Spec};
use muster_messages::NodeId;

use super::config::Config;

/// The actor, before it is started.
pub struct Child {
    address: Address<Msg>,
    ports: AuditPorts,
}

impl Child {
    pub fn spec(&self) -> Spec {
        audit_spec(self.address.clone(), self.ports.clone())
    }
}

/// The log, and its actor if one is configured.
pub fn log(config: &Config, node: NodeId) -> (AuditLog, Option<Child>) {
    let settings = &config.settings.audit;
    let Some(target) = settings.target(&config.data_dir) else { return (AuditLog::default(), None) };
    let ports = AuditPorts::new(Arc::new(move || Box::new(LogFile::new(target.clone())) as Box<dyn Sink>));
    let address = audit_address();
    let (required, reads) = (settings.required, settings.reads);
    let setup = AuditSetup { node, required, reads, to: address.recipient(), state: ports.state.subscribe() };
    (AuditLog::new(setup), Some(Child { address, ports }))
}
