//! A link and its managers, which are a few lines each, joined by in-memory pipes.

use super::*;

/// What a manager does with a question.
#[derive(Clone, Copy)]
enum Manner {
    /// Answers with its own name.
    Answers,
    Frozen,
    /// Hangs up.
    HangsUp,
    Refuses(ErrorCode),
}

/// Managers in turns, and whom it was connected to.
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

const PATIENCE: Duration = Duration::from_secs(4);

async fn ask(link: &Link) -> Result<String, ErrorCode> {
    link.request(Request::CaShow, PATIENCE).await.map_err(|body| body.code)
}

#[tokio::test(start_paused = true)]
async fn one_connection_carries_many_questions() {
    let fleet = Fleet::new([Manner::Answers]);
    let link = Link::new(fleet.clone());
    let answers = futures_util::future::join_all((0..100).map(|_| ask(&link))).await;
    assert!(answers.iter().all(|answer| *answer == Ok("manager 0".into())));
    assert_eq!(fleet.dialled(), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_question_lost_with_its_connection_is_put_to_the_next_manager() {
    let fleet = Fleet::new([Manner::HangsUp, Manner::Answers]);
    let link = Link::new(fleet.clone());
    assert_eq!(ask(&link).await, Ok("manager 1".into()));
    assert_eq!(ask(&link).await, Ok("manager 1".into()), "and it stays there");
    assert_eq!(fleet.dialled(), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_manager_costs_a_part_of_the_patience() {
    let fleet = Fleet::new([Manner::Frozen, Manner::Answers]);
    let link = Link::new(fleet.clone());
    let asked = Instant::now();
    assert_eq!(ask(&link).await, Ok("manager 1".into()));
    assert_eq!(asked.elapsed().as_millis() / 10, 100, "a quarter of four seconds");
    assert_eq!(ask(&link).await, Ok("manager 1".into()));
    assert_eq!(asked.elapsed().as_millis() / 10, 100, "and only once");
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_cannot_answer_sends_us_on_and_a_refusal_does_not() {
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
async fn when_all_are_silent_the_patience_ends_it() {
    let link = Link::new(Fleet::new([Manner::Frozen]));
    let asked = Instant::now();
    assert_eq!(ask(&link).await, Err(ErrorCode::TimedOut));
    assert!(asked.elapsed() >= PATIENCE && asked.elapsed() < PATIENCE + Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn a_watch_may_be_silent_as_long_as_it_said() {
    let fleet = Fleet::new([Manner::Frozen, Manner::Answers]);
    let link = Link::new(fleet.clone());
    let lease = muster_messages::wire::LeaseRef { namespace: "default".into(), name: "a".into() };
    let request = LeaseRequest::Watch { lease, seen: muster_messages::Revision(1), wait_ms: 15_000 };
    let asked = Instant::now();
    assert_eq!(link.ask(request, Duration::from_secs(17)).await.unwrap(), "manager 1");
    assert!(asked.elapsed() >= Duration::from_millis(15_500) && fleet.dialled() == [0, 1]);
}
