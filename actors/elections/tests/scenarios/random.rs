//! Random interleavings, against one property: a lease whose renewal was acknowledged is not another's, and not expired, before
//! its duration has passed since that renewal was sent.

use std::collections::BTreeMap;

use muster_elections::core::keeper::{AskId, Input, Outcome};
use muster_messages::protocol::Renewal;
use muster_messages::*;

use crate::stage::{self, DEFAULT_ELECTOR, Elector};
use crate::world::*;

struct Scenario {
    w: World,
    rng: Rng,
    /// By lease: valid until then, by the holder's clock.
    promised: BTreeMap<String, Moment>,
    asked: BTreeMap<AskId, (String, Moment)>,
    /// Commands of this leader whose outcome it has not received.
    in_log: Vec<Command>,
    acknowledged: u64,
    expired: u64,
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let (asked, promised, in_log) = Default::default();
        Self { w: World::new(), rng: Rng::seeded(seed), promised, asked, in_log, acknowledged: 0, expired: 0 }
    }
    fn name(&mut self) -> String {
        format!("l{}", self.rng.below(3))
    }
    fn receive_answers(&mut self) {
        for (ask, answer) in std::mem::take(&mut self.w.answers) {
            let (name, sent) = self.asked.remove(&ask).unwrap();
            if let Ok(&[Renewal::Renewed { expires_in_ms }]) = answer.as_deref() {
                self.acknowledged += 1;
                let until = sent + ms(expires_in_ms);
                let best = self.promised.entry(name).or_insert(until);
                *best = until.max(*best);
            }
        }
    }
    fn apply(&mut self, command: &Command) -> Outcome {
        let live: Vec<String> = (0..3).map(|n| format!("l{n}")).filter(|name| self.w.is_live(name)).collect();
        let outcome = if self.w.apply(command).is_ok() { Outcome::Applied } else { Outcome::Refused };
        for name in live {
            if !self.w.is_live(&name) {
                self.expired += 1;
                let until = self.promised.remove(&name).unwrap_or_default();
                assert!(until <= self.w.now, "{name} expired {:?} too early", until.since(self.w.now));
            }
        }
        outcome
    }
    /// One random event.
    fn random_event(&mut self) {
        match self.rng.below(12) {
            0 => {
                let name = self.name();
                let held = self.w.is_live(&name);
                if !held {
                    let (session, duration) = (SessionId(u128::from(self.rng.below(3))), 200 + self.rng.below(400));
                    self.w.acquire_unseen(&name, "x", session, duration);
                }
            }
            1..=3 => {
                let name = self.name();
                let known = self.w.tables.objects.get(&lease(&name)).and_then(|o| o.lease()).map(|l| l.holding);
                if let Some(Holding { token, session: Some(session), .. }) = known {
                    let sent = self.w.now;
                    self.w.now = self.w.now + ms(self.rng.below(3));
                    let ask = self.w.renew(&name, session, token);
                    self.asked.insert(ask, (name, sent));
                }
            }
            4 => self.w.show(),
            5 | 6 => {
                if !self.w.reads.is_empty() {
                    let at = self.rng.below(self.w.reads.len() as u64) as usize;
                    let read = self.w.reads.remove(at);
                    let result = match self.rng.below(5) {
                        0 => Err(ErrorBody::new(ErrorCode::NoQuorum, "not confirmed")),
                        _ => Ok(self.w.replica(self.w.term, true)),
                    };
                    self.w.step(Input::Read { read, result });
                }
            }
            7 if self.rng.below(3) == 0 => {
                // The log is full.
                for command in std::mem::take(&mut self.w.proposed) {
                    self.w.end(command.request, Outcome::NotTaken);
                }
            }
            7 => self.in_log.append(&mut self.w.proposed),
            8 => {
                if !self.in_log.is_empty() {
                    let command = self.in_log.remove(0);
                    let outcome = self.apply(&command);
                    let reported = if self.rng.below(3) == 0 { Outcome::Unknown } else { outcome };
                    self.w.end(command.request, reported);
                }
            }
            9 => {
                // The outcome is unknown; the command stays in the log.
                if let Some(command) = self.in_log.last() {
                    let request = command.request;
                    self.w.end(request, Outcome::Unknown);
                }
            }
            10 => match self.rng.below(20) {
                0 => self.depose(),
                1 => {
                    let entropy = u128::from(self.rng.below(u64::MAX)) << 64;
                    self.asked.clear();
                    self.w.restart(entropy);
                }
                2 => self.w.freeze(ms(self.rng.below(2000))),
                _ => {}
            },
            _ => {
                let time = ms(self.rng.below(150));
                self.w.pass(time);
            }
        }
        self.receive_answers();
    }
    /// What is in the log is applied before the next leader observes it; anything else never will be.
    fn depose(&mut self) {
        for command in std::mem::take(&mut self.in_log) {
            if self.rng.below(2) == 0 {
                self.apply(&command);
            }
        }
        self.w.term = self.w.term.next();
        let entropy = u128::from(self.rng.below(u64::MAX)) << 64;
        self.w.slot.clear();
        // Proposals of the old leader that still wait become entries of the new term.
        let late = std::mem::take(&mut self.w.proposed);
        self.asked.clear();
        self.w.restart(entropy);
        for command in late {
            let before = self.w.tables.objects.clone();
            self.apply(&command);
            assert_eq!(self.w.tables.objects, before, "the guard of the term");
        }
    }
}

