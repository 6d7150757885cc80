//! The actors crash everywhere: at each of their crash points, and whenever the raft member has heard of, done, or answered something.

use std::time::Duration;

use muster_kernel::Fuse;
use muster_messages::protocol::{Applied, ElectionsMsg, ProposeError, RaftMemberMsg, Renewal};
use muster_messages::*;
use muster_tests::{PATIENCE, at_every_point, at_every_point_twice, insisting};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::shell::{PATH, Stage};
use crate::world::{ONE, lease};

impl Stage {
    /// One thing that the raft member has been asked for, or a moment without any.
    async fn serve(&mut self, path: &str, fuse: &Fuse) {
        self.serve_by(path, fuse, |stage, command| stage.apply(command)).await;
    }
    /// The same, by a raft member whose proposals end as the test has it.
    async fn serve_by(
        &mut self,
        path: &str,
        fuse: &Fuse,
        propose: impl FnOnce(&mut Self, &Command) -> Result<Applied, ProposeError>,
    ) {
        tokio::select! {
            msg = self.raft.next("work for the raft member") => {
                self.universe.point(path, fuse);
                sleep(Duration::from_millis(1)).await; // a log and a quorum take some time
                match msg {
                    RaftMemberMsg::Propose { command, reply, .. } => {
                        let result = propose(self, &command);
                        self.universe.point(path, fuse);
                        let _gone = reply.send(result);
                    }
                    RaftMemberMsg::Read { reply, .. } => {
                        let _gone = reply.send(Ok(self.replica()));
                    }
                    _ => panic!("nothing else is wanted"),
                }
                self.universe.point(path, fuse);
            }
            () = sleep(Duration::from_millis(20)) => {}
        }
    }
    /// Somebody's write to a lease, past every guard of the elections.
    fn delete_lease(&mut self, name: &str) {
        self.change(Change::DeleteObject { key: lease(name), force: false });
    }
    fn holding(&self, name: &str) -> Holding {
        self.tables.objects[&lease(name)].lease().unwrap().holding
    }
    /// The contest of this path has settled on c1, which the log has made holder so often.
    async fn chose_c1(&self, contest: &str, times: usize) -> bool {
        let actor = self.universe.tree().inspect(contest).await;
        let settled = actor.is_ok_and(|actor| actor.view["holder"] == "c1" && actor.view["state"] == "settled");
        settled && self.logged("held by c1") == times
    }
    /// The candidate shows that it lives if it was asked to.
    fn answer_ping(&mut self) {
        let key =
            ObjectKey { kind: ObjectKind::LeaseCandidate, namespace: "default".to_owned(), name: "c1".to_owned() };
        let mut object = Object::clone(&self.tables.objects[&key]);
        let ObjectBody::LeaseCandidate(spec) = &mut object.body else { panic!("it is a candidate") };
        if spec.pinged > spec.renewed {
            spec.renewed = spec.pinged.map(|pinged| MicroTime(pinged.0 + 1));
            self.change(Change::UpdateObject { object: Box::new(object), write: ClientWrite::default() });
        }
    }
    /// The log's events with this in what was changed to.
    fn logged(&self, what: &str) -> usize {
        self.tables.events.iter().filter(|event| event.after.as_ref().is_some_and(|after| after.contains(what))).count()
    }
}

/// A holder that renews often enough, whatever becomes of one question. How often it was told that all is well.
fn renewing(stage: &Stage, name: &str, token: FencingToken, until: Instant) -> JoinHandle<u32> {
    let (elections, key) = (stage.elections.clone(), lease(name));
    tokio::spawn(async move {
        let mut renewed = 0;
        while Instant::now() < until {
            let make = |reply| {
                let held = vec![(key.clone(), token)];
                ElectionsMsg::Renew { session: ONE, held, deadline_ms: 500, reply }.into()
            };
            match insisting(&elections, make).await {
                Ok(renewals) => match renewals[..] {
                    [Renewal::Renewed { .. }] => renewed += 1,
                    _ => panic!("its holder has lost it: {renewals:?}"),
                },
                Err(error) => assert!(error.retry_after_ms.is_some() || error.code == ErrorCode::UnknownOutcome),
            }
            sleep(Duration::from_millis(300)).await;
        }
        renewed
    })
}

