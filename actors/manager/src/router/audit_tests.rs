use std::cell::Cell;

use muster_audit::{AuditSetup, AuditState};
use muster_messages::protocol::{AuditFault, AuditMsg, Named as _};
use muster_messages::{ErrorCode, NodeId};
use muster_testkit::{ActorHarness, Probe};
use tokio::sync::watch;

use super::super::core::audit::of_own_call;
use super::super::core::tests::join;
use super::*;

/// The next message, answered with this.
async fn answers(probe: &mut Probe<AuditMsg>, answer: Result<(), AuditFault>) -> Option<String> {
    match probe.next("a question or a line").await {
        AuditMsg::Check { reply } => {
            reply.send(answer).unwrap();
            None
        }
        AuditMsg::Record { line, reply } => {
            if let Some(reply) = reply {
                reply.send(answer).unwrap();
            }
            Some(line)
        }
        other => panic!("{}", other.name()),
    }
}

#[tokio::test(start_paused = true)]
async fn node_joins_only_if_the_required_log_can_be_written() {
    let harness = ActorHarness::start().await;
    let mut probe = harness.probe("audit");
    let (node, state) = (NodeId::from_entropy(1), watch::channel(AuditState::default()).1);
    let log = AuditLog::new(AuditSetup { node, required: true, reads: false, to: probe.recipient(), state });
    let joined = Cell::new(0);
    let joins = || async {
        joined.set(joined.get() + 1);
        Ok(b"joined".to_vec())
    };
    let refuses = async {
        let full = || Err(AuditFault("the disk is full".to_owned()));
        (answers(&mut probe, full()).await, answers(&mut probe, full()).await)
    };
    let (answer, (_, line)) = tokio::join!(written(&log, of_own_call(&join(None)), joins()), refuses);
    assert_eq!((answer.unwrap_err().code, joined.get()), (ErrorCode::AuditUnavailable, 0));
    assert!(line.is_some_and(|line| line.contains("audit_unavailable")), "its refusal has a line");

    let accepts = async { (answers(&mut probe, Ok(())).await, answers(&mut probe, Ok(())).await) };
    let (answer, (_, line)) = tokio::join!(written(&log, of_own_call(&join(None)), joins()), accepts);
    assert_eq!((answer.unwrap(), joined.get()), (b"joined".to_vec(), 1));
    assert!(line.is_some_and(|line| line.contains("node.join") && line.contains("\"done\"")));
    harness.finish().await;
}
