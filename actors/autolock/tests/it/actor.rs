//! The actor itself under a real supervisor, with a keyring on disk: crashed at each step.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_autolock::{AutolockShell, FollowFault, Followed, KeyringPort, Msg, OnDisk, Ports, SealedFiles};
use muster_kernel::{Address, Fuse, Spec};
use muster_messages::protocol::{LeaderCalls, PeerAnswer};
use muster_messages::wire::PeerCall;
use muster_messages::*;
use muster_sealing::{Keys, KeysStatus, UnlockKey};
use muster_testkit::{ActorHarness, at_every_point};
use tokio::sync::watch;

use crate::world::{apply, autolock, founded, me};

const PATH: &str = "node/manager/autolock";

type Publish = Arc<watch::Sender<Arc<Replica>>>;

fn publish(to: &Publish, tables: &Tables) {
    to.send_replace(Arc::new(Replica { tables: tables.clone(), raft: RaftStatus::default() }));
}

/// The log of one manager, which leads: reports are applied, and the replica follows.
struct Leader {
    log: Arc<Mutex<Tables>>,
    publish: Publish,
    reports: Arc<Mutex<usize>>,
}

impl Leader {
    fn new() -> Self {
        let log = founded();
        let publish = Arc::new(watch::Sender::new(Arc::default()));
        super::actor::publish(&publish, &log);
        Self { log: Arc::new(Mutex::new(log)), publish, reports: Arc::default() }
    }

    fn calls(&self) -> Arc<dyn LeaderCalls> {
        let (log, publish, reports) = (Arc::clone(&self.log), Arc::clone(&self.publish), Arc::clone(&self.reports));
        Arc::new(move |call: PeerCall| -> PeerAnswer {
            let PeerCall::ReportSeal(seal) = call else { panic!("{call:?}") };
            *reports.lock().unwrap() += 1;
            let mut log = log.lock().unwrap();
            let result = apply(&mut log, autolock(AutolockChange::Sealed { node: me(), seal }));
            super::actor::publish(&publish, &log);
            Box::pin(async move { result.map(|()| Vec::new()).map_err(ErrorBody::from) })
        })
    }

    fn change(&self, change: AutolockChange) -> Revision {
        let mut log = self.log.lock().unwrap();
        apply(&mut log, autolock(change)).unwrap();
        publish(&self.publish, &log);
        log.autolock.version
    }

    /// Waits until the manager's report of this version is on record.
    async fn on_record(&self, version: Revision) {
        let mut replica = self.publish.subscribe();
        let reported = |replica: &Arc<Replica>| {
            replica.tables.autolock.seals.get(&me()).is_some_and(|report| report.seal.version == version)
        };
        let waited = tokio::time::timeout(Duration::from_secs(600), replica.wait_for(reported)).await;
        waited.expect("it reports in time").unwrap();
    }
}

/// Files that follow the keyring at once.
struct Sealed;

impl SealedFiles for Sealed {
    fn seal_all(&self) -> bool {
        true
    }
}

fn new_key() -> Secret {
    Secret::new(UnlockKey::new().to_text().as_str())
}

async fn start(leader: &Leader, keyring: Arc<dyn KeyringPort>) -> ActorHarness {
    let harness = ActorHarness::at("node/manager").await;
    let ports = Ports { me: me(), keyring, leader: leader.calls(), replica: leader.publish.subscribe() };
    let address: Address<Msg> = Address::new(8);
    harness.start_actor(Spec::actor("autolock", address, move || Ok(AutolockShell::new(ports.clone()))));
    harness
}

fn keyring(folder: &Path) -> (Keys, Arc<dyn KeyringPort>) {
    let keys = Keys::open(folder).unwrap();
    keys.ensure().unwrap();
    (keys.clone(), Arc::new(OnDisk { keys, unlock: AutoUnlock::File, files: Arc::new(Sealed) }))
}

