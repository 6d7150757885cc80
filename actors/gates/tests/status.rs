//! What is shown of a state is what the state allows, tested on states that commands have made.

#![expect(clippy::unwrap_used, reason = "these are tests, also outside their test functions")]

use std::collections::BTreeMap;

use muster_gates::{
    Waves, Write, admission, definitions, digest, drift, plan, runner_view, sealed, status, status_definition, statuses,
};
use muster_messages::*;
use muster_store::apply;

const NAME: &str = "schema";

fn object(name: &str, wave: u32) -> DesiredObject {
    let key = ManagedKey { kind: "table".to_owned(), namespace: "default".to_owned(), name: name.to_owned() };
    DesiredObject { key, labels: BTreeMap::new(), body: "{}".to_owned(), wave }
}

fn definition(of: &str, floor: &str, objects: Vec<DesiredObject>) -> Definition {
    Definition::new(NAME, of.parse().unwrap(), "db", floor.parse().unwrap(), Action::Objects(objects))
}

struct World(Tables);

impl World {
    fn new() -> Self {
        let cluster = ClusterRecord {
            id: ClusterId::from_entropy(1),
            name: "c".parse().unwrap(),
            incarnation: Incarnation(1),
            feature_level: FEATURE_LEVEL,
            root_cert_pem: String::new(),
            root_key_pem: Secret::new(""),
            founded_at: WallTime(0),
            revision: Revision(0),
        };
        Self(Tables { cluster: Some(cluster.into()), ..Tables::default() })
    }
    fn must(&mut self, change: Change) {
        let command = Command::idempotent(WallTime(0), Principal::Operator, "a test").change(change);
        let at = self.0.revision.next();
        apply(&mut self.0, at, &command).unwrap();
    }
    fn propose(&mut self, change: ReconcilerChange) {
        self.must(Change::Reconciler(change));
    }
    fn define(&mut self, definition: Definition) {
        let definition = Box::new(sealed(definition).unwrap());
        self.propose(ReconcilerChange::Define { definition, replace: true });
    }
    fn acquire(&mut self, key: ObjectKey, holder: &str, session: u128) -> FencingToken {
        let (holder, session) = (holder.to_owned(), SessionId(session));
        self.must(Change::AcquireLease { key: key.clone(), holder, session, duration_ms: 1000, uid: Uid(1) });
        self.0.objects[&key].lease().unwrap().holding.token
    }
    fn announce(&mut self, scope: &str, member: &str, of: &str) -> ParticipantKey {
        self.announce_on(None, scope, member, of)
    }
    fn announce_on(&mut self, node: Option<NodeId>, scope: &str, member: &str, of: &str) -> ParticipantKey {
        self.announce_with(node, scope, member, of, BTreeMap::new())
    }
    /// A member that needs the reconciler of any release.
    fn announce_needing(&mut self, scope: &str, member: &str, of: &str) -> ParticipantKey {
        self.announce_with(None, scope, member, of, BTreeMap::from([(NAME.to_owned(), Triple::default())]))
    }
    fn announce_with(
        &mut self,
        node: Option<NodeId>,
        scope: &str,
        member: &str,
        of: &str,
        needs: BTreeMap<String, Triple>,
    ) -> ParticipantKey {
        let incarnation = u128::from(self.0.revision.0) + 100;
        let key =
            ParticipantKey { scope: scope.to_owned(), member: member.to_owned(), incarnation: SessionId(incarnation) };
        let token = Some(self.acquire(key.lease(), member, incarnation));
        self.propose(ReconcilerChange::Announce(Box::new(Participant {
            key: key.clone(),
            node,
            release: of.parse().unwrap(),
            needs,
            phase: ParticipantPhase::Announced,
            token,
            since: WallTime(0),
            revision: Revision(0),
        })));
        key
    }
    fn step(&mut self, of: &str, term: FencingToken, step: GateStep) {
        let epoch = self.0.reconcilers.epoch_of(NAME);
        self.propose(ReconcilerChange::Step {
            reconciler: NAME.to_owned(),
            release: of.parse().unwrap(),
            digest: self.digest(of),
            term,
            epoch,
            step,
        });
    }
    fn make(&mut self, of: &str, term: FencingToken, write: Write) {
        let (key, object) = match write {
            Write::Create(object) | Write::Update(object) => (object.key.clone(), Some(Box::new(object))),
            Write::Delete(key) => (key, None),
            Write::Taken(_) | Write::Keep(_) => return,
        };
        let (reconciler, release) = (NAME.to_owned(), of.parse().unwrap());
        let digest = self.digest(of);
        self.propose(ReconcilerChange::Apply { reconciler, release, digest, term, key, object });
    }
    fn digest(&self, of: &str) -> String {
        let key = DefinitionKey { reconciler: NAME.to_owned(), release: of.parse().unwrap() };
        self.0.reconcilers.definitions[&key].digest.clone()
    }
    fn phase(&self) -> (String, String) {
        let status = status(&self.0, NAME).unwrap();
        (status.brief.phase.text().to_owned(), status.brief.reason.text().to_owned())
    }
}

