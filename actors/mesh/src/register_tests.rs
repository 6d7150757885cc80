//! The register, among processes that answer, are frozen or gone.

use muster_messages::{CertIdentity, ClusterId, Incarnation, RaftId, Role, Subject, WallTime};
use tokio::io::duplex;

use super::*;
use crate::dial::{DialFailure, DialedPeer, Dialing};

/// Who is where the old process was.
#[derive(Clone)]
enum There {
    Nobody,
    Frozen,
    Runs(Starts),
}

struct Network(There);

impl Dial for Network {
    fn dial<'a>(&'a self, _addr: &'a str, expect: Option<NodeId>) -> Dialing<'a> {
        let (there, node) = (self.0.clone(), expect.expect("the register asks for somebody"));
        Box::pin(async move {
            let starts = match there {
                There::Nobody => {
                    return Err(DialFailure { text: "nobody".to_owned(), refused_at_once: true, refusal: None });
                }
                There::Frozen => return std::future::pending().await,
                There::Runs(starts) => starts,
            };
            let (near, far) = duplex(4096);
            tokio::spawn(async move {
                let mut far = Framed::new(far);
                let asked: Option<MeshHello> = far.recv().await.unwrap();
                let asked = asked.unwrap();
                assert!(asked.probe, "no session is meant");
                far.send(&MeshHello { node, starts, ..asked }).await.unwrap();
            });
            let identity = CertIdentity {
                cluster: ClusterId::from_entropy(1),
                subject: Subject::Node { node, role: Role::Manager },
                serial: String::new(),
                granted: None,
                incarnation: Incarnation(1),
                not_after: WallTime(0),
                pin: None,
            };
            Ok(DialedPeer { stream: Box::pin(near), identity, remote: String::new() })
        })
    }
}

fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}

fn register(there: There) -> Register {
    let own = Own {
        node: node(1),
        cluster: ClusterId::from_entropy(1),
        incarnation: Incarnation(1),
        seat: Some(RaftId(1)),
        door_pid: 1,
    };
    let said = watch::Sender::new(Some(own)).subscribe();
    let this = (Starts::first(1), "10.0.0.1:4400".to_owned());
    Register::new(this, Book::new(node(1)), Sessions::default(), Arc::new(Network(there)), said)
}

fn original() -> Newcomer {
    let (addr, remote) = ("10.0.0.9:4400".to_owned(), "10.0.0.9:5".to_owned());
    Newcomer { node: node(9), starts: Starts::first(7), seat: Some(RaftId(3)), addr, remote }
}

/// On a copy of the original's directory, which was in use.
fn copy() -> Newcomer {
    let addr = "10.0.0.10:4400".to_owned();
    Newcomer { starts: original().starts.next(8), addr, remote: "10.0.0.10:5".to_owned(), ..original() }
}

#[tokio::test(start_paused = true)]
async fn as_long_as_the_old_process_answers_the_new_one_is_refused_with_both_addresses() {
    let register = register(There::Runs(original().starts));
    assert_eq!(register.judge(&original()).await, Ok(None));
    assert_eq!(register.take(original(), None), Some(true));
    for _ in 0..3 {
        let refusal = register.judge(&copy()).await.unwrap_err();
        assert_eq!(refusal.reason, RefusalReason::Duplicate);
        for addr in ["10.0.0.9:4400", "10.0.0.9:5", "10.0.0.10:4400", "10.0.0.10:5"] {
            assert!(refusal.message.contains(addr), "{addr}: {refusal}");
        }
    }
    let view = register.view();
    assert_eq!(
        (&view["duplicates_refused"], &view["duplicates"][0]["refused"]["addr"]),
        (&3.into(), &"10.0.0.10:4400".into())
    );
    assert_eq!(register.judge(&original()).await, Ok(None), "it may open another session");
    assert_eq!(register.take(copy(), None), None, "nobody asked the old one");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_frozen_gone_or_replaced_shuts_nobody_out() {
    let old = original().starts.this();
    for there in [There::Nobody, There::Frozen, There::Runs(copy().starts)] {
        let register = register(there);
        assert_eq!(register.take(original(), None), Some(true));
        let began = tokio::time::Instant::now();
        assert_eq!(register.judge(&copy()).await, Ok(old));
        assert!(began.elapsed() < Duration::from_secs(5), "within the time of a hello");
        assert_eq!(register.take(copy(), old), Some(true));
        let refusal = register.judge(&original()).await.unwrap_err();
        assert!(refusal.message.contains("older state"), "what was replaced does not come back: {refusal}");
    }
}
