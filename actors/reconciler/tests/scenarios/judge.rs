//! A cluster without network and time of its own: replicated state, the leader's clock over leases, and the leader's answers,
//! as `muster-gates` derives them from the state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_gates::{Write, admission, definitions, drift, status};
use muster_messages::wire::{LeaseRef, LeaseRequest, ReconcilerRequest, RunnerView};
use muster_messages::{
    Change, ClusterId, ClusterRecord, Command, CommandRefusal, Definition, DefinitionKey, ErrorBody, ErrorCode,
    FEATURE_LEVEL, FencingToken, Gate, Generation, Incarnation, LeaseView, Liveness, ManagedKey, Moment, NodeId,
    NodeRecord, ObjectKey, Participant, ParticipantPhase, Principal, Progress, ReconcilerChange, Release, Revision,
    Role, RunView, Secret, Tables, Triple, Uid, WallTime, runner_lease,
};
use muster_store::apply;
use muster_store::invariants::{check, check_step};
use serde_json::{Value, json};

/// See the module.
#[derive(Default)]
pub struct Judge {
    pub tables: Tables,
    expires: BTreeMap<ObjectKey, (Moment, Duration)>,
    /// When leases expired: not a write of their holder.
    expired: BTreeMap<ObjectKey, Revision>,
    /// The newest report of each runner.
    pub progress: BTreeMap<String, Progress>,
    /// Terms under which objects were written, in log order.
    pub writes: Vec<(FencingToken, ManagedKey)>,
    uids: u128,
}

pub fn triple(text: &str) -> Triple {
    text.parse().unwrap()
}
pub fn release(text: &str) -> Release {
    text.parse().unwrap()
}
fn key_of(lease: &LeaseRef) -> ObjectKey {
    ObjectKey::lease(lease.namespace.clone(), lease.name.clone())
}
fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

impl Judge {
    /// A cluster that has just been founded.
    pub fn founded() -> Self {
        let mut judge = Self::default();
        let id = NodeId::from_entropy(0);
        let founder = NodeRecord {
            id,
            name: "founder".parse().unwrap(),
            addr: "127.0.0.1:4400".to_owned(),
            release: "0.1.0".to_owned(),
            labels: BTreeMap::new(),
            desired_role: Role::Manager,
            role: Role::Manager,
            granted: Revision(0),
            removing: None,
            certificate: None,
            last_not_after: WallTime(0),
            liveness: Liveness::Unknown,
            liveness_since: WallTime(0),
            created_at: WallTime(0),
            generation: Generation(0),
            revision: Revision(0),
        };
        let cluster = ClusterRecord {
            id: ClusterId::from_entropy(0),
            name: "default".parse().unwrap(),
            incarnation: Incarnation(1),
            feature_level: FEATURE_LEVEL,
            root_cert_pem: "root".to_owned(),
            root_key_pem: Secret::new("key"),
            founded_at: WallTime(0),
            revision: Revision(0),
        };
        let (cluster, founder) = (Box::new(cluster), Box::new(founder));
        judge.apply(Change::Found { cluster, founder, tokens: vec![] }).unwrap();
        judge
    }

