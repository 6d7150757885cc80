//! An actor that misbehaves on request.

use std::time::Duration;

use muster_kernel::{Address, Backoff, Cx, Fault, Named, Reply, Shell, Spec};

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    Panic(&'static str),
    Error(&'static str),
    /// Ends with a fault, and is restarted.
    Fault(&'static str),
    /// Leaves a task without an owner.
    Leak,
    /// Runs a task that ends with the actor.
    Work,
    Who(Reply<u64>),
    /// Panics in a task that is not the actor's own.
    Apart(&'static str),
}

pub struct Rogue;
impl Shell for Rogue {
    type Msg = Msg;
    const KIND: &'static str = "Rogue";
    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Panic(text) => panic!("{text}"),
            Msg::Error(text) => tracing::error!(seat = 7, "{text}"),
            Msg::Fault(text) => return Err(Fault::new(text)),
            Msg::Leak => drop(tokio::spawn(std::future::pending::<()>())),
            Msg::Work => {
                cx.after(Duration::from_secs(3600), Msg::Work);
                cx.spawn(std::future::pending());
            }
            Msg::Who(reply) => drop(reply.send(cx.incarnation())),
            Msg::Apart(text) => cx.spawn_apart(async move { panic!("{text}") }),
        }
        Ok(())
    }
}

/// The actor and its address.
pub fn rogue(name: &str) -> (Spec, Address<Msg>) {
    let address = Address::new(8);
    (Spec::actor(name, address.clone(), || Ok(Rogue)).backoff(Backoff::QUICK), address)
}
