//! The roots that hosts offer, and their acknowledgement (AGENT-13).

use muster_messages::wire::{AgentAsk, RootsOffer};

use super::*;

fn offer(generation: u64, recorded: bool) -> HostFrame {
    HostFrame::Roots(RootsOffer { generation: Revision(generation), recorded, roots: Vec::new() })
}

impl World {
    /// The generations whose roots are to be written.
    fn installs(&self) -> Vec<u64> {
        let installs = self.out.iter().filter_map(|e| match e {
            Effect::InstallRoots(offer) => Some(offer.generation.0),
            _ => None,
        });
        installs.collect()
    }
    /// The last acknowledgement sent: its id and generation.
    fn acknowledged(&self) -> Option<(u64, u64)> {
        self.out.iter().rev().find_map(|e| match e {
            Effect::Send { frame, .. } => match **frame {
                AgentFrame::Ask { id, ask: AgentAsk::TrustRoots { generation } } => Some((id, generation.0)),
                _ => None,
            },
            _ => None,
        })
    }
    fn recorded(&mut self, id: u64) {
        self.receive(HostFrame::Answer { id, result: Ok(AgentAnswer::Reported) });
    }
    fn not_installed(&mut self, generation: u64) {
        let why = "no trusted root vouches for it".to_owned();
        self.step(Input::RootsRefused { generation: Revision(generation), why });
    }
    fn offered(&mut self, generation: u64, recorded: bool) {
        self.receive(offer(generation, recorded));
    }
    /// The generations to write, while views of later revisions arrive.
    fn installed_within(&mut self, time: Duration) -> Vec<u64> {
        let (until, mut all, mut revision) = (self.now + time, Vec::new(), 10);
        while self.now < until {
            self.run_for(Duration::from_secs(5));
            all.extend(self.installs());
            revision += 1;
            self.show(view(revision, Role::Worker, 5));
            all.extend(self.installs());
        }
        all
    }
}

fn in_session() -> World {
    let mut world = World::worker();
    world.open();
    world.show(view(5, Role::Worker, 5));
    world
}

#[test]
fn roots_are_acknowledged_once_they_are_on_disk() {
    let mut world = in_session();
    world.offered(7, false);
    assert_eq!((world.installs(), world.acknowledged()), (vec![7], None), "not before they are written");
    world.step(Input::RootsInstalled(Revision(7)));
    let (id, generation) = world.acknowledged().unwrap();
    assert_eq!(generation, 7);
    world.recorded(id);
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.acknowledged(), None, "once is enough");
}

/// The cluster has recorded only what was acknowledged to it.
#[test]
fn roots_written_while_earlier_ones_are_acknowledged_follow() {
    let mut world = in_session();
    world.offered(7, false);
    world.step(Input::RootsInstalled(Revision(7)));
    let (first, _) = world.acknowledged().unwrap();
    world.offered(8, false);
    world.step(Input::RootsInstalled(Revision(8)));
    world.recorded(first);
    assert_eq!(world.acknowledged().map(|(_, generation)| generation), Some(8));
}

#[test]
fn acknowledgement_is_repeated_until_it_is_recorded() {
    let mut world = in_session();
    world.offered(7, false);
    world.step(Input::RootsInstalled(Revision(7)));
    let (first, _) = world.acknowledged().unwrap();
    let wait = Duration::from_secs(5);
    world.receive(HostFrame::Answer { id: first, result: Err(mixed_up().retry_after(wait)) });
    world.run_for(wait - Duration::from_millis(1));
    assert_eq!(world.acknowledged(), None, "not before it is asked to");
    world.run_for(Duration::from_secs(1));
    let (second, _) = world.acknowledged().expect("after a pause");
    assert!(second > first);
    // No answer, and then the session is lost with it.
    world.run_for(AgentConfig::default().sign_deadline * 2);
    assert!(world.acknowledged().is_some(), "again after the deadline");
    world.lose();
    world.open();
    world.show(view(5, Role::Worker, 5));
    let (third, generation) = world.acknowledged().expect("on the next session");
    assert_eq!(generation, 7);
    world.recorded(third);
    world.offered(7, true);
    assert_eq!((world.installs(), world.acknowledged()), (vec![], None));
}

#[test]
fn recorded_offer_is_installed_and_not_acknowledged_again() {
    let mut world = in_session();
    world.offered(7, true);
    assert_eq!(world.installs(), [7], "this process does not know what is on disk");
    world.step(Input::RootsInstalled(Revision(7)));
    assert_eq!(world.acknowledged(), None);
}

