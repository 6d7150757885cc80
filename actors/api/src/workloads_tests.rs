use muster_messages::wire::{ApiCall, Request};
use muster_messages::{ErrorBody, ErrorCode, Principal, RequestId};

use crate::tests::{World, node};

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