async fn one_renews_and_one_does_not(fuse: Fuse) {
    let mut stage = Stage::set().await;
    stage.universe.crash_at(PATH, &fuse);
    let token = stage.acquire("held", 2000);
    stage.acquire("left", 2000);
    let renewed = renewing(&stage, "held", token, Instant::now() + Duration::from_secs(6));
    while !renewed.is_finished() {
        stage.serve(PATH, &fuse).await;
    }
    assert!(renewed.await.unwrap() >= 10);
    assert!(!stage.holding("held").expired && stage.holding("held").token == token, "who renews keeps it");
    assert!(stage.holding("left").expired, "who does not loses it");
    assert_eq!(stage.logged(", expired"), 1, "once");
    stage.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn wherever_the_clock_crashes_who_renews_keeps_the_lease_and_who_does_not_loses_it_once() {
    let points = at_every_point(one_renews_and_one_does_not).await;
    assert!(points > 100, "there were {points} crash points");
}

#[tokio::test(start_paused = true)]
async fn wherever_the_clock_crashes_while_it_recovers_from_a_crash_the_same_holds() {
    for later in 0..4 {
        at_every_point_twice(later, one_renews_and_one_does_not).await;
    }
}

/// `below`: it is the contest that crashes, and not the clock.
async fn one_is_chosen(below: bool, fuse: Fuse) {
    let mut stage = Stage::set().await;
    if !below {
        stage.universe.crash_at(PATH, &fuse);
    }
    stage.candidate("c1");
    let contest = stage.contest().await;
    let path = if below { contest.clone() } else { PATH.to_owned() };
    if below {
        stage.universe.crash_at(&contest, &fuse);
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let actor = stage.universe.tree().inspect(&contest).await;
        let seen = format!("{actor:#?}");
        if actor.is_ok_and(|actor| actor.view["holder"] == "c1" && actor.view["state"] == "settled") {
            break;
        }
        assert!(Instant::now() < deadline, "nobody was chosen: {seen}");
        stage.serve(&path, &fuse).await;
        stage.answer_ping();
    }
    let chosen = stage.tables.objects[&lease("lk")].lease().unwrap().holding;
    assert!(chosen.token > FencingToken(0) && !chosen.expired);
    assert_eq!(stage.logged("held by c1"), 1, "chosen once");
    stage.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn wherever_a_contest_or_its_clock_crashes_one_is_chosen_once() {
    for below in [false, true] {
        let points = at_every_point(async |fuse| one_is_chosen(below, fuse).await).await;
        assert!(points > 10, "there were {points} crash points");
    }
}

/// An expiry is refused by a full log, then lies in the log while nobody knows, and its holder comes back meanwhile.
async fn an_expiry_is_in_doubt(fuse: Fuse) {
    let mut stage = Stage::set().await;
    stage.universe.crash_at(PATH, &fuse);
    let token = stage.acquire("left", 1000);
    let (mut heard, mut in_the_log) = (0, None);
    let mut serve = async |stage: &mut Stage, known: bool| {
        let propose = |stage: &mut Stage, command: &Command| {
            heard += 1;
            match heard {
                1 => return Err(ProposeError::Busy),
                2 => in_the_log = Some(command.clone()),
                _ if known => return stage.apply(command),
                _ => {}
            }
            Err(ProposeError::UnknownOutcome)
        };
        stage.serve_by(PATH, &fuse, propose).await;
        in_the_log.clone()
    };
    let command = loop {
        if let Some(command) = serve(&mut stage, false).await {
            break command;
        }
    };
    let (elections, make) = (stage.elections.clone(), move |reply| {
        let held = vec![(lease("left"), token)];
        ElectionsMsg::Renew { session: ONE, held, deadline_ms: 500, reply }.into()
    });
    let back = tokio::spawn(async move {
        loop {
            match insisting(&elections, make).await {
                Ok(renewals) if matches!(renewals[..], [Renewal::Lost { .. }]) => return,
                Ok(renewals) => panic!("it was told {renewals:?}, and its expiry may still be applied"),
                Err(_unconfirmed) => sleep(Duration::from_millis(300)).await,
            }
        }
    });
    let doubt = Instant::now() + Duration::from_secs(3);
    while Instant::now() < doubt {
        serve(&mut stage, false).await;
    }
    assert!(!back.is_finished(), "nobody knows");
    let _done_already = stage.apply(&command);
    while !back.is_finished() {
        serve(&mut stage, true).await;
    }
    back.await.unwrap();
    assert!(stage.holding("left").expired);
    assert_eq!(stage.logged(", expired"), 1, "once");
    stage.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn wherever_the_clock_crashes_no_renewal_is_granted_while_an_expiry_is_in_doubt() {
    let points = at_every_point(an_expiry_is_in_doubt).await;
    println!("{points} crash points");
    assert!(points > 50, "there were {points} crash points");
}

/// Writes of a contest are refused, meet a lease that was deleted under them, and lose their answer; then the lease is deleted
/// under its holder.
async fn a_lease_is_deleted(below: bool, fuse: Fuse) {
    let mut stage = Stage::set().await;
    if !below {
        stage.universe.crash_at(PATH, &fuse);
    }
    let (namespace, name, body) = ("default".to_owned(), "lk".to_owned(), ObjectBody::Lease(Lease::default()));
    let unheld = Object { namespace, name, meta: ObjectMeta::fresh(Uid(4)), body };
    stage.change(Change::CreateObject(Box::new(unheld)));
    stage.candidate("c1");
    let contest = stage.contest().await;
    let path = if below { contest.clone() } else { PATH.to_owned() };
    if below {
        stage.universe.crash_at(&contest, &fuse);
    }
    let mut heard = 0;
    let mut until_chosen = async |stage: &mut Stage, times: usize| {
        let deadline = Instant::now() + PATIENCE;
        while !stage.chose_c1(&contest, times).await {
            assert!(Instant::now() < deadline, "not chosen {times} times");
            let propose = |stage: &mut Stage, command: &Command| {
                if command.reason != "election: elected c1" {
                    return stage.apply(command);
                }
                heard += 1;
                match heard {
                    1 => return Err(ProposeError::Busy),
                    2 => stage.delete_lease("lk"),
                    _ => {}
                }
                let applied = stage.apply(command);
                if heard == 3 { Err(ProposeError::UnknownOutcome) } else { applied }
            };
            stage.serve_by(&path, &fuse, propose).await;
            stage.answer_ping();
        }
        stage.holding("lk").token
    };
    let first = until_chosen(&mut stage, 1).await;
    stage.delete_lease("lk");
    let second = until_chosen(&mut stage, 2).await;
    assert!(second > first, "{second} after {first}");
    for _ in 0..100 {
        stage.serve(&path, &fuse).await;
    }
    assert_eq!(stage.logged("held by c1"), 2, "chosen once for each life of the lease");
    stage.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn wherever_a_contest_or_its_clock_crashes_a_deleted_lease_is_contested_anew() {
    for below in [false, true] {
        let points = at_every_point(async |fuse| a_lease_is_deleted(below, fuse).await).await;
        println!("{points} crash points");
        assert!(points > 30, "there were {points} crash points");
    }
}

/// The leadership ends in the midst of an expiry and an election; the next one knows nothing of them.
async fn another_leads(below: bool, fuse: Fuse) {
    let mut stage = Stage::set().await;
    stage.candidate("c1");
    let contest = stage.contest().await;
    let path = if below { contest.clone() } else { PATH.to_owned() };
    stage.universe.crash_at(&path, &fuse);
    let token = stage.acquire("back", 1000);
    let mut in_the_log: Vec<Command> = Vec::new();
    let lies_there = |log: &[Command], what: &str| log.iter().any(|command| command.reason.contains(what));
    let deadline = Instant::now() + PATIENCE;
    while !lies_there(&in_the_log, "elected c1") || !lies_there(&in_the_log, "ran out") {
        assert!(Instant::now() < deadline, "never in the log, of {}", in_the_log.len());
        let propose = |stage: &mut Stage, command: &Command| {
            if command.reason == "election: are you there" {
                return stage.apply(command);
            }
            in_the_log.push(command.clone());
            Err(ProposeError::UnknownOutcome)
        };
        stage.serve_by(&path, &fuse, propose).await;
        stage.answer_ping();
    }
    stage.universe.children().stop_and_wait("elections").await;
    assert_eq!(stage.universe.tree().list(), ["node"], "nobody goes on with it");

    stage.lead().await;
    stage.universe.crash_at(PATH, &fuse);
    for command in &in_the_log {
        let refused = stage.apply(command);
        assert!(
            matches!(refused, Err(ProposeError::Refused(_))),
            "of an earlier term: {}: {refused:?}",
            command.reason
        );
    }
    let renewed = renewing(&stage, "back", token, Instant::now() + Duration::from_secs(5));
    let deadline = Instant::now() + PATIENCE;
    while !renewed.is_finished() || !stage.chose_c1(&contest, 1).await {
        assert!(Instant::now() < deadline, "it is neither renewed nor chosen");
        stage.serve(PATH, &fuse).await;
        stage.answer_ping();
    }
    assert!(renewed.await.unwrap() > 5);
    assert!(!stage.holding("back").expired);
    stage.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn wherever_a_contest_or_its_clock_crashes_a_new_leadership_starts_from_the_log_alone() {
    for below in [false, true] {
        let points = at_every_point(async |fuse| another_leads(below, fuse).await).await;
        println!("{points} crash points");
        assert!(points > 30, "there were {points} crash points");
    }
}
