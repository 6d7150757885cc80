//! Joining over real TLS, against a manager's join service reduced to its answers.

#![expect(clippy::unwrap_used, reason = "a test ends at the failure of anything it relies on")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_agent::{JoinArgs, JoinConfig, JoinError, JoinProgress, Joined, NodeMemory, join};
use muster_gateway::Framed;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{Greeting, JoinFrame, JoinReply, JoinRequest};
use muster_messages::*;
use muster_pki::{CsrKey, IdentityStore, Issuer, JoinToken, NODE_LIFETIME, NodeProfile, Root, new_key, verify_rekey};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

fn cluster() -> ClusterId {
    ClusterId::from_entropy(9)
}
fn manager() -> NodeId {
    NodeId::from_entropy(100)
}
fn wall() -> WallTime {
    muster_kernel::Clock.wall()
}

fn sign(root: &Root, node: NodeId, role: Role, csr_pem: &str) -> String {
    sign_at(root, node, role, csr_pem, wall())
}

/// With a clock that shows this time.
fn sign_at(root: &Root, node: NodeId, role: Role, csr_pem: &str, now: WallTime) -> String {
    let profile = NodeProfile {
        cluster: cluster(),
        node,
        role,
        granted: Some(Revision(5)),
        incarnation: Incarnation(1),
        ips: vec![],
        lifetime: NODE_LIFETIME,
        now,
    };
    let issuer = Issuer::from_pem(&root.cert_pem, &root.key_pem).unwrap();
    issuer.sign_node(&profile, &CsrKey::parse(csr_pem).unwrap()).unwrap().cert_pem
}

fn credentials(root: &Root, node: NodeId, role: Role) -> NodeCredentials {
    credentials_at(root, node, role, wall())
}

fn credentials_at(root: &Root, node: NodeId, role: Role, now: WallTime) -> NodeCredentials {
    let key_pem = new_key();
    let cert_pem = sign_at(root, node, role, &muster_pki::make_csr(&key_pem).unwrap(), now);
    let identity = muster_pki::identity_of_pem(&cert_pem).unwrap();
    NodeCredentials { cert_pem, key_pem, root_pem: root.cert_pem.clone(), identity }
}

type Answer = Box<dyn Fn(&JoinRequest) -> JoinReply + Send + Sync>;

/// Every frame that managers received, and how many connections were opened for them.
#[derive(Default)]
struct Heard {
    frames: Mutex<Vec<JoinFrame>>,
    connections: AtomicUsize,
}

impl Heard {
    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
    fn requests(&self) -> Vec<JoinRequest> {
        let frames = self.frames.lock().unwrap();
        let asked = |f: &JoinFrame| match f {
            JoinFrame::Join(request) => Some(request.clone()),
            JoinFrame::GetRoot | JoinFrame::GetRoots => None,
        };
        frames.iter().filter_map(asked).collect()
    }
}

/// A manager with this root that presents `shown` as the cluster's root.
async fn serve(root: &Root, shown: String, answer: Answer) -> (String, Arc<Heard>) {
    serve_as(credentials(root, manager(), Role::Manager), shown, answer).await
}

async fn serve_as(creds: NodeCredentials, shown: String, answer: Answer) -> (String, Arc<Heard>) {
    serve_offering(creds, shown, Some(JoinReply::Roots(Vec::new())), answer).await
}

/// `offered`: the answer to a question for all roots. `None`: it closes the connection.
async fn serve_offering(
    creds: NodeCredentials,
    shown: String,
    offered: Option<JoinReply>,
    answer: Answer,
) -> (String, Arc<Heard>) {
    let config = muster_pki::server_config(&creds, Service::Join.alpn()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let heard = Arc::new(Heard::default());
    let (acceptor, log) = (TlsAcceptor::from(config), Arc::clone(&heard));
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            log.connections.fetch_add(1, Ordering::SeqCst);
            let Ok(tls) = acceptor.accept(tcp).await else { continue };
            let mut stream = Framed::new(tls);
            if stream.send(&Greeting::Welcome { node: manager() }).await.is_err() {
                continue;
            }
            while let Ok(Some(frame)) = stream.recv::<JoinFrame>().await {
                log.frames.lock().unwrap().push(frame.clone());
                let reply = match (&frame, &offered) {
                    (JoinFrame::GetRoot, _) => JoinReply::Root { root_pem: shown.clone() },
                    (JoinFrame::GetRoots, Some(offered)) => offered.clone(),
                    (JoinFrame::GetRoots, None) => break,
                    (JoinFrame::Join(request), _) => answer(request),
                };
                stream.send(&reply).await.unwrap();
            }
        }
    });
    (addr, heard)
}

