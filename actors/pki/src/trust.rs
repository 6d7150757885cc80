//! The roots that a node trusts, and how they change.
//!
//! Invariants  PKI-8  the issuer of a certificate is established by verifying its chain against each root alone, never by
//!                    comparing names or key identifiers: the signer chooses both.
//!             PKI-9  a bundle gains a root only through a voucher of a root already in it, directly or over other vouched
//!                    roots.

use muster_messages::{ClusterId, MAX_ROOTS, RootId, Voucher};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use sha2::{Digest, Sha256};

use crate::encoding::{self, BadPem};
use crate::identity;
use crate::rekey::signed_by;
use crate::tls::provider;

/// The most certificates that are presented together: the own one and those that lead from it to older roots.
pub const MAX_CHAIN: usize = 5;

/// Prefix of what a root signs about another one, so that the signature is invalid for any other purpose.
const CONTEXT: &[u8] = b"muster-root/1\0";

/// Why roots are not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBundle {
    #[error("the roots are not PEM: {0}")]
    Pem(BadPem),
    #[error("a root certificate is malformed, or not a certificate authority's")]
    Malformed,
    #[error("two certificates of the root {0}")]
    Twice(RootId),
    #[error("no trusted root vouches for the root {0}")]
    NotVouched(RootId),
}

/// What a root signs: the cluster, and the whole certificate of the other root.
pub(crate) fn statement(cluster: ClusterId, root: &CertificateDer<'_>) -> Vec<u8> {
    [CONTEXT, cluster.as_str().as_bytes(), b"\0", &Sha256::digest(root)].concat()
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Root {
    id: RootId,
    der: CertificateDer<'static>,
}

impl Root {
    fn read(der: CertificateDer<'static>) -> Result<Self, BadBundle> {
        let cert = identity::parse(&der).map_err(|_| BadBundle::Malformed)?;
        let id = identity::root_id(cert.public_key().raw);
        if cert.is_ca() { Ok(Self { id, der }) } else { Err(BadBundle::Malformed) }
    }
}

/// A root that a manager offers, with the vouchers for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedRoot {
    pub cert_pem: String,
    pub vouchers: Vec<Voucher>,
    /// `false`: it is not to be trusted (any more), it only leads to others: the node missed the time between.
    pub trusted: bool,
}

/// The roots that a node trusts: at least one, at most [`MAX_ROOTS`], each key once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    roots: Vec<Root>,
}

impl Bundle {
    /// Reads the certificates in `pem`.
    pub fn from_pem(pem: &str) -> Result<Self, BadBundle> {
        let certificates = encoding::certificates(pem, MAX_ROOTS).map_err(BadBundle::Pem)?;
        let roots: Vec<Root> = certificates.into_iter().map(Root::read).collect::<Result<_, _>>()?;
        once_each(&roots)?;
        Ok(Self { roots })
    }

    /// The ids of its roots, in their order in the file.
    pub fn ids(&self) -> impl Iterator<Item = RootId> + '_ {
        self.roots.iter().map(|root| root.id)
    }

    /// The root that issued the first of the presented certificates, a node's, directly or over the others, as of this time (PKI-8).
    /// Of two such roots, the first in the bundle. `None`: none of them did, it is not valid then, or it is a user's.
    pub fn issuer_of(&self, presented: &[CertificateDer<'_>], now: UnixTime) -> Option<RootId> {
        let (leaf, others) = presented.split_first()?;
        if presented.len() > MAX_CHAIN {
            return None;
        }
        self.roots.iter().find(|root| root.issued(leaf, others, now)).map(|root| root.id)
    }

    /// The bundle after a manager, verified by the present one, has offered roots (PKI-9). It holds the offered roots that are
    /// to be trusted, in their order.
    ///
    /// # Errors
    /// The offer is malformed, has no root to trust, or one for which no trusted root vouches.
    pub fn accept(&self, cluster: ClusterId, offered: &[OfferedRoot]) -> Result<Self, BadBundle> {
        if offered.len() > MAX_ROOTS || offered.iter().any(|offer| offer.vouchers.len() > MAX_ROOTS) {
            return Err(BadBundle::Pem(BadPem::NotSome(MAX_ROOTS)));
        }
        let mut roots = Vec::new();
        for offer in offered {
            roots.push(Root::read(encoding::certificate(&offer.cert_pem).map_err(BadBundle::Pem)?)?);
        }
        let mut proven = self.roots.clone();
        once_each(proven.iter().filter(|known| !roots.contains(known)).chain(&roots))?;
        let provable = |proven: &[Root]| {
            let mut unproven = roots.iter().zip(offered).filter(|(root, _)| !proven.contains(root));
            unproven.find(|(root, offer)| vouched(proven, cluster, root, &offer.vouchers)).map(|(root, _)| root.clone())
        };
        while let Some(root) = provable(&proven) {
            proven.push(root);
        }
        let wanted = roots.into_iter().zip(offered).filter(|(_, offer)| offer.trusted).map(|(root, _)| root);
        let wanted: Vec<Root> = wanted.collect();
        match wanted.iter().find(|root| !proven.contains(root)) {
            Some(root) => Err(BadBundle::NotVouched(root.id)),
            None if wanted.is_empty() => Err(BadBundle::Pem(BadPem::NotSome(MAX_ROOTS))),
            None => Ok(Self { roots: wanted }),
        }
    }

    /// With this root, if it is not in it yet.
    pub(crate) fn with(mut self, root_pem: &str) -> Result<Self, BadBundle> {
        let root = Root::read(encoding::certificate(root_pem).map_err(BadBundle::Pem)?)?;
        if !self.roots.contains(&root) {
            self.roots.push(root);
            once_each(&self.roots)?;
        }
        Ok(self)
    }

    /// The certificate of one of its roots.
    pub fn root_pem(&self, id: RootId) -> Option<String> {
        self.roots.iter().find(|root| root.id == id).map(|root| encoding::certificate_pem(&root.der))
    }

    /// As a file: the certificates one after another.
    pub fn to_pem(&self) -> String {
        self.roots.iter().map(|root| encoding::certificate_pem(&root.der)).collect()
    }

    pub(crate) fn anchors(&self) -> Result<RootCertStore, rustls::Error> {
        let mut anchors = RootCertStore::empty();
        self.roots.iter().try_for_each(|root| anchors.add(root.der.clone()))?;
        Ok(anchors)
    }
}

impl Root {
    fn issued(&self, leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let mut anchor = RootCertStore::empty();
        let (Ok(()), Ok(leaf)) = (anchor.add(self.der.clone()), ParsedCertificate::try_from(leaf)) else {
            return false;
        };
        let algorithms = provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&leaf, &anchor, others, now, algorithms).is_ok()
    }
}

fn once_each<'a>(roots: impl IntoIterator<Item = &'a Root>) -> Result<(), BadBundle> {
    let mut seen = std::collections::BTreeSet::new();
    match roots.into_iter().find(|root| !seen.insert(root.id)) {
        Some(root) => Err(BadBundle::Twice(root.id)),
        None => Ok(()),
    }
}

fn vouched(trusted: &[Root], cluster: ClusterId, root: &Root, vouchers: &[Voucher]) -> bool {
    let message = statement(cluster, &root.der);
    vouchers.iter().any(|voucher| {
        let by = trusted.iter().find(|known| known.id == voucher.by);
        by.is_some_and(|by| signed_by(&by.der, &message, &voucher.signature))
    })
}
