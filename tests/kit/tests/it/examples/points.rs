//! An actor that keeps its guarantee across every crash.

use muster_kernel::{Address, Cx, Fault, Named, Reply, Shell, Slot, Spec};
use muster_testkit::{ActorHarness, at_every_point, insisting};

struct Add {
    number: u64,
    reply: Reply<u64>,
}
impl Named for Add {
    fn name(&self) -> &'static str {
        "add"
    }
}
/// The greatest number so far, across restarts.
struct Greatest(Slot<u64>);
impl Shell for Greatest {
    type Msg = Add;
    const KIND: &'static str = "Greatest";
    async fn handle(&mut self, _cx: &Cx<Add>, add: Add) -> Result<(), Fault> {
        let greatest = self.0.get().unwrap_or(0).max(add.number);
        self.0.set(greatest); // first what the next incarnation needs, then the answer
        let _gone = add.reply.send(greatest);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn the_greatest_number_survives_every_crash() {
    let points = at_every_point(async |fuse| {
        let mut harness = ActorHarness::start().await;
        let (address, slot) = (Address::new(8), Slot::new());
        harness.start_actor(Spec::actor("greatest", address.clone(), move || Ok(Greatest(slot.clone()))));
        harness.healthy("node/greatest", 1).await;
        harness.crash_at("node/greatest", &fuse);
        let mut answers = Vec::new();
        for number in [3, 7, 5] {
            answers.push(insisting(&address, |reply| Add { number, reply }).await);
        }
        assert_eq!(answers, [3, 7, 7]);
        harness.finish().await;
    })
    .await;
    assert_eq!(points, 3 * 4 + 2, "before and after each message, and each slot; and as it stops");
}
