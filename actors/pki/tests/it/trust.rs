//! Several roots: who issued a certificate, who may add a root, and clients that know only an older one.
use std::sync::Arc;
use std::time::Duration;

use crate::fixture::{Cluster, HOUR, key, now};
use crate::handshake::connect;
use muster_messages::protocol::NodeCredentials;
use muster_messages::{ClusterId, MAX_ROOTS, NodeId, OfferedRoot, Role};
use muster_pki::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};

const ALPN: &[&[u8]] = &[b"muster-agent/1"];

/// The successive roots of one cluster.
struct Roots(Vec<Cluster>);

impl Roots {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| Cluster::new(1)).collect())
    }
    fn id(&self) -> ClusterId {
        self.0[0].id
    }
    fn pem(&self, which: usize) -> &str {
        &self.0[which].root.cert_pem
    }
    fn root_id(&self, which: usize) -> muster_messages::RootId {
        root_id_of_pem(self.pem(which)).unwrap()
    }
    fn bundle(&self, which: &[usize]) -> Bundle {
        Bundle::from_pem(&which.iter().map(|i| self.pem(*i)).collect::<String>()).unwrap()
    }
    /// `of`, vouched for by `by`.
    fn offer(&self, of: usize, by: &[usize]) -> OfferedRoot {
        let vouchers = by.iter().map(|by| self.0[*by].issuer.vouch(self.id(), self.pem(of)).unwrap()).collect();
        OfferedRoot { cert_pem: self.pem(of).to_owned(), vouchers, trusted: true }
    }
    fn cross(&self, of: usize, by: usize) -> String {
        self.0[by].issuer.cross_sign(self.pem(of), now(), now().plus(HOUR * 24 * 91)).unwrap()
    }
    /// A node's certificate by the root `by`, with the certificates that lead to the root `to`, one root at a time.
    fn chain(&self, by: usize, to: usize) -> NodeCredentials {
        let mut found = self.0[by].node(7, Role::Manager);
        for of in (to + 1..=by).rev() {
            found.cert_pem.push_str(&self.cross(of, of - 1));
        }
        found
    }
}

fn presented(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
}

#[test]
fn bundle_is_extended_by_vouched_roots_only() {
    let (roots, foreign) = (Roots::new(3), Roots::new(2));
    let first = roots.bundle(&[0]);
    let both = first.accept(roots.id(), &[roots.offer(0, &[]), roots.offer(1, &[0])]).unwrap();
    assert_eq!(both.ids().collect::<Vec<_>>(), [roots.root_id(0), roots.root_id(1)]);
    assert_eq!(Bundle::from_pem(&both.to_pem()).unwrap(), both);
    // A smaller one, later.
    let last = both.accept(roots.id(), &[roots.offer(1, &[])]).unwrap();
    assert_eq!(last, roots.bundle(&[1]));

    let not_vouched = |offer: &[OfferedRoot]| first.accept(roots.id(), offer).unwrap_err();
    assert_eq!(not_vouched(&[roots.offer(1, &[])]), BadBundle::NotVouched(roots.root_id(1)));
    assert_eq!(not_vouched(&[roots.offer(1, &[1])]), BadBundle::NotVouched(roots.root_id(1)), "itself");
    let mut claimed = roots.offer(1, &[1]);
    claimed.vouchers[0].by = roots.root_id(0);
    assert_eq!(not_vouched(&[claimed]), BadBundle::NotVouched(roots.root_id(1)), "another root's name");
    let other_root = OfferedRoot { vouchers: roots.offer(1, &[0]).vouchers, ..foreign.offer(0, &[]) };
    assert!(matches!(not_vouched(&[other_root]), BadBundle::NotVouched(_)), "a voucher for another root");
    let voucher = roots.0[0].issuer.vouch(ClusterId::from_entropy(9), roots.pem(1)).unwrap();
    let other_cluster = OfferedRoot { vouchers: vec![voucher], ..roots.offer(1, &[]) };
    assert_eq!(not_vouched(&[other_cluster]), BadBundle::NotVouched(roots.root_id(1)), "for another cluster");
    assert!(matches!(not_vouched(&[]), BadBundle::Pem(_)), "nothing to trust");
    assert!(matches!(not_vouched(&vec![roots.offer(0, &[]); MAX_ROOTS + 1]), BadBundle::Pem(_)));
    assert!(matches!(not_vouched(&[roots.offer(0, &[]), roots.offer(0, &[])]), BadBundle::Twice(_)));
    let leaf = OfferedRoot { cert_pem: roots.0[0].node(1, Role::Manager).cert_pem, vouchers: vec![], trusted: true };
    assert_eq!(not_vouched(&[leaf]), BadBundle::Malformed, "a manager's certificate is not a root");
}

