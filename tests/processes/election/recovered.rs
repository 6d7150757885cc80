//! Candidates and commands that survive repeated recoveries of their cluster.

use muster_messages::Role;

use super::candidate::{Candidate, Entry, Leftovers};
use super::played::{ChildProgram, TermHandling, words};
use super::records::{Record, Records, one_at_a_time};
use crate::harness::{World, eventually, eventually_so};

const LEASE_FLAGS: [&str; 6] = ["--lease-duration", "3s", "--renew-deadline", "2s", "--retry-period", "400ms"];
const FORCE: &str = "--force-new-cluster";

struct Election {
    /// Declared before the world, which deletes the folder.
    candidates: Vec<Candidate>,
    _leftovers: Leftovers,
    world: World,
    records: Records,
    started: u32,
}

impl Election {
    /// Two managers, a worker whose socket all candidates use, and two candidates.
    fn begin() -> Self {
        let mut world = World::new();
        world.settings.clear();
        world.node("n1").start(&["--init"]).ready();
        for (name, role) in [("n2", Role::Manager), ("n3", Role::Worker)] {
            let (seed, token) = (world.node("n1").listen.to_string(), world.token(role));
            world.node(name).start(&["--join", &seed, "--token", &token]).ready();
        }
        world.all_settled();
        let records = Records::new(world.folder());
        let _leftovers = Leftovers(world.folder().to_owned());
        let mut election = Self { candidates: vec![], _leftovers, world, records, started: 0 };
        election.replace_ended();
        election
    }

    /// `muster elect` ends when its command has lost the lease. Keeps two candidates running.
    fn replace_ended(&mut self) {
        self.candidates.retain_mut(|candidate| candidate.ended().is_none());
        while self.candidates.len() < 2 {
            self.add_candidate();
        }
    }

    fn add_candidate(&mut self) {
        self.started += 1;
        let id = format!("c{}", self.started);
        let socket = self.world.socket("n3");
        let command =
            words(&ChildProgram::Record { folder: self.records.0.clone(), term_handling: TermHandling::Exits });
        self.candidates.push(Candidate::start(Entry {
            folder: self.world.folder(),
            id: &id,
            asks: ["--socket", socket.to_str().expect("the path is text")],
            lease: "prize",
            flags: &LEASE_FLAGS,
            command,
            clock: None,
        }));
    }

    /// Waits for a command with a greater token than any before, which is still running.
    #[track_caller]
    fn next(&mut self, after: u64, what: &str) -> Record {
        let record = eventually(what, || {
            self.replace_ended();
            self.records.newest().filter(|record| record.token > after)
        });
        eventually_so("it keeps running", || self.records.newest().is_some_and(|now| now.last() > record.started));
        record
    }

    /// The holder resigns, so that the other candidate leads with a token that no earlier state contains. A holder on a busy machine
    /// may have lost its lease, and ended, by itself.
    #[track_caller]
    fn hand_over(&mut self, from: &Record) -> Record {
        self.candidates.retain(|candidate| candidate.id != from.holder);
        self.next(from.token, "the other candidate leads")
    }
}

/// Two restores of one backup, then a forced recovery of one manager and of another, as after a wrong choice.
#[test]
#[ignore = "full tier"]
fn tokens_grow_and_holders_never_overlap_across_recoveries() {
    let mut election = Election::begin();
    let first = election.next(0, "a candidate leads");
    let file = election.world.folder().join("cluster.backup");
    let backup = file.to_str().expect("the path is text").to_owned();
    election.world.muster(&["backup", &backup]).ended(0);
    let mut holder = election.hand_over(&first);

    election.world.node("n1").kill();
    election.world.node("n2").kill();
    let address = election.world.node("n1").listen;
    for name in ["n8", "n9"] {
        election.world.node(name).listen = address;
        election.world.node(name).start(&["--restore", &backup]).ready();
        election.world.muster_at(name, &["recovery", "open"]).ended(0);
        holder = election.next(holder.token, "a candidate leads in the restored cluster");
        holder = election.hand_over(&holder);
        if name == "n8" {
            election.world.node(name).kill();
        }
    }

    election.world.node("n2").start(&[]).ready();
    election.world.is_recorded_as_ready("n9", "n2");
    election.world.muster_at("n9", &["node", "promote", "n2", "--wait=300s"]).ended(0);
    holder = election.hand_over(&holder);
    for (survivor, stopped) in [("n2", Some("n9")), ("n9", None)] {
        if let Some(stopped) = stopped {
            election.world.node(stopped).kill();
        }
        election.world.node("n2").kill();
        election.world.node(survivor).start(&[FORCE]).ready();
        holder = election.next(holder.token, "a candidate leads after a forced recovery");
        holder = election.hand_over(&holder);
    }

    let records = election.records.read();
    assert!(records.len() >= 10, "{records:?}");
    one_at_a_time(&records, &[]).expect("one command at a time, with growing tokens");
}
