use muster_messages::RaftStatus;

use super::*;

fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}

fn led_by(leader: Option<NodeId>) -> Arc<Replica> {
    let raft = RaftStatus { leader_node: leader, leading: leader == Some(node(1)), ..RaftStatus::default() };
    Arc::new(Replica { raft, ..Replica::default() })
}

#[tokio::test(start_paused = true)]
async fn leader_search_ends_in_time_and_a_new_leader_shortens_pauses() {
    let (tell, replica) = watch::channel(led_by(None));
    let began = Instant::now();
    let deadline = began + Duration::from_millis(100);
    let mut search = LeaderSearch { node: node(1), replica, deadline, begun: false };
    let elected = async {
        tokio::time::sleep(RETRY_PAUSE / 2).await;
        tell.send_replace(led_by(Some(node(2))));
    };
    let (leader, ()) = tokio::join!(search.next(), elected);
    assert_eq!((leader, began.elapsed()), (Some(node(2)), RETRY_PAUSE / 2 + MIN_RETRY_PAUSE));
    tell.send_replace(led_by(Some(node(1))));
    assert_eq!(search.next().await, Some(node(1)));
    assert_eq!(began.elapsed(), RETRY_PAUSE / 2 + 2 * MIN_RETRY_PAUSE);
    assert_eq!(search.next().await, Some(node(1)));
    assert_eq!(began.elapsed(), RETRY_PAUSE * 3 / 2 + 2 * MIN_RETRY_PAUSE, "nothing changed");
    // The manager runtime ends: no change comes any more, and the search ends all the same.
    drop(tell);
    while search.next().await.is_some() {}
    assert_eq!(began.elapsed(), Duration::from_millis(80));
}

#[tokio::test(start_paused = true)]
async fn answer_of_a_former_leader_is_not_waited_for() {
    let (tell, replica) = watch::channel(led_by(Some(node(2))));
    assert_eq!(while_leading(node(2), replica.clone(), async { 7 }).await, Some(7));
    let change = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        tell.send_replace(led_by(None));
    };
    let (answer, ()) = tokio::join!(while_leading(node(2), replica, std::future::pending::<u32>()), change);
    assert_eq!(answer, None);
}