#[test]
fn node_that_missed_two_rotations_is_led_to_the_last_root() {
    let roots = Roots::new(3);
    let between = OfferedRoot { trusted: false, ..roots.offer(1, &[0]) };
    let offer = [roots.offer(2, &[1]), between.clone()];
    assert_eq!(roots.bundle(&[0]).accept(roots.id(), &offer).unwrap(), roots.bundle(&[2]));
    let not_vouched = roots.bundle(&[0]).accept(roots.id(), &offer[..1]);
    assert_eq!(not_vouched, Err(BadBundle::NotVouched(roots.root_id(2))), "the root between is missing");
    let useless = [roots.offer(0, &[]), OfferedRoot { vouchers: vec![], ..between }];
    assert_eq!(roots.bundle(&[0]).accept(roots.id(), &useless).unwrap(), roots.bundle(&[0]), "it leads nowhere");
}

#[test]
fn second_certificate_of_a_known_key_is_refused() {
    let roots = Roots::new(2);
    let same_key = roots.cross(0, 1); // the key of root 0, signed by root 1
    let offer = OfferedRoot { cert_pem: same_key, ..roots.offer(0, &[]) };
    assert_eq!(roots.bundle(&[0]).accept(roots.id(), &[offer]), Err(BadBundle::Twice(roots.root_id(0))));
}

#[test]
fn issuer_is_the_root_whose_signature_holds() {
    // All roots of a cluster have one name.
    let roots = Roots::new(3);
    let both = roots.bundle(&[0, 1]);
    let by = |which: usize| presented(&roots.0[which].node(7, Role::Manager).cert_pem);
    assert_eq!(both.issuer_of(&by(0), UnixTime::now()), Some(roots.root_id(0)));
    assert_eq!(both.issuer_of(&by(1), UnixTime::now()), Some(roots.root_id(1)));
    assert_eq!(both.issuer_of(&by(2), UnixTime::now()), None);
    assert_eq!(both.issuer_of(&[], UnixTime::now()), None);
    let later = UnixTime::since_unix_epoch(Duration::from_millis(now().0 as u64) + HOUR * 24 * 91);
    assert_eq!(both.issuer_of(&by(0), later), None, "expired");

    // Over two cross certificates; and in the wrong order, with one missing, or with too many.
    let first = roots.bundle(&[0]);
    let chain = presented(&roots.chain(2, 0).cert_pem);
    assert_eq!(chain.len(), 3);
    assert_eq!(first.issuer_of(&chain, UnixTime::now()), Some(roots.root_id(0)));
    let swapped = [chain[0].clone(), chain[2].clone(), chain[1].clone()];
    assert_eq!(first.issuer_of(&swapped, UnixTime::now()), Some(roots.root_id(0)));
    assert_eq!(first.issuer_of(&chain[..2], UnixTime::now()), None);
    let many: Vec<_> = chain.iter().cycle().take(MAX_CHAIN + 1).cloned().collect();
    assert_eq!(first.issuer_of(&many, UnixTime::now()), None);
    assert_eq!(roots.bundle(&[2]).issuer_of(&chain, UnixTime::now()), Some(roots.root_id(2)), "the shortest way");
    // A node's certificate signs nothing.
    let leaf = roots.0[0].node(7, Role::Manager);
    let posing = Issuer::from_pem(&leaf.cert_pem, &leaf.key_pem);
    assert!(matches!(posing, Err(SignError::Root)));
}

#[tokio::test]
async fn peers_with_an_older_root_accept_the_chain() {
    let roots = Roots::new(3);
    let server = server_config(&roots.chain(2, 0), ALPN).unwrap();
    let client = |root_pem: &str| client_config(root_pem, None, ALPN).unwrap();
    assert!(connect(Arc::clone(&server), client(roots.pem(0))).await.0.is_ok());
    assert!(connect(Arc::clone(&server), client(&roots.bundle(&[1, 0]).to_pem())).await.0.is_ok());
    assert!(connect(server, client(Roots::new(1).pem(0))).await.0.is_err());
    let bare = server_config(&roots.0[2].node(7, Role::Manager), ALPN).unwrap();
    assert!(connect(bare, client(roots.pem(0))).await.0.is_err(), "without the chain");
    // The other way round: a server that knows only the older root, and one that knows both.
    let old_server = |root_pem: String| {
        server_config(&NodeCredentials { root_pem, ..roots.0[0].node(1, Role::Manager) }, ALPN).unwrap()
    };
    let dialling = client_config(roots.pem(0), Some(&roots.chain(1, 0)), ALPN).unwrap();
    assert!(connect(old_server(roots.pem(0).to_owned()), dialling).await.1.is_ok());
    let dialling = client_config(roots.pem(0), Some(&roots.0[1].node(7, Role::Worker)), ALPN).unwrap();
    assert!(connect(old_server(roots.pem(0).to_owned()), dialling.clone()).await.1.is_err());
    assert!(connect(old_server(roots.bundle(&[0, 1]).to_pem()), dialling).await.1.is_ok());
}