#[test]
fn earlier_offer_of_a_host_that_lags_is_ignored() {
    let mut world = in_session();
    world.offered(9, false);
    world.offered(7, false);
    assert!(world.installs().is_empty());
    world.step(Input::RootsInstalled(Revision(9)));
    assert_eq!(world.acknowledged().unwrap().1, 9);
}

#[test]
fn refused_offer_is_tried_again_with_the_next_session() {
    let mut world = in_session();
    world.offered(7, false);
    world.not_installed(7);
    assert_eq!(world.acknowledged(), None);
    world.lose();
    world.open();
    world.offered(7, false);
    assert!(world.installs().is_empty(), "a host that has shown no view does not know this node");
    world.show(view(5, Role::Worker, 5));
    world.offered(7, false);
    assert_eq!(world.installs(), [7]);
}

/// A full disk, for example: a session may last for months.
#[test]
fn refused_offer_is_tried_again_within_the_session() {
    let mut world = in_session();
    world.offered(7, false);
    world.not_installed(7);
    assert!(world.installs().is_empty(), "after a pause");
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.installs(), [7]);
    world.step(Input::RootsInstalled(Revision(7)));
    world.run_for(Duration::from_secs(60));
    assert!(world.installs().is_empty());
}

/// A holder of a stolen key offers roots of a far future.
#[test]
fn refused_offer_does_not_keep_earlier_ones_out() {
    let mut world = in_session();
    world.offered(u64::MAX, false);
    world.not_installed(u64::MAX);
    world.offered(7, false);
    assert_eq!(world.installs(), [7]);
    world.not_installed(u64::MAX);
    world.run_for(Duration::from_secs(2));
    assert!(world.installs().is_empty(), "the answer to the earlier offer is late");
    world.step(Input::RootsInstalled(Revision(7)));
    assert_eq!(world.acknowledged().unwrap().1, 7);
}

/// AGENT-10: genuine roots of other hosts are earlier, until it shows that all their views are.
#[test]
fn roots_of_an_impossible_generation_are_forgotten() {
    let mut world = in_session();
    world.offered(u64::MAX, true);
    world.step(Input::RootsInstalled(Revision(u64::MAX)));
    world.lose();
    world.open();
    world.show(view(10, Role::Worker, 5));
    world.offered(7, false); // once in a session
    assert_eq!(world.installed_within(AgentConfig::default().forget_views * 2), [7]);
    world.step(Input::RootsInstalled(Revision(7)));
    assert_eq!(world.acknowledged().unwrap().1, 7);
}

/// It must not be replaced on disk by the one before, which is written to its end.
#[test]
fn roots_that_are_forgotten_while_they_are_written_come_first() {
    let mut world = in_session();
    world.offered(u64::MAX, true);
    assert_eq!(world.installs(), [u64::MAX]);
    world.offered(7, false);
    let begun = world.installed_within(AgentConfig::default().forget_views * 2);
    assert!(begun.is_empty(), "one at a time: {begun:?}");
    world.step(Input::RootsInstalled(Revision(u64::MAX)));
    assert_eq!(world.installs(), [7]);
    world.step(Input::RootsInstalled(Revision(7)));
    assert_eq!(world.acknowledged().unwrap().1, 7);
}

/// A host offers a set once in a session.
#[test]
fn earlier_offer_is_written_once_the_later_one_is_refused() {
    let mut world = in_session();
    world.offered(u64::MAX, false);
    world.offered(7, false);
    assert!(world.installs().is_empty(), "one at a time");
    world.not_installed(u64::MAX);
    assert_eq!(world.installs(), [7]);
}

#[test]
fn later_offer_is_written_after_the_one_before() {
    let mut world = in_session();
    world.offered(7, false);
    assert_eq!(world.installs(), [7]);
    world.offered(8, false);
    world.offered(9, false);
    assert!(world.installs().is_empty(), "one at a time");
    world.step(Input::RootsInstalled(Revision(7)));
    assert_eq!(world.installs(), [9]);
    let (id, generation) = world.acknowledged().unwrap();
    world.step(Input::RootsInstalled(Revision(9)));
    assert_eq!((generation, world.acknowledged()), (7, None), "the acknowledgement in flight is answered first");
    world.recorded(id);
    assert_eq!(world.acknowledged().unwrap().1, 9);
}

/// The answer to the acknowledgement came from a leader whose entry was lost.
#[test]
fn acknowledgement_that_the_cluster_does_not_know_is_repeated() {
    let mut world = in_session();
    world.offered(7, false);
    world.step(Input::RootsInstalled(Revision(7)));
    let (id, _) = world.acknowledged().unwrap();
    world.recorded(id);
    world.lose();
    world.open();
    world.show(view(5, Role::Worker, 5));
    world.offered(7, false);
    assert_eq!(world.acknowledged().unwrap().1, 7);
}
