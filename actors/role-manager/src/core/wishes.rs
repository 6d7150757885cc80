//! Wishes: asks to change a role or to remove a node. Judged, written to the replicated state, answered once they
//! are seen there.
//!
//! Keeps  WISH-1  an accepted wish is in the replicated state before it is answered.
//!        WISH-2  wishes for one node are written one after the other, so that the last one asked is the last one written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_messages::{
    Change, Command, CommandRefusal, ErrorBody, ErrorCode, Guard, Liveness, NodeId, NodeRecord, Principal, Removal,
    RequestId, Role, Tables, removal_digest, request_digest,
};

use super::quorum::{Electorate, Gate};
use super::reachability::Required;
use super::{Answer, AskId, Effect, Moment, Now, RoleManager, Sent, StepId, not_leading, refuse};

/// What somebody wants of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wish {
    Role(Role),
    Remove { force: bool },
}

/// A wish that has not been answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Wished {
    pub ask: AskId,
    pub node: NodeId,
    pub wish: Wish,
    pub by: Principal,
    pub request: RequestId,
}

impl Wished {
    /// What was requested, told from everything else that the same id could be used for.
    pub(crate) fn digest(&self) -> u64 {
        let role = match self.wish {
            Wish::Remove { force } => return removal_digest(self.node, force),
            Wish::Role(Role::Manager) => "manager",
            Wish::Role(Role::Worker) => "worker",
        };
        request_digest(&[b"role", role.as_bytes(), self.node.as_str().as_bytes()])
    }
}

/// What becomes of a wish.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// It is so already, or was done before; true: this very request did it.
    Done {
        changed: bool,
    },
    Refused(ErrorBody),
    /// Write it down. `leaves`: the node is counted as leaving from now on.
    Write {
        command: Box<Command>,
        leaves: bool,
    },
    /// The removal is on its way: wait for its end.
    Follow,
    /// The leader is too young to refuse.
    Later,
    /// A majority of the remaining voters must respond first.
    CheckReachable(Required),
}

/// What a wish is judged by.
pub(crate) struct Court<'a> {
    pub tables: &'a Tables,
    pub electorate: &'a Electorate,
    /// Nodes that are on their way out, wishes in flight included.
    pub leaving: BTreeSet<NodeId>,
    /// Nodes that are being given a seat right now.
    pub joining: BTreeSet<NodeId>,
    pub now: Now,
}

/// Open wishes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wishes {
    /// Not decided yet: when each arrived, in that order.
    pub parked: VecDeque<(Moment, Wished)>,
    /// Proposed.
    pub sent: BTreeMap<StepId, Wished>,
    /// Accepted removals, answered when seat, record and block are done.
    pub removals: BTreeMap<NodeId, Vec<AskId>>,
    /// No wish is refused for quorum before this: a young leader has not heard everybody.
    pub fresh_until: Option<Moment>,
}

impl RoleManager {
    pub(super) fn judge_wishes(&mut self, now: Now, out: &mut Vec<Effect>) {
        if self.wishes.parked.is_empty() {
            return;
        }
        let electorate = self.electorate(now);
        let mut later = VecDeque::new();
        let mut behind = BTreeSet::new();
        while let Some((since, wished)) = self.wishes.parked.pop_front() {
            let node = wished.node;
            if behind.contains(&node) || self.kept.outbox.wish_for(node) {
                behind.insert(node);
                later.push_back((since, wished));
                continue;
            }
            match self.court(&electorate, now).judge(&wished, since) {
                Verdict::Done { changed } => out.push(match wished.wish {
                    Wish::Role(_) => Effect::Answer(wished.ask, Answer::Role(Ok(changed))),
                    Wish::Remove { .. } => Effect::Answer(wished.ask, Answer::Removed(Ok(()))),
                }),
                Verdict::Refused(error) => out.push(refuse(&wished, error)),
                Verdict::Follow => self.follow(wished, out),
                Verdict::Later => {
                    behind.insert(node);
                    later.push_back((since, wished));
                }
                Verdict::CheckReachable(required) => {
                    behind.insert(node);
                    later.push_back((since, wished));
                    self.check_reachable(now, None, required, out);
                }
                Verdict::Write { command, leaves } => {
                    let step = self.send(now, node, Sent::Wish { command, leaves }, out);
                    if self.config.answers_before_written() && matches!(wished.wish, Wish::Role(_)) {
                        out.push(Effect::Answer(wished.ask, Answer::Role(Ok(true))));
                        continue;
                    }
                    self.wishes.sent.insert(step, wished);
                }
            }
        }
        self.wishes.parked = later;
    }

