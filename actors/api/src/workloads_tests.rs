use muster_messages::wire::{ApiCall, Request};
use muster_messages::{ErrorBody, ErrorCode, Principal, RequestId, WorkloadEntry, WorkloadSelector};

use crate::tests::{World, node, tables};

async fn explained(world: &World, caller: Principal) -> Result<String, ErrorBody> {
    let call =
        ApiCall { id: 0, request_id: RequestId(0), timeout_ms: 5_000, request: Request::WorkloadExplain { pid: 7 } };
    world.service.answer(caller, call).await
}

#[tokio::test]
async fn processes_are_explained_to_their_own_node_only() {
    let world = World::new();
    for caller in [node(2), Principal::Admin("ada".parse().unwrap()), Principal::Reader("eye".parse().unwrap())] {
        assert_eq!(explained(&world, caller).await.unwrap_err().code, ErrorCode::Forbidden);
    }
    for caller in [Principal::Operator, node(1)] {
        let refusal = explained(&world, caller).await.unwrap_err();
        assert_eq!(refusal.code, ErrorCode::NotFound, "{refusal}: it serves no workloads");
    }
}

/// The first attempt was applied and its answer lost; then another request followed.
#[tokio::test]
async fn overtaken_workload_request_is_a_conflict() {
    let entry = |uid| WorkloadEntry::new("shop/web".parse().unwrap(), [WorkloadSelector::UnixUid(uid)]);
    let world = World::applying(tables());
    let set = |id: u64, uid| {
        let request = Request::WorkloadSet { entry: Box::new(entry(uid)), root: false };
        let call = ApiCall { id: 0, request_id: RequestId(id.into()), timeout_ms: 5_000, request };
        let answer = world.service.answer(Principal::Operator, call);
        async { answer.await.map(|text| text.contains("\"changed\":true")).map_err(|error| error.code) }
    };
    assert_eq!(set(1, 1000).await, Ok(true));
    assert_eq!(set(1, 1000).await, Ok(true), "the first answer again");
    assert_eq!(set(2, 1000).await, Ok(false));
    assert_eq!(set(3, 1001).await, Ok(true));
    assert_eq!(set(1, 1000).await, Err(ErrorCode::Conflict));
    let remove = Request::WorkloadRemove { name: "shop/web".parse().unwrap() };
    let call = ApiCall { id: 0, request_id: RequestId(4), timeout_ms: 5_000, request: remove };
    world.service.answer(Principal::Operator, call).await.unwrap();
    assert_eq!(set(3, 1001).await, Err(ErrorCode::Conflict));
}
