//! The actors crash everywhere: at each of their crash points, and whenever the raft member has heard of, done, or answered something.

use std::time::Duration;

use muster_elections::Msg;
use muster_kernel::{Address, Fuse};
use muster_messages::protocol::{ElectionsMsg, RaftMemberMsg, Renewal};
use muster_messages::*;
use muster_tests::{PATIENCE, at_every_point, at_every_point_twice, insisting};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::shell::{PATH, Stage};
use crate::world::{ONE, lease};

impl Stage {
    /// One thing that the raft member has been asked for, or a moment without any.
    async fn serve(&mut self, path: &str, fuse: &Fuse) {
        tokio::select! {
            msg = self.raft.next("work for the raft member") => {
                self.universe.point(path, fuse);
                match msg {
                    RaftMemberMsg::Propose { command, reply, .. } => {
                        let result = self.apply(&command);
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
fn renewing(elections: Address<Msg>, token: FencingToken, until: Instant) -> JoinHandle<u32> {
    tokio::spawn(async move {
        let mut renewed = 0;
        while Instant::now() < until {
            let make = |reply| {
                let held = vec![(lease("held"), token)];
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
    let renewed = renewing(stage.elections.clone(), token, Instant::now() + Duration::from_secs(6));
    while !renewed.is_finished() {
        stage.serve(PATH, &fuse).await;
    }
    assert!(renewed.await.unwrap() >= 10);
    let holding = |name: &str| stage.tables.objects[&lease(name)].lease().unwrap().holding;
    assert!(!holding("held").expired && holding("held").token == token, "who renews keeps it");
    assert!(holding("left").expired, "who does not loses it");
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
