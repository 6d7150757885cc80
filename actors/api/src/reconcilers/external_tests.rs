use muster_messages::{ParticipantPhase, Principal};
use serde_json::json;

use crate::tests::{World, definition, tables_of};

#[tokio::test(start_paused = true)]
async fn external_member_is_admitted_at_once_or_not_recorded() {
    let world = World::applying(tables_of(definition(vec![])));
    let announce = async |scope: &str, body: serde_json::Value| {
        world.http(&Principal::Operator, "POST", &format!("/v1/members/{scope}/legacy"), &body.to_string()).await
    };
    let recorded = || {
        let replica = world.published.borrow();
        let members = replica.tables.reconcilers.participants.values();
        members.filter(|member| member.key.is_external()).cloned().collect::<Vec<_>>()
    };
    // What it needs has not been applied.
    let (status, answer) = announce("db", json!({"release": "2.0.0", "needs": {"schema": "9.0.0"}})).await;
    assert_eq!((status, &answer["error"]["code"]), (409, &"gate_closed".into()), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().ends_with("nothing was recorded"), "{answer}");
    assert_eq!(announce("db", json!({"release": "1.9.9"})).await.0, 409);
    let (status, answer) = announce("bd", json!({"release": "2.0.0"})).await;
    assert_eq!(status, 400, "{answer}");
    for allowed in [false, true] {
        let body = json!({"release": "2.0.0", "allow_undefined_scope": allowed});
        let (status, answer) = announce("candidates.schema", body).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains("each node announces itself"), "{answer}");
    }
    assert_eq!(announce("muster", json!({"release": "2.0.0", "allow_undefined_scope": true})).await.0, 403);
    assert_eq!(announce("db", json!({"release": "2.0.0-rc.1"})).await.0, 400);
    assert!(recorded().is_empty());
    world.proposed();
    for _ in 0..2 {
        let (status, answer) = announce("db", json!({"release": "2.0.0"})).await;
        assert_eq!((status, &answer["phase"], &answer["external"]), (200, &"serving".into(), &true.into()), "{answer}");
        assert_eq!(world.proposed()[0].2.len(), 2, "announced and admitted by one entry");
    }
    let (status, answer) = announce("db", json!({"release": "2.0.1"})).await;
    assert_eq!(status, 409, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("muster member forget db/legacy"), "{answer}");
    let [only] = &recorded()[..] else { panic!("{:?}", recorded()) };
    assert_eq!((only.phase, only.release.to_string().as_str()), (ParticipantPhase::Serving, "2.0.0"));
    assert_eq!(world.http(&Principal::Operator, "DELETE", "/v1/members/db/legacy", "").await.0, 200);
    assert!(recorded().is_empty());
}
