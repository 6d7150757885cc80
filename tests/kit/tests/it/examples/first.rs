//! The first example of `tests/kit/README.md`, which shows it from the first import on.

use muster_kernel::{Address, Cx, Fault, Named, Reply, Shell, Spec};
use muster_testkit::{ActorHarness, WAIT_LIMIT};

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
enum Msg {
    Count(Reply<u32>),
}

#[derive(Default)]
struct Counter(u32);
impl Shell for Counter {
    type Msg = Msg;
    const KIND: &'static str = "Counter";
    async fn handle(&mut self, _cx: &Cx<Msg>, Msg::Count(reply): Msg) -> Result<(), Fault> {
        self.0 += 1;
        let _gone = reply.send(self.0);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn every_message_is_counted() {
    let harness = ActorHarness::start().await; // a real supervisor, below which the actor runs
    let counter = Address::new(8); // its mailbox holds 8 messages
    harness.start_actor(Spec::actor("counter", counter.clone(), || Ok(Counter::default())));
    harness.healthy("node/counter", 1).await;
    assert_eq!(counter.ask(WAIT_LIMIT, Msg::Count).await, Ok(1));
    assert_eq!(counter.ask(WAIT_LIMIT, Msg::Count).await, Ok(2));
    harness.finish().await; // fails the test on whatever went wrong unseen
}
