//! A cluster without network and time of its own: replicated state, the leader's clock over leases, and answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{
    AdmissionView, CandidateView, Definitions, GateView, LeaseRef, LeaseRequest, ReconcilerRequest, RunnerView, Waiting,
};
use muster_messages::{
    Action, Change, ClusterId, ClusterRecord, Command, CommandRefusal, Definition, DefinitionKey, DesiredObject,
    ErrorBody, ErrorCode, FEATURE_LEVEL, FencingToken, Gate, GatePath, Generation, Incarnation, LeaseView, Liveness,
    ManagedKey, Moment, NodeId, NodeRecord, NotAdmitted, ObjectKey, Participant, ParticipantPhase, Principal, Progress,
    ReconcilerChange, Release, Revision, Role, Secret, Tables, Triple, Uid, WallTime, candidates_scope, runner_lease,
};
use muster_store::apply;
use muster_store::invariants::{check, check_step};
use serde_json::{Value, json};

/// See the module.
#[derive(Default)]
pub struct Judge {
    pub tables: Tables,
    expires: BTreeMap<ObjectKey, (Moment, Duration)>,
    /// Everything that runners said, last first known.
    pub progress: BTreeMap<String, Progress>,
    /// Terms under which objects were written, in the order of the log.
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
fn path_word(path: GatePath) -> &'static str {
    match path {
        GatePath::First => "first",
        GatePath::Reached => "reached",
        GatePath::Open => "open",
        GatePath::Restrict => "restrict",
    }
}
fn not_admitted_word(why: &NotAdmitted) -> &'static str {
    match why {
        NotAdmitted::NoGate { .. } => "no-gate",
        NotAdmitted::GateUnreadable { .. } => "gate-unreadable",
        NotAdmitted::BelowFloor { .. } => "below-floor",
        NotAdmitted::ReconcilerTooOld { .. } => "reconciler-too-old",
    }
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

    /// One entry of the log. Every promise of the store is looked after.
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
    /// Damages a gate: it says something that this build does not know.
    pub fn damage(&mut self, name: &str) {
        let gate = self.tables.reconcilers.gates.get_mut(name).unwrap();
        *gate = Arc::new(Gate { format: 99, ..(**gate).clone() });
        self.touch();
    }
    /// A new revision, as any write brings it.
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
    /// What a definition made, by name.
    pub fn objects(&self, name: &str) -> BTreeMap<String, String> {
        let theirs = self.tables.reconcilers.objects.values().filter(|o| o.owner.as_deref() == Some(name));
        theirs.map(|o| (o.key.name.clone(), o.body.clone())).collect()
    }

    /// The leader's clock.
    pub fn expire(&mut self, now: Moment) {
        let due: Vec<_> = self.expires.iter().filter(|(_, (at, _))| *at <= now).map(|(key, _)| key.clone()).collect();
        for key in due {
            self.expires.remove(&key);
            let _gone = self.apply(Change::ExpireLease(key));
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
            other => panic!("nobody asks {other:?}"),
        }
    }
    fn lease_view(&self, key: &ObjectKey) -> Option<LeaseView> {
        self.tables.objects.get(key).and_then(|object| LeaseView::of(object, None))
    }
    /// The revision of the last change of a lease.
    pub fn lease_revision(&self, lease: &LeaseRef) -> Revision {
        self.tables.objects.get(&key_of(lease)).map_or(self.tables.revision, |object| object.meta.revision)
    }

    pub fn reconcile(&mut self, request: ReconcilerRequest) -> Result<String, ErrorBody> {
        use ReconcilerRequest as R;
        match request {
            R::Announce { participant } => {
                let key = participant.key.clone();
                self.change(ReconcilerChange::Announce(Box::new(participant)))?;
                Ok(text(&self.admission(&key)))
            }
            R::Admit { key } => match self.change(ReconcilerChange::Admit(key.clone())) {
                Ok(()) | Err(CommandRefusal::NotAdmitted(_)) => Ok(text(&self.admission(&key))),
                Err(refusal) => Err(refusal.into()),
            },
            R::Admission { key, .. } => Ok(text(&self.admission(&key))),
            R::Leave { key } => {
                self.change(ReconcilerChange::Leave(key))?;
                Ok("{}".to_owned())
            }
            R::Definitions { release, .. } => {
                let ours = self.tables.reconcilers.definitions.values().filter(|d| d.release.triple == release);
                let items = ours.map(|d| (d.reconciler.clone(), d.digest.clone())).collect();
                Ok(text(&Definitions { revision: self.tables.revision, items }))
            }
            R::View { name, release, .. } => Ok(text(&self.view(&name, release))),
            R::Step { name, release, term, epoch, step } => {
                self.change(ReconcilerChange::Step { reconciler: name.clone(), release, term, epoch, step })?;
                let epoch = self.gate(&name).map_or(0, |gate| gate.now.epoch);
                Ok(json!({"epoch": epoch, "revision": self.tables.revision}).to_string())
            }
            R::Wave { name, release, term, wave } => self.wave(&name, release, term, wave).map(|v| v.to_string()),
            R::Progress { progress } => {
                self.change(ReconcilerChange::Progress(Box::new(progress.clone())))?;
                self.progress.insert(progress.reconciler.clone(), progress);
                Ok("{}".to_owned())
            }
            R::Status { name, .. } => {
                let gate = self.gate(&name).map(|gate| match gate.is_readable() {
                    true => json!({
                        "epoch": gate.now.epoch, "state": gate.now.state, "reconciled": gate.now.reconciled,
                        "floor": gate.now.floor, "digest": gate.now.digest, "term": gate.now.term,
                    }),
                    false => json!({"readable": false}),
                });
                Ok(json!({"name": name, "revision": self.tables.revision, "gate": gate}).to_string())
            }
            R::Apply { definitions, replace } => {
                for definition in definitions {
                    self.change(ReconcilerChange::Define { definition: Box::new(definition), replace })?;
                }
                Ok("{}".to_owned())
            }
            other => panic!("nobody asks {other:?}"),
        }
    }

    fn admission(&self, key: &muster_messages::ParticipantKey) -> AdmissionView {
        let all = &self.tables.reconcilers;
        let found = all.participants.get(key);
        let waiting = found.filter(|p| p.phase == ParticipantPhase::Announced).and_then(|p| all.admission(p).err());
        let waiting =
            waiting.map(|why| Waiting { reason: not_admitted_word(&why).to_owned(), message: why.to_string() });
        AdmissionView { revision: self.tables.revision, phase: found.map(|p| p.phase), waiting }
    }

    pub fn view(&self, name: &str, release: Triple) -> RunnerView {
        let all = &self.tables.reconcilers;
        let definition = all.definitions.get(&DefinitionKey { reconciler: name.to_owned(), release });
        let way = definition.map(|definition| all.way(definition));
        let blockers = definition.map(|d| all.blockers(name, &d.scope, release, d.floor)).unwrap_or_default();
        let gate = all.gates.get(name);
        let gate = gate.map_or_else(GateView::default, |gate| GateView {
            epoch: gate.now.epoch,
            readable: gate.is_readable(),
            reconciled: Some(gate.now.reconciled.clone()),
            term: gate.now.term,
        });
        let scope = candidates_scope(name);
        let candidate = |p: &Arc<Participant>| CandidateView {
            node: p.node,
            member: p.key.member.clone(),
            release: p.release.clone(),
            revision: p.revision,
        };
        let hold = way.as_ref().and_then(|way| way.as_ref().err());
        RunnerView {
            revision: self.tables.revision,
            definition: definition.map(|d| (**d).clone()),
            gate,
            candidates: all.participants_of(&scope).map(candidate).collect(),
            hold: hold.map(|hold| Waiting { reason: hold.reason().to_owned(), message: hold.to_string() }),
            path: way.and_then(Result::ok).map(|path| path_word(path).to_owned()),
            blockers_in_all: blockers.len(),
            blockers,
            retries: all.controls.get(name).map_or(0, |c| c.retries),
            waves: definition.map_or(0, |d| u32::try_from(waves(d).len()).unwrap()),
        }
    }

    fn wave(&mut self, name: &str, release: Triple, term: FencingToken, wave: u32) -> Result<Value, ErrorBody> {
        let key = DefinitionKey { reconciler: name.to_owned(), release };
        let definition = self.tables.reconcilers.definitions.get(&key).cloned();
        let definition = definition.ok_or_else(|| ErrorBody::new(ErrorCode::NotFound, "no such definition"))?;
        let Action::Objects(objects) = &definition.action else { panic!("{name} is no set of objects") };
        let waves = waves(&definition);
        let number = waves.iter().nth(wave as usize).copied();
        let mut errors = Vec::new();
        let mut write = |judge: &mut Self, key: &ManagedKey, object: Option<DesiredObject>| {
            let reconciler = name.to_owned();
            let object = object.map(Box::new);
            let change = ReconcilerChange::Apply { reconciler, release, term, key: key.clone(), object };
            match judge.change(change) {
                Ok(()) => judge.writes.push((term, key.clone())),
                Err(CommandRefusal::Exists { .. }) => {
                    errors.push(json!({"key": key.to_string(), "message": "it is somebody else's"}));
                }
                Err(refusal) => return Err(ErrorBody::from(refusal)),
            }
            Ok(())
        };
        for object in objects.iter().filter(|object| Some(object.wave) == number) {
            write(self, &object.key, Some(object.clone()))?;
        }
        if wave as usize + 1 >= waves.len() {
            let owned = self.tables.reconcilers.objects.values().filter(|o| o.owner.as_deref() == Some(name));
            let left: Vec<_> =
                owned.filter(|o| !objects.iter().any(|d| d.key == o.key)).map(|o| o.key.clone()).collect();
            for key in left {
                write(self, &key, None)?;
            }
        }
        Ok(json!({ "errors": errors }))
    }
}

fn waves(definition: &Definition) -> BTreeSet<u32> {
    match &definition.action {
        Action::Objects(objects) => objects.iter().map(|object| object.wave).collect(),
        _ => BTreeSet::new(),
    }
}