#[test]
fn cross_certificate_ends_with_both_roots() {
    let roots = Roots::new(2);
    let until = |cross: &str| not_after_of_pem(cross).unwrap();
    let day = now().plus(HOUR * 24);
    assert_eq!(until(&roots.0[0].issuer.cross_sign(roots.pem(1), now(), day).unwrap()).0 / 1000, day.0 / 1000);
    let century = now().plus(ROOT_LIFETIME * 5);
    let longest = roots.0[0].issuer.cross_sign(roots.pem(1), now(), century).unwrap();
    assert!(until(&longest) <= until(roots.pem(0)).min(until(roots.pem(1))));
    let leaf = roots.0[0].node(1, Role::Manager).cert_pem;
    assert_eq!(roots.0[0].issuer.cross_sign(&leaf, now(), day), Err(SignError::Root));
}

#[test]
fn expired_certificate_of_an_earlier_root_can_rekey() {
    let roots = Roots::new(2);
    let lifetime = MIN_NODE_LIFETIME;
    let profile = NodeProfile { lifetime, now: crate::fixture::ago(HOUR * 48), ..roots.0[0].profile(7, Role::Worker) };
    let old = roots.0[0].credentials(&profile);
    let new_key = key();
    let proof = prove_rekey(&old.key_pem, &new_key).unwrap();
    let both = roots.bundle(&[1, 0]).to_pem();
    assert_eq!(
        verify_rekey(&both, &old.cert_pem, &proof, &new_key).unwrap().node().unwrap().0,
        NodeId::from_entropy(7)
    );
    // The certificates that lead to older roots are younger than the one that has expired.
    let with_chain = format!("{}{}", old.cert_pem, roots.cross(1, 0));
    assert!(verify_rekey(&both, &with_chain, &proof, &new_key).is_ok());
    assert_eq!(verify_rekey(roots.pem(1), &old.cert_pem, &proof, &new_key), Err(BadRekey::Foreign));
}

