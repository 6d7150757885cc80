//! The roots that a node trusts, and how they change.
//!
//! Invariants  PKI-8  the issuer of a certificate is established by verifying its chain against each root alone, never by
//!                    comparing names or key identifiers: the signer chooses both.
//!             PKI-9  a bundle gains a root only through a voucher of a root already in it, directly or over other vouched
//!                    roots.

use muster_messages::{ClusterId, MAX_CROSSES, MAX_ROOTS, OfferedRoot, RootId, Voucher};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use sha2::{Digest, Sha256};

use crate::encoding::{self, BadPem};
use crate::identity;
use crate::rekey::signed_by;
use crate::tls::provider;

/// The most certificates that are presented together: the own one and those that lead from it to older roots.
pub const MAX_CHAIN: usize = MAX_CROSSES + 1;

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

    /// The root that issued the first of the presented certificates, a node's or a user's, as of this time (PKI-8). If the one that
    /// signed it is in the bundle, that one, whatever was presented beside it. Otherwise, of those that lead to it over the other
    /// certificates, the first in the bundle. `None`: none of them did, or it is not valid then.
    pub fn issuer_of(&self, presented: &[CertificateDer<'_>], now: UnixTime) -> Option<RootId> {
        let (leaf, others) = presented.split_first()?;
        if presented.len() > MAX_CHAIN {
            return None;
        }
        let issued = |others: &[CertificateDer<'_>]| self.roots.iter().find(|root| root.issued(leaf, others, now));
        // The nearest known root decides: a certificate that leads from a known root to another one says nothing about that one's.
        let unknown: Vec<CertificateDer<'_>> = others.iter().filter(|der| !self.has_key_of(der)).cloned().collect();
        issued(&[]).or_else(|| issued(&unknown)).map(|root| root.id)
    }

    fn has_key_of(&self, der: &CertificateDer<'_>) -> bool {
        let id = identity::parse(der).map(|cert| identity::root_id(cert.public_key().raw));
        id.is_ok_and(|id| self.roots.iter().any(|root| root.id == id))
    }

    /// The bundle after a manager, verified by the present one, has offered roots (PKI-9). It holds the offered roots that are
    /// to be trusted, in their order.
    ///
    /// # Errors
    /// The offer is malformed, has no root to trust, or one for which no trusted root vouches.
    pub fn accept(&self, cluster: ClusterId, offered: &[OfferedRoot]) -> Result<Self, BadBundle> {
        match self.prove(cluster, offered)? {
            (_, Some(unproven)) => Err(BadBundle::NotVouched(unproven)),
            (bundle, None) => Ok(bundle),
        }
    }

    /// The same without the roots for which no trusted root vouches: a node that knows only a later root needs no earlier one.
    ///
    /// # Errors
    /// The offer is malformed, or has no root to trust for which a trusted one vouches.
    pub fn accept_proven(&self, cluster: ClusterId, offered: &[OfferedRoot]) -> Result<Self, BadBundle> {
        match self.prove(cluster, offered)? {
            (bundle, Some(unproven)) if bundle.roots.is_empty() => Err(BadBundle::NotVouched(unproven)),
            (bundle, _) => Ok(bundle),
        }
    }

    /// The offered roots that are to be trusted and are proven, and the first one that is not.
    fn prove(&self, cluster: ClusterId, offered: &[OfferedRoot]) -> Result<(Self, Option<RootId>), BadBundle> {
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
        let (roots, unproven): (Vec<Root>, Vec<Root>) = wanted.partition(|root| proven.contains(root));
        if roots.is_empty() && unproven.is_empty() {
            return Err(BadBundle::Pem(BadPem::NotSome(MAX_ROOTS)));
        }
        Ok((Self { roots }, unproven.first().map(|root| root.id)))
    }

    /// For verifying clients, with these roots before its own, trusted or not, in however large a number. A root that cannot be
    /// read, or whose key is there already, is left out.
    #[must_use]
    pub fn preceded_by<'a>(self, roots_pem: impl IntoIterator<Item = &'a str>) -> Self {
        let ders = roots_pem.into_iter().filter_map(|pem| encoding::certificate(pem).ok());
        let read = ders.filter_map(|der| Root::read(der).ok());
        let mut roots: Vec<Root> = Vec::new();
        for root in read.chain(self.roots) {
            if roots.iter().all(|known| known.id != root.id) {
                roots.push(root);
            }
        }
        Self { roots }
    }

    /// With this root, if it is not in it yet. It replaces the last of [`MAX_ROOTS`] others: a bundle never has more.
    pub(crate) fn with(mut self, root_pem: &str) -> Result<Self, BadBundle> {
        let root = Root::read(encoding::certificate(root_pem).map_err(BadBundle::Pem)?)?;
        if !self.roots.contains(&root) {
            self.roots.truncate(MAX_ROOTS - 1);
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
    /// Verified as a client's certificate: a user's serves for nothing else, a node's also for this.
    fn issued(&self, leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let mut anchor = RootCertStore::empty();
        if anchor.add(self.der.clone()).is_err() {
            return false;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(anchor.into(), provider().clone()).build();
        verifier.is_ok_and(|verifier| verifier.verify_client_cert(leaf, others, now).is_ok())
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
