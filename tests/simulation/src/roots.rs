//! Roots: which ones a machine trusts, and what its certificate leads to. A root is represented by its id, a certificate by the id of
//! the root that signed it and those of the certificates between roots that are presented with it.
//!
//! The rules are those of `muster-pki` and of the gateway, on ids instead of keys. A voucher that names both roots counts as
//! signed by the first; a forger cannot make one.

use muster_agent::core as agent;
use muster_gateway::core::roots::is_withdrawn;
use muster_messages::wire::RootsOffer;
use muster_messages::{
    Authorities, Authority, AuthorityState, CertIdentity, CrossCertificate, MAX_ROOTS, OfferedRoot, Revision, RootId,
    Voucher,
};

use crate::bugs::Bug;
use crate::events::Event;
use crate::machine::{Agent, MachineIdx};
use crate::rotations::Rotations;
use crate::world::World;

/// The root that every simulated cluster is founded with.
pub const FOUNDING: RootId = RootId([0; 8]);
const FOUNDING_TEXT: &str = "root";

/// The text that stands for a root's certificate.
pub(crate) fn text_of(root: RootId) -> String {
    if root == FOUNDING { FOUNDING_TEXT.to_owned() } else { root.to_string() }
}
/// That of a root certified by an authority above. Nodes receive it behind those of [`cross`], in one text.
pub(crate) fn certified_text_of(root: RootId) -> String {
    format!(" {root}")
}
/// The root in such a text.
pub(crate) fn id_of(text: &str) -> Option<RootId> {
    if text == FOUNDING_TEXT { Some(FOUNDING) } else { text.trim_start().parse().ok() }
}

pub(crate) fn voucher(by: RootId, of: RootId) -> Voucher {
    Voucher { by, signature: [by.0, of.0].concat() }
}
fn is_genuine(voucher: &Voucher, of: RootId) -> bool {
    voucher.signature == [voucher.by.0, of.0].concat()
}

pub(crate) fn cross(of: RootId, by: RootId) -> CrossCertificate {
    CrossCertificate { by, cert_pem: format!(" {of}>{by}") }
}

/// The root that such a certificate is about, and the root that signed it.
pub(crate) fn pair(cross: &CrossCertificate) -> Option<(RootId, RootId)> {
    read_pair(cross.cert_pem.trim_start())
}

fn read_pair(word: &str) -> Option<(RootId, RootId)> {
    let (of, by) = word.split_once('>')?;
    Some((of.parse().ok()?, by.parse().ok()?))
}

/// A certificate and those presented with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub issuer: RootId,
    /// The root that each one is about, and the root that signed it.
    pub crosses: Vec<(RootId, RootId)>,
}

impl Chain {
    /// Parses the words behind those of the certificate itself.
    pub fn read<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Self> {
        let issuer = words.next()?.parse().ok()?;
        // The certificate that an authority above issued leads to no root known here.
        let crosses = words.filter(|word| word.parse::<RootId>().is_err()).map(read_pair).collect::<Option<_>>()?;
        Some(Self { issuer, crosses })
    }

    /// Whether a verifier that knows only this root finds a path.
    pub fn leads_to(&self, root: RootId) -> bool {
        let mut found = vec![self.issuer];
        let mut seen = 0;
        while let Some(at) = found.get(seen).copied() {
            if at == root {
                return true;
            }
            let signers = self.crosses.iter().filter(|(of, _)| *of == at).map(|(_, by)| *by);
            let new: Vec<RootId> = signers.filter(|by| !found.contains(by)).collect();
            found.extend(new);
            seen += 1;
        }
        false
    }

    /// The root that counts as its issuer: the signer if it is known, otherwise the first known one that it leads to (PKI-8).
    pub fn issuer_in(&self, known: &[RootId]) -> Option<RootId> {
        let signer = known.iter().find(|root| **root == self.issuer);
        signer.or_else(|| known.iter().find(|root| self.leads_to(**root))).copied()
    }
}

/// What a machine trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// Of the certificate on its disk.
    pub chain: Chain,
    /// The roots on its disk. A write replaces all of them.
    pub bundle: Vec<RootId>,
    /// The newest roots that the process has accepted, and their generation.
    pub accepted: Option<(Revision, Vec<RootId>)>,
    /// The newest generation that ever reached the disk.
    pub written: Revision,
    /// The root whose digest is in its join token.
    pub token: RootId,
}

