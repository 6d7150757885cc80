//! The hello of a mesh stream, before the cluster library sees it: node, RPC endpoint, tag. Either side may refuse
//! with a reason.

use std::time::Duration;

use muster_gateway::{BoxStream, FrameError, Framed};
use muster_messages::wire::{HelloDecision, MeshHello, Refusal, StartId};
use muster_messages::{CertIdentity, NodeId, RaftId, RefusalReason, Replica};

use crate::core::bindings::Newcomer;
use crate::core::hello::Own;
use crate::register::Register;

/// For the whole exchange (5 s): small frames; the rest is margin for a busy machine.
pub const HELLO_DEADLINE: Duration = Duration::from_secs(5);

/// The result of a hello that both sides accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub node: NodeId,
    /// The peer's member id, if it is accepted.
    pub member_id: Option<RaftId>,
    pub peer_endpoint: u64,
    pub own_endpoint: u64,
    pub peer_tag: u128,
    pub own_tag: u128,
    /// Either side sent a probe: no session is opened.
    pub probe: bool,
    pub peer: Newcomer,
    /// Another process of that node, which was queried because of this one and did not answer.
    pub asked: Option<StartId>,
}

#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    #[error("the connection broke during the hello")]
    Broken(#[source] FrameError),
    #[error("the peer closed the connection during the hello")]
    Closed,
    #[error("the hello timed out")]
    TimedOut,
    #[error("the peer refused: {0}")]
    RefusedByPeer(Refusal),
    #[error("this manager refused the peer: {0}")]
    RefusedByUs(Refusal),
    #[error("this manager's mesh is starting")]
    Starting,
}

impl From<FrameError> for HelloError {
    fn from(why: FrameError) -> Self {
        HelloError::Broken(why)
    }
}

/// Sends this side's hello, and agrees with the peer. No byte that follows on the stream is lost.
pub async fn exchange(
    stream: BoxStream,
    (own, hello): (Own, &MeshHello),
    with: (&CertIdentity, String),
    replica: &Replica,
    register: &Register,
) -> Result<(Agreed, BoxStream), HelloError> {
    let talking = async {
        let mut stream = Framed::new(stream);
        stream.send(hello).await?;
        talk(stream, (own, hello), with, replica, register).await
    };
    tokio::time::timeout(HELLO_DEADLINE, talking).await.map_err(|_| HelloError::TimedOut)?
}

/// As [`exchange`], on a stream whose dial has sent this side's hello.
pub async fn agree(
    stream: BoxStream,
    hello: (Own, &MeshHello),
    with: (&CertIdentity, String),
    replica: &Replica,
    register: &Register,
) -> Result<(Agreed, BoxStream), HelloError> {
    let talking = talk(Framed::new(stream), hello, with, replica, register);
    tokio::time::timeout(HELLO_DEADLINE, talking).await.map_err(|_| HelloError::TimedOut)?
}

async fn talk(
    mut stream: Framed<BoxStream>,
    (own, ours): (Own, &MeshHello),
    (certificate, remote): (&CertIdentity, String),
    replica: &Replica,
    register: &Register,
) -> Result<(Agreed, BoxStream), HelloError> {
    let theirs: MeshHello = stream.recv().await?.ok_or(HelloError::Closed)?;
    let MeshHello { node, raft_id: member_id, starts, advertise: addr, .. } = theirs.clone();
    let peer = Newcomer { node, starts, member_id, addr, remote };
    let decided = match own.decide(&theirs, certificate, replica) {
        Ok(member_id) => register.decide(&peer).await.map(|asked| (member_id, asked)),
        Err(refusal) => Err(refusal),
    };
    let decision = match &decided {
        Ok(_) => HelloDecision::Accepted,
        Err(refusal) => HelloDecision::Refused(refusal.clone()),
    };
    stream.send(&decision).await?;
    // The peer's refusal takes precedence: it may explain why this side refuses it as well.
    match stream.recv().await {
        Ok(Some(HelloDecision::Accepted)) => {}
        Ok(Some(HelloDecision::Refused(refusal))) => return Err(refused(decided.err(), refusal)),
        other => {
            decided.map_err(HelloError::RefusedByUs)?;
            return Err(other.err().map_or(HelloError::Closed, HelloError::Broken));
        }
    }
    let (member_id, asked) = decided.map_err(HelloError::RefusedByUs)?;
    let agreed = Agreed {
        node: theirs.node,
        member_id,
        peer_endpoint: theirs.endpoint_pid,
        own_endpoint: ours.endpoint_pid,
        peer_tag: theirs.tag,
        own_tag: ours.tag,
        probe: ours.probe || theirs.probe,
        peer,
        asked,
    };
    Ok((agreed, stream.into_inner()))
}

