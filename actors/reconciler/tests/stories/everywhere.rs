//! Each actor of a reconciler crashes everywhere: before and after each message, and before and after each thing that it does.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_kernel::Fuse;
use muster_tests::at_every_point;

use crate::cluster::World;
use crate::fleet::{Commands, Node, digested, objects, schema};
use crate::judge::Judge;
use crate::nodes::is_done;

/// A command is run and a set of objects is made, while an actor of the one, or of the other, crashes.
async fn both_are_done(actor: &str, of: &str, fuse: Fuse) {
    let (world, commands) = (World::new(), Commands::default());
    commands.with(|ledger| ledger.takes = Duration::from_millis(300));
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
    world.with(|judge| judge.define(digested(objects("1.0.0", &[("foo", "1"), ("bar", "2")]))));
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    let path = format!("node/reconcilers/{of}/{actor}");
    world.until("it is there", |_| node.tree.arm(&path, fuse.clone()).is_ok()).await;
    for name in ["schema", "things"] {
        world.until("it is done", |judge| is_done(judge, name, "1.0.0")).await;
    }
    let terms = |judge: &Judge| ["schema", "things"].map(|name| judge.runner(name).map(|(_, term)| term.0));
    let first = world.with(|judge| terms(judge));
    world
        .stays("done once, by one term each", 3, |judge| {
            let begun = commands.with(|ledger| ledger.begun.clone());
            let terms_begun: BTreeSet<u64> = begun.iter().map(|(_, term, _)| *term).collect();
            // One term is given up for another where whoever stands is not known of any more. Within a term it is begun once.
            let at_most = if matches!(actor, "candidates" | "elect") { 2 } else { 1 };
            let once = terms_begun.len() == begun.len() && begun.len() <= at_most;
            once && begun.last().map(|(_, term, _)| *term) == first[0]
                && terms(judge) == first
                && judge.objects("things").keys().eq(["bar", "foo"])
        })
        .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn wherever_its_actors_crash_an_action_is_begun_once_and_its_end_is_written() {
    let all = ["participants", "candidates", "elect", "run"].map(|actor| ("schema", actor));
    for (of, actor) in all.into_iter().chain([("things", "run")]) {
        let points = at_every_point(async |fuse| both_are_done(actor, of, fuse).await).await;
        println!("{of}/{actor}: {points} crash points");
        assert!(points > 10, "{of}/{actor}: there were {points} crash points");
    }
}
