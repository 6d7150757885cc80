//! Crashes an actor at each point at which it may crash, and counts them. Run it with
//! `cargo run -p muster-testkit --example crash_points`; the panics that it prints are the crashes.

use muster_kernel::{Address, Cx, Fault, Named, Reply, Shell, Slot, Spec};
use muster_testkit::{ActorHarness, at_every_point, insisting};

/// Sets the balance, and answers with it.
struct Deposit {
    id: u64,
    amount: u64,
    reply: Reply<u64>,
}
impl Named for Deposit {
    fn name(&self) -> &'static str {
        "deposit"
    }
}

/// The balance with the id of the last deposit: one value, so that no crash comes between the two.
struct Account(Slot<(u64, u64)>);

impl Shell for Account {
    type Msg = Deposit;
    const KIND: &'static str = "Account";

    async fn handle(&mut self, _cx: &Cx<Deposit>, deposit: Deposit) -> Result<(), Fault> {
        let (last, mut balance) = self.0.get().unwrap_or_default();
        if deposit.id > last {
            balance += deposit.amount;
            self.0.set((deposit.id, balance)); // first what the next incarnation needs, then the answer
        }
        let _gone = deposit.reply.send(balance);
        Ok(())
    }
}

/// Makes three deposits, once for each point at which the account may crash and does. Returns the number of points.
pub async fn deposits_at_every_point() -> u32 {
    at_every_point(async |fuse| {
        let mut harness = ActorHarness::start().await;
        let (address, slot) = (Address::new(8), Slot::new());
        harness.start_actor(Spec::actor("account", address.clone(), move || Ok(Account(slot.clone()))));
        harness.healthy("node/account", 1).await;
        harness.crash_at("node/account", &fuse);
        let mut balances = Vec::new();
        for (id, amount) in [(1, 100), (2, 20), (3, 3)] {
            // Repeated until it is answered: the account must not count it twice.
            balances.push(insisting(&address, |reply| Deposit { id, amount, reply }).await);
        }
        assert_eq!(balances, [100, 120, 123]);
        harness.finish().await;
    })
    .await
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let points = deposits_at_every_point().await;
    println!("every balance was right, whichever of {points} points the account crashed at");
}
