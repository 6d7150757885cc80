//! Changes of the credentials in force, beside a failure of the agent or of its disk.

use muster_messages::{ClusterId, Incarnation, NodeId, OfferedRoot, Role, RootId};
use muster_pki::{CsrKey, Issuer, NODE_LIFETIME, NodeProfile, Root};

use super::*;

fn cluster() -> ClusterId {
    ClusterId::from_entropy(9)
}

fn wall() -> WallTime {
    muster_kernel::Clock.wall()
}

/// A node's credentials, and two roots: the one that issued its certificate, and another one for which it vouches.
struct World {
    data: tempfile::TempDir,
    credentials: Credentials,
    offer: RootsOffer,
}

impl World {
    fn new() -> Self {
        let (old, new) = (Root::create(cluster(), wall()).unwrap(), Root::create(cluster(), wall()).unwrap());
        let issuer = Issuer::from_pem(&old.cert_pem, &old.key_pem).unwrap();
        let key_pem = muster_pki::new_key();
        let profile = NodeProfile {
            cluster: cluster(),
            node: NodeId::from_entropy(3),
            role: Role::Worker,
            granted: None,
            incarnation: Incarnation(1),
            ips: vec![],
            lifetime: NODE_LIFETIME,
            now: wall(),
        };
        let csr = CsrKey::parse(&muster_pki::make_csr(&key_pem).unwrap()).unwrap();
        let cert_pem = issuer.sign_node(&profile, &csr).unwrap().cert_pem;
        let present = muster_pki::credentials(key_pem, cert_pem, old.cert_pem.clone()).unwrap();
        let offered = |root: &Root, vouchers| OfferedRoot { cert_pem: root.cert_pem.clone(), vouchers, trusted: true };
        let voucher = issuer.vouch(cluster(), &new.cert_pem).unwrap();
        let roots = vec![offered(&old, vec![]), offered(&new, vec![voucher])];
        let data = tempfile::tempdir().unwrap();
        let store = IdentityStore::open(data.path()).unwrap();
        store.save_credentials(&present).unwrap();
        let credentials = Credentials::new(store, Arc::new(watch::Sender::new(Arc::new(present))));
        Self {
            data,
            credentials,
            offer: RootsOffer { generation: muster_messages::Revision(7), recorded: false, roots },
        }
    }
    fn trusted(&self) -> Vec<RootId> {
        Bundle::from_pem(&self.credentials.publish.borrow().root_pem).unwrap().ids().collect()
    }
    fn on_disk(&self) -> Vec<RootId> {
        let saved = self.credentials.store.load_credentials().unwrap().unwrap();
        Bundle::from_pem(&saved.root_pem).unwrap().ids().collect()
    }
}

#[test]
fn change_of_a_failed_agent_is_dropped() {
    let world = World::new();
    let failed = world.credentials.next_incarnation().unwrap();
    let present = world.credentials.next_incarnation().unwrap();
    assert!(failed.install_roots(&world.offer).is_err());
    assert_eq!((world.trusted().len(), world.on_disk().len()), (1, 1));
    present.install_roots(&world.offer).unwrap();
    assert_eq!((world.trusted().len(), world.on_disk().len()), (2, 2));
}

/// The agent failed between writing and publishing.
#[test]
fn roots_on_disk_are_published_by_the_next_agent() {
    let world = World::new();
    let before = world.credentials.publish.borrow().clone();
    world.credentials.next_incarnation().unwrap().install_roots(&world.offer).unwrap();
    world.credentials.publish.send_replace(before);
    assert_eq!(world.trusted().len(), 1);
    world.credentials.next_incarnation().unwrap();
    assert_eq!(world.trusted(), world.on_disk());
    assert_eq!(world.trusted().len(), 2);
}

#[test]
fn roots_that_cannot_be_written_are_not_accepted() {
    let world = World::new();
    let credentials = world.credentials.next_incarnation().unwrap();
    let (folder, aside) = (world.data.path().join("identity"), world.data.path().join("aside"));
    std::fs::rename(&folder, &aside).unwrap();
    assert!(credentials.install_roots(&world.offer).is_err());
    assert!(credentials.changes().unwrap().accepted.is_none());
    assert_eq!(world.trusted().len(), 1);
    std::fs::rename(&aside, &folder).unwrap();
    credentials.install_roots(&world.offer).unwrap();
    assert_eq!(world.trusted().len(), 2);
}
