use muster_messages::wire::Request;

use super::*;

/// A data directory whose keyring is sealed under version 5 of a key.
fn sealed() -> (tempfile::TempDir, UnlockKey) {
    let dir = tempfile::tempdir().unwrap();
    let store = IdentityStore::open(dir.path()).unwrap();
    let key = UnlockKey::new();
    store.keys().ensure().unwrap();
    store.keys().protect(5, Some(&key)).unwrap();
    (dir, key)
}

fn config(dir: &std::path::Path, more: &[&str]) -> Config {
    let args = ["musterd", "--data-dir", dir.to_str().unwrap(), "--name", "n1"];
    let args = crate::daemon::config::Args::of(args.iter().chain(more)).unwrap();
    crate::daemon::config::load(args).unwrap()
}

fn waiting(dir: &std::path::Path) -> Waiting {
    let store = IdentityStore::open(dir).unwrap();
    Waiting::new(&store)
}

fn text(key: &UnlockKey) -> Secret {
    Secret::new(key.to_text().as_str())
}

fn files(dir: &std::path::Path) -> Vec<u8> {
    std::fs::read(dir.join("identity/keyring.json")).unwrap()
}

#[test]
fn wrong_keys_are_refused_by_kind_and_change_nothing() {
    let (dir, key) = sealed();
    let before = files(dir.path());
    let waiting = waiting(dir.path());
    let other = text(&UnlockKey::new());
    let refused = |key: &Secret, version: Option<u64>| waiting.unlock(key, version.map(Revision)).unwrap_err();
    assert_eq!(refused(&other, None).code, ErrorCode::BadUnlockKey);
    assert_eq!(refused(&other, Some(5)).code, ErrorCode::BadUnlockKey);
    assert_eq!(refused(&other, Some(3)).code, ErrorCode::BadUnlockKey, "an older key is not a later one");
    let old = refused(&other, Some(9));
    assert_eq!(old.code, ErrorCode::OldKeyNeeded);
    assert!(old.details.contains("\"version\":5") && old.details.contains("since"), "{}", old.details);
    assert_eq!(refused(&Secret::new("MSTR-UNLOCK-1-x"), None).code, ErrorCode::Invalid, "a usage error");
    assert!(waiting.status().locked);
    waiting.unlock(&text(&key), Some(Revision(9))).expect("the right key, whatever its caller calls it");
    assert!(!waiting.status().locked);
    assert!(waiting.unlock(&text(&key), None).unwrap().unlocked, "repeated after a lost answer");
    assert_eq!(refused(&other, None).code, ErrorCode::NotLocked);
    assert_eq!(files(dir.path()), before);
}

#[tokio::test]
async fn unattended_means_are_tried_in_their_order() {
    let (dir, key) = sealed();
    let (wrong, right) = (dir.path().join("wrong"), dir.path().join("right"));
    std::fs::write(&wrong, UnlockKey::new().to_text().as_bytes()).unwrap();
    std::fs::write(&right, key.to_text().as_bytes()).unwrap();
    let waiting = waiting(dir.path());
    let why = || waiting.status().unattended.unwrap();
    for (means, reason) in
        [(Means::File(dir.path().join("nowhere")), "No such file"), (Means::File(wrong.clone()), "opens nothing here")]
    {
        waiting.attempt(&mut Source::new(means), READ_TIMEOUT).await;
        assert!(waiting.status().locked && why().contains(reason), "{}", why());
    }
    waiting.attempt(&mut Source::new(Means::Credential(right)), READ_TIMEOUT).await;
    assert!(!waiting.status().locked);
    // One that was under way meanwhile has not failed.
    let before = waiting.status().unattended;
    waiting.attempt(&mut Source::new(Means::Credential(wrong)), READ_TIMEOUT).await;
    assert_eq!(waiting.status().unattended, before);
}