    /// Applies one log entry and checks every invariant of the store.
    pub fn apply(&mut self, change: Change) -> Result<(), CommandRefusal> {
        let before = self.tables.clone();
        let at = self.tables.revision.next();
        let command = Command::idempotent(WallTime(0), Principal::Operator, "test").change(change);
        let result = apply(&mut self.tables, at, &command);
        check(&self.tables).unwrap_or_else(|broken| panic!("{broken}"));
        check_step(&before, &self.tables).unwrap_or_else(|broken| panic!("{broken}"));
        result
    }
    pub fn change(&mut self, change: ReconcilerChange) -> Result<(), CommandRefusal> {
        self.apply(Change::Reconciler(change))
    }
    pub fn define(&mut self, definition: Definition) {
        self.change(ReconcilerChange::Define { definition: Box::new(definition), replace: true }).unwrap();
    }
    pub fn gate(&self, name: &str) -> Option<&Arc<Gate>> {
        self.tables.reconcilers.gates.get(name)
    }
    /// Damages a gate: it contains something that this build does not know.
    pub fn damage(&mut self, name: &str) {
        let gate = self.tables.reconcilers.gates.get_mut(name).unwrap();
        *gate = Arc::new(Gate { format: 99, ..(**gate).clone() });
        self.touch();
    }
    /// A new revision, as after any write.
    fn touch(&mut self) {
        self.tables.revision = self.tables.revision.next();
        self.tables.reconcilers.changed = self.tables.revision;
    }
    pub fn serving(&self, scope: &str) -> Vec<Participant> {
        let all = self.tables.reconcilers.participants_of(scope);
        all.filter(|p| p.phase == ParticipantPhase::Serving).map(|p| (**p).clone()).collect()
    }
    /// The runner of a reconciler and its term.
    pub fn runner(&self, name: &str) -> Option<(String, FencingToken)> {
        let lease = self.tables.objects.get(&runner_lease(name))?.lease()?;
        lease.is_live().then(|| (lease.spec.held_by().unwrap().to_owned(), lease.holding.token))
    }
    /// The objects that a definition created, by name.
    pub fn objects(&self, name: &str) -> BTreeMap<String, String> {
        let theirs = self.tables.reconcilers.objects.values().filter(|o| o.owner.as_deref() == Some(name));
        theirs.map(|o| (o.key.name.clone(), o.body.clone())).collect()
    }

    /// The leader's clock.
    pub fn expire(&mut self, now: Moment) {
        let due: Vec<_> = self.expires.iter().filter(|(_, (at, _))| *at <= now).map(|(key, _)| key.clone()).collect();
        for key in due {
            self.expires.remove(&key);
            let _gone = self.apply(Change::ExpireLease(key.clone()));
            self.expired.insert(key, self.tables.revision);
        }
    }

    pub fn lease(&mut self, now: Moment, request: LeaseRequest) -> Result<String, ErrorBody> {
        match request {
            LeaseRequest::Acquire { lease, holder, session, duration_ms } => {
                let key = key_of(&lease);
                self.uids += 1;
                let uid = Uid(self.uids);
                self.apply(Change::AcquireLease { key: key.clone(), holder, session, duration_ms, uid })?;
                let lasts = Duration::from_millis(duration_ms);
                self.expires.insert(key.clone(), (now + lasts, lasts));
                Ok(serde_json::to_string(&self.lease_view(&key)).unwrap())
            }
            LeaseRequest::Renew { session, held } => {
                let mut items = Vec::new();
                for (lease, token) in held {
                    let key = key_of(&lease);
                    let found = self.tables.objects.get(&key).and_then(|object| object.lease());
                    let renewed = found.is_some_and(|lease| {
                        lease.is_live() && lease.holding.token == token && lease.holding.session == Some(session)
                    });
                    if let Some((at, lasts)) = self.expires.get_mut(&key).filter(|_| renewed) {
                        *at = now + *lasts;
                    }
                    items.push(json!({ "renewed": renewed }));
                }
                Ok(json!({ "items": items }).to_string())
            }
            LeaseRequest::Release { lease, session, token } => {
                self.apply(Change::ReleaseLease { key: key_of(&lease), session, token })?;
                Ok("{}".to_owned())
            }
            LeaseRequest::Watch { lease, .. } => {
                let lease = self.lease_view(&key_of(&lease));
                Ok(json!({"revision": self.tables.revision, "lease": lease}).to_string())
            }
            other => panic!("unexpected request {other:?}"),
        }
    }
    fn lease_view(&self, key: &ObjectKey) -> Option<LeaseView> {
        self.tables.objects.get(key).and_then(|object| LeaseView::of(object, None))
    }
    /// The revision of the last change of a lease.
    pub fn lease_revision(&self, lease: &LeaseRef) -> Revision {
        let key = key_of(lease);
        let written = self.tables.objects.get(&key).map_or(self.tables.revision, |object| object.meta.revision);
        written.max(self.expired.get(&key).copied().unwrap_or_default())
    }

    /// The last change that a runner waits for.
    pub fn view_revision(&self, name: &str) -> Revision {
        let term = self.tables.objects.get(&runner_lease(name)).map(|object| object.meta.revision);
        self.tables.reconcilers.changed.max(term.unwrap_or_default())
    }

