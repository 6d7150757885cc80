//! All kinds of faults at once, then calm: acknowledged writes are there, definitely refused ones are not.

use muster_messages::protocol::ProposeError;
use muster_messages::{Member, MembershipChangeKind, RaftRole};

use super::world::*;
use crate::core::{Answer, AskId, Input};

const STORMS: u64 = 24;

struct Asked {
    ask: AskId,
    key: String,
    node: usize,
    life: usize,
}

fn storm(seed: u64) {
    storm_in(World::seeded(seed), seed);
}

fn storm_in(mut w: World, seed: u64) {
    w.config.snapshot_entries = 20 + seed % 60;
    w.config.keep_entries = seed % 10;
    w.grow(if seed.is_multiple_of(3) { 5 } else { 3 });
    let nodes: Vec<usize> = w.nodes.keys().copied().collect();
    let mut crashes = vec![0; nodes.len() + 1];
    let mut asked: Vec<Asked> = Vec::new();
    let mut others = Vec::new();
    w.loss_percent = seed % 7;
    for step in 0..120 {
        let n = nodes[w.rng.index(nodes.len())];
        let up = w.nodes[&n].core.is_some();
        match w.rng.index(20) {
            0 if up && w.up().count() * 2 > nodes.len() => {
                let survive = w.rng.index(4);
                w.crash(n, survive);
                crashes[n] += 1;
                for m in nodes.iter().filter(|m| **m != n) {
                    if w.nodes[m].core.is_some() && w.rng.one_in(2) {
                        w.tell(*m, Input::LeaderGone { node: node_id(n) });
                    }
                }
            }
            1 | 2 if !up => w.restart(n),
            3 => w.isolate(n),
            4 | 5 => w.clear_faults(),
            6 if up => w.nodes.get_mut(&n).unwrap().disk_takes = None,
            7 | 8 => {
                w.nodes.get_mut(&n).unwrap().disk_takes = Some(ms(1 + step % 9));
                w.start_sync(n);
            }
            9 if up => {
                let ask = w.ask();
                w.tell(n, Input::TransferLeadership { ask, to: None });
                others.push((ask, n, crashes[n]));
            }
            10 if up => {
                let ask = w.read(n);
                others.push((ask, n, crashes[n]));
            }
            11 => {
                if let Some(l) = w.leading() {
                    let members: Vec<_> = w.core(l).tables().members.values().cloned().collect();
                    let pick = members[w.rng.index(members.len())].clone();
                    let free = nodes.iter().find(|n| !members.iter().any(|m| m.node == node_id(**n)));
                    // As the role manager does: a learner becomes a voter once it has caught up.
                    let caught_up = |m: &&Member| w.member_id(World::number_of(m.node)) == Some(m.raft_id);
                    let learner = members.iter().find(|m| !m.voter);
                    let raft_id = w.core(l).tables().next_raft_id;
                    let kind = match (learner, free) {
                        (Some(m), _) if caught_up(&m) => {
                            MembershipChangeKind::PromoteLearner { node: m.node, raft_id: m.raft_id }
                        }
                        (Some(m), _) => MembershipChangeKind::Remove { raft_id: m.raft_id },
                        (_, Some(n)) => {
                            MembershipChangeKind::AddLearner { node: node_id(*n), raft_id, addr: "x:1".into() }
                        }
                        _ => MembershipChangeKind::Remove { raft_id: pick.raft_id },
                    };
                    let ask = w.propose_membership(l, kind);
                    others.push((ask, l, crashes[l]));
                }
            }
            _ => {
                let leads = w.up().find(|(_, c)| c.status(w.now).role == RaftRole::Leader).map(|(n, _)| n);
                for _ in 0..1 + w.rng.index(7) {
                    let target = if w.rng.one_in(4) { Some(n).filter(|_| up) } else { leads };
                    let Some(target) = target else { continue };
                    let key = format!("k{}", asked.len());
                    let within = ms(200 + w.rng.sample() % 4000);
                    let ask = w.propose_within(target, label(&key, "1"), within);
                    asked.push(Asked { ask, key, node: target, life: crashes[target] });
                }
            }
        }
        let pause = w.rng.sample() % 150;
        w.run(ms(pause));
    }
    if seed.is_multiple_of(2) {
        // Power loss on all members, in the middle of it.
        let leads = w.leading();
        for _ in 0..if leads.is_some() { 20 } else { 0 } {
            let (target, key) = (leads.expect("there is a leader"), format!("k{}", asked.len()));
            let ask = w.propose(target, label(&key, "1"));
            asked.push(Asked { ask, key, node: target, life: crashes[target] });
            w.run(ms(1));
        }
        for n in nodes.iter().filter(|n| w.nodes[n].core.is_some()).copied().collect::<Vec<_>>() {
            w.crash(n, 0);
            crashes[n] += 1;
        }
    }
    w.loss_percent = 0;
    for n in &nodes {
        w.nodes.get_mut(n).unwrap().disk_takes = Some(ms(1));
        w.start_sync(*n);
        if w.nodes[n].core.is_none() {
            w.restart(*n);
        }
    }
    w.clear_faults();
    w.run(ms(8000));
    w.until("it converges", |w| w.leading().is_some());
    let l = w.leading().unwrap();
    let last = w.propose(l, label("calm", "1"));
    let at = w.applied(last);
    let members: Vec<usize> = w.core(l).tables().members.values().map(|m| World::number_of(m.node)).collect();
    w.until("all members agree", |w| members.iter().all(|n| w.core(*n).tables().revision >= at));
    for a in &asked {
        let alive = crashes[a.node] == a.life;
        let there = w.label(l, &a.key).is_some();
        match w.answer(a.ask) {
            None => assert!(!alive, "seed {seed}: {:?} was never answered", a.ask),
            Some(Answer::Proposed(_, Ok(_))) => assert!(there, "seed {seed}: {} was acknowledged but is lost", a.key),
            Some(Answer::Proposed(_, Err(e))) => {
                use ProposeError::{Busy, MembershipBusy, NotLeader, Refused, TooLarge};
                let certain = matches!(e, NotLeader { .. } | Busy | MembershipBusy | TooLarge { .. } | Refused(_));
                assert!(!(certain && there), "seed {seed}: {} was refused with {e} but is there", a.key);
            }
            other => panic!("{other:?}"),
        }
    }
    for (ask, n, life) in others {
        assert!(w.answer(ask).is_some() || crashes[n] != life, "seed {seed}: {ask:?} was never answered");
    }
}

#[cfg(feature = "bug-injection")]
#[test]
fn storm_detects_acknowledgement_before_sync() {
    let survives = |seed| {
        let mut w = World::seeded(seed);
        w.config.bugs.ack_before_sync = true;
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| storm_in(w, seed))).is_ok()
    };
    assert!(!(0..STORMS).all(survives));
}

#[test]
fn storms_keep_acknowledged_and_drop_refused_writes() {
    (0..STORMS).for_each(storm);
}
