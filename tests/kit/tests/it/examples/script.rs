//! A probe whose script answers some of the messages.

use muster_kernel::{Named, Reply};
use muster_testkit::{Probe, WAIT_LIMIT, answered};

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
enum SumsMsg {
    Double { n: u32, reply: Reply<u32> },
    Forget,
}

#[tokio::test(start_paused = true)]
async fn script_answers_matching_messages() {
    let mut sums = Probe::new("sums");
    sums.on(|msg| match msg {
        SumsMsg::Double { n, reply } => answered(reply, n * 2),
        other => Some(other),
    });
    let to = sums.recipient();
    assert_eq!(to.ask(WAIT_LIMIT, |reply| SumsMsg::Double { n: 21, reply }).await, Ok(42));
    to.tell(SumsMsg::Forget).unwrap();
    assert!(matches!(sums.next("what no script takes").await, SumsMsg::Forget));
    assert_eq!(sums.heard(), ["sums: double", "sums: forget"]);
}