fn ops(writes: &[Write]) -> Vec<(&str, &str)> {
    writes.iter().map(|write| (write.op(), write.key().name.as_str())).collect()
}

#[test]
fn digest_depends_on_meaning_and_not_on_notation() {
    let one = definition("1.0.0", "1.0.0", vec![object("a", 0), object("b", 1)]);
    let other = definition("1.0.0", "1.0.0", vec![object("b", 1), object("a", 0)]);
    assert_eq!(digest(&one), digest(&other));
    assert_eq!(digest(&one), digest(&Definition { applied_at: WallTime(9), digest: "x".to_owned(), ..one.clone() }));
    assert_ne!(digest(&one), digest(&definition("1.0.0", "0.9.0", vec![object("a", 0), object("b", 1)])));
}

#[test]
fn timings_outside_of_their_bounds_are_refused_with_the_reason() {
    let with = |timing: DefinitionTiming| {
        let options = DefinitionOptions { timing, ..DefinitionOptions::default() };
        sealed(Definition { options, ..definition("1.0.0", "1.0.0", vec![]) }).map_err(|bad| bad.to_string())
    };
    let usual = DefinitionTiming::default();
    assert!(
        with(DefinitionTiming { lease_ms: Some(3000), hold_ms: Some(300_000), resign_pause_ms: Some(1000) }).is_ok()
    );
    for (timing, why) in [
        (DefinitionTiming { lease_ms: Some(2999), ..usual }, "change of the cluster's leader"),
        (DefinitionTiming { lease_ms: Some(60_001), ..usual }, "a dead runner holds up the others"),
        (DefinitionTiming { hold_ms: Some(3_600_001), ..usual }, "an hour at most"),
        (DefinitionTiming { resign_pause_ms: Some(0), ..usual }, "the node that has just failed"),
    ] {
        let refusal = with(timing).unwrap_err();
        assert!(refusal.contains(why), "{refusal}");
    }
}

#[test]
fn steps_of_a_chain_are_named_once_and_have_digests() {
    let step = |name: &str, argv: &[&str], digest: &str| ChainStep {
        name: name.to_owned(),
        command: CommandAction { argv: argv.iter().map(|word| (*word).to_owned()).collect(), env: BTreeMap::new() },
        digest: digest.to_owned(),
    };
    let chain = |steps: Vec<ChainStep>| {
        let definition = Definition { action: Action::Chain(steps), ..definition("1.0.0", "1.0.0", vec![]) };
        sealed(definition).map_err(|bad| bad.to_string())
    };
    let one = chain(vec![step("a", &["up", "a"], ""), step("b", &["up", "b"], "sha256:5f")]).unwrap();
    let Action::Chain(steps) = &one.action else { panic!("a chain") };
    assert_eq!((steps[0].digest.len(), steps[1].digest.as_str()), (64, "sha256:5f"));
    let other = chain(vec![step("a", &["up", "A"], ""), step("b", &["up", "b"], "sha256:5f")]).unwrap();
    let Action::Chain(others) = &other.action else { panic!("a chain") };
    assert!(steps[0].digest != others[0].digest && one.digest != other.digest);
    assert!(chain(vec![step("a", &["x"], ""), step("a", &["y"], "")]).unwrap_err().contains("listed twice"));
    assert!(chain(vec![step("A b", &["x"], "")]).unwrap_err().contains("a name is a DNS subdomain"));
    assert!(chain(vec![step("a", &[], "")]).unwrap_err().contains("step a: the command is empty"));
}

