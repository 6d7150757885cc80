//! The typed client: its watch continues at another manager, with nothing missed or repeated.

use std::time::Duration;

use muster_client::{Client, EventView, EventsView, Identity, Target};
use muster_messages::Revision;
use rustix::process::Signal;

use crate::harness::{WAIT_LIMIT, World};

/// Follows until an event says `text`. What cannot be answered at the moment is asked again, from the same position.
async fn follow(client: &Client, since: Revision, text: &str, seen: &mut Vec<EventView>) -> Revision {
    let mut watch = client.watch_events(since);
    let reading = async {
        loop {
            match watch.next::<EventView>().await {
                Ok(page) => {
                    let found = page.items.iter().any(|event| event.after.as_ref().is_some_and(|it| it.contains(text)));
                    seen.extend(page.items);
                    if found {
                        return watch.position();
                    }
                }
                Err(failure) => assert!(failure.may_pass(), "{failure}"),
            }
        }
    };
    tokio::time::timeout(WAIT_LIMIT, reading).await.unwrap_or_else(|_| panic!("no event says {text:?}"))
}

/// Each manager is killed, and the first one frozen, while the watch may be connected to it.
#[test]
#[ignore = "full tier"]
fn event_watch_of_a_client_continues_at_another_manager() {
    let mut world = World::with(3, 0);
    let file = world.folder().join("ann.json");
    world.muster(&["user", "create", "ann", "--admin", "--out", file.to_str().expect("text")]).ended(0);
    let identity = Identity::read(&file).expect("an identity file");
    let dialer = Box::new(identity.dialer().expect("an identity"));
    let target = Target::Managers { dialer, managers: identity.managers.clone() };
    let mut client = Client::to(target, Duration::from_secs(3));

    let start = world.wait_for(client.nodes()).expect("an answer").revision;
    let (mut position, mut seen) = (start, Vec::new());
    // Each write has an event.
    let write = |world: &World, by: &str| {
        let made = world.muster_insists_at(by, &["token", "create", "--role", "worker"]);
        format!("worker token {}", made["id"].as_str().expect("an id"))
    };
    for (round, name) in ["n1", "n2", "n3", "n1"].into_iter().enumerate() {
        let by = world.other_than(&[name]);
        let freezes = round == 3;
        if freezes {
            world.node(name).freeze();
        } else {
            world.node(name).kill();
        }
        let text = write(&world, &by);
        // A clone has its own connection, and begins where the one before has stopped.
        position = world.wait_for(follow(&client, position, &text, &mut seen));
        if freezes {
            world.node(name).signal(Signal::CONT);
        } else {
            world.node(name).start(&[]).ready();
        }
    }

    let all: EventsView<EventView> = world
        .wait_for(client.ask(muster_messages::wire::Request::Events { since: start, wait_ms: 0 }))
        .expect("an answer");
    assert!(!all.more, "one page has all");
    let upto: Vec<EventView> = all.items.into_iter().filter(|event| event.revision <= position).collect();
    assert_eq!(seen, upto, "each once and in order");

    let ahead = world.wait_for(client.watch_events(Revision(u64::MAX / 2)).next::<EventView>());
    let refused = ahead.expect_err("no cluster has come so far");
    assert!(refused.is(muster_messages::ErrorCode::Expired), "{refused}");
}
