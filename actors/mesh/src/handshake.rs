//! The hello of a mesh stream, before the cluster library sees it: who is this, which door, which tag. Either side
//! may refuse, and says why.

use std::time::Duration;

use muster_gateway::{BoxStream, FrameError, Framed};
use muster_messages::wire::{HelloVerdict, MeshHello, Refusal, StartId};
use muster_messages::{CertIdentity, NodeId, RaftId, RefusalReason, Replica};

use crate::core::claims::Newcomer;
use crate::core::hello::Own;
use crate::register::Register;

/// For all of it (5 s): four small frames; the rest is room for a busy machine.
pub const HELLO_DEADLINE: Duration = Duration::from_secs(5);

/// What both sides accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub node: NodeId,
    /// The seat to believe.
    pub seat: Option<RaftId>,
    pub peer_door: u64,
    pub own_door: u64,
    pub peer_tag: u128,
    pub own_tag: u128,
    /// Either side only wanted to know who answers.
    pub probe: bool,
    /// The process at the other end.
    pub peer: Newcomer,
    /// Another process of that node, which was asked because of this one and did not answer.
    pub asked: Option<StartId>,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    #[error("the hello broke off")]
    Broken(#[source] FrameError),
    #[error("the other side closed during the hello")]
    Closed,
    #[error("no hello in time")]
    TimedOut,
    #[error("refused by the other side: {0}")]
    RefusedByPeer(Refusal),
    #[error("refused: {0}")]
    RefusedByUs(Refusal),
    #[error("this mesh is starting")]
    Starting,
}

impl From<FrameError> for HelloError {
    fn from(why: FrameError) -> Self {
        HelloError::Broken(why)
    }
}

/// Exchanges hellos and verdicts. Afterwards the stream carries what follows, and nothing of it is lost.
pub async fn exchange(
    stream: BoxStream,
    own: Own,
    with: (&CertIdentity, String),
    replica: &Replica,
    probe: bool,
    register: &Register,
) -> Result<(Agreed, BoxStream), HelloError> {
    let talking = talk(Framed::new(stream), own, with, replica, probe, register);
    tokio::time::timeout(HELLO_DEADLINE, talking).await.map_err(|_| HelloError::TimedOut)?
}

async fn talk(
    mut stream: Framed<BoxStream>,
    own: Own,
    (certificate, remote): (&CertIdentity, String),
    replica: &Replica,
    probe: bool,
    register: &Register,
) -> Result<(Agreed, BoxStream), HelloError> {
    let ours = register.sign(own.hello(rand::random(), probe));
    stream.send(&ours).await?;
    let theirs: MeshHello = stream.recv().await?.ok_or(HelloError::Closed)?;
    let MeshHello { node, raft_id: seat, starts, advertise: addr, .. } = theirs.clone();
    let peer = Newcomer { node, starts, seat, addr, remote };
    let judged = match own.judge(&theirs, certificate, replica) {
        Ok(seat) => register.judge(&peer).await.map(|asked| (seat, asked)),
        Err(refusal) => Err(refusal),
    };
    let verdict = match &judged {
        Ok(_) => HelloVerdict::Accepted,
        Err(refusal) => HelloVerdict::Refused(refusal.clone()),
    };
    stream.send(&verdict).await?;
    // What the other side says comes first: it may explain why ours refuses it, too.
    match stream.recv().await {
        Ok(Some(HelloVerdict::Accepted)) => {}
        Ok(Some(HelloVerdict::Refused(refusal))) => return Err(refused(judged.err(), refusal)),
        other => {
            judged.map_err(HelloError::RefusedByUs)?;
            return Err(other.err().map_or(HelloError::Closed, HelloError::Broken));
        }
    }
    let (seat, asked) = judged.map_err(HelloError::RefusedByUs)?;
    let agreed = Agreed {
        node: theirs.node,
        seat,
        peer_door: theirs.door_pid,
        own_door: ours.door_pid,
        peer_tag: theirs.tag,
        own_tag: ours.tag,
        probe: ours.probe || theirs.probe,
        peer,
        asked,
    };
    Ok((agreed, stream.into_inner()))
}

