//! Which commands are refused while the state is full.

use muster_messages::{Change, Command, Name, Principal, Revision, Tables, User, UserKind, WallTime};
use muster_store::growth::{Growth, growth};

/// Otherwise an operator whose certificate expires could not work on a full state.
#[test]
fn renewed_user_adds_nothing() {
    let user = |name: &str, serial: &str, namespaces: &[&str]| User {
        name: name.parse::<Name>().unwrap(),
        kind: UserKind::User,
        namespaces: namespaces.iter().map(|n| (*n).to_owned()).collect(),
        serial: serial.to_owned(),
        created_at: WallTime(0),
        not_after: WallTime(0),
        revision: Revision(1),
    };
    let mut tables = Tables::default();
    let ann = user("ann", "", &["default"]);
    tables.users.insert(ann.name.clone(), ann);
    let grows = |user: User| {
        let command = Command::idempotent(WallTime(0), Principal::Operator, "test").change(Change::PutUser(user));
        growth(&tables, &command)
    };
    assert_eq!(grows(user("ann", &"a".repeat(40), &["default"])), Growth::None);
    assert_eq!(grows(user("ann", "", &["default", "other"])), Growth::Cluster);
    assert_eq!(grows(user("bob", "", &["default"])), Growth::Cluster);
}