#[test]
fn bundle_and_chain_survive_a_restart_and_each_crash() {
    let data = tempfile::TempDir::new().unwrap();
    let store = IdentityStore::open(data.path()).unwrap();
    let file = |name: &str| data.path().join("identity").join(name);
    let roots = Roots::new(3);
    let old = roots.0[0].node(7, Role::Manager);
    store.save_credentials(&old).unwrap();
    assert!(!file("roots.pem").exists(), "one root is in credentials.pem");

    let both = roots.bundle(&[0, 1]).to_pem();
    store.save_credentials(&NodeCredentials { root_pem: both.clone(), ..old.clone() }).unwrap();
    assert_eq!(store.load_credentials().unwrap().unwrap().root_pem, both);
    let new = NodeCredentials { root_pem: both.clone(), ..roots.chain(1, 0) };
    store.save_credentials(&new).unwrap();
    let read = store.load_credentials().unwrap().unwrap();
    assert_eq!((read.cert_pem, read.root_pem), (new.cert_pem.clone(), both));

    // A crash between the two files: the new certificate with the former bundle, which lacks its root.
    let last = NodeCredentials { root_pem: roots.bundle(&[2]).to_pem(), ..roots.0[2].node(7, Role::Manager) };
    let former = std::fs::read(file("roots.pem")).unwrap();
    store.save_credentials(&last).unwrap();
    assert!(!file("roots.pem").exists());
    std::fs::write(file("roots.pem"), former).unwrap();
    std::fs::set_permissions(file("roots.pem"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let read = store.load_credentials().unwrap().unwrap();
    assert_eq!(Bundle::from_pem(&read.root_pem).unwrap(), roots.bundle(&[0, 1, 2]));

    std::fs::write(file("roots.pem"), "garbage").unwrap();
    let fault = store.load_credentials().unwrap_err().to_string();
    assert!(fault.contains("roots.pem is damaged") && fault.contains("delete the file"), "{fault}");
    // A certificate that no trusted root issued is never written.
    let foreign = NodeCredentials { root_pem: roots.pem(0).to_owned(), ..last };
    assert!(store.save_credentials(&foreign).is_err());
}

#[test]
fn bundle_is_replaced_without_its_certificate() {
    let data = tempfile::TempDir::new().unwrap();
    let store = IdentityStore::open(data.path()).unwrap();
    let roots = Roots::new(3);
    let old = roots.0[0].node(7, Role::Manager);
    store.save_credentials(&old).unwrap();
    let install = |bundle: &Bundle| {
        let present = store.load_credentials().unwrap().unwrap();
        store.save_credentials(&with_bundle(&present, bundle)).unwrap();
        let read = store.load_credentials().unwrap().unwrap();
        assert_eq!((&read.cert_pem, &read.key_pem), (&present.cert_pem, &present.key_pem));
        (Bundle::from_pem(&read.root_pem).unwrap(), read)
    };
    assert_eq!(install(&roots.bundle(&[1, 0])).0, roots.bundle(&[1, 0]));
    // The root of the certificate stays until the certificate is another one.
    assert_eq!(install(&roots.bundle(&[1])).0, roots.bundle(&[1, 0]));
    let renewed = NodeCredentials { root_pem: install(&roots.bundle(&[1])).1.root_pem, ..roots.chain(1, 0) };
    store.save_credentials(&renewed).unwrap();
    assert_eq!(install(&roots.bundle(&[1])).0, roots.bundle(&[1]));

    // A token of each of them was for this cluster.
    let digests = store.root_digests().unwrap();
    assert_eq!(digests[0], digest(roots.pem(1)).unwrap(), "the own one first");
    assert!(digests.contains(&digest(roots.pem(0)).unwrap()));
    assert!(!digests.contains(&digest(roots.pem(2)).unwrap()));
    std::fs::write(data.path().join("identity/former-roots.json"), "[").unwrap();
    let trusted = store.root_digests().expect("damage keeps no node from starting");
    assert!(trusted.iter().all(|of| *of == digests[0]), "{trusted:?}");

    // A certificate that leads to both is of the newer root as soon as that is trusted.
    let joined = NodeCredentials { root_pem: roots.pem(0).to_owned(), ..roots.chain(1, 0) };
    store.save_credentials(&joined).unwrap();
    assert_eq!(install(&roots.bundle(&[1])).0, roots.bundle(&[1]));

    // A full bundle has no room for it: it replaces one, so that the files can still be read.
    let many = Roots::new(MAX_ROOTS);
    let full = many.bundle(&(0..MAX_ROOTS).collect::<Vec<_>>());
    let kept = install(&full).0;
    assert_eq!(kept.ids().count(), MAX_ROOTS);
    assert!(kept.ids().any(|id| id == roots.root_id(1)));
}

#[test]
fn issuer_is_not_the_root_whose_names_are_copied() {
    use rcgen::{CertificateParams, DnType, KeyIdMethod, KeyPair};
    use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate};
    let roots = Roots::new(2);
    let both = roots.bundle(&[1, 0]);
    let honest = roots.0[1].node(7, Role::Manager);
    let new = presented(roots.pem(1));
    let (_, new) = X509Certificate::from_der(&new[0]).unwrap();
    let new_id = new.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
        _ => None,
    });
    let new_id = new_id.expect("a root has a key identifier");
    // The stolen key of the old root, under the name and the key identifier of the new one.
    let mut name = CertificateParams::default();
    name.distinguished_name = rcgen::DistinguishedName::new();
    name.distinguished_name.push(DnType::CommonName, "muster-ca");
    name.distinguished_name.push(DnType::OrganizationName, roots.id().as_str());
    name.key_identifier_method = KeyIdMethod::PreSpecified(new_id.to_vec());
    let stolen = KeyPair::from_pem(roots.0[0].root.key_pem.expose()).unwrap();
    let posing = rcgen::Issuer::new(name, stolen);
    let leaf_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.use_authority_key_identifier_extension = true;
    params.extended_key_usages =
        vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth, rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let forged = params.signed_by(&leaf_key, &posing).unwrap();
    let names = |needle: &[u8]| forged.der().windows(needle.len()).any(|window| window == needle);
    assert!(names(new_id), "it names the new root's key");
    assert_eq!(both.issuer_of(&[forged.der().clone()], UnixTime::now()), Some(roots.root_id(0)));
    assert_eq!(both.issuer_of(&presented(&honest.cert_pem), UnixTime::now()), Some(roots.root_id(1)));
    // Beside certificates that lead to the new root.
    let cross_back = presented(&roots.cross(0, 1));
    let beside = [vec![forged.der().clone()], cross_back].concat();
    assert_eq!(both.issuer_of(&beside, UnixTime::now()), Some(roots.root_id(0)), "it signed it itself");
    assert_eq!(roots.bundle(&[1]).issuer_of(&beside, UnixTime::now()), Some(roots.root_id(1)), "the only way");
}