/// Without its socket only a restart helps.
#[tokio::test]
async fn locked_daemon_without_a_socket_ends() {
    use muster_kernel::Fault;
    let (dir, _) = sealed();
    let (waiting, listener) = (waiting(dir.path()), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let intensity = Intensity { max: 0, window: Duration::from_secs(60) };
    let serving = Supervisor::root("node", Tree::new(), intensity).await.unwrap();
    let failing = || Err::<ApiShell, _>(Fault("no files are left".to_owned()));
    serving.children().start(Spec::actor("api", Address::new(1), failing));
    let waited = tokio::time::timeout(Duration::from_secs(60), waiting.wait(&mut [], &listener, &serving)).await;
    let exit = waited.expect("it ends").unwrap_err();
    assert!(exit.status == 1 && exit.sentence.contains("admin socket"), "{exit:?}");
}

#[tokio::test]
async fn key_file_unlocks_before_anything_is_served() {
    let (dir, key) = sealed();
    let file = dir.path().join("key");
    std::fs::write(&file, key.to_text().as_bytes()).unwrap();
    let config = config(dir.path(), &["--unlock-key-file", file.to_str().unwrap()]);
    let store = IdentityStore::open(dir.path()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let unlocked = wait_for_key(&config, &store, &listener, None).await.unwrap_or_else(|exit| panic!("{exit:?}"));
    assert!(unlocked.socket.is_none() && unlocked.means == AutoUnlock::File);
    assert!(matches!(store.keys().status(), KeysStatus::Open { version: 5, sealed: true }));
    unlock_now(&config, &IdentityStore::open(dir.path()).unwrap()).unwrap_or_else(|exit| panic!("{exit:?}"));
}

#[test]
fn reading_command_without_a_key_says_what_it_needs() {
    let (dir, _) = sealed();
    let exit = unlock_now(&config(dir.path(), &[]), &IdentityStore::open(dir.path()).unwrap()).unwrap_err();
    assert!(exit.status == 5 && exit.sentence.contains("--unlock-key-file"), "{exit:?}");
}

#[tokio::test]
async fn locked_daemon_serves_its_socket_until_it_is_unlocked() {
    let (dir, key) = sealed();
    let config = config(dir.path(), &[]);
    let store = IdentityStore::open(dir.path()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap();
    let client = async {
        let mut client = muster_client::Client::to_socket(&config.socket, Duration::from_secs(20));
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let status: LockedView = loop {
            match client.ask(Request::Status { fresh: false }).await {
                Ok(status) => break status,
                Err(why) => assert!(std::time::Instant::now() < deadline, "its socket does not answer: {why:?}"),
            }
            muster_local_cluster::pause().await;
        };
        assert!(status.locked && status.version == Revision(5), "{status:?}");
        let refused = client.call(Request::NodeList { fresh: false }).await.unwrap_err();
        assert_eq!((refused.code.known(), refused.exit), (Some(ErrorCode::Locked), 5));
        let mut stream = tokio::net::TcpStream::connect(port).await.unwrap();
        let closed = tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 8]).await;
        assert!(matches!(closed, Ok(0) | Err(_)), "accepted and closed");
        let unlock = Request::Unlock { key: text(&key), version: None };
        client.ask::<UnlockedView>(unlock).await.unwrap()
    };
    let (unlocked, done) = tokio::join!(wait_for_key(&config, &store, &listener, None), client);
    assert!(done.unlocked && unlocked.unwrap_or_else(|exit| panic!("{exit:?}")).socket.is_some());
}

/// A certificate for this role, as it lies in a directory.
fn certified(dir: &std::path::Path, role: Role) {
    use muster_messages::{ClusterId, Incarnation};
    use muster_pki::{CsrKey, Issuer, NODE_LIFETIME, NodeProfile, Root, make_csr, new_key};
    let (cluster, now) = (ClusterId::from_entropy(1), muster_kernel::Clock.wall());
    let root = Root::create(cluster, now).unwrap();
    let (granted, incarnation) = (Some(Revision(5)), Incarnation(1));
    let node = NodeId::from_entropy(2);
    let profile = NodeProfile { cluster, node, role, granted, incarnation, ips: vec![], lifetime: NODE_LIFETIME, now };
    let key = new_key();
    let request = CsrKey::parse(&make_csr(&key).unwrap()).unwrap();
    let signed = Issuer::from_pem(&root.cert_pem, &root.key_pem).unwrap().sign_node(&profile, &request).unwrap();
    let file = [key.expose(), &signed.cert_pem, &root.cert_pem].concat();
    std::fs::write(dir.join("identity/credentials.pem"), file).unwrap();
}

/// SEAL-4. A crash in the middle of a demotion: the certificate is a worker's already, and the keyring is still there.
#[test]
fn worker_with_a_sealed_keyring_is_not_locked() {
    let (dir, _) = sealed();
    let store = IdentityStore::open(dir.path()).unwrap();
    assert!(is_locked(&config(dir.path(), &[]), &store), "no certificate can be read");
    for (role, locked) in [(Role::Manager, true), (Role::Worker, false)] {
        certified(dir.path(), role);
        assert_eq!(is_locked(&config(dir.path(), &[]), &store), locked, "{role}");
        for recovers in [&["--force-new-cluster"][..], &["--force-new-cluster", "--print-plan"]] {
            assert!(is_locked(&config(dir.path(), recovers), &store), "{role}: it reads a former manager's data");
        }
    }
}

/// Each way is named, and the same reason is logged once.
#[tokio::test]
async fn status_says_why_each_means_failed() {
    let (dir, _) = sealed();
    let waiting = waiting(dir.path());
    let (missing, empty) = (dir.path().join("missing"), dir.path().join("empty"));
    std::fs::write(&empty, "").unwrap();
    let mut sources = [missing.clone(), empty.clone()].map(|file| Source::new(Means::File(file)));
    for _again in 0..3 {
        for source in &mut sources {
            waiting.attempt(source, READ_TIMEOUT).await;
        }
    }
    let why = waiting.status().unattended.unwrap();
    for file in [missing, empty] {
        assert_eq!(why.matches(file.to_str().unwrap()).count(), 1, "{why}");
    }
}