/// Both sides may have refused. The peer's refusal can end this manager, so it is ignored if this manager does not accept the
/// peer as a manager.
fn refused(ours: Option<Refusal>, theirs: Refusal) -> HelloError {
    use RefusalReason as R;
    let is_untrusted = |ours: &Refusal| {
        matches!(ours.reason, R::Blocked | R::Removed | R::Demoted | R::NotAManager | R::Unauthenticated | R::Forbidden)
    };
    match ours.filter(is_untrusted) {
        Some(ours) => HelloError::RefusedByUs(ours),
        None => HelloError::RefusedByPeer(theirs),
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::{ClusterId, Incarnation, Revision, Role, Subject, WallTime};
    use std::sync::Arc;

    use muster_messages::wire::Starts;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::sync::watch;

    use super::*;
    use crate::dial::{Dial, DialFailure, Dialing};
    use crate::register::BindingStore;
    use crate::session::Sessions;

    fn own(n: u128) -> Own {
        Own {
            node: NodeId::from_entropy(n),
            cluster: ClusterId::from_entropy(1),
            incarnation: Incarnation(0),
            member_id: Some(RaftId(n as u64)),
            endpoint_pid: 10 + n as u64,
        }
    }
    struct NoListener;
    impl Dial for NoListener {
        fn dial<'a>(&'a self, _: &'a str, _: Option<NodeId>, _: Option<&'a MeshHello>) -> Dialing<'a> {
            let failure = DialFailure { text: "no listener".to_owned(), refused_at_once: true, refusal: None };
            Box::pin(async { Err(failure) })
        }
    }
    fn register(n: u128) -> Register {
        let (binding_store, own_hello) =
            (BindingStore::new(NodeId::from_entropy(n)), watch::Sender::new(Some(own(n))).subscribe());
        let this = (Starts::first(n as u64), format!("n{n}:4400"));
        Register::new(this, binding_store, Sessions::default(), Arc::new(NoListener), own_hello)
    }
    fn with(certificate: &CertIdentity) -> (&CertIdentity, String) {
        (certificate, "somewhere".to_owned())
    }
    fn certificate(n: u128, role: Role) -> CertIdentity {
        CertIdentity {
            cluster: ClusterId::from_entropy(1),
            subject: Subject::Node { node: NodeId::from_entropy(n), role },
            serial: "01".into(),
            granted: Some(Revision(7)),
            incarnation: Incarnation(0),
            not_after: WallTime(0),
            pin: None,
            issuer: None,
        }
    }

    #[tokio::test]
    async fn hello_exchanges_endpoint_tag_and_member_id() {
        let (a, b) = duplex(4096);
        let (of_a, of_b) = (certificate(1, Role::Manager), certificate(2, Role::Manager));
        let (first, second, empty_replica) = (register(1), register(2), Replica::default());
        let (of_first, of_second) = (first.hello(own(1), false), second.hello(own(2), true));
        let (a, b) = tokio::join!(
            exchange(Box::pin(a), (own(1), &of_first), with(&of_b), &empty_replica, &first),
            exchange(Box::pin(b), (own(2), &of_second), with(&of_a), &empty_replica, &second),
        );
        let ((a, mut to_b), (b, mut to_a)) = (a.unwrap(), b.unwrap());
        assert_eq!((a.member_id, a.peer_endpoint, b.peer_endpoint), (Some(RaftId(2)), 12, 11));
        assert_eq!((&a.peer.starts, &*b.peer.addr), (&Starts::first(2), "n1:4400"));
        assert_eq!((a.own_tag, a.peer_tag), (b.peer_tag, b.own_tag));
        assert!(a.probe && b.probe);
        to_b.write_all(b"next").await.unwrap();
        let mut next = [0; 4];
        to_a.read_exact(&mut next).await.unwrap();
        assert_eq!(&next, b"next");
    }

    #[tokio::test]
    async fn refusal_reaches_the_peer_with_its_reason() {
        let (a, b) = duplex(4096);
        let (of_a, of_b) = (certificate(1, Role::Worker), certificate(2, Role::Manager));
        let (first, second, empty_replica) = (register(1), register(2), Replica::default());
        let (of_first, of_second) = (first.hello(own(1), false), second.hello(own(2), false));
        let (a, b) = tokio::join!(
            exchange(Box::pin(a), (own(1), &of_first), with(&of_b), &empty_replica, &first),
            exchange(Box::pin(b), (own(2), &of_second), with(&of_a), &empty_replica, &second),
        );
        assert!(
            matches!(a, Err(HelloError::RefusedByPeer(r)) if r.reason == muster_messages::RefusalReason::NotAManager)
        );
        assert!(matches!(b, Err(HelloError::RefusedByUs(_))));
    }

    /// Only managers can end this manager, and former managers only if they know of a later incarnation.
    #[test]
    fn refusal_of_an_unknown_manager_is_ignored() {
        let refusal = |reason| Refusal { reason, message: String::new(), managers: Vec::new(), retry_after_ms: None };
        let removed = || refusal(RefusalReason::Removed);
        for ours in [RefusalReason::NotAManager, RefusalReason::Demoted, RefusalReason::Unauthenticated] {
            assert!(matches!(refused(Some(refusal(ours)), removed()), HelloError::RefusedByUs(_)), "{ours:?}");
        }
        assert!(matches!(refused(None, removed()), HelloError::RefusedByPeer(_)));
        let newer = Some(refusal(RefusalReason::Protocol));
        assert!(matches!(refused(newer, refusal(RefusalReason::OldIncarnation)), HelloError::RefusedByPeer(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn hello_with_silent_peer_times_out() {
        let (a, _b) = duplex(4096);
        let theirs = certificate(2, Role::Manager);
        let (this, replica) = (register(1), Replica::default());
        let hello = this.hello(own(1), false);
        let got = exchange(Box::pin(a), (own(1), &hello), with(&theirs), &replica, &this).await;
        assert!(matches!(got, Err(HelloError::TimedOut)));
    }
}