/// Both sides may have refused. What the other one says can end this manager, so it is not believed of one that is no
/// manager here.
fn refused(ours: Option<Refusal>, theirs: Refusal) -> HelloError {
    use RefusalReason as R;
    let disbelieved = |ours: &Refusal| {
        matches!(ours.reason, R::Blocked | R::Removed | R::Demoted | R::NotAManager | R::Unauthenticated | R::Forbidden)
    };
    match ours.filter(disbelieved) {
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
    use crate::register::Book;
    use crate::session::Sessions;

    fn own(n: u128) -> Own {
        Own {
            node: NodeId::from_entropy(n),
            cluster: ClusterId::from_entropy(1),
            incarnation: Incarnation(0),
            seat: Some(RaftId(n as u64)),
            door_pid: 10 + n as u64,
        }
    }
    struct NobodyThere;
    impl Dial for NobodyThere {
        fn dial<'a>(&'a self, _addr: &'a str, _expect: Option<NodeId>) -> Dialing<'a> {
            let nobody = DialFailure { text: "nobody".to_owned(), refused_at_once: true, refusal: None };
            Box::pin(async { Err(nobody) })
        }
    }
    fn register(n: u128) -> Register {
        let (book, said) = (Book::new(NodeId::from_entropy(n)), watch::Sender::new(Some(own(n))).subscribe());
        let this = (Starts::first(n as u64), format!("n{n}:4400"));
        Register::new(this, book, Sessions::default(), Arc::new(NobodyThere), said)
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
        }
    }

    #[tokio::test]
    async fn both_sides_learn_door_tag_and_seat_and_the_stream_goes_on() {
        let (a, b) = duplex(4096);
        let (of_a, of_b) = (certificate(1, Role::Manager), certificate(2, Role::Manager));
        let (first, second, copy) = (register(1), register(2), Replica::default());
        let (a, b) = tokio::join!(
            exchange(Box::pin(a), own(1), with(&of_b), &copy, false, &first),
            exchange(Box::pin(b), own(2), with(&of_a), &copy, true, &second),
        );
        let ((a, mut to_b), (b, mut to_a)) = (a.unwrap(), b.unwrap());
        assert_eq!((a.seat, a.peer_door, b.peer_door), (Some(RaftId(2)), 12, 11));
        assert_eq!((&a.peer.starts, &*b.peer.addr), (&Starts::first(2), "n1:4400"));
        assert_eq!((a.own_tag, a.peer_tag), (b.peer_tag, b.own_tag));
        assert!(a.probe && b.probe);
        to_b.write_all(b"next").await.unwrap();
        let mut next = [0; 4];
        to_a.read_exact(&mut next).await.unwrap();
        assert_eq!(&next, b"next");
    }

    #[tokio::test]
    async fn a_refusal_reaches_the_other_side_with_its_reason() {
        let (a, b) = duplex(4096);
        let (of_a, of_b) = (certificate(1, Role::Worker), certificate(2, Role::Manager));
        let (first, second, copy) = (register(1), register(2), Replica::default());
        let (a, b) = tokio::join!(
            exchange(Box::pin(a), own(1), with(&of_b), &copy, false, &first),
            exchange(Box::pin(b), own(2), with(&of_a), &copy, false, &second),
        );
        assert!(
            matches!(a, Err(HelloError::RefusedByPeer(r)) if r.reason == muster_messages::RefusalReason::NotAManager)
        );
        assert!(matches!(b, Err(HelloError::RefusedByUs(_))));
    }

    /// What would end this manager is believed of managers alone, and of those that have lost that role only where they know
    /// of a later incarnation.
    #[test]
    fn nobody_is_ended_by_one_who_is_no_manager_here() {
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
    async fn a_mute_peer_is_given_up() {
        let (a, _b) = duplex(4096);
        let theirs = certificate(2, Role::Manager);
        let got = exchange(Box::pin(a), own(1), with(&theirs), &Replica::default(), false, &register(1)).await;
        assert!(matches!(got, Err(HelloError::TimedOut)));
    }
}
