//! Members compare their states.
//!
//! Owns        the digests of this member's last states, and those of the others while it leads.
//! Inputs      applied entries, computed digests, digests of other members, the leader's decision.
//! Outputs     states to digest, packets, members whose state differs; whether this member's own does.
//! Invariants  STATE-1  a member whose state differs from that of the majority of the voters at the same revision stops serving.
//!             STATE-2  without a majority for either state no member is stopped: the difference is reported.
//! Why at all: every member applies the same entries by the same code, and a flipped bit in memory, or two builds that differ
//! in one case, would go unnoticed. Why only from feature level 3 on: an earlier build cannot read the packet. Why every few
//! thousand entries: encoding a state costs as much as a snapshot of it.

use std::collections::BTreeMap;

use muster_messages::wire::{PacketKind, RaftPacket};
use muster_messages::{IDENTITY_LEVEL, Moment, PeerProblem, PeerProblemKind, RaftId, Tables};

use super::internals::Internals;
use super::{Notice, Outbound, RaftCore, digest, packets};

type StateDigest = [u8; 32];

/// States that are remembered: a member that applies late can still compare.
const MAX_DIGESTS: usize = 4;

#[derive(Default)]
pub(crate) struct StateDigests {
    own: BTreeMap<u64, StateDigest>,
    computing: bool,
    /// Of the other members, by index and member. While leading.
    others: BTreeMap<u64, BTreeMap<u64, StateDigest>>,
    diverged: BTreeMap<u64, (u64, Moment)>,
}

/// A state to digest. Encoding it takes milliseconds to seconds, too long for a core.
#[derive(Clone, Debug)]
pub struct DigestJob {
    pub index: u64,
    pub tables: Tables,
}

impl DigestJob {
    /// Pure; run it where blocking is allowed.
    pub fn run(&self) -> StateDigest {
        digest(&muster_store::snapshot::encode(&self.tables))
    }
}

impl StateDigests {
    /// This member starts or stops leading.
    pub fn forget_others(&mut self) {
        self.others.clear();
        self.diverged.clear();
    }
    /// A snapshot replaced the applied state.
    pub fn forget_all(&mut self) {
        *self = Self { computing: self.computing, ..Self::default() };
    }
    pub fn is_diverged(&self, member: u64) -> bool {
        self.diverged.contains_key(&member)
    }
}

fn remember<T>(of: &mut BTreeMap<u64, T>) {
    while of.len() > MAX_DIGESTS {
        of.pop_first();
    }
}

impl RaftCore {
    /// Called after an entry was applied.
    pub(super) fn consider_digest(&mut self) {
        let (index, every) = (self.tables.revision.0, self.config.digest_every);
        let level = self.tables.cluster.as_ref().map_or(0, |cluster| cluster.feature_level);
        if every > 0 && index.is_multiple_of(every) && level >= IDENTITY_LEVEL && !self.digests.computing {
            self.digests.computing = true;
            self.out.digest_state = Some(DigestJob { index, tables: self.tables.clone() });
        }
    }

    /// `None`: it could not be computed.
    pub(super) fn state_digested(&mut self, now: Moment, index: u64, digest: Option<StateDigest>) {
        self.digests.computing = false;
        let Some(digest) = digest else { return };
        self.digests.own.insert(index, digest);
        remember(&mut self.digests.own);
        let Some(member) = self.member.as_ref() else { return };
        if member.raw.leads() {
            self.compare_states(now, index);
        } else if member.raw.leader_id() != raft::INVALID_ID {
            let leader = RaftId(member.raw.leader_id());
            self.send_digest(leader, index, digest, false);
        }
    }

    fn send_digest(&mut self, to: RaftId, index: u64, digest: StateDigest, wrong: bool) {
        let Some(member) = self.member.as_ref() else { return };
        let packet = packets::state_digest(member.id, to, member.raw.term(), index, digest, wrong);
        let destination = match self.tables.members.get(&to) {
            Some(m) => Some((m.node, m.addr.clone())),
            None => self.last_received.get(&to).map(|by| (by.node, String::new())),
        };
        if let Some((node, addr)) = destination {
            self.out.send.push(Outbound { node, addr, packet });
        }
    }

    /// A member reports its digest to the leader, or the leader informs a member that its digest is wrong.
    pub(super) fn handle_digest(&mut self, now: Moment, packet: &RaftPacket) -> Result<(), packets::Dropped> {
        debug_assert_eq!(packet.kind, PacketKind::StateDigest);
        let digest: StateDigest = packet.context.as_slice().try_into().map_err(|_| "ill_formed")?;
        let raw = &self.member.as_ref().expect("ensure_member leaves a member").raw;
        if packet.term != raw.term() {
            return Err("out_of_place");
        }
        if packet.reject {
            let own = self.digests.own.get(&packet.index);
            if packet.from.0 == raw.leader_id() && own.is_some_and(|own| *own != digest) {
                self.out.lost = Some(diverged_here(packet.index));
            }
            return Ok(());
        }
        if !raw.leads() || raw.tracker().get(packet.from.0).is_none() {
            return Err("out_of_place");
        }
        self.digests.others.entry(packet.index).or_default().insert(packet.from.0, digest);
        remember(&mut self.digests.others);
        self.compare_states(now, packet.index);
        Ok(())
    }

    /// STATE-1, STATE-2.
    fn compare_states(&mut self, now: Moment, index: u64) {
        let (Some(own), Some(others)) = (self.digests.own.get(&index).copied(), self.digests.others.get(&index)) else {
            return;
        };
        let Some(member) = self.member.as_ref() else { return };
        let voters = &member.raw.store().conf().voters;
        let with = |wanted: &StateDigest| {
            let has = |id: &&u64| if **id == member.id.0 { own == *wanted } else { others.get(id) == Some(wanted) };
            voters.iter().filter(has).count() * 2 > voters.len()
        };
        let wrong: Vec<u64> = others.iter().filter(|(_, theirs)| **theirs != own).map(|(id, _)| *id).collect();
        let right: Vec<u64> = others.keys().filter(|id| !wrong.contains(id)).copied().collect();
        let (own_is_right, own_is_wrong) = (with(&own), others.values().any(|theirs| *theirs != own && with(theirs)));
        for id in right {
            self.digests.diverged.remove(&id);
        }
        if own_is_wrong {
            self.out.lost = Some(diverged_here(index));
            return;
        }
        for id in wrong {
            if self.digests.diverged.insert(id, (index, now)).is_none() {
                *self.counters.entry("state_diverged").or_default() += 1;
                let node = self.node_of(RaftId(id));
                self.out.notices.push(Notice::StateDiverged { member: RaftId(id), node, index });
            }
            if own_is_right {
                self.send_digest(RaftId(id), index, own, true);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn digests_received(&self) -> usize {
        self.digests.others.values().map(BTreeMap::len).sum()
    }

    pub(super) fn divergence_of(&self, id: u64) -> Option<PeerProblem> {
        let (index, since) = self.digests.diverged.get(&id)?;
        Some(PeerProblem {
            kind: PeerProblemKind::StateDiverged,
            message: format!(
                "its state at revision {index} is not the leader's; if its data is not replaced automatically, demote it and \
                 promote it again, and report this"
            ),
            since: self.wall_of(*since),
        })
    }
}

fn diverged_here(index: u64) -> String {
    format!("the state of this manager at revision {index} is not that of the majority")
}