fn acceptance(root: &Root) -> Answer {
    let root = root.clone();
    Box::new(move |request| JoinReply::Joined {
        node: request.node,
        cert_pem: sign(&root, request.node, Role::Worker, &request.csr_pem),
        root_pem: root.cert_pem.clone(),
        managers: vec!["m:1".to_owned()],
    })
}

fn token(root: &Root) -> String {
    JoinToken::new(&root.cert_pem, muster_pki::new_token_secret()).unwrap().to_text()
}

fn args(addr: &str, token: String) -> JoinArgs {
    JoinArgs {
        addrs: vec![addr.to_owned()],
        token,
        name: Name::sanitized("w1"),
        advertise: "0.0.0.0:4400".to_owned(),
        release: "0.1.0".to_owned(),
        labels: BTreeMap::new(),
        rekey: None,
    }
}

/// More connections than one attempt to join makes.
const MIN_TRIES: usize = 6;

struct Machine {
    memory: NodeMemory,
    lines: Mutex<Vec<String>>,
    _dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let memory = NodeMemory::new(IdentityStore::open(dir.path()).unwrap());
        Self { memory, lines: Mutex::default(), _dir: dir }
    }
    async fn join(&self, args: JoinArgs) -> Result<Joined, JoinError> {
        let record_line = |p: &JoinProgress| self.lines.lock().unwrap().push(p.to_string());
        let config = JoinConfig::default();
        tokio::time::timeout(Duration::from_secs(60), join(&self.memory, args, &config, record_line)).await.unwrap()
    }
    /// Joins until this holds; joining alone would never end.
    async fn tries_until(&self, args: JoinArgs, so: impl Fn() -> bool) {
        let watched = async {
            while !so() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::select! {
            ended = self.join(args) => panic!("joining ended: {:?}", ended.map(|joined| joined.credentials.identity)),
            () = watched => {}
        }
    }
    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn joiner_stores_credentials_and_the_managers_addresses() {
    let root = Root::create(cluster(), wall()).unwrap();
    let (addr, heard) = serve(&root, root.cert_pem.clone(), acceptance(&root)).await;
    let machine = Machine::new();
    let joined = machine.join(args(&addr, token(&root))).await.unwrap();
    let saved = machine.memory.store().load_credentials().unwrap().unwrap();
    assert_eq!(saved.identity, joined.credentials.identity);
    assert_eq!(machine.memory.load().unwrap().managers, ["m:1"]);
    assert_eq!(heard.requests().len(), 1);
}

#[tokio::test]
async fn no_secret_is_sent_to_a_cluster_other_than_the_tokens() {
    let (ours, theirs) = (Root::create(cluster(), wall()).unwrap(), Root::create(cluster(), wall()).unwrap());
    let machine = Machine::new();
    let (addr, heard) = serve(&theirs, theirs.cert_pem.clone(), acceptance(&theirs)).await;
    let refused = machine.join(args(&addr, token(&ours))).await.unwrap_err();
    assert!(matches!(&refused, JoinError::Refused(e) if e.code == ErrorCode::DigestMismatch), "{refused:?}");
    assert_eq!(refused.exit_status(), 6);
    assert!(heard.requests().is_empty());
    // The right root, presented by a server that it has not signed: the digest fits, the certificate does not.
    let (addr, heard) = serve(&theirs, ours.cert_pem.clone(), acceptance(&theirs)).await;
    let reported = || machine.lines().iter().any(|l| l.contains(": TLS: "));
    machine.tries_until(args(&addr, token(&ours)), || reported() && heard.connections() > MIN_TRIES).await;
    assert!(heard.requests().is_empty());
}

#[tokio::test]
async fn lost_reply_creates_no_second_node() {
    let root = Root::create(cluster(), wall()).unwrap();
    let machine = Machine::new();
    let busy = Box::new(|_: &JoinRequest| JoinReply::Refused(ErrorBody::new(ErrorCode::NoQuorum, "no quorum")));
    let (addr, first) = serve(&root, root.cert_pem.clone(), busy).await;
    let text = token(&root);
    // The daemon is stopped while it waits, and started again.
    machine.tries_until(args(&addr, text.clone()), || first.requests().len() > 1).await;
    let (addr, second) = serve(&root, root.cert_pem.clone(), acceptance(&root)).await;
    machine.join(args(&addr, text)).await.unwrap();
    let asked: Vec<JoinRequest> = first.requests().into_iter().chain(second.requests()).collect();
    assert!(asked.len() >= 2);
    let same = |r: &JoinRequest| {
        let key = |r: &JoinRequest| CsrKey::parse(&r.csr_pem).unwrap().spki().to_vec();
        (r.node, r.request_id, key(r)) == (asked[0].node, asked[0].request_id, key(&asked[0]))
    };
    assert!(asked.iter().all(same));
    assert_eq!(machine.lines.lock().unwrap().iter().filter(|l| l.contains("no quorum")).count(), 1);
}

#[tokio::test]
async fn a_node_that_re_keys_keeps_its_id_and_proves_its_old_key() {
    let root = Root::create(cluster(), wall()).unwrap();
    let machine = Machine::new();
    let old = credentials(&root, NodeId::from_entropy(7), Role::Worker);
    machine.memory.store().save_credentials(&old).unwrap();
    let (addr, heard) = serve(&root, root.cert_pem.clone(), acceptance(&root)).await;
    let rekey = JoinArgs { rekey: Some(old.clone()), ..args(&addr, token(&root)) };
    let joined = machine.join(rekey).await.unwrap();
    assert_eq!(joined.credentials.identity.subject, old.identity.subject);
    assert_ne!(joined.credentials.identity.serial, old.identity.serial);
    let request = heard.requests().pop().unwrap();
    let (proof, key) = (request.rekey.unwrap(), CsrKey::parse(&request.csr_pem).unwrap());
    let proved = verify_rekey(&root.cert_pem, &proof.old_cert_pem, &proof.signature, &key).unwrap();
    assert_eq!(proved.serial, old.identity.serial);
}

/// E41. The manager's clock is real; this machine's is years behind or ahead, as its certificates show.
#[tokio::test]
async fn clock_years_off_is_reported_without_sending_secrets() {
    const YEAR: i64 = 365 * 86_400_000;
    for (years, words) in [(4, "is 1459 days ahead"), (-4, "days ago")] {
        let there = WallTime(wall().0 + years * YEAR);
        let root = Root::create(cluster(), WallTime(there.0.min(wall().0))).unwrap();
        let creds = credentials_at(&root, manager(), Role::Manager, there);
        let (addr, heard) = serve_as(creds, root.cert_pem.clone(), acceptance(&root)).await;
        let machine = Machine::new();
        // A clock can be corrected: it retries indefinitely.
        machine.tries_until(args(&addr, token(&root)), || heard.connections() > MIN_TRIES).await;
        let lines = machine.lines();
        let [line] = &lines[..] else { panic!("one line, however often it was tried: {lines:?}") };
        for word in [addr.as_str(), ": TLS: ", words, "date -u", &format!("clock says {}", &wall().to_string()[..10])] {
            assert!(line.contains(word), "{word}: {line}");
        }
        assert!(heard.requests().is_empty());
    }
}

/// E41. Addresses without a musterd.
#[tokio::test]
async fn address_without_tls_or_listener_is_named_with_a_cause() {
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let address = plain.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = plain.accept().await {
            let _gone = tokio::io::AsyncWriteExt::write_all(&mut tcp, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let root = Root::create(cluster(), wall()).unwrap();
    for (addr, stage, words) in
        [(&address, ": TLS: ", "does not speak TLS"), (&closed, ": connect: ", "no process listens there")]
    {
        let machine = Machine::new();
        machine.tries_until(args(addr, token(&root)), || !machine.lines().is_empty()).await;
        let lines = machine.lines();
        assert!(lines.len() == 1 && [addr, stage, words].iter().all(|word| lines[0].contains(*word)), "{lines:?}");
    }
}

/// Successive roots of one cluster, each vouched for by the one before.
fn successive(count: usize) -> (Vec<Root>, Vec<OfferedRoot>) {
    let roots: Vec<Root> = (0..count).map(|_| Root::create(cluster(), wall()).unwrap()).collect();
    let offer = |n: usize| {
        let by = n.checked_sub(1).map(|by| vouched(&roots[by], &roots[n]));
        OfferedRoot { trusted: n + 1 == count, ..by.unwrap_or_else(|| unvouched(&roots[n])) }
    };
    let offered = (0..count).map(offer).collect();
    (roots, offered)
}

fn unvouched(root: &Root) -> OfferedRoot {
    OfferedRoot { cert_pem: root.cert_pem.clone(), vouchers: Vec::new(), trusted: true }
}

fn vouched(by: &Root, root: &Root) -> OfferedRoot {
    let issuer = Issuer::from_pem(&by.cert_pem, &by.key_pem).unwrap();
    let vouchers = vec![issuer.vouch(cluster(), &root.cert_pem).unwrap()];
    OfferedRoot { vouchers, ..unvouched(root) }
}

/// It also shows that the older questions are asked first: a manager of an earlier build understands them.
#[tokio::test]
async fn token_of_an_earlier_root_leads_to_the_present_one() {
    let (roots, offered) = successive(3);
    let manager = || credentials(&roots[2], manager(), Role::Manager);
    for of_token in &roots {
        let shown = roots[2].cert_pem.clone();
        let roots_of = Some(JoinReply::Roots(offered.clone()));
        let (addr, heard) = serve_offering(manager(), shown, roots_of, acceptance(&roots[2])).await;
        let machine = Machine::new();
        let joined = machine.join(args(&addr, token(of_token))).await.unwrap();
        assert_eq!(joined.credentials.root_pem.trim(), roots[2].cert_pem.trim(), "the retired ones are not kept");
        let saved = machine.memory.store().load_credentials().unwrap().unwrap();
        assert_eq!(saved.identity, joined.credentials.identity);
        let frames = heard.frames.lock().unwrap();
        assert!(matches!(frames[0], JoinFrame::GetRoot));
        assert_eq!(frames.len(), if of_token == &roots[2] { 2 } else { 3 }, "{frames:?}");
    }
}

#[tokio::test]
async fn several_trusted_roots_are_stored_by_a_joiner() {
    let (roots, mut offered) = successive(2);
    offered[0].trusted = true;
    // It has not renewed yet, and another manager signs with the new root.
    let creds = credentials(&roots[0], manager(), Role::Manager);
    let offered = Some(JoinReply::Roots(offered));
    let (addr, _) = serve_offering(creds, roots[1].cert_pem.clone(), offered, acceptance(&roots[1])).await;
    let machine = Machine::new();
    machine.join(args(&addr, token(&roots[0]))).await.unwrap();
    let saved = machine.memory.store().load_credentials().unwrap().unwrap();
    let both = [roots[0].cert_pem.trim(), roots[1].cert_pem.trim()];
    assert!(both.iter().all(|root| saved.root_pem.contains(root)), "{}", saved.root_pem);
}

/// An intruder in the middle knows everything but keys.
#[tokio::test]
async fn no_offer_of_an_intruder_gets_the_secret() {
    let (roots, offered) = successive(2);
    let theirs = Root::create(cluster(), wall()).unwrap();
    let stolen_voucher = OfferedRoot { vouchers: offered[1].vouchers.clone(), ..unvouched(&theirs) };
    let other_cluster = {
        let issuer = Issuer::from_pem(&roots[0].cert_pem, &roots[0].key_pem).unwrap();
        let vouchers = vec![issuer.vouch(ClusterId::from_entropy(3), &theirs.cert_pem).unwrap()];
        OfferedRoot { vouchers, ..unvouched(&theirs) }
    };
    let offers = [
        vec![],
        vec![unvouched(&theirs)],
        vec![unvouched(&roots[0]), unvouched(&theirs)],
        vec![OfferedRoot { trusted: false, ..unvouched(&roots[0]) }, vouched(&theirs, &theirs)],
        vec![unvouched(&roots[0]), stolen_voucher],
        vec![unvouched(&roots[0]), other_cluster],
        // The root of the token is not offered: it was revoked.
        vec![offered[1].clone()],
    ];
    let earlier_build = JoinReply::Refused(ErrorBody::new(ErrorCode::Invalid, "this is not a join request"));
    for offer in offers.map(JoinReply::Roots).into_iter().chain([earlier_build]) {
        let creds = credentials(&theirs, manager(), Role::Manager);
        let shown = theirs.cert_pem.clone();
        let (addr, heard) = serve_offering(creds, shown, Some(offer.clone()), acceptance(&theirs)).await;
        let refused = Machine::new().join(args(&addr, token(&roots[0]))).await.unwrap_err();
        assert!(matches!(&refused, JoinError::Refused(e) if e.code == ErrorCode::DigestMismatch), "{refused:?}");
        assert!(heard.requests().is_empty(), "{offer:?}");
    }
    // The true roots, and a certificate of its own: the request is never sent.
    let creds = credentials(&theirs, manager(), Role::Manager);
    let offered = Some(JoinReply::Roots(offered));
    let (addr, heard) = serve_offering(creds, theirs.cert_pem.clone(), offered, acceptance(&theirs)).await;
    let machine = Machine::new();
    let told = || machine.lines().iter().any(|line| line.contains(": TLS: "));
    machine.tries_until(args(&addr, token(&roots[0])), || told() && heard.connections() > MIN_TRIES).await;
    assert!(heard.requests().is_empty());
}

/// A manager that does not know the roots does not end it either.
#[tokio::test]
async fn connection_that_breaks_does_not_end_the_joining() {
    let (roots, _) = successive(2);
    let not_yet = JoinReply::Refused(ErrorBody::new(ErrorCode::NotKnownHereYet, "not yet"));
    for answer in [None, Some(not_yet)] {
        let creds = credentials(&roots[1], manager(), Role::Manager);
        let (addr, heard) = serve_offering(creds, roots[1].cert_pem.clone(), answer, acceptance(&roots[1])).await;
        let machine = Machine::new();
        machine.tries_until(args(&addr, token(&roots[0])), || heard.connections() > MIN_TRIES).await;
        assert!(heard.requests().is_empty());
    }
}
