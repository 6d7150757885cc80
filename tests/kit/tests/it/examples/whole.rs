//! A whole test of an actor between probes.

use std::time::Duration;

use muster_kernel::{Address, CrashHow, Cx, Fault, Named, Recipient, Reply, Shell, Spec};
use muster_testkit::{ActorHarness, WAIT_LIMIT};

// Messages of the actor under test: orders, which it counts and passes on.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
enum WaiterMsg {
    Order { dish: String, reply: Reply<u32> },
}

// Messages of its collaborator.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
enum KitchenMsg {
    Cook { dish: String },
}

struct Waiter {
    kitchen: Recipient<KitchenMsg>,
    taken: u32,
}
impl Shell for Waiter {
    type Msg = WaiterMsg;
    const KIND: &'static str = "Waiter";
    async fn handle(&mut self, _cx: &Cx<WaiterMsg>, msg: WaiterMsg) -> Result<(), Fault> {
        let WaiterMsg::Order { dish, reply } = msg;
        self.kitchen.tell(KitchenMsg::Cook { dish })?;
        self.taken += 1;
        let _gone = reply.send(self.taken);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn order_reaches_kitchen_and_crash_resets_count() {
    let mut harness = ActorHarness::start().await;
    let mut kitchen = harness.probe("kitchen");
    let (waiter, to_kitchen) = (Address::new(8), kitchen.recipient());
    harness.start_actor(Spec::actor("waiter", waiter.clone(), move || {
        Ok(Waiter { kitchen: to_kitchen.clone(), taken: 0 })
    }));
    harness.healthy("node/waiter", 1).await;
    let order = |dish: &str| {
        let dish = dish.to_owned();
        waiter.ask(WAIT_LIMIT, |reply| WaiterMsg::Order { dish, reply })
    };

    assert_eq!(order("soup").await, Ok(1));
    let dish = kitchen.expect("the order", |KitchenMsg::Cook { dish }| Some(dish)).await;
    assert_eq!(dish, "soup");

    harness.crash("node/waiter", CrashHow::Panic);
    harness.healthy("node/waiter", 2).await;
    assert_eq!(order("fish").await, Ok(1));
    kitchen.until("the fish", |KitchenMsg::Cook { dish }| dish == "fish").await;
    kitchen.expect_none(Duration::from_secs(3600)).await;
    harness.finish().await;
}
