//! Each actor of a reconciler crashes everywhere: before and after each message, and before and after each thing that it does.

use std::time::Duration;

use muster_kernel::Fuse;
use muster_tests::at_every_point;

use crate::cluster::World;
use crate::fleet::{Commands, Node, digested, objects, schema};
use crate::nodes::is_done;

/// A command is run and a set of objects is made, while an actor of the one, or of the other, crashes.
async fn both_are_done(actor: &str, of: &str, fuse: Fuse) {
    let (world, commands) = (World::new(), Commands::default());
    commands.with(|ledger| ledger.takes = Duration::from_secs(3));
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
    world.with(|judge| judge.define(digested(objects("1.0.0", &[("foo", "1")]))));
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    let path = format!("node/reconcilers/{of}/{actor}");
    world.until("it is there", |_| node.tree.arm(&path, fuse.clone()).is_ok()).await;
    for name in ["schema", "things"] {
        world.until("it is done", |judge| is_done(judge, name, "1.0.0")).await;
    }
    world
        .stays("done once, by one term each", 30, |judge| {
            let terms = ["schema", "things"].map(|name| judge.runner(name).map(|(_, term)| term.0));
            let begun = commands.with(|ledger| ledger.begun.clone());
            begun == [("n1".to_owned(), 1, 1)] && terms == [Some(1); 2] && judge.objects("things").keys().eq(["foo"])
        })
        .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn wherever_its_actors_crash_an_action_is_begun_once_and_its_end_is_written() {
    for of in ["schema", "things"] {
        for actor in ["participants", "candidates", "elect", "run"] {
            let points = at_every_point(async |fuse| both_are_done(actor, of, fuse).await).await;
            println!("{of}/{actor}: {points} crash points");
            assert!(points > 10, "{of}/{actor}: there were {points} crash points");
        }
    }
}