async fn key_is_enabled_rotated_and_disabled(fuse: Fuse) {
    let folder = tempfile::tempdir().unwrap();
    let (keys, port) = keyring(folder.path());
    let leader = Leader::new();
    let mut harness = start(&leader, port).await;
    harness.healthy(PATH, 1).await;
    harness.crash_at(PATH, &fuse);
    for change in
        [AutolockChange::Enable { key: new_key() }, AutolockChange::Rotate { key: new_key() }, AutolockChange::Disable]
    {
        let sealed = change != AutolockChange::Disable;
        let version = leader.change(change);
        leader.on_record(version).await;
        assert_eq!(keys.status(), KeysStatus::Open { version: version.0, sealed });
    }
    let report = leader.log.lock().unwrap().autolock.seals[&me()];
    assert_eq!(report.seal.unlock, AutoUnlock::File);
    harness.finish().await;
}

/// The disk is not part of the paused time: it is real.
#[tokio::test]
async fn keyring_follows_wherever_the_actor_crashes() {
    let points = at_every_point(key_is_enabled_rotated_and_disabled).await;
    assert!(points > 8, "there were {points} crash points");
}

#[tokio::test]
async fn next_start_needs_the_key_of_the_reported_version() {
    let folder = tempfile::tempdir().unwrap();
    let (_, port) = keyring(folder.path());
    let leader = Leader::new();
    let harness = start(&leader, port).await;
    let (first, second) = (new_key(), new_key());
    leader.on_record(leader.change(AutolockChange::Enable { key: first.clone() })).await;
    let version = leader.change(AutolockChange::Rotate { key: second.clone() });
    leader.on_record(version).await;
    harness.finish().await;
    let locked = Keys::open(folder.path()).unwrap();
    assert_eq!(locked.status(), KeysStatus::Locked { version: version.0 });
    let parsed = |key: &Secret| UnlockKey::parse(key.expose()).unwrap();
    assert!(locked.unlock(&parsed(&first)).is_err());
    locked.unlock(&parsed(&second)).unwrap();
}

/// A keyring whose writes fail, until it is repaired.
struct Failing(Mutex<Option<FollowFault>>);

impl KeyringPort for Failing {
    fn follow(&self, _: Revision, _: Option<&Secret>) -> Result<Followed, FollowFault> {
        self.0.lock().unwrap().clone().map_or(Ok(Followed::Written), Err)
    }
    fn seal_files(&self) -> bool {
        true
    }
    fn unlocks_by(&self) -> AutoUnlock {
        AutoUnlock::None
    }
}

#[tokio::test(start_paused = true)]
async fn view_shows_why_the_keyring_stays_behind() {
    let failing = Arc::new(Failing(Mutex::new(Some(FollowFault::Failed("no space left".to_owned())))));
    let leader = Leader::new();
    let mut harness = start(&leader, Arc::clone(&failing) as Arc<dyn KeyringPort>).await;
    harness.expects_error("the keyring cannot take the unlock key");
    let version = leader.change(AutolockChange::Enable { key: new_key() });
    harness
        .until(PATH, "retrying", |actor| actor.view["state"] == "retrying" && actor.view["fault"] == "no space left")
        .await;
    *failing.0.lock().unwrap() = None;
    leader.on_record(version).await;
    harness.until(PATH, "current", |actor| actor.view["state"] == "current" && actor.view["fault"].is_null()).await;
    *failing.0.lock().unwrap() = Some(FollowFault::OtherKey(version));
    leader.change(AutolockChange::Rotate { key: new_key() });
    harness.until(PATH, "a fault", |actor| actor.view["state"] == "fault").await;
    harness.finish().await;
}

/// A directory of an earlier build: its manager has to be restarted first.
#[tokio::test(start_paused = true)]
async fn manager_without_a_keyring_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys::open(folder.path()).unwrap();
    let leader = Leader::new();
    let harness =
        start(&leader, Arc::new(OnDisk { keys: keys.clone(), unlock: AutoUnlock::None, files: Arc::new(Sealed) }))
            .await;
    let version = leader.change(AutolockChange::Enable { key: new_key() });
    harness
        .until(PATH, "a reason", |actor| actor.view["fault"].as_str().is_some_and(|why| why.contains("restarted")))
        .await;
    keys.ensure().unwrap();
    leader.on_record(version).await;
    harness.finish().await;
}