impl Trust {
    pub fn in_root(token: RootId) -> Self {
        let chain = Chain { issuer: FOUNDING, crosses: Vec::new() };
        Self { chain, bundle: vec![token], accepted: None, written: Revision(0), token }
    }

    /// Takes the certificate, unless no trusted root issued it. The accepted roots count from then on, without that of the
    /// former certificate.
    pub fn install(&mut self, chain: Chain) -> bool {
        let bundle = match &self.accepted {
            None => self.bundle.clone(),
            Some((_, accepted)) => with(accepted.clone(), &chain, &self.bundle),
        };
        let issued = chain.issuer_in(&bundle).is_some();
        if issued {
            (self.chain, self.bundle) = (chain, bundle);
        }
        issued
    }

    /// Takes offered roots, and keeps that of its certificate.
    pub fn install_roots(&mut self, offer: &RootsOffer, bug: Option<Bug>) -> bool {
        if self.accepted.as_ref().is_some_and(|(newest, _)| *newest > offer.generation) {
            return true;
        }
        let Some(accepted) = accept(&self.bundle, &offer.roots, bug) else { return false };
        self.bundle = with(accepted.clone(), &self.chain, &self.bundle);
        self.accepted = Some((offer.generation, accepted));
        self.written = self.written.max(offer.generation);
        true
    }
}

/// These roots, and the one of the certificate unless they lead to it anyway.
fn with(mut bundle: Vec<RootId>, chain: &Chain, former: &[RootId]) -> Vec<RootId> {
    let is_issued = chain.issuer_in(&bundle).is_some();
    if let Some(own) = chain.issuer_in(former).filter(|_| !is_issued) {
        bundle.truncate(MAX_ROOTS - 1);
        bundle.push(own);
    }
    bundle
}

/// PKI-9: the roots that are to be trusted, if trusted roots vouch for all of them, directly or over others.
pub(crate) fn accept(bundle: &[RootId], offered: &[OfferedRoot], bug: Option<Bug>) -> Option<Vec<RootId>> {
    if offered.len() > MAX_ROOTS {
        return None;
    }
    let ids: Vec<RootId> = offered.iter().map(|offer| id_of(&offer.cert_pem)).collect::<Option<_>>()?;
    let mut proven = bundle.to_vec();
    let provable = |proven: &[RootId]| {
        let mut unproven = ids.iter().zip(offered).filter(|(id, _)| !proven.contains(id));
        let vouched = |(id, offer): &(&RootId, &OfferedRoot)| {
            let vouchers = offer.vouchers.iter().filter(|voucher| proven.contains(&voucher.by));
            bug == Some(Bug::AcceptUnvouchedRoots) || vouchers.into_iter().any(|voucher| is_genuine(voucher, **id))
        };
        unproven.find(vouched).map(|(id, _)| *id)
    };
    while let Some(id) = provable(&proven) {
        proven.push(id);
    }
    let wanted: Vec<RootId> = ids.iter().zip(offered).filter(|(_, offer)| offer.trusted).map(|(id, _)| *id).collect();
    (!wanted.is_empty() && wanted.iter().all(|id| proven.contains(id))).then_some(wanted)
}

/// The roots that a listener knows, in the order in which it looks for an issuer. `None`: there was no rotation.
fn known(authorities: &Authorities, own: &[RootId]) -> Option<Vec<RootId>> {
    if authorities.roots.is_empty() {
        return None;
    }
    let mut on_record: Vec<_> = authorities.roots.iter().collect();
    on_record.sort_by_key(|(_, root)| (is_withdrawn(root), root.state != AuthorityState::Active));
    let mut known: Vec<RootId> = on_record.into_iter().map(|(id, _)| *id).collect();
    known.extend(own.iter().filter(|id| !authorities.roots.contains_key(id)));
    Some(known)
}

/// Whether a dialler verifies the listener's certificate: only the roots on its disk count.
pub(crate) fn verifies(world: &World, dialler: MachineIdx, listener: MachineIdx) -> bool {
    let chain = &world.machines[listener].agent.trust.chain;
    chain.issuer_in(&world.machines[dialler].agent.trust.bundle).is_some()
}

