//! The dispatcher's address and its spec.

use muster_kernel::{Address, Spec};

use super::{DispatcherPorts, DispatcherShell, Msg};
use crate::config::DispatcherConfig;

/// An address for a dispatcher that does not exist yet.
pub fn dispatcher_address(config: &DispatcherConfig) -> Address<Msg> {
    Address::new(config.mailbox)
}

pub fn dispatcher_spec(address: Address<Msg>, ports: DispatcherPorts) -> Spec {
    Spec::actor("dispatcher", address, move || Ok(DispatcherShell::new(ports.clone())))
}
