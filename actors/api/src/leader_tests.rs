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
    let mut search = LeaderSearch::new(node(1), replica, began + Duration::from_millis(100));
    assert_eq!(search.leader(), None);
    assert!(search.retry().await);
    assert_eq!(began.elapsed(), RETRY_PAUSE, "nothing changed");
    tell.send_replace(led_by(Some(node(2))));
    assert!(search.retry().await);
    assert_eq!(began.elapsed(), RETRY_PAUSE + MIN_RETRY_PAUSE);
    assert_eq!(search.leader(), Some(Leader::At(node(2))));
    tell.send_replace(led_by(Some(node(1))));
    assert_eq!(search.leader(), Some(Leader::Here));
    // The manager runtime ends: no change comes any more, and the search ends all the same.
    drop(tell);
    while search.retry().await {}
    assert_eq!(began.elapsed(), Duration::from_millis(85));
}

#[tokio::test(start_paused = true)]
async fn answer_of_a_former_leader_is_not_waited_for() {
    let (tell, replica) = watch::channel(led_by(Some(node(2))));
    let search = LeaderSearch::new(node(1), replica, Instant::now() + Duration::from_secs(10));
    assert_eq!(search.while_leading(node(2), async { 7 }).await, Some(7));
    let change = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        tell.send_replace(led_by(None));
    };
    let (answer, ()) = tokio::join!(search.while_leading(node(2), std::future::pending::<u32>()), change);
    assert_eq!(answer, None);
}