    pub fn reconcile(&mut self, request: ReconcilerRequest) -> Result<String, ErrorBody> {
        use ReconcilerRequest as R;
        match request {
            R::Announce { participant } => {
                let key = participant.key.clone();
                self.change(ReconcilerChange::Announce(Box::new(participant)))?;
                Ok(text(&admission(&self.tables, &key)))
            }
            R::Admit { key } => match self.change(ReconcilerChange::Admit(key.clone())) {
                Ok(()) | Err(CommandRefusal::NotAdmitted(_)) => Ok(text(&admission(&self.tables, &key))),
                Err(refusal) => Err(refusal.into()),
            },
            R::Admission { key, .. } => Ok(text(&admission(&self.tables, &key))),
            R::Leave { key } => {
                self.change(ReconcilerChange::Leave(key))?;
                Ok("{}".to_owned())
            }
            R::Definitions { release, .. } => Ok(text(&definitions(&self.tables, release))),
            R::View { name, release, .. } => Ok(text(&self.view(&name, release))),
            R::Step { name, release, digest, term, epoch, step } => {
                self.change(ReconcilerChange::Step { reconciler: name.clone(), release, digest, term, epoch, step })?;
                let epoch = self.tables.reconcilers.epoch_of(&name);
                Ok(json!({"epoch": epoch, "revision": self.tables.revision}).to_string())
            }
            R::StepDone { name, release, digest, defined, term, step } => {
                self.change(ReconcilerChange::StepDone { reconciler: name, release, digest, defined, term, step })?;
                Ok(json!({"revision": self.tables.revision}).to_string())
            }
            R::Wave { name, release, digest, term, wave } => {
                self.wave(&name, release, &digest, term, wave).map(|v| v.to_string())
            }
            R::Progress { progress } => {
                self.change(ReconcilerChange::Progress(Box::new(progress.clone())))?;
                self.progress.insert(progress.reconciler.clone(), progress);
                Ok("{}".to_owned())
            }
            R::RecordRun { record } => {
                self.change(ReconcilerChange::RecordRun(record))?;
                Ok("{}".to_owned())
            }
            R::Status { name, .. } => {
                let status = status(&self.tables, &name);
                let status = status.ok_or_else(|| ErrorBody::new(ErrorCode::NotFound, "no such reconciler"))?;
                Ok(json!(status).to_string())
            }
            R::Apply { definitions, replace } => {
                for definition in definitions {
                    self.change(ReconcilerChange::Define { definition: Box::new(definition), replace })?;
                }
                Ok("{}".to_owned())
            }
            other => panic!("unexpected request {other:?}"),
        }
    }

    /// The runs on record.
    pub fn runs(&self, name: &str) -> Vec<RunView> {
        muster_gates::runs(&self.tables, name).map_or_else(Vec::new, |runs| runs.items)
    }

    pub fn view(&self, name: &str, release: Triple) -> RunnerView {
        muster_gates::runner_view(&self.tables, name, release)
    }

    fn wave(
        &mut self,
        name: &str,
        release: Triple,
        digest: &str,
        term: FencingToken,
        wave: u32,
    ) -> Result<Value, ErrorBody> {
        let key = DefinitionKey { reconciler: name.to_owned(), release };
        let definition = self.tables.reconcilers.definitions.get(&key).cloned();
        let definition = definition.ok_or_else(|| ErrorBody::new(ErrorCode::NotFound, "no such definition"))?;
        let mut errors = Vec::new();
        for write in drift(&self.tables.reconcilers, &definition, wave as usize) {
            let key = write.key().clone();
            let object = match write {
                Write::Keep(_) => continue,
                Write::Create(object) | Write::Update(object) => Some(Box::new(object)),
                Write::Delete(_) => None,
                Write::Taken(_) => {
                    errors.push(json!({"key": key.to_string(), "message": "it belongs to another owner"}));
                    continue;
                }
            };
            let (reconciler, digest) = (name.to_owned(), digest.to_owned());
            self.change(ReconcilerChange::Apply { reconciler, release, digest, term, key: key.clone(), object })?;
            self.writes.push((term, key));
        }
        Ok(json!({ "errors": errors }))
    }
}
