//! Callers of low rank that lie: a user who may only hold leases, a worker's process, whoever has copied a certificate of yesterday.
//! They use request ids that others chose or will choose, report labels without end and names of others, and show certificates
//! that are over, or that name a grant which nobody made. What they ask for goes through the real cores; nothing of it may delay,
//! replace or undo what anybody else does.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_cert_authority::core as authority;
use muster_gateway::core::admission::{Admission, admit};
use muster_messages::protocol::Service;
use muster_messages::{
    CertIdentity, Change, Command, Guard, Name, NodeId, ObjectKey, Principal, RequestId, Revision, Role, SessionId, Uid,
};

use crate::checks::broken;
use crate::machine::{Asker, Caller, Place};
use crate::world::{Event, Universe};

pub const ADMIT_6: &str = "ADMIT-6";
pub const ADMIT_7: &str = "ADMIT-7";
pub const CERT_6: &str = "CERT-6";

/// Of a thousand new requests so many are used by somebody else first.
const STOLEN: u32 = 40;
const PATIENCE: Duration = Duration::from_secs(2);
/// Certificates of a node that are remembered. The newest two may count.
const FORMER: usize = 6;
const MAY_COUNT: usize = 2;

/// What was asked for by liars.
#[derive(Clone, Debug, Default)]
pub struct Liars {
    active: bool,
    /// Requests for a certificate, by their number.
    asks: BTreeSet<u64>,
}

impl Universe {
    pub(crate) fn start_liars(&mut self) {
        self.liars.active = true;
        self.time.after(Duration::from_millis(500), Event::Liar);
    }

    /// Something that a liar might do, at random.
    pub(crate) fn liar(&mut self) {
        let next = self.dice.millis(200, 1200);
        self.time.after(next, Event::Liar);
        let leader = self.leading().filter(|p| self.machines[*p].runs() && !self.clients.resting);
        let Some(place) = leader else { return };
        match self.dice.below(4) {
            0 => self.guess_ids(place),
            1 => self.report_lies(place),
            2 => self.show_a_former_certificate(place),
            _ => self.show_a_forged_certificate(place),
        }
    }

    // ---- request ids ----------------------------------------------------------------------------------------------

    /// Somebody has seen the id of a request that has just left, and is faster.
    pub(crate) fn steal(&mut self, request: RequestId) {
        if !self.liars.active || !self.dice.chance(STOLEN) {
            return;
        }
        if let Some(place) = self.leading().filter(|p| self.machines[*p].runs()) {
            self.totals.count("liars: request ids taken");
            self.lie_under(place, request);
        }
    }

    /// The role manager numbers what it does in a term.
    fn guess_ids(&mut self, place: Place) {
        let term = self.machines[place].half.as_ref().map_or(0, |h| h.core.replica().raft.term.0);
        self.totals.count("liars: request ids guessed");
        for n in 1..=8 {
            self.lie_under(place, RequestId((u128::from(term) << 64) | n));
        }
    }

    fn lie_under(&mut self, place: Place, request: RequestId) {
        let by = Principal::User(Name::sanitized("liar"));
        let (key, session) = (ObjectKey::lease("default", "a-liars"), SessionId(self.dice.wide()));
        let (digest, uid) = (self.dice.roll(), Uid(self.dice.wide()));
        let change = Change::AcquireLease { key, holder: "liar".to_owned(), session, duration_ms: 1000, uid };
        let command = Command::idempotent(self.wall(place), by, "a lie").with_request(request);
        let command = if self.digested(place) { command.guard(Guard::Request { digest }) } else { command };
        self.propose(place, Asker::House, command.change(change), PATIENCE);
    }

    // ---- reports --------------------------------------------------------------------------------------------------