    pub(super) fn court<'a>(&'a self, electorate: &'a Electorate, now: Now) -> Court<'a> {
        let tables = &self.seen.tables;
        let going = |node: &NodeId| {
            (tables.nodes.get(node))
                .is_none_or(|r| r.desired_role != muster_messages::Role::Manager || r.removing.is_some())
        };
        let leaving = electorate.nodes().filter(going).chain(self.kept.outbox.leaving()).collect();
        let proven = (self.kept.notes.nodes()).filter(|n| self.kept.notes.of(*n).proven_at(now.at).is_some());
        let joining = proven.chain(self.seats.knocks.keys().copied()).collect();
        Court { tables, electorate, leaving, joining, now }
    }

    /// Waits for the end of an accepted removal, however it was accepted.
    pub(super) fn follow(&mut self, wished: Wished, out: &mut Vec<Effect>) {
        let waiters = self.wishes.removals.entry(wished.node).or_default();
        if waiters.len() >= self.config.waiters_per_removal {
            let message = "the removal goes on; too many are waiting for its end already";
            let error = ErrorBody::new(ErrorCode::TooManyRequests, message).retry_after(self.config.retry);
            out.push(refuse(&wished, error));
        } else {
            waiters.push(wished.ask);
        }
    }

    pub(super) fn answer_removals(&mut self, out: &mut Vec<Effect>) {
        let nodes = &self.seen.tables.nodes;
        self.wishes.removals.retain(|node, asks| {
            let going_on = nodes.contains_key(node);
            if !going_on {
                out.extend(asks.drain(..).map(|ask| Effect::Answer(ask, Answer::Removed(Ok(())))));
            }
            going_on
        });
    }

    /// This member does not lead: nothing is decided here. Wishes in flight keep waiting for their outcome.
    pub(super) fn turn_away(&mut self, out: &mut Vec<Effect>) {
        for (_, wished) in std::mem::take(&mut self.wishes.parked) {
            out.push(refuse(&wished, not_leading()));
        }
        self.reachability = Default::default();
        for ask in std::mem::take(&mut self.wishes.removals).into_values().flatten() {
            out.push(Effect::Answer(ask, Answer::Removed(Err(not_leading()))));
        }
        for (ask, ..) in std::mem::take(&mut self.seats.reports) {
            out.push(Effect::Answer(ask, Answer::Reported(Err(not_leading()))));
        }
        for knock in std::mem::take(&mut self.seats.knocks).into_values() {
            out.push(Effect::Answer(knock.ask, Answer::Seat(Err(not_leading()))));
        }
    }
}

