//! What the agent reports, as log lines.

use tracing::{debug, info, warn};

use crate::core::LogEvent;

pub(crate) fn log_event(event: &LogEvent, repeated: bool) {
    match event {
        LogEvent::SessionOpened { host, addr } => info!(%host, addr, "session opened"),
        LogEvent::SessionLost { addr, why } => info!(addr, why, "session lost"),
        LogEvent::CertificateInForce { role, serial } => info!(%role, serial, "new certificate in force"),
        LogEvent::DialFailed { addr, why } if !repeated => info!(addr, why, "cannot open a session"),
        LogEvent::DialFailed { addr, why } => debug!(addr, why, "cannot open a session"),
        LogEvent::Refused { addr, reason, message } if !repeated => {
            info!(addr, %reason, why = message, "refused by manager")
        }
        LogEvent::Refused { addr, reason, message } => debug!(addr, %reason, why = message, "refused by manager"),
        LogEvent::SignFailed { why } => info!(why, "failed to obtain a certificate"),
        LogEvent::RootsTrusted { generation } => info!(%generation, "roots of the cluster in force"),
        LogEvent::RootsRefused { why } if !repeated => warn!(why, "roots that a manager offered were refused"),
        LogEvent::RootsRefused { why } => debug!(why, "roots that a manager offered were refused"),
    }
}
