//! A member's process: its leases, its state, and its requests.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{LeaseRef, LeaseRequest, ReconcilerRequest, RunnerView};
use muster_messages::{ErrorBody, FencingToken, Moment, ObjectKey, Participant, Release, SessionId};
use muster_reconciler::core::admission::Admission;
use muster_reconciler::core::eligibility::Eligibility;
use muster_reconciler::core::run::Run;

pub const LEASE: Duration = Duration::from_secs(15);
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// A lease that is kept.
pub struct Keeper {
    pub lease: LeaseRef,
    pub holder: String,
    pub session: SessionId,
    /// The token, and when the last confirmed renewal was sent.
    pub held: Option<(FencingToken, Moment)>,
    pub ask_at: Moment,
}

impl Keeper {
    pub fn new(key: ObjectKey, holder: &str, session: SessionId) -> Self {
        let lease = LeaseRef { namespace: key.namespace, name: key.name };
        Self { lease, holder: holder.to_owned(), session, held: None, ask_at: Moment(0) }
    }
    pub fn is_good(&self, now: Moment) -> bool {
        self.held.is_some_and(|(_, sent)| now < sent + RENEW_DEADLINE)
    }
    pub fn request(&self) -> LeaseRequest {
        let (lease, session) = (self.lease.clone(), self.session);
        match self.held {
            Some((token, _)) => LeaseRequest::Renew { session, held: vec![(lease, token)] },
            None => {
                let duration_ms = u64::try_from(LEASE.as_millis()).unwrap();
                LeaseRequest::Acquire { lease, holder: self.holder.clone(), session, duration_ms }
            }
        }
    }
}

/// A member of a scope and its lease.
pub struct Member {
    pub keeper: Keeper,
    pub core: Admission,
    pub participant: Participant,
}

/// The part of a machine that sent a request.
#[derive(Clone, Copy, PartialEq)]
pub enum Part {
    Serving,
    Record,
    Runner,
}

pub enum Question {
    Lease(Part, Moment, LeaseRequest),
    Member(Part, u64, ReconcilerRequest),
    Run(FencingToken, u64, ReconcilerRequest),
}

/// One process on one host.
pub struct Machine {
    pub name: &'static str,
    pub release: Release,
    /// The start of its host: answers to an earlier one are ignored.
    pub start: u64,
    pub serving: Member,
    pub record: Member,
    pub eligibility: Eligibility,
    pub runner: Option<Keeper>,
    pub run: Option<Run>,
    pub view: Option<Arc<RunnerView>>,
    pub read_at: Moment,
    pub acting: Option<(FencingToken, u64, Moment)>,
    /// The step of a chain that it carries out.
    pub step: Option<String>,
    /// The step that it has carried out in this term and that is not known to be on record; whether that was requested and is not
    /// answered.
    pub carried_out: Option<(String, bool)>,
    /// The last answer that a step is on record.
    pub recorded_at: Moment,
    /// It gives up its term, at the latest then.
    pub leaves_by: Option<Moment>,
    pub frozen: Moment,
    pub cut: Moment,
}

pub enum InFlight {
    There(Question),
    Back(Question, Result<String, ErrorBody>),
}
