//! A failed dial in words: the stage, the address, the cause, and what may help whoever reads it.

use std::error::Error;
use std::io;
use std::time::Duration;

use muster_messages::WallTime;
use rustls::{AlertDescription, CertificateError};

use crate::dialer::{DialError, Stage};
use crate::framed::FrameError;

/// By this machine's clock the certificate that was shown is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClockFault {
    /// Never before the certificate was made, unless a clock is wrong.
    #[error("good from {from} on, and by this machine's clock that is {} ahead", roughly(*.ahead))]
    NotYet { from: WallTime, ahead: Duration },
    #[error("good until {until}, and by this machine's clock that was {} ago", roughly(*.ago))]
    Expired { until: WallTime, ago: Duration },
}

impl ClockFault {
    /// Whether a handshake failed for this.
    pub(crate) fn of(failed: &io::Error) -> Option<Self> {
        let Some(rustls::Error::InvalidCertificate(why)) = tls_error(failed) else { return None };
        let wall = |at: &rustls::pki_types::UnixTime| {
            WallTime::from_unix_secs(i64::try_from(at.as_secs()).unwrap_or(i64::MAX / 1000))
        };
        let apart = |a: &rustls::pki_types::UnixTime, b: &rustls::pki_types::UnixTime| {
            Duration::from_secs(a.as_secs().saturating_sub(b.as_secs()))
        };
        match why {
            CertificateError::NotValidYetContext { time, not_before } => {
                Some(ClockFault::NotYet { from: wall(not_before), ahead: apart(not_before, time) })
            }
            CertificateError::ExpiredContext { time, not_after } => {
                Some(ClockFault::Expired { until: wall(not_after), ago: apart(time, not_after) })
            }
            _ => None,
        }
    }
}

/// Coarse, so that the same fault has the same words for a while.
fn roughly(time: Duration) -> String {
    let (minutes, hours, days) = (time.as_secs() / 60, time.as_secs() / 3_600, time.as_secs() / 86_400);
    match (days, hours) {
        (2.., _) => format!("{days} days"),
        (_, 2..) => format!("{hours} hours"),
        _ => format!("{minutes} minutes"),
    }
}

fn tls_error(failed: &io::Error) -> Option<&rustls::Error> {
    failed.get_ref()?.downcast_ref()
}

impl DialError {
    /// The error, its causes, and what may help, as one line.
    pub fn in_words(&self) -> String {
        let mut text = self.to_string();
        let mut source = self.source();
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        if let Some(help) = self.help() {
            text.push_str("; ");
            text.push_str(help);
        }
        text
    }

    /// What whoever reads this may look at first.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            DialError::Resolve { .. } | DialError::Timeout { stage: Stage::Resolve, .. } => {
                Some("is the name right, and can this machine resolve it?")
            }
            DialError::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
                Some("nobody listens there: is musterd running, and is this what its --listen says?")
            }
            DialError::Connect { .. } | DialError::Timeout { stage: Stage::Connect, .. } => {
                Some("is the address right, and do the firewalls let it through?")
            }
            DialError::Clock { .. } => {
                Some("compare the clocks of both machines (date -u), and set the one that is wrong")
            }
            DialError::Tls { source, .. } => tls_help(source),
            DialError::Timeout { stage: Stage::Tls, .. } => {
                Some("whoever listens there is overloaded, or does not speak TLS: is it musterd's --listen address?")
            }
            DialError::Greeting { source: FrameError::Io(source), .. } => tls_help(source),
            _ => None,
        }
    }
}

fn tls_help(failed: &io::Error) -> Option<&'static str> {
    match tls_error(failed) {
        Some(rustls::Error::InvalidMessage(_)) => Some(
            "whoever listens there does not speak TLS: is it musterd's --listen address, and not that of its metrics?",
        ),
        // Of ours: theirs would have failed on this side.
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateExpired)) => Some(
            "by the clock there the certificate of this node is not valid: compare the clocks of both machines (date -u)",
        ),
        Some(rustls::Error::AlertReceived(AlertDescription::UnknownCA)) => Some("it belongs to another cluster"),
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            Some("it belongs to another cluster, or is no node at all")
        }
        _ => None,
    }
}
