//! The text of a failed dial: stage, address, cause, and a hint for the reader.

use std::error::Error;
use std::io;
use std::time::Duration;

use muster_messages::WallTime;
use muster_messages::frames::FrameError;
use rustls::{AlertDescription, CertificateError};

use crate::dialer::{DialError, Stage};

/// By this machine's clock the presented certificate is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClockFault {
    /// Only possible if a clock is wrong.
    #[error("valid from {from}, which is {} ahead by this machine's clock", roughly(*.ahead))]
    NotYet { from: WallTime, ahead: Duration },
    #[error("valid until {until}, which was {} ago by this machine's clock", roughly(*.ago))]
    Expired { until: WallTime, ago: Duration },
}

impl ClockFault {
    /// The clock fault that a handshake failed for, if any.
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

/// Coarse, so that the text of a fault rarely changes.
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
    /// The error, its causes and the hint, as one line.
    pub fn full_text(&self) -> String {
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

    /// A hint at what to check first.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            DialError::Resolve { .. } | DialError::Timeout { stage: Stage::Resolve, .. } => {
                Some("is the name right, and can this machine resolve it?")
            }
            DialError::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
                Some("no process listens there: is musterd running, and does its --listen match?")
            }
            DialError::Connect { .. } | DialError::Timeout { stage: Stage::Connect, .. } => {
                Some("is the address right, and do the firewalls let it through?")
            }
            DialError::Clock { .. } => Some("compare the clocks of both machines (date -u) and correct the wrong one"),
            DialError::Tls { source, .. } => tls_help(source).or_else(|| closed_help(source)),
            DialError::Timeout { stage: Stage::Tls, .. } => Some(
                "the process that listens there is overloaded or does not speak TLS: is this musterd's --listen address?",
            ),
            DialError::Greeting { source: FrameError::Io(source), .. } => tls_help(source),
            _ => None,
        }
    }
}

/// A locked daemon accepts connections and closes them; a gateway does so with connections beyond its limits.
fn closed_help(failed: &io::Error) -> Option<&'static str> {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(failed.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe).then_some(
        "it was closed before the handshake: with autolock on, is that manager locked (`muster status` at its socket)? Otherwise it has too many \
         connections, or is not musterd",
    )
}

fn tls_help(failed: &io::Error) -> Option<&'static str> {
    match tls_error(failed) {
        Some(rustls::Error::InvalidMessage(_)) => Some(
            "the process that listens there does not speak TLS: is this musterd's --listen address, not its metrics address?",
        ),
        // About our certificate: the peer's would have failed on this side.
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateExpired)) => Some(
            "by the peer's clock this node's certificate is not valid: compare the clocks of both machines (date -u)",
        ),
        Some(rustls::Error::AlertReceived(AlertDescription::UnknownCA)) => Some("the peer belongs to another cluster"),
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            Some("the peer belongs to another cluster, or is not a muster node")
        }
        // Its root has the name of one that is trusted, and another key.
        Some(rustls::Error::InvalidCertificate(CertificateError::BadSignature)) => Some(
            "the peer has another root of this cluster than those that this node trusts: was the cluster restored from a backup that is older \
             than a rotation of its root? Then this node must join it again, with an empty directory",
        ),
        _ => None,
    }
}
