//! Turns untrusted requests into input for the core: bounded, parsed, and with verified proofs.

use std::net::SocketAddr;

use muster_messages::wire::{JoinRequest, WorkloadRequest, WorkloadWanted};
use muster_messages::{ErrorBody, ErrorCode, Tables, check_jwt_audience, check_labels, check_text, printable};
use muster_pki::{CsrKey, PublicKey, verify_rekey};

use crate::core::{VerifiedJoin, Wanted};

const MAX_ADDR: usize = 261; // a DNS name of 253, a colon, a port, and brackets
const MAX_RELEASE: usize = 64;

/// The key of a signing request.
pub(crate) fn key(csr_pem: &str) -> Result<CsrKey, ErrorBody> {
    CsrKey::parse(csr_pem).map_err(|e| ErrorBody::invalid(e.to_string()))
}

/// What is to be signed for a workload.
pub(crate) fn wanted(request: &WorkloadRequest) -> Result<Wanted, ErrorBody> {
    let malformed = |_| ErrorBody::invalid("the request is neither for a public key nor for a JWT");
    match request.wanted().map_err(malformed)? {
        WorkloadWanted::Certificate { public_key_der } => PublicKey::parse(&public_key_der)
            .map(Wanted::Certificate)
            .map_err(|_| ErrorBody::invalid("the public key of a workload must be ECDSA P-256, uncompressed")),
        WorkloadWanted::Jwt { audience } => {
            check_jwt_audience(&audience).map_err(ErrorBody::invalid)?;
            Ok(Wanted::Jwt(audience))
        }
    }
}

/// A join request that may be judged. A proof of an older identity is verified here, against the applied root.
pub(crate) fn join(
    request: JoinRequest,
    observed: Option<SocketAddr>,
    tables: &Tables,
) -> Result<VerifiedJoin, ErrorBody> {
    let key = key(&request.csr_pem)?;
    let port = port_of(&request.advertise).ok_or_else(|| {
        ErrorBody::invalid(format!("the advertised address {:?} is not host:port", printable(&request.advertise, 80)))
    })?;
    check_text("the release", &request.release, MAX_RELEASE).map_err(ErrorBody::invalid)?;
    check_labels(&request.labels).map_err(ErrorBody::invalid)?;
    // A node that was away has a certificate of an earlier root.
    let proven = match request.rekey.as_ref().filter(|_| tables.cluster.is_some()) {
        None => None,
        Some(rekey) => Some(
            verify_rekey(&tables.recorded_roots_pem(), &rekey.old_cert_pem, &rekey.signature, &key)
                .map_err(|e| ErrorBody::new(ErrorCode::Unauthenticated, e.to_string()))?,
        ),
    };
    if proven.as_ref().is_some_and(|p| p.node().map(|(id, _)| id) != Some(request.node)) {
        return Err(ErrorBody::new(ErrorCode::Unauthenticated, "the old certificate belongs to another node"));
    }
    Ok(VerifiedJoin {
        request: request.request_id,
        node: request.node,
        secret: request.token_secret,
        name: request.name,
        addr: address(&request.advertise, port, observed),
        release: request.release,
        labels: request.labels,
        observed,
        key,
        rekey: proven.map(Box::new),
    })
}

/// The advertised address; an unspecified host is replaced by the observed one.
fn address(advertise: &str, port: u16, observed: Option<SocketAddr>) -> String {
    match (advertise.parse::<SocketAddr>(), observed) {
        (Ok(said), Some(seen)) if said.ip().is_unspecified() => SocketAddr::new(seen.ip(), port).to_string(),
        _ => advertise.to_owned(),
    }
}

fn port_of(advertise: &str) -> Option<u16> {
    let (host, port) = advertise.rsplit_once(':')?;
    let legal = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    let fits = advertise.len() <= MAX_ADDR && !host.is_empty() && host.chars().all(legal);
    port.parse().ok().filter(|port| fits && *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_host_becomes_the_observed_one() {
        let seen = Some("10.1.2.3:50000".parse().unwrap());
        let check = |advertise: &str| address(advertise, port_of(advertise).unwrap(), seen);
        assert_eq!(check("0.0.0.0:4400"), "10.1.2.3:4400");
        assert_eq!(check("[::]:4400"), "10.1.2.3:4400");
        assert_eq!(check("n1.example:4400"), "n1.example:4400");
        assert_eq!(check("10.9.9.9:1"), "10.9.9.9:1");
        assert_eq!(address("0.0.0.0:4400", 4400, None), "0.0.0.0:4400");
    }

    #[test]
    fn addresses_without_host_or_port_are_refused() {
        for bad in ["", "n1", ":4400", "n1:", "n1:0", "n1:99999", "a b:1", "a\n:1"] {
            assert_eq!(port_of(bad), None, "{bad:?}");
        }
    }
}
