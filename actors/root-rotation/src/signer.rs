//! Signatures between roots: about 100 µs each.

use muster_messages::{
    Authority, AuthorityChange, AuthorityOrigin, CrossCertificate, Revision, Role, RootId, Secret, Tables, Token,
    Voucher, WallTime,
};
use muster_pki::{
    IssuedAuthority, Issuer, Root, SignError, first_of_answer, issued_authority, make_authority_csr, new_key,
    new_token_id, new_token_secret, root_id_of_key, root_id_of_pem,
};

use crate::Config;
use crate::core::{NotSigned, Signing};

/// A day: certificates that lead to an older root outlast the last certificate that needs them.
const MARGIN: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

/// Signs by the roots of this state. With a changed state in between, the change is refused when it is applied.
pub fn sign(tables: &Tables, config: &Config, what: Signing, wall: WallTime) -> Result<AuthorityChange, NotSigned> {
    let cluster = tables.cluster.as_ref().ok_or(SignError::Root)?;
    match what {
        Signing::Root { automatic, compromised } => {
            let new = Root::create(cluster.id, wall)?;
            let root = root_id_of_pem(&new.cert_pem).map_err(|_| SignError::Root)?;
            let Vouched { signer, vouchers, for_others } = vouched(tables, &new, compromised)?;
            Ok(AuthorityChange::Prepare {
                signer,
                compromised,
                root,
                cert_pem: new.cert_pem,
                key_pem: new.key_pem,
                origin: AuthorityOrigin::Made,
                automatic,
                vouchers,
                for_others,
            })
        }
        Signing::Request { compromised } => {
            let key_pem = new_key();
            let root = root_id_of_key(&key_pem).ok_or(SignError::Key)?;
            let csr_pem = make_authority_csr(&key_pem, cluster.id).map_err(|why| SignError::Signer(why.to_string()))?;
            Ok(AuthorityChange::Request { root, key_pem, csr_pem, compromised })
        }
        Signing::Issued { automatic, answer } => {
            if let Some(again) = repeated(tables, automatic, &answer) {
                return Ok(again);
            }
            let requested = tables.authorities.requested.as_ref().ok_or(NotSigned::NotRequested)?;
            let IssuedAuthority { root, cert_pem, upstream } =
                issued_authority(&answer, &requested.key_pem, cluster.id, wall)?;
            let new = Root { cert_pem, key_pem: requested.key_pem.clone() };
            let Vouched { signer, vouchers, for_others } = vouched(tables, &new, requested.compromised)?;
            Ok(AuthorityChange::Certify {
                signer,
                root,
                cert_pem: new.cert_pem,
                upstream,
                automatic,
                vouchers,
                for_others,
            })
        }
        Signing::Crosses(root) => {
            let Some(wanted) = tables.authorities.roots.get(&root) else {
                // Refused when it is applied.
                return Ok(AuthorityChange::Activate { root, crosses: Vec::new(), tokens: Vec::new() });
            };
            let until = wall.plus(config.longest_certificate + MARGIN);
            let mut crosses = Vec::new();
            for (by, other) in with_key(tables).filter(|(id, _)| *id != root) {
                // A root that never signed leads nowhere, and a certificate by it would outlast its deletion.
                if other.activated_at.is_some() {
                    let cert_pem = issuer(other)?.cross_sign(&wanted.cert_pem, wall, until)?;
                    crosses.push(CrossCertificate { by, cert_pem });
                }
            }
            let leaked = tables.authorities.active().is_some_and(|(_, former)| former.compromised);
            let tokens = if leaked { default_tokens(wall) } else { Vec::new() };
            Ok(AuthorityChange::Activate { root, crosses, tokens })
        }
    }
}

/// The answer again after it was published: the store says whether that changes anything.
fn repeated(tables: &Tables, automatic: bool, answer: &str) -> Option<AuthorityChange> {
    let (root, cert_pem) = first_of_answer(answer)?;
    if !tables.authorities.roots.contains_key(&root) {
        return None;
    }
    let signer = tables.authorities.active().map_or(root, |(active, _)| active);
    let (upstream, vouchers, for_others) = (Vec::new(), Vec::new(), Vec::new());
    Some(AuthorityChange::Certify { signer, root, cert_pem, upstream, automatic, vouchers, for_others })
}

/// What the roots say about a new one, and it about them.
struct Vouched {
    /// The root that signs now.
    signer: RootId,
    vouchers: Vec<Voucher>,
    for_others: Vec<(RootId, Voucher)>,
}

fn vouched(tables: &Tables, new: &Root, compromised: bool) -> Result<Vouched, SignError> {
    let cluster = tables.cluster.as_ref().ok_or(SignError::Root)?;
    let signer = root_id_of_pem(&cluster.root_cert_pem).map_err(|_| SignError::Root)?;
    let first = Issuer::from_pem(&cluster.root_cert_pem, &cluster.root_key_pem)?;
    let mut vouchers: Vec<Voucher> = vec![first.vouch(cluster.id, &new.cert_pem)?];
    for (_, other) in with_key(tables).filter(|(id, _)| *id != signer) {
        vouchers.push(issuer(other)?.vouch(cluster.id, &new.cert_pem)?);
    }
    let by_new = Issuer::from_pem(&new.cert_pem, &new.key_pem)?;
    let mut for_others = Vec::new();
    // A copied disk holds every key that is there: then the new root vouches for none.
    if !compromised {
        if tables.authorities.roots.get(&signer).is_none_or(|root| !root.compromised) {
            for_others.push((signer, by_new.vouch(cluster.id, &cluster.root_cert_pem)?));
        }
        for (id, other) in with_key(tables).filter(|(id, other)| *id != signer && !other.compromised) {
            for_others.push((id, by_new.vouch(cluster.id, &other.cert_pem)?));
        }
    }
    Ok(Vouched { signer, vouchers, for_others })
}

/// One for each role. Made here and not where the entry is applied: every manager has to have the same ones.
fn default_tokens(wall: WallTime) -> Vec<Token> {
    let new = |role| Token {
        id: new_token_id(),
        role,
        secret: new_token_secret(),
        default: true,
        created_at: wall,
        expires_at: None,
        uses_left: None,
        revision: Revision(0),
    };
    [Role::Manager, Role::Worker].map(new).into()
}

fn with_key(tables: &Tables) -> impl Iterator<Item = (RootId, &Authority)> {
    tables.authorities.roots.iter().filter(|(_, root)| root.key_pem.is_some()).map(|(id, root)| (*id, &**root))
}

fn issuer(root: &Authority) -> Result<Issuer, SignError> {
    let none = Secret::new("");
    Issuer::from_pem(&root.cert_pem, root.key_pem.as_ref().unwrap_or(&none))
}