    /// A node says that it is called like another one, and has labels without end. LABEL-1 and NAME-1 are checked of every state.
    fn report_lies(&mut self, place: Place) {
        let Some(tables) = self.machines[place].half.as_ref().map(|h| h.core.tables().clone()) else { return };
        let nodes: Vec<NodeId> = tables.nodes.keys().copied().collect();
        let (Some(node), Some(other)) = (self.dice.pick(&nodes), self.dice.pick(&nodes)) else { return };
        let (Some(record), Some(other)) = (tables.nodes.get(&node), tables.nodes.get(&other)) else { return };
        let shadows = Name::sanitized(&other.id.as_str().chars().take(8).collect::<String>());
        let name = if self.dice.chance(500) { other.name.clone() } else { shadows };
        let many = 50 + self.dice.below(300);
        let labels = (0..many).map(|n| (format!("label-{n}"), "x".repeat(100))).collect();
        let (addr, release) = (record.addr.clone(), record.release.clone());
        self.totals.count("liars: reports");
        let change = Change::Report { node, name, addr, release, labels };
        let command = Command::idempotent(self.wall(place), Principal::Node(node), "a lie").change(change);
        self.propose(place, Asker::House, command, PATIENCE);
    }

    // ---- certificates ---------------------------------------------------------------------------------------------

    /// It is kept for those who copy them.
    pub(crate) fn note_certificate(&mut self, place: Place, certificate: &CertIdentity) {
        let former = &mut self.machines[place].agent.former;
        former.push(certificate.clone());
        if former.len() > FORMER {
            former.remove(0);
        }
    }

    /// Two were issued since, so that none of the two on record is this one: the leader knows.
    fn show_a_former_certificate(&mut self, place: Place) {
        let all: Vec<Place> = (0..self.machines.len()).collect();
        let Some(whose) = self.dice.pick(&all) else { return };
        let former = self.machines[whose].agent.former.clone();
        let over = former.len().saturating_sub(MAY_COUNT);
        let Some(shown) = former.get(self.dice.below(over)).filter(|_| over > 0) else { return };
        self.totals.count("liars: former certificates shown");
        self.must_refuse(place, shown, ADMIT_7);
        let asks = self.number();
        self.liars.asks.insert(asks);
        let caller = Caller { place: whose, life: u32::MAX, ask: asks };
        let (observed, key) = (Some(Self::seen_at(whose)), self.key.clone());
        let wish = authority::NodeWish { identity: shown.clone(), observed, key };
        self.wish_for(place, caller, authority::Wish::Node(wish));
    }

    fn show_a_forged_certificate(&mut self, place: Place) {
        let Some(tables) = self.machines[place].half.as_ref().map(|h| h.core.tables().clone()) else { return };
        let nodes: Vec<NodeId> = tables.nodes.keys().copied().collect();
        let Some(node) = self.dice.pick(&nodes) else { return };
        let granted = Revision(tables.revision.0 + 1 + self.dice.roll() % 1000);
        let not_after = self.wall(place).plus(Duration::from_secs(3600));
        let name = ("f0".to_owned(), self.incarnation(place));
        let forged = crate::agents::certificate(node, Role::Manager, Some(granted), name, not_after);
        self.totals.count("liars: forged certificates shown");
        self.must_refuse(place, &forged, ADMIT_6);
    }

    /// As the gateway of a leader decides.
    fn must_refuse(&mut self, place: Place, shown: &CertIdentity, name: &'static str) {
        let Some(half) = self.machines[place].half.as_ref() else { return };
        let replica = half.core.replica();
        let here = self.here(place);
        for service in [Service::Agent, Service::Mesh, Service::Api] {
            if let Admission::Refuse(..) = admit(Some(shown), service, Some(replica), &here, self.wall(place)) {
                continue;
            }
            let detail =
                format!("n{} leads, and serves {service:?} to whoever shows certificate {}", place + 1, shown.serial);
            return self.hold_to(Err(broken(name, detail)));
        }
    }

    /// The authority has answered. True: it was a liar's request.
    pub(crate) fn liar_answered(&mut self, ask: u64, is_signed: bool) -> bool {
        if !self.liars.asks.remove(&ask) {
            return false;
        }
        if is_signed {
            let detail = "a certificate was signed for whoever showed one that was over".to_owned();
            self.hold_to(Err(broken(CERT_6, detail)));
        }
        true
    }
}
