//! A link and its managers, of a few lines each, joined by in-memory pipes.

use super::*;

/// How a manager treats a request.
#[derive(Clone, Copy)]
enum Manner {
    /// Answers with its own name.
    Answers,
    Frozen,
    /// Closes the connection.
    HangsUp,
    Refuses(ErrorCode),
}

/// Managers in turn, and the order in which they were dialled.
struct Fleet {
    manners: Vec<Manner>,
    dialled: Mutex<Vec<usize>>,
}

impl Fleet {
    fn new(manners: impl IntoIterator<Item = Manner>) -> Arc<Self> {
        Arc::new(Self { manners: manners.into_iter().collect(), dialled: Mutex::default() })
    }
    fn dialled(&self) -> Vec<usize> {
        locked(&self.dialled).clone()
    }
}

impl Connect for Arc<Fleet> {
    fn connect(&self) -> BoxFuture<'static, Result<Framed<BoxStream>, ErrorBody>> {
        let place = locked(&self.dialled).len() % self.manners.len();
        locked(&self.dialled).push(place);
        let manner = self.manners[place];
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move {
            let mut frames = Framed::new(theirs);
            while let Ok(Some(call)) = frames.recv::<ApiCall>().await {
                let result = match manner {
                    Manner::Answers => Ok(format!("manager {place}")),
                    Manner::Frozen => continue,
                    Manner::HangsUp => return,
                    Manner::Refuses(code) => Err(ErrorBody::new(code, "no")),
                };
                frames.send(&ApiAnswer { id: call.id, result }).await.unwrap();
            }
        });
        async move { Ok(Framed::new(Box::pin(ours) as BoxStream)) }.boxed()
    }
}

const TIMEOUT: Duration = Duration::from_secs(4);

async fn ask(link: &Link) -> Result<String, ErrorCode> {
    link.request(Request::CaShow, TIMEOUT).await.map_err(|body| body.code)
}

#[tokio::test(start_paused = true)]
async fn one_connection_carries_many_requests() {
    let fleet = Fleet::new([Manner::Answers]);
    let link = Link::new(fleet.clone());
    let answers = futures_util::future::join_all((0..100).map(|_| ask(&link))).await;
    assert!(answers.iter().all(|answer| *answer == Ok("manager 0".into())));
    assert_eq!(fleet.dialled(), [0]);
}

#[tokio::test(start_paused = true)]
async fn request_lost_with_its_connection_goes_to_next_manager() {
    let fleet = Fleet::new([Manner::HangsUp, Manner::Answers]);
    let link = Link::new(fleet.clone());
    assert_eq!(ask(&link).await, Ok("manager 1".into()));
    assert_eq!(ask(&link).await, Ok("manager 1".into()), "it stays on that connection");
    assert_eq!(fleet.dialled(), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn frozen_manager_costs_a_part_of_the_timeout() {
    let fleet = Fleet::new([Manner::Frozen, Manner::Answers]);
    let link = Link::new(fleet.clone());
    let asked = Instant::now();
    assert_eq!(ask(&link).await, Ok("manager 1".into()));
    assert_eq!(asked.elapsed().as_millis() / 10, 100, "a quarter of four seconds");
    assert_eq!(ask(&link).await, Ok("manager 1".into()));
    assert_eq!(asked.elapsed().as_millis() / 10, 100, "and only once");
}

#[tokio::test(start_paused = true)]
async fn unable_manager_is_skipped_but_a_refusal_is_final() {
    for code in [ErrorCode::NoQuorum, ErrorCode::NotAManager] {
        let link = Link::new(Fleet::new([Manner::Refuses(code), Manner::Answers]));
        assert_eq!(ask(&link).await, Ok("manager 1".into()));
    }
    let fleet = Fleet::new([Manner::Refuses(ErrorCode::Conflict), Manner::Answers]);
    let link = Link::new(fleet.clone());
    assert_eq!(ask(&link).await, Err(ErrorCode::Conflict));
    assert_eq!(fleet.dialled(), [0]);
}

#[tokio::test(start_paused = true)]
async fn request_to_silent_managers_ends_with_its_timeout() {
    let link = Link::new(Fleet::new([Manner::Frozen]));
    let asked = Instant::now();
    assert_eq!(ask(&link).await, Err(ErrorCode::TimedOut));
    assert!(asked.elapsed() >= TIMEOUT && asked.elapsed() < TIMEOUT + Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn watch_may_be_silent_for_its_wait_time() {
    let fleet = Fleet::new([Manner::Frozen, Manner::Answers]);
    let link = Link::new(fleet.clone());
    let lease = muster_messages::wire::LeaseRef { namespace: "default".into(), name: "a".into() };
    let request = LeaseRequest::Watch { lease, seen: muster_messages::Revision(1), wait_ms: 15_000 };
    let asked = Instant::now();
    assert_eq!(link.ask(request, Duration::from_secs(17)).await.unwrap(), "manager 1");
    assert!(asked.elapsed() >= Duration::from_millis(15_500) && fleet.dialled() == [0, 1]);
}
