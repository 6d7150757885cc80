//! The actor's address and its spec.

use muster_kernel::{Address, Spec};

use crate::msg::Msg;
use crate::ports::AuditPorts;
use crate::shell::AuditShell;

/// Messages waiting. Each is a request in progress; further lines are counted as lost.
const MAILBOX: usize = 4096;

/// The address of the actor, for all incarnations.
pub fn audit_address() -> Address<Msg> {
    Address::new(MAILBOX)
}

pub fn audit_spec(address: Address<Msg>, ports: AuditPorts) -> Spec {
    Spec::actor("audit", address, move || Ok(AuditShell::new(ports.clone())))
}
