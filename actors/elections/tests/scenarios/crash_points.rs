//! The actors crash everywhere: at each crash point, and whenever the raft member has received, done, or answered something.

use std::time::Duration;

use muster_kernel::Fuse;
use muster_messages::protocol::{Applied, ElectionsMsg, ProposeError, RaftMemberMsg, Renewal};
use muster_messages::*;
use muster_testkit::{WAIT_LIMIT, at_every_point, at_every_point_twice, insisting};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::shell::{PATH, Stage};
use crate::world::{ONE, lease};

impl Stage {
    /// Serves one request to the raft member, or a moment without any.
    async fn serve(&mut self, path: &str, fuse: &Fuse) {
        self.serve_by(path, fuse, |stage, command| stage.apply(command)).await;
    }
    /// The same, with a raft member whose proposals end as the test decides.
    async fn serve_by(
        &mut self,
        path: &str,
        fuse: &Fuse,
        propose: impl FnOnce(&mut Self, &Command) -> Result<Applied, ProposeError>,
    ) {
        tokio::select! {
            msg = self.raft.next("work for the raft member") => {
                self.harness.point(path, fuse);
                sleep(Duration::from_millis(1)).await; // a log and a quorum take some time
                match msg {
                    RaftMemberMsg::Propose { command, reply, .. } => {
                        let result = propose(self, &command);
                        self.harness.point(path, fuse);
                        let _gone = reply.send(result);
                    }
                    RaftMemberMsg::Read { reply, .. } => {
                        let _gone = reply.send(Ok(self.replica()));
                    }
                    _ => panic!("unexpected request"),
                }
                self.harness.point(path, fuse);
            }
            () = sleep(Duration::from_millis(20)) => {}
        }
    }
    /// A write to a lease that bypasses the guards of the elections.
    fn delete_lease(&mut self, name: &str) {
        self.change(Change::DeleteObject { key: lease(name), force: false });
    }
    fn holding(&self, name: &str) -> Holding {
        self.tables.objects[&lease(name)].lease().unwrap().holding
    }
    /// Whether this election has settled on c1, and the log has made c1 the holder this many times.
    async fn chose_c1(&self, election: &str, times: usize) -> bool {
        let actor = self.harness.tree().inspect(election).await;
        let settled = actor.is_ok_and(|actor| actor.view["holder"] == "c1" && actor.view["state"] == "settled");
        settled && self.logged("held by c1") == times
    }
    /// The candidate answers if it was pinged.
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
    /// The number of events whose new value contains this text.
    fn logged(&self, what: &str) -> usize {
        self.tables.events.iter().filter(|event| event.after.as_ref().is_some_and(|after| after.contains(what))).count()
    }
}

/// A holder that renews often enough, whatever the outcome of one request. Returns how often it was renewed.
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
                    _ => panic!("its holder lost it: {renewals:?}"),
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
    stage.harness.crash_at(PATH, &fuse);
    let token = stage.acquire("held", 2000);
    stage.acquire("left", 2000);
    let renewed = renewing(&stage, "held", token, Instant::now() + Duration::from_secs(6));
    while !renewed.is_finished() {
        stage.serve(PATH, &fuse).await;
    }
    assert!(renewed.await.unwrap() >= 10);
    assert!(!stage.holding("held").expired && stage.holding("held").token == token, "a holder that renews keeps it");
    assert!(stage.holding("left").expired, "a holder that does not renew loses it");
    assert_eq!(stage.logged(", expired"), 1, "once");
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn only_unrenewed_leases_expire_wherever_the_clock_crashes() {
    let points = at_every_point(one_renews_and_one_does_not).await;
    assert!(points > 100, "there were {points} crash points");
}

#[tokio::test(start_paused = true)]
#[ignore = "full tier"]
async fn only_unrenewed_leases_expire_if_recovery_crashes() {
    for later in 0..4 {
        at_every_point_twice(later, one_renews_and_one_does_not).await;
    }
}

/// `below`: the election crashes, not the clock.
async fn one_is_chosen(below: bool, fuse: Fuse) {
    let mut stage = Stage::set().await;
    if !below {
        stage.harness.crash_at(PATH, &fuse);
    }
    stage.candidate("c1");
    let election = stage.election().await;
    let path = if below { election.clone() } else { PATH.to_owned() };
    if below {
        stage.harness.crash_at(&election, &fuse);
    }
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        let actor = stage.harness.tree().inspect(&election).await;
        let seen = format!("{actor:#?}");
        if actor.is_ok_and(|actor| actor.view["holder"] == "c1" && actor.view["state"] == "settled") {
            break;
        }
        assert!(Instant::now() < deadline, "no candidate was chosen: {seen}");
        stage.serve(&path, &fuse).await;
        stage.answer_ping();
    }
    let chosen = stage.tables.objects[&lease("lk")].lease().unwrap().holding;
    assert!(chosen.token > FencingToken(0) && !chosen.expired);
    assert_eq!(stage.logged("held by c1"), 1, "chosen once");
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn one_candidate_is_elected_once_wherever_actors_crash() {
    for below in [false, true] {
        let points = at_every_point(async |fuse| one_is_chosen(below, fuse).await).await;
        assert!(points > 10, "there were {points} crash points");
    }
}