/// Nodes of 1.0.1 are candidates for what 1.0.0 defined for later ones, too, and hold back those of 1.0.0.
#[test]
fn later_releases_apply_a_definition_for_later_ones() {
    let options = DefinitionOptions { applies: Applies::OrLater, ..DefinitionOptions::default() };
    let or_later = Definition { options, ..definition("1.0.0", "1.0.0", vec![]) };
    let mut world = World::new();
    world.define(or_later);
    let names = |release: &str| definitions(&world.0, release.parse().unwrap()).items.into_keys().collect::<Vec<_>>();
    assert_eq!(
        (names("0.9.0"), names("1.0.0"), names("1.0.1")),
        (vec![], vec![NAME.to_owned()], vec![NAME.to_owned()])
    );
    let view = runner_view(&world.0, NAME, Triple::new(1, 0, 1));
    assert_eq!(view.definition.map(|d| d.release.to_string()).as_deref(), Some("1.0.0"));
    world.define(definition("1.0.1", "1.0.0", vec![]));
    let view = runner_view(&world.0, NAME, Triple::new(1, 0, 2));
    assert_eq!(view.definition, None, "the newest definition is for 1.0.1 alone");
}

#[test]
fn unworkable_definition_is_refused_with_the_reason() {
    let bad = |edit: &dyn Fn(&mut Definition)| {
        let mut definition = definition("1.0.0", "1.0.0", vec![object("a", 0)]);
        edit(&mut definition);
        sealed(definition).unwrap_err().to_string()
    };
    assert!(bad(&|d| d.floor = Triple::new(1, 0, 1)).contains("could then never serve"));
    assert!(bad(&|d| d.scope = "a.b".to_owned()).contains("[a-z0-9-]"));
    assert!(bad(&|d| d.depends_on = vec![NAME.to_owned()]).contains("itself"));
    assert!(bad(&|d| d.every_ms = Some(10)).contains("once a second"));
    assert!(bad(&|d| d.action = Action::Objects(vec![object("a", 0), object("a", 1)])).contains("twice"));
    let body = DesiredObject { body: "[]".to_owned(), ..object("a", 0) };
    assert!(bad(&|d| d.action = Action::Objects(vec![body.clone()])).contains("not a JSON object"));
    assert!(bad(&|d| d.settle_ms = u64::MAX).contains("a year at most"));
    assert!(bad(&|d| d.resign_after = 0).contains("1 at least"));
    let command = |argv: &[&str], env: &str| CommandAction {
        argv: argv.iter().map(|field_text| (*field_text).to_owned()).collect(),
        env: [(env.to_owned(), String::new())].into(),
    };
    for (argv, env, why) in [
        (&[][..], "A", "empty"),
        (&["a", "\0"], "A", "zero byte"),
        (&["a"], "A=B", "a variable is"),
        (&["a"], "", "a variable is"),
        (&["a"], "MUSTER_FENCING_TOKEN", "set by Muster"),
    ] {
        let refused = bad(&|d| d.action = Action::Command(command(argv, env)));
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn plan_shows_each_write_with_before_and_after() {
    let mut world = World::new();
    let of = |name: &str, body: String| DesiredObject { body, ..object(name, 0) };
    let small = |n: u32| format!("{{\"n\":{n}}}");
    world.define(definition("1.0.0", "1.0.0", vec![of("gone", small(1)), of("kept", small(1)), of("other", small(1))]));
    let term = world.acquire(runner_lease(NAME), "n1", 1);
    let first = world.0.reconcilers.definitions_of(NAME).next().unwrap().clone();
    drift(&world.0.reconcilers, &first, 0).into_iter().for_each(|write| world.make("1.0.0", term, write));
    let large = format!("{{\"n\":\"{}\"}}", "x".repeat(300 * 1024));
    world.define(definition("2.0.0", "1.0.0", vec![of("kept", small(1)), of("other", small(2)), of("vast", large)]));
    let plan = plan(&world.0, NAME, None).unwrap();
    let body = |side: &Option<PlannedSideView>| side.as_ref().map_or("null".to_owned(), |side| side.body.to_string());
    let shown: Vec<String> =
        plan.objects.iter().map(|o| format!("{} {} {} {}", o.op, o.name, body(&o.before), body(&o.after))).collect();
    // An object that is too large to be shown is named.
    assert_eq!(shown, [r#"update other {"n":1} {"n":2}"#, "create vast null null", "delete gone null null"]);
}

#[test]
fn drift_creates_updates_and_deletes_in_the_last_wave() {
    let mut world = World::new();
    let first = definition("1.0.0", "1.0.0", vec![object("foo", 0), object("bar", 1), object("baz", 1)]);
    assert_eq!(Waves::of(&first).numbers(), [0, 1]);
    world.define(first.clone());
    let term = world.acquire(runner_lease(NAME), "n1", 1);
    for (nth, expected) in [(0, vec![("create", "foo")]), (1, vec![("create", "bar"), ("create", "baz")])] {
        let writes = drift(&world.0.reconcilers, &first, nth);
        assert_eq!(ops(&writes), expected);
        writes.into_iter().for_each(|write| world.make("1.0.0", term, write));
    }
    world.step("1.0.0", term, GateStep::Complete);
    assert!(drift(&world.0.reconcilers, &first, 0).iter().all(|write| write.op() == "keep"));

    let drifted = DesiredObject { body: r#"{"by":"hand"}"#.to_owned(), ..object("bar", 0) };
    world.propose(ReconcilerChange::PutObject(Box::new(drifted)));
    world.propose(ReconcilerChange::PutObject(Box::new(object("mine", 0))));
    let second = definition("1.1.0", "1.0.0", vec![object("bar", 0), object("mine", 0), object("new", 3)]);
    assert_eq!(ops(&drift(&world.0.reconcilers, &second, 0)), [("update", "bar"), ("taken", "mine")]);
    let last = drift(&world.0.reconcilers, &second, 1);
    assert_eq!(ops(&last), [("create", "new"), ("delete", "baz"), ("delete", "foo")]);
}

#[test]
fn deletions_and_completion_wait_for_the_last_conditions() {
    let condition =
        |wave| WaveCondition { wave, key: object("ready", 0).key, path: "/ok".to_owned(), equals: "true".to_owned() };
    let with = |conditions: Vec<WaveCondition>| {
        let mut definition = definition("1.0.0", "1.0.0", vec![object("foo", 0), object("bar", 1)]);
        definition.options.wave_conditions = conditions;
        definition
    };
    assert_eq!(Waves::of(&with(vec![condition(0)])).numbers(), [0, 1]);
    let last = with(vec![condition(1)]);
    let waves = Waves::of(&last);
    assert_eq!((waves.count(), waves.numbers()), (3, vec![0, 1, u32::MAX]));
    let mut world = World::new();
    let unmet = |all: &Reconcilers| [0, 1, 2].map(|nth| waves.unmet(all, nth).is_some());
    assert_eq!(unmet(&world.0.reconcilers), [false, false, true]);
    let ready = DesiredObject { body: r#"{"ok":true}"#.to_owned(), ..object("ready", 0) };
    world.propose(ReconcilerChange::PutObject(Box::new(ready)));
    assert_eq!(unmet(&world.0.reconcilers), [false; 3]);
}

#[test]
fn status_names_the_labels_that_nodes_lack() {
    let mut world = World::new();
    let mut selective = definition("1.0.0", "1.0.0", vec![object("a", 0)]);
    selective.options.placement.node_selector = BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]);
    world.define(selective);
    let (node, name) = (NodeId::from_entropy(7), "n7".parse().unwrap());
    world.must(Change::CreateNode(Box::new(NodeRecord::new(node, name, Role::Worker, WallTime(0)))));
    world.announce_on(Some(node), &candidates_scope(NAME), "n7", "1.0.0");
    assert_eq!(world.phase(), ("no-candidate".to_owned(), "not-selected".to_owned()));
    let shown = status(&world.0, NAME).unwrap();
    let message = &shown.brief.message;
    assert!(message.contains("n7 has no disk=ssd") && shown.brief.candidates == 0, "{message}");
    assert_eq!(runner_view(&world.0, NAME, Triple::new(1, 0, 0)).candidates[0].missing_labels, ["disk=ssd"]);
    let before = muster_gates::selection_changed(&world.0, NAME);
    let add = BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]);
    world.must(Change::UpdateLabels { node, add, remove: vec![] });
    assert!(muster_gates::selection_changed(&world.0, NAME) > before, "the candidate's view is news");
    assert_eq!(world.phase().0, "electing");
}

#[test]
fn status_shows_what_it_waits_for_and_what_would_help() {
    let mut world = World::new();
    assert_eq!(status(&world.0, NAME), None);
    world.define(definition("1.0.0", "1.0.0", vec![object("a", 0)]));
    assert_eq!(world.phase().0, "no-candidate");
    let message = status(&world.0, NAME).unwrap().brief.message;
    assert!(
        message.contains("definitions of 1.0.0, and a node runs what `muster release declare db RELEASE` says there"),
        "{message}"
    );
    world.announce(&candidates_scope(NAME), "n1", "1.0.0");
    // A candidate of a release without a definition blocks no other.
    world.announce(&candidates_scope(NAME), "stranger", "999.0.0");
    assert_eq!(runner_view(&world.0, NAME, Triple::new(1, 0, 0)).candidates.len(), 1);
    assert_eq!(world.phase().0, "electing");
    let term = world.acquire(runner_lease(NAME), "n1", 1);
    world.step("1.0.0", term, GateStep::Complete);
    let old = world.announce("db", "old", "1.0.0");
    world.propose(ReconcilerChange::Admit(old.clone()));
    world.define(definition("2.0.0", "2.0.0", vec![object("a", 0)]));
    world.announce(&candidates_scope(NAME), "n2", "2.0.0");
    assert_eq!(world.phase(), ("waiting".to_owned(), "blockers".to_owned()));
    let shown = status(&world.0, NAME).unwrap();
    assert_eq!(shown.blockers[0].blocker.member, "old");
    assert!(shown.brief.message.contains("muster reconciler blockers schema"));
    world.propose(ReconcilerChange::Pause { reconciler: NAME.to_owned(), paused: true });
    assert_eq!(world.phase(), ("paused".to_owned(), "paused".to_owned()));

    let plan = plan(&world.0, NAME, Some(Triple::new(2, 0, 0))).unwrap();
    assert_eq!((plan.hold.unwrap().reason.text(), plan.objects[0].op.as_str()), ("paused", "create"));
    assert_eq!(plan.gate.floor, Triple::new(2, 0, 0));
    world.propose(ReconcilerChange::Pause { reconciler: NAME.to_owned(), paused: false });
    let view = runner_view(&world.0, NAME, Triple::new(2, 0, 0));
    assert_eq!(
        (view.path.as_ref().map(Word::text), view.blockers.len(), view.blockers_in_all),
        (Some("restrict"), 1, 1)
    );
    let best: Vec<&str> = view.candidates.iter().map(|c| c.member.as_str()).collect();
    assert_eq!(best, ["n2", "n1"]);

    world.propose(ReconcilerChange::Leave(old));
    let term = world.acquire(runner_lease(NAME), "n1", 1);
    world.step("2.0.0", term, GateStep::Restrict);
    let late = world.announce("db", "late", "1.0.0");
    let waits = admission(&world.0, &late).waiting.unwrap();
    assert_eq!(waits.reason, AdmissionReason::BelowFloor);
    assert!(waits.message.contains("start it as 2.0.0 or later"), "{}", waits.message);
}

#[test]
fn a_missing_gate_is_explained_by_its_cause() {
    let mut world = World::new();
    let waits = |world: &World, key: &ParticipantKey| admission(&world.0, key).waiting.unwrap();
    let early = world.announce_needing("db", "early", "1.0.0");
    let undefined = waits(&world, &early);
    assert_eq!(undefined.reason, AdmissionReason::NoGate);
    assert!(undefined.message.contains("no reconciler has the name schema yet"), "{}", undefined.message);
    world.define(definition("1.0.0", "1.0.0", vec![object("a", 0)]));
    let message = waits(&world, &early).message;
    assert!(message.contains("schema has no gate yet; `muster reconciler status schema`"), "{message}");
    let term = world.acquire(runner_lease(NAME), "n1", 1);
    world.step("1.0.0", term, GateStep::Complete);
    assert_eq!(admission(&world.0, &early).waiting, None);
    world.propose(ReconcilerChange::DeleteGate { reconciler: NAME.to_owned() });
    let message = waits(&world, &early).message;
    assert!(message.contains("the gate of schema was deleted") && message.contains("reconciler history"), "{message}");
}

/// The field names, and which fields are present, are promises to scripts.
#[test]
fn documents_keep_their_fields_and_nulls() {
    let mut world = World::new();
    world.define(definition("1.0.0", "1.0.0", vec![object("a", 0)]));
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    let of_status = |tables: &Tables| serde_json::to_value(status(tables, NAME).unwrap()).unwrap();
    let of_list = |tables: &Tables| serde_json::to_value(statuses(tables)).unwrap();
    let of_plan = |tables: &Tables| serde_json::to_value(plan(tables, NAME, None).unwrap()).unwrap();
    let brief = "attempt blockers_in_all candidates consecutive_failures gate last_error last_failure message \
        name next_retry_at participants phase reason runner scope wave";
    let (full, list) = (of_status(&world.0), of_list(&world.0));
    assert_eq!((keys(&list).as_str(), keys(&list["items"][0]).as_str()), ("items revision", brief));
    let long = ["blockers", "definitions", "finalized", "history", "last_run", "output", "revision"];
    let mut all: Vec<&str> = brief.split(' ').chain(long).collect();
    all.sort_unstable();
    assert_eq!(keys(&full), all.join(" "));
    for absent in ["gate", "runner", "last_error", "last_failure", "next_retry_at", "wave", "finalized"] {
        assert!(full[absent].is_null(), "{absent}");
    }
    let planned = of_plan(&world.0);
    assert_eq!(keys(&planned), "blockers candidates command gate hold name objects path release");
    assert_eq!(keys(&planned["objects"][0]), "after before kind name namespace op");
    assert_eq!(keys(&planned["objects"][0]["after"]), "body labels");

    let term = world.acquire(runner_lease(NAME), "n1", 1);
    world.step("1.0.0", term, GateStep::Complete);
    let gate = "at digest epoch floor reconciled state target term why";
    let full = of_status(&world.0);
    assert_eq!((keys(&full["gate"]).as_str(), &full["gate"]["target"]), (gate, &serde_json::Value::Null));
    assert_eq!(
        (keys(&full["history"][0]).as_str(), keys(&full["runner"]).as_str()),
        (gate, "member node release since term")
    );
    let mut newer = Gate::clone(&world.0.reconcilers.gates[NAME]);
    newer.format = GATE_FORMAT + 1;
    world.0.reconcilers.gates.insert(NAME.to_owned(), newer.into());
    assert_eq!(of_status(&world.0)["gate"], serde_json::json!({"epoch": 1, "state": "unreadable"}));
    let read: ReconcilerStatusView = serde_json::from_value(of_status(&world.0)).unwrap();
    assert_eq!(Some(read), status(&world.0, NAME), "what was written can be read");
}

/// A report of a runner on this node.
fn report(node: NodeId, of: &str, term: FencingToken, failures: u32, phase: ReconcilerPhase) -> Progress {
    Progress {
        reconciler: NAME.to_owned(),
        term,
        node,
        release: of.parse().unwrap(),
        phase: phase.into(),
        reason: PhaseReason::Unneeded.into(),
        message: String::new(),
        since: WallTime(0),
        attempt: failures,
        consecutive_failures: failures,
        last_error: (failures > 0).then(|| "the command exited with 1".to_owned()),
        next_retry_at: None,
        wave: None,
        output: if failures > 0 { "no such table".to_owned() } else { String::new() },
    }
}

/// Every candidate has failed and keeps out: no runner reports anything.
#[test]
fn status_shows_the_last_failure_until_a_run_succeeds() {
    let mut world = World::new();
    world.define(definition("1.0.0", "1.0.0", vec![]));
    world.announce(&candidates_scope(NAME), "n1", "1.0.0");
    let node = NodeRecord::new(NodeId::from_entropy(1), "n1".parse().unwrap(), Role::Worker, WallTime(0));
    let id = node.id;
    world.must(Change::CreateNode(Box::new(node)));
    let report = |term, failures, phase| report(id, "1.0.0", term, failures, phase);
    let term = world.acquire(runner_lease(NAME), "n1", 1);
    world.propose(ReconcilerChange::Progress(Box::new(report(term, 5, ReconcilerPhase::Running))));
    world.must(Change::ReleaseLease { key: runner_lease(NAME), session: SessionId(1), token: term });
    assert_eq!(world.phase(), ("failed".to_owned(), "candidates-failed".to_owned()));
    let shown = status(&world.0, NAME).unwrap();
    let help = &shown.brief.message;
    assert!(help.contains("5 times in all, last on n1: the command exited with 1"), "{help}");
    assert!(help.contains("`muster reconciler retry schema`"), "{help}");
    assert_eq!((shown.brief.consecutive_failures, shown.output.as_str()), (5, "no such table"));
    assert_eq!(shown.brief.last_error.as_deref(), Some("the command exited with 1"));
    let failure = shown.brief.last_failure.unwrap();
    assert_eq!((failure.name.as_ref().map(Name::as_str), failure.term), (Some("n1"), term));

    let term = world.acquire(runner_lease(NAME), "n2", 2);
    world.propose(ReconcilerChange::Progress(Box::new(report(term, 0, ReconcilerPhase::Running))));
    let shown = status(&world.0, NAME).unwrap();
    assert_eq!((shown.brief.phase.text(), shown.brief.consecutive_failures), ("running", 5), "it tries again");
    assert_eq!(shown.output, "no such table");
    world.step("1.0.0", term, GateStep::Complete);
    world.propose(ReconcilerChange::Progress(Box::new(report(term, 0, ReconcilerPhase::Idle))));
    let shown = status(&world.0, NAME).unwrap();
    assert_eq!((shown.brief.phase.text(), shown.brief.consecutive_failures), ("idle", 0));
    assert_eq!((shown.brief.last_failure, shown.brief.last_error, shown.output), (None, None, String::new()));
}

/// The newest release has failed, and its nodes are gone: those of the older one wait for them, and a retry would begin nothing.
#[test]
fn failure_of_a_release_without_nodes_names_the_hold() {
    let mut world = World::new();
    world.define(definition("1.0.0", "1.0.0", vec![]));
    world.define(definition("2.0.0", "1.0.0", vec![]));
    world.announce(&candidates_scope(NAME), "n1", "1.0.0");
    let fails = |world: &mut World, of| {
        let term = world.acquire(runner_lease(NAME), "n1", 1);
        let report = report(NodeId::from_entropy(1), of, term, 1, ReconcilerPhase::Running);
        world.propose(ReconcilerChange::Progress(Box::new(report)));
        world.must(Change::ReleaseLease { key: runner_lease(NAME), session: SessionId(1), token: term });
        let shown = status(&world.0, NAME).unwrap();
        assert_eq!(shown.brief.reason.text(), "candidates-failed");
        shown.brief.message
    };
    let held = fails(&mut world, "2.0.0");
    assert!(held.contains("2.0.0 has failed on every candidate") && held.contains("those of 1.0.0 wait 30s"), "{held}");
    assert!(!held.contains("retry"), "{held}");
    let own = fails(&mut world, "1.0.0");
    assert!(own.contains("`muster reconciler retry schema`") && !own.contains("in case it returns"), "{own}");
}

#[test]
fn plan_of_an_outranked_release_says_who_runs_it() {
    let mut world = World::new();
    world.define(definition("1.0.0", "1.0.0", vec![object("a", 0)]));
    world.define(definition("2.0.0", "1.0.0", vec![object("a", 0)]));
    let begins = |world: &World, of| plan(&world.0, NAME, Some(of)).unwrap().path.map(|path| path.text().to_owned());
    let [one, two] = [Triple::new(1, 0, 0), Triple::new(2, 0, 0)];
    world.announce(&candidates_scope(NAME), "n1", "1.0.0");
    assert_eq!(begins(&world, one).as_deref(), Some("first"));
    assert_eq!(begins(&world, two).as_deref(), Some("first"), "its nodes are not started yet");
    let candidates = |world: &World| [one, two].map(|of| plan(&world.0, NAME, Some(of)).unwrap().candidates);
    assert_eq!(candidates(&world), [Some(1), Some(0)]);
    let shown = status(&world.0, NAME).unwrap();
    let held = "no live node has the newer release 2.0.0: after the last one has left, those of 1.0.0 wait 30s";
    assert!(shown.brief.message.contains(held), "{}", shown.brief.message);
    let mut patient = definition("2.0.0", "1.0.0", vec![object("a", 0)]);
    patient.options.timing.hold_ms = Some(300_000);
    world.define(patient);
    let shown = status(&world.0, NAME).unwrap();
    assert!(shown.brief.message.contains("those of 1.0.0 wait 300s"), "{}", shown.brief.message);
    world.announce(&candidates_scope(NAME), "n2", "2.0.0");
    assert_eq!(begins(&world, two).as_deref(), Some("first"));
    assert_eq!(candidates(&world), [Some(1), Some(1)]);
    let outranked = plan(&world.0, NAME, Some(one)).unwrap();
    let hold = outranked.hold.unwrap();
    assert_eq!((outranked.path, hold.reason.text()), (None, "newer-release-present"));
    assert!(hold.message.contains("nodes of release 2.0.0 are candidates"), "{}", hold.message);
}

#[test]
fn a_finalization_is_shown_until_it_is_used() {
    let mut world = World::new();
    world.define(definition("1.0.0", "1.0.0", vec![]));
    let term = world.acquire(runner_lease(NAME), "n1", 1);
    world.step("1.0.0", term, GateStep::Complete);
    world.define(Definition { finalize: Finalize::Manual, ..definition("2.0.0", "2.0.0", vec![]) });
    let shown = |world: &World| status(&world.0, NAME).unwrap().finalized.map(|release| release.to_string());
    assert_eq!(shown(&world), None);
    let digest = world.digest("2.0.0");
    world.propose(ReconcilerChange::Finalize { reconciler: NAME.to_owned(), digest });
    assert_eq!(shown(&world).as_deref(), Some("2.0.0"));
    world.step("2.0.0", term, GateStep::Restrict);
    assert_eq!(shown(&world), None);
}

/// One rule for all: otherwise a runner that an old definition has pinned would never resign for the next release.
#[test]
fn newest_definition_chooses_the_runner_for_all_releases() {
    let mut world = World::new();
    let pinned = NodeId::from_entropy(1);
    let old = Definition { pinned: Some(pinned), choice: RunnerChoice::Oldest, ..definition("1.0.0", "1.0.0", vec![]) };
    world.define(old);
    let view = |world: &World, of| runner_view(&world.0, NAME, of);
    assert_eq!(view(&world, Triple::new(1, 0, 0)).pinned, Some(pinned));
    world.define(definition("2.0.0", "1.0.0", vec![]));
    for (member, of) in [("n1", "1.0.0"), ("n2", "2.0.0")] {
        world.announce(&candidates_scope(NAME), member, of);
    }
    for of in [Triple::new(1, 0, 0), Triple::new(2, 0, 0)] {
        let view = view(&world, of);
        let best: Vec<&str> = view.candidates.iter().map(|c| c.member.as_str()).collect();
        assert_eq!((view.pinned, view.choice, best), (None, RunnerChoice::Newest, vec!["n2", "n1"]));
    }
}

/// An operator's request without a release concerns the one that the runner works on.
#[test]
fn status_shows_the_release_of_the_pinned_candidate() {
    let (pinned, other) = (NodeId::from_entropy(1), NodeId::from_entropy(2));
    let mut world = World::new();
    world.define(definition("1.0.0", "1.0.0", vec![]));
    world.define(Definition { pinned: Some(pinned), ..definition("2.0.0", "1.0.0", vec![]) });
    let shown = |world: &World| status_definition(&world.0, NAME).unwrap().release.to_string();
    world.announce_on(Some(other), &candidates_scope(NAME), "n2", "2.0.0");
    assert_eq!(shown(&world), "2.0.0", "no candidate may run it: the newest");
    world.announce_on(Some(pinned), &candidates_scope(NAME), "n1", "1.0.0");
    assert_eq!(shown(&world), "1.0.0", "n2 is newer, and does not run it");
}
