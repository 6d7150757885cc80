//! Floods: many attackers run one kind of attack on one service for a while; meanwhile honest nodes join, and the
//! manager's costs are recorded.

mod connection;
mod http2;
mod run;
mod table;

use std::time::Duration;

pub use self::run::{HonestLoad, Outcomes, flood};
pub use self::table::{Row, header};

/// The kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Kind {
    /// Random bytes, raw and inside well-formed frames.
    Random,
    /// Wrong lengths, and frames and headers over the limits.
    Oversized,
    /// Connections that stop inside the TLS handshake, or before it.
    HalfHandshake,
    /// Connections that stop after the handshake.
    HalfOpen,
    /// Connections that send nearly a whole frame or body, and never its end.
    Withheld,
    /// Well-formed requests that are refused, at full speed.
    Requests,
}

/// The attacked endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Door {
    Mesh,
    Agent,
    Join,
    Api,
    H2,
    Http11,
    /// TLS without ALPN, which means HTTP/1.1.
    NoAlpn,
    /// TCP without TLS.
    Tcp,
}

/// The attacker's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Who {
    /// Without a certificate.
    Stranger,
    /// With a certificate permitted at this endpoint: a worker's, on the mesh a manager's.
    Node,
}

/// One flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flood {
    pub kind: Kind,
    pub door: Door,
    pub who: Who,
    /// Concurrent connections.
    pub connections: usize,
    pub lasts: Duration,
}

impl Kind {
    pub const ALL: [Kind; 6] =
        [Kind::Random, Kind::Oversized, Kind::HalfHandshake, Kind::HalfOpen, Kind::Withheld, Kind::Requests];

    /// The number of concurrent connections. Half-open ones cost the attacker nothing, so there are very many; the others work
    /// at full speed, and a few keep every core busy.
    pub fn connections(self) -> usize {
        match self {
            Kind::HalfHandshake | Kind::HalfOpen => 10_000,
            Kind::Withheld => 2_000,
            Kind::Random | Kind::Oversized | Kind::Requests => 32,
        }
    }
}

impl Door {
    pub const ALL: [Door; 8] =
        [Door::Mesh, Door::Agent, Door::Join, Door::Api, Door::H2, Door::Http11, Door::NoAlpn, Door::Tcp];

    pub fn alpn(self) -> &'static [&'static [u8]] {
        match self {
            Door::Mesh => &[b"muster-mesh/1"],
            Door::Agent => &[b"muster-agent/1"],
            Door::Join => &[b"muster-join/1"],
            Door::Api => &[b"muster-api/1"],
            Door::H2 => &[b"h2"],
            Door::Http11 => &[b"http/1.1"],
            Door::NoAlpn | Door::Tcp => &[],
        }
    }

    /// Whether the endpoint speaks native frames.
    pub fn is_native(self) -> bool {
        matches!(self, Door::Mesh | Door::Agent | Door::Join | Door::Api)
    }
}

/// Every useful flood. (A certificate changes nothing for joiners, before the handshake, or without TLS.)
pub fn every() -> impl Iterator<Item = (Kind, Door, Who)> {
    let all = Kind::ALL.into_iter().flat_map(|kind| Door::ALL.into_iter().map(move |door| (kind, door)));
    all.flat_map(|(kind, door)| [Who::Stranger, Who::Node].into_iter().map(move |who| (kind, door, who)))
        .filter(|(kind, door, who)| is_applicable(*kind, *door, *who))
}

fn is_applicable(kind: Kind, door: Door, who: Who) -> bool {
    let with_certificate = matches!(door, Door::Mesh | Door::Agent | Door::Api | Door::H2 | Door::Http11);
    match (kind, door, who) {
        (Kind::HalfHandshake, _, Who::Node) => false,
        (_, _, Who::Node) if !with_certificate => false,
        (Kind::HalfHandshake, Door::Tcp, _) => true,
        // The ALPN is in the first message: a handshake that stops in it is the same for all endpoints.
        (Kind::HalfHandshake, _, _) => matches!(door, Door::Mesh | Door::Join),
        (Kind::HalfOpen | Kind::Requests, Door::Tcp, _) => false,
        _ => true,
    }
}
