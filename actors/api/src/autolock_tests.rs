use muster_messages::wire::Request;
use muster_messages::{Principal, Tables};

use crate::tests::{World, tables};

/// A repeated request makes a key in vain: the answer shows the one that counts.
#[tokio::test]
async fn repeated_rotation_answers_with_the_first_key() {
    let apply = |tables: &mut Tables, command: &_| {
        let at = tables.revision.next();
        let outcome = muster_store::apply(tables, at, command);
        Some(outcome)
    };
    let world = World::with(tables(), apply);
    let (_, on, _) = world.native(&Principal::Operator, Request::AutolockOn).await;
    assert_eq!(on["changed"], true);
    let (_, again, proposed) = world.native(&Principal::Operator, Request::AutolockOn).await;
    assert_eq!(proposed.len(), 1, "it is proposed again");
    assert_eq!(again["key"], on["key"]);
    assert!(!format!("{proposed:?}").contains(on["key"].as_str().unwrap()), "proposals hide the key");
}