#[test]
fn no_interleaving_breaks_an_acknowledged_renewal() {
    let (mut acknowledged, mut expired) = (0, 0);
    for seed in 0..400 {
        let mut scenario = Scenario::new(seed);
        for _ in 0..1500 {
            scenario.random_event();
        }
        acknowledged += scenario.acknowledged;
        expired += scenario.expired;
    }
    // Otherwise the scenarios have shown nothing.
    assert!(acknowledged > 10_000 && expired > 1_000, "{acknowledged} acknowledged, {expired} expired");
}

/// Candidates that come and go, clocks that are off by minutes, coordinators that crash and change.
#[test]
fn best_remaining_candidate_leads_after_disturbances() {
    for seed in 0..150 {
        let (mut rng, mut s, mut started) = (Rng::seeded(seed), stage::Stage::new(), 0);
        for _ in 0..60 {
            let alive: Vec<String> = s.clients.iter().filter(|(_, c)| c.alive).map(|(name, _)| name.clone()).collect();
            let some = (!alive.is_empty()).then(|| alive[rng.index(alive.len())].clone());
            match (rng.below(10), some) {
                (0 | 1, _) if alive.len() < 6 => {
                    let version = format!("1.{}.0", 28 + rng.below(4));
                    let elector = if rng.below(2) == 0 { DEFAULT_ELECTOR } else { Elector::Muster { duration: 3000 } };
                    let offset = (rng.below(600) as i64 - 300) * 1_000_000;
                    started += 1;
                    s.start_with(&format!("c{started:02}"), elector, offset, |object| {
                        let ObjectBody::LeaseCandidate(spec) = &mut object.body else { panic!("a candidate") };
                        (spec.binary_version, spec.emulation_version) = (version.clone(), version);
                    });
                }
                (2, Some(name)) => s.kill(&name),
                (3, Some(name)) => s.stop(&name),
                (4, _) => s.change_leader(),
                (5, _) if s.led && s.election.is_some() => s.crash(),
                (6, _) => s.fail = !s.fail,
                (7, _) if rng.below(4) == 0 => s.no_leader(),
                (8, Some(name)) if rng.below(3) == 0 && s.candidate(&name).is_some() => {
                    s.kill(&name);
                    s.delete_candidate(&name);
                }
                _ => {}
            }
            let time = ms(rng.below(8000));
            s.pass(time);
        }
        for pair in s.holders.windows(2) {
            let [(_, before), (_, after)] = pair else { panic!("two") };
            assert!(before.is_none() || after.is_none(), "seed {seed}: {after:?} replaced {before:?} while it held");
        }
        s.fail = false;
        if !s.led {
            s.change_leader();
        }
        s.pass(ms(120_000));
        let alive = s.clients.iter().filter(|(_, c)| c.alive);
        let versions: BTreeMap<String, String> =
            alive.filter_map(|(name, _)| Some((name.clone(), s.candidate(name)?.binary_version))).collect();
        let Some(best) = versions.values().min() else { continue };
        let holder = s.holder().unwrap_or_default();
        assert_eq!(versions.get(&holder), Some(best), "seed {seed}: {holder:?} of {versions:?}, {:?}", s.election);
    }
}