impl Court<'_> {
    /// Decides on a request by the newest applied state, and by the reachability of voters after `since`, when it arrived.
    pub fn judge(&self, wished: &Wished, since: Moment) -> Verdict {
        if let Some(verdict) = self.remembered(wished) {
            return verdict;
        }
        let Some(record) = self.tables.nodes.get(&wished.node) else {
            let message = format!("no such node: {}", wished.node);
            return Verdict::Refused(ErrorBody::new(ErrorCode::NotFound, message));
        };
        match wished.wish {
            Wish::Role(role) => self.role(wished, since, record, role),
            Wish::Remove { force } => self.removal(wished, since, record, force),
        }
    }

    /// The same request was applied before: its retry gets the first outcome.
    fn remembered(&self, wished: &Wished) -> Option<Verdict> {
        let outcome = self.tables.outcome_of(&wished.by, wished.request)?;
        if outcome.digest.is_some_and(|digest| digest != wished.digest()) {
            return Some(Verdict::Refused(CommandRefusal::RequestReused(Box::new(wished.request)).into()));
        }
        Some(match (outcome.refused, wished.wish) {
            (Some(refusal), _) => Verdict::Refused(refusal.clone().into()),
            (None, Wish::Remove { .. }) if self.tables.nodes.contains_key(&wished.node) => Verdict::Follow,
            (None, _) => Verdict::Done { changed: true },
        })
    }

    fn role(&self, wished: &Wished, since: Moment, record: &NodeRecord, role: Role) -> Verdict {
        if record.removing.is_some() {
            let message = format!("{} is being removed", record.name);
            return Verdict::Refused(ErrorBody::new(ErrorCode::Removed, message));
        }
        let node = record.id;
        if record.desired_role == role {
            // By the log, not by this copy: a leader that was deposed while it stood still has not noticed yet.
            let command = self.command(wished, "unchanged").guard(Guard::DesiredRole { node, role });
            return Verdict::Write { command: Box::new(command), leaves: false };
        }
        let mut command = self.command(
            wished,
            match role {
                Role::Manager => "promote",
                Role::Worker => "demote",
            },
        );
        if role == Role::Worker {
            match self.may_leave(record, since) {
                Gate::Open => {}
                Gate::Undecided => return Verdict::Later,
                Gate::Unconfirmed(required) => return Verdict::CheckReachable(required),
                Gate::Closed(obstacle) => return Verdict::Refused(obstacle.to_error()),
            }
            command = command.guard(Guard::OtherManagers { besides: node, at_least: 1 });
        } else {
            command = command.guard(Guard::NotBlocked(node));
        }
        let command = command.change(Change::SetDesiredRole { node, role });
        Verdict::Write { command: Box::new(command), leaves: role == Role::Worker }
    }

    fn removal(&self, wished: &Wished, since: Moment, record: &NodeRecord, force: bool) -> Verdict {
        if record.removing.is_some() {
            return Verdict::Follow;
        }
        let (node, name) = (record.id, &record.name);
        let seat = self.tables.seat_of(node);
        let down = record.liveness == Liveness::Down;
        let manager = record.desired_role == Role::Manager && (seat.is_some() || self.joining.contains(&node));
        if manager && !(down && force) {
            let holds = if seat.is_some() { "holds a seat" } else { "is being given a seat" };
            let help = if force {
                "--force removes a manager only when it is down"
            } else {
                "if it is down, --force does both"
            };
            let message = format!("{name} {holds} in the raft configuration: demote it first ({help})");
            return Verdict::Refused(ErrorBody::new(ErrorCode::DemoteFirst, message));
        }
        if !down && !force {
            let message = format!("{name} is not down: stop it first, or use --force");
            return Verdict::Refused(ErrorBody::new(ErrorCode::NodeNotDown, message));
        }
        let mut command = self.command(wished, "remove");
        if record.desired_role == Role::Manager {
            match self.may_leave(record, since) {
                Gate::Open => {}
                Gate::Undecided => return Verdict::Later,
                Gate::Unconfirmed(required) => return Verdict::CheckReachable(required),
                Gate::Closed(obstacle) => return Verdict::Refused(obstacle.to_error()),
            }
            command = command
                .guard(Guard::OtherManagers { besides: node, at_least: 1 })
                .change(Change::SetDesiredRole { node, role: Role::Worker });
        }
        let removal = Removal { by: wished.by.clone(), forced: force, at: self.now.wall };
        let command = command.change(Change::SetRemoving { node, removal });
        Verdict::Write { command: Box::new(command), leaves: true }
    }

    fn command(&self, wished: &Wished, reason: &str) -> Command {
        let mut command = Command::idempotent(self.now.wall, wished.by.clone(), reason).with_request(wished.request);
        if self.tables.remembers_callers() {
            command = command.guard(Guard::Request { digest: wished.digest() });
        }
        command.guard(Guard::NodeExists(wished.node)).guard(Guard::Removing { node: wished.node, removing: false })
    }

    /// May this manager go, counting everybody who is leaving already? A node without a seat takes no vote with it.
    fn may_leave(&self, record: &NodeRecord, since: Moment) -> Gate {
        if self.tables.seat_of(record.id).is_none() {
            return Gate::Open;
        }
        let mut leaving = self.leaving.clone();
        leaving.insert(record.id);
        self.electorate.can_lose(&leaving, record.id, record.name.as_str(), since)
    }
}
