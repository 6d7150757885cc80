//! The register with processes that answer, are frozen, or are gone.

use muster_messages::{CertIdentity, ClusterId, Incarnation, RaftId, Role, Subject, WallTime};
use tokio::io::duplex;

use super::*;
use crate::dial::{DialFailure, DialedPeer, Dialing};

/// What runs at the address of the old process.
#[derive(Clone)]
enum OldProcess {
    Gone,
    Frozen,
    Runs(Starts),
}

struct Network(OldProcess);

impl Dial for Network {
    fn dial<'a>(&'a self, _: &'a str, expect: Option<NodeId>, hello: Option<&'a MeshHello>) -> Dialing<'a> {
        let (there, node) = (self.0.clone(), expect.expect("the register names a node"));
        Box::pin(async move {
            let starts = match there {
                OldProcess::Gone => {
                    return Err(DialFailure { text: "no listener".to_owned(), refused_at_once: true, refusal: None });
                }
                OldProcess::Frozen => return std::future::pending().await,
                OldProcess::Runs(starts) => starts,
            };
            let (near, far) = duplex(4096);
            let asked = hello.expect("the register sends its hello").clone();
            assert!(asked.probe, "no session is opened");
            tokio::spawn(async move {
                Framed::new(far).send(&MeshHello { node, starts, ..asked }).await.unwrap();
            });
            let identity = CertIdentity {
                cluster: ClusterId::from_entropy(1),
                subject: Subject::Node { node, role: Role::Manager },
                serial: String::new(),
                granted: None,
                incarnation: Incarnation(1),
                not_after: WallTime(0),
                pin: None,
                issuer: None,
            };
            Ok(DialedPeer { stream: Box::pin(near), identity, remote: String::new() })
        })
    }
}

fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}

fn register(there: OldProcess) -> Register {
    let own = Own {
        node: node(1),
        cluster: ClusterId::from_entropy(1),
        incarnation: Incarnation(1),
        member_id: Some(RaftId(1)),
        endpoint_pid: 1,
    };
    let own_hello = watch::Sender::new(Some(own)).subscribe();
    let this = (Starts::first(1), "10.0.0.1:4400".to_owned());
    Register::new(this, BindingStore::new(node(1)), Sessions::default(), Arc::new(Network(there)), own_hello)
}

fn original() -> Newcomer {
    let (addr, remote) = ("10.0.0.9:4400".to_owned(), "10.0.0.9:5".to_owned());
    Newcomer { node: node(9), starts: Starts::first(7), member_id: Some(RaftId(3)), addr, remote }
}

/// A process on a copy of the original's directory, made while that was in use.
fn duplicate() -> Newcomer {
    let addr = "10.0.0.10:4400".to_owned();
    Newcomer { starts: original().starts.next(8), addr, remote: "10.0.0.10:5".to_owned(), ..original() }
}

/// Its session, of which the other managers are informed.
fn opens(who: &Newcomer) -> Opening {
    Opening::Session { start: who.starts.this().unwrap(), is_news: true }
}

#[tokio::test(start_paused = true)]
async fn second_process_is_refused_while_first_answers() {
    let register = register(OldProcess::Runs(original().starts));
    assert_eq!(register.decide(&original()).await, Ok(None));
    assert_eq!(register.take(original(), None, true), opens(&original()));
    for _ in 0..3 {
        let refusal = register.decide(&duplicate()).await.unwrap_err();
        assert_eq!(refusal.reason, RefusalReason::Duplicate);
        for addr in ["10.0.0.9:4400", "10.0.0.9:5", "10.0.0.10:4400", "10.0.0.10:5"] {
            assert!(refusal.message.contains(addr), "{addr}: {refusal}");
        }
    }
    let view = register.view();
    assert_eq!((view.duplicates_refused, &view.duplicates[0]["refused"]["addr"]), (3, &"10.0.0.10:4400".into()));
    assert_eq!(register.decide(&original()).await, Ok(None), "it may open another session");
    assert_eq!(register.take(duplicate(), None, true), Opening::Superseded, "the old process was not queried");
}

#[tokio::test(start_paused = true)]
async fn frozen_or_gone_process_does_not_block_its_successor() {
    let old = original().starts.this();
    for there in [OldProcess::Gone, OldProcess::Frozen, OldProcess::Runs(duplicate().starts)] {
        let register = register(there);
        assert_eq!(register.take(original(), None, true), opens(&original()));
        let began = tokio::time::Instant::now();
        assert_eq!(register.decide(&duplicate()).await, Ok(old));
        assert!(began.elapsed() < Duration::from_secs(5), "within the hello deadline");
        assert_eq!(register.take(duplicate(), old, true), opens(&duplicate()));
        let refusal = register.decide(&original()).await.unwrap_err();
        assert!(refusal.message.contains("older state"), "a replaced process does not come back: {refusal}");
    }
}