/// The certificate that a dialler presents, as its listener reads it. `None`: it has none, or no root that the listener knows issued
/// it.
pub(crate) fn presented(world: &World, listener: MachineIdx, dialler: MachineIdx) -> Option<CertIdentity> {
    let certificate = world.machines[dialler].agent.certificate.clone()?;
    let chain = &world.machines[dialler].agent.trust.chain;
    let machine = &world.machines[listener];
    let own = &machine.agent.trust.bundle;
    let known = machine.runtime.as_ref().and_then(|runtime| known(&runtime.core.tables().authorities, own));
    match known {
        Some(known) => Some(CertIdentity { issuer: Some(chain.issuer_in(&known)?), ..certificate }),
        None => chain.issuer_in(own).map(|_| certificate),
    }
}

impl Agent {
    /// Offered roots are verified and written beside the certificate.
    pub(crate) fn install_roots(world: &mut World, idx: MachineIdx, offer: RootsOffer) {
        let (life, soon) = (world.machines[idx].life, world.rng.micros(300, 20_000));
        if world.settings.bug == Some(Bug::AcknowledgeUnwrittenRoots) {
            let input = Box::new(agent::Input::RootsInstalled(offer.generation));
            world.time.after(std::time::Duration::ZERO, Event::AgentInput { idx, life, input });
        }
        world.time.after(soon, Event::RootsWritten { idx, life, offer: Box::new(offer) });
    }

    /// They are on disk; a crash from now on loses only the report.
    pub(crate) fn roots_written(world: &mut World, idx: MachineIdx, life: u32, offer: RootsOffer) {
        let bug = world.settings.bug;
        let machine = &mut world.machines[idx];
        if !machine.up || machine.life != life {
            return;
        }
        let taken = machine.agent.trust.install_roots(&offer, bug);
        Rotations::check_bundle(world, idx);
        world.totals.count(if taken { "bundles of roots written" } else { "bundles of roots refused" });
        let input = match taken {
            true => agent::Input::RootsInstalled(offer.generation),
            false => agent::Input::RootsRefused {
                generation: offer.generation,
                why: "no trusted root vouches for a root".to_owned(),
            },
        };
        let soon = world.rng.micros(20, 4000);
        world.time.after(soon, Event::AgentInput { idx, life, input: Box::new(input) });
    }

    /// A joining machine learns the present roots from this host, by the one that its token names. Its operator replaces a
    /// token that leads to none.
    pub(crate) fn follow_token(world: &mut World, idx: MachineIdx, host: MachineIdx) -> bool {
        let Some(tables) = world.machines[host].runtime.as_ref().map(|h| h.core.tables()) else { return false };
        let token = world.machines[idx].agent.trust.token;
        let signs = tables.cluster.as_ref().and_then(|cluster| id_of(&cluster.root_cert_pem));
        let bundle = if tables.authorities.roots.is_empty() {
            // Without a replica, the host knows the roots on its own disk.
            let own = &world.machines[host].agent.trust.bundle;
            signs.map_or(own.contains(&token), |signs| signs == token).then(|| vec![token])
        } else {
            let offered = offered_to_joiners(&tables.authorities);
            let named = offered.iter().any(|offer| id_of(&offer.cert_pem) == Some(token));
            named.then(|| accept(&[token], &offered, None)).flatten()
        };
        let newest = world.checks.newest().and_then(|tables| tables.cluster.clone());
        let newest = newest.and_then(|cluster| id_of(&cluster.root_cert_pem));
        match bundle {
            Some(bundle) => world.machines[idx].agent.trust.bundle = bundle,
            None => {
                let trust = &mut world.machines[idx].agent.trust;
                trust.token = newest.unwrap_or(trust.token);
                world.totals.count("join tokens replaced");
                return false;
            }
        }
        verifies(world, idx, host)
    }
}

/// As the join service.
fn offered_to_joiners(authorities: &Authorities) -> Vec<OfferedRoot> {
    let withdrawn = |root: &Authority| {
        root.state == AuthorityState::Revoked || root.compromised && root.state != AuthorityState::Active
    };
    let roots = authorities.roots.values().zip(authorities.offer());
    roots.filter(|(root, _)| !withdrawn(root)).map(|(_, offered)| offered).collect()
}