/// An expiry is refused by a full log, then is in the log with unknown outcome while its holder returns.
async fn an_expiry_is_in_doubt(fuse: Fuse) {
    let mut stage = Stage::set().await;
    stage.harness.crash_at(PATH, &fuse);
    let token = stage.acquire("left", 1000);
    let (mut received, mut in_the_log) = (0, None);
    let mut serve = async |stage: &mut Stage, known: bool| {
        let propose = |stage: &mut Stage, command: &Command| {
            received += 1;
            match received {
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
                Ok(renewals) => panic!("answered {renewals:?} while its expiry may still be applied"),
                Err(_unconfirmed) => sleep(Duration::from_millis(300)).await,
            }
        }
    });
    let doubt = Instant::now() + Duration::from_secs(3);
    while Instant::now() < doubt {
        serve(&mut stage, false).await;
    }
    assert!(!back.is_finished(), "the outcome is unknown");
    let _done_already = stage.apply(&command);
    while !back.is_finished() {
        serve(&mut stage, true).await;
    }
    back.await.unwrap();
    assert!(stage.holding("left").expired);
    assert_eq!(stage.logged(", expired"), 1, "once");
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn unknown_expiry_blocks_renewal_wherever_the_clock_crashes() {
    let points = at_every_point(an_expiry_is_in_doubt).await;
    println!("{points} crash points");
    assert!(points > 50, "there were {points} crash points");
}

/// Writes of an election are refused, meet a deleted lease, and lose their answer; then the lease is deleted under its holder.
async fn a_lease_is_deleted(below: bool, fuse: Fuse) {
    let mut stage = Stage::set().await;
    if !below {
        stage.harness.crash_at(PATH, &fuse);
    }
    let (namespace, name, body) = ("default".to_owned(), "lk".to_owned(), ObjectBody::Lease(Lease::default()));
    let unheld = Object { namespace, name, meta: ObjectMeta::fresh(Uid(4)), body };
    stage.change(Change::CreateObject(Box::new(unheld)));
    stage.candidate("c1");
    let election = stage.election().await;
    let path = if below { election.clone() } else { PATH.to_owned() };
    if below {
        stage.harness.crash_at(&election, &fuse);
    }
    let mut received = 0;
    let mut until_chosen = async |stage: &mut Stage, times: usize| {
        let deadline = Instant::now() + WAIT_LIMIT;
        while !stage.chose_c1(&election, times).await {
            assert!(Instant::now() < deadline, "not chosen {times} times");
            let propose = |stage: &mut Stage, command: &Command| {
                if command.reason != "election: elected c1" {
                    return stage.apply(command);
                }
                received += 1;
                match received {
                    1 => return Err(ProposeError::Busy),
                    2 => stage.delete_lease("lk"),
                    _ => {}
                }
                let applied = stage.apply(command);
                if received == 3 { Err(ProposeError::UnknownOutcome) } else { applied }
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
    assert_eq!(stage.logged("held by c1"), 2, "chosen once for each creation of the lease");
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn deleted_lease_is_contended_again_wherever_actors_crash() {
    for below in [false, true] {
        let points = at_every_point(async |fuse| a_lease_is_deleted(below, fuse).await).await;
        println!("{points} crash points");
        assert!(points > 30, "there were {points} crash points");
    }
}

/// The leadership ends during an expiry and an election; the next one knows neither.
async fn another_leads(below: bool, fuse: Fuse) {
    let mut stage = Stage::set().await;
    stage.candidate("c1");
    let election = stage.election().await;
    let path = if below { election.clone() } else { PATH.to_owned() };
    stage.harness.crash_at(&path, &fuse);
    let token = stage.acquire("back", 1000);
    let mut in_the_log: Vec<Command> = Vec::new();
    let contains_reason = |log: &[Command], what: &str| log.iter().any(|command| command.reason.contains(what));
    let deadline = Instant::now() + WAIT_LIMIT;
    while !contains_reason(&in_the_log, "elected c1") || !contains_reason(&in_the_log, "lease expired") {
        assert!(Instant::now() < deadline, "never in the log, of {}", in_the_log.len());
        let propose = |stage: &mut Stage, command: &Command| {
            if command.reason == "election: ping" {
                return stage.apply(command);
            }
            in_the_log.push(command.clone());
            Err(ProposeError::UnknownOutcome)
        };
        stage.serve_by(&path, &fuse, propose).await;
        stage.answer_ping();
    }
    stage.harness.children().stop_and_wait("elections").await;
    assert_eq!(stage.harness.tree().list(), ["node"], "no actor of the old leadership is left");

    stage.lead().await;
    stage.harness.crash_at(PATH, &fuse);
    for command in &in_the_log {
        let refused = stage.apply(command);
        assert!(
            matches!(refused, Err(ProposeError::Refused(_))),
            "of an earlier term: {}: {refused:?}",
            command.reason
        );
    }
    let renewed = renewing(&stage, "back", token, Instant::now() + Duration::from_secs(5));
    let deadline = Instant::now() + WAIT_LIMIT;
    while !renewed.is_finished() || !stage.chose_c1(&election, 1).await {
        assert!(Instant::now() < deadline, "it is neither renewed nor chosen");
        stage.serve(PATH, &fuse).await;
        stage.answer_ping();
    }
    assert!(renewed.await.unwrap() > 5);
    assert!(!stage.holding("back").expired);
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
#[ignore = "full tier"]
async fn new_leadership_starts_from_the_log_wherever_actors_crash() {
    for below in [false, true] {
        let points = at_every_point(async |fuse| another_leads(below, fuse).await).await;
        println!("{points} crash points");
        assert!(points > 30, "there were {points} crash points");
    }
}