#[test]
fn issuer_of_a_user_is_found_and_roots_may_be_many() {
    let roots = Roots::new(MAX_ROOTS + 3);
    let profile = UserProfile {
        cluster: roots.id(),
        name: "ann".parse().unwrap(),
        kind: muster_messages::UserKind::User,
        incarnation: muster_messages::Incarnation(1),
        lifetime: HOUR,
        now: now(),
    };
    let user = roots.0[MAX_ROOTS + 1].issuer.sign_user(&profile, &key()).unwrap();
    let on_record: Vec<&str> = (0..MAX_ROOTS + 2).map(|which| roots.pem(which)).collect();
    let known = roots.bundle(&[0]).preceded_by(on_record.iter().copied().chain(["garbage"]));
    assert_eq!(known.ids().count(), MAX_ROOTS + 2);
    assert_eq!(known.issuer_of(&presented(&user.cert_pem), UnixTime::now()), Some(user.issuer));
    assert_eq!(cluster_of_root_pem(roots.pem(0)), Some(roots.id()));
    assert_eq!(cluster_of_root_pem(&roots.0[0].node(1, Role::Worker).cert_pem), Some(roots.id()));
    assert_eq!(cluster_of_root_pem("garbage"), None);
}

/// Whatever is presented: an answer in bounded time.
#[test]
fn strange_chains_have_an_issuer_or_none() {
    let roots = Roots::new(2);
    let both = roots.bundle(&[0, 1]);
    let leaf = presented(&roots.0[0].node(7, Role::Manager).cert_pem);
    let with = |others: Vec<CertificateDer<'static>>| both.issuer_of(&[leaf.clone(), others].concat(), UnixTime::now());
    let own = Some(roots.root_id(0));
    assert_eq!(with(presented(&roots.bundle(&[0, 1]).to_pem())), own, "self-signed ones beside it");
    assert_eq!(with(vec![leaf[0].clone(); 4]), own, "itself");
    assert_eq!(with(vec![CertificateDer::from(vec![0x30, 0x80]); 4]), own, "garbage");
    assert_eq!(with(vec![presented(&roots.cross(1, 0)).remove(0); 7]), None, "too many");
    assert_eq!(both.issuer_of(&[CertificateDer::from(vec![0; 9])], UnixTime::now()), None);
    let ended = roots.0[0].issuer.cross_sign(roots.pem(1), crate::fixture::ago(HOUR * 48), crate::fixture::ago(HOUR));
    let of_new = presented(&roots.0[1].node(7, Role::Manager).cert_pem);
    let over_ended = [of_new, presented(&ended.unwrap())].concat();
    assert_eq!(roots.bundle(&[0]).issuer_of(&over_ended, UnixTime::now()), None, "the cross certificate has expired");
}

/// The holder of a stolen root key makes a certificate authority of his own. A certificate that leads from the stolen root to another
/// one, left by a way back, must not make it look like that other root's.
#[test]
fn nearest_known_root_decides_over_an_intermediate() {
    let roots = Roots::new(3);
    // Root 2 stands for the intermediate, which root 0 signs.
    let leaf = roots.0[2].node(7, Role::Manager).cert_pem;
    let chain = format!("{leaf}{}{}", roots.cross(2, 0), roots.cross(0, 1));
    // Root 1 first, as those in good standing are.
    let known = roots.bundle(&[1, 0]);
    assert_eq!(known.issuer_of(&presented(&chain), UnixTime::now()), Some(roots.root_id(0)));
    // A node that does not know root 0 is led over it.
    assert_eq!(roots.bundle(&[1]).issuer_of(&presented(&chain), UnixTime::now()), Some(roots.root_id(1)));
}

#[test]
fn unproven_roots_of_an_offer_can_be_left_out() {
    let roots = Roots::new(2);
    let later = roots.bundle(&[1]);
    let offer = [roots.offer(0, &[]), roots.offer(1, &[0])];
    assert_eq!(later.accept(roots.id(), &offer), Err(BadBundle::NotVouched(roots.root_id(0))));
    assert_eq!(later.accept_proven(roots.id(), &offer), Ok(later.clone()));
    assert_eq!(later.accept_proven(roots.id(), &offer[..1]), Err(BadBundle::NotVouched(roots.root_id(0))));
}
