//! Incoming definitions: which are valid, and the digest that distinguishes two of one release.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_messages::{
    Action, ChainStep, CommandAction, DNS_LABEL, Definition, DefinitionTiming, DesiredObject, Progress,
    RECONCILER_LABEL, Revision, RunRecord, WallTime, is_dns_label, is_dns_subdomain,
};
use sha2::{Digest, Sha256};

use crate::options::fault_of_options;

/// Maximum objects of one definition.
const MAX_OBJECTS: usize = 5_000;
/// Maximum bytes of one definition as JSON: it travels in one log entry.
const MAX_DEFINITION_BYTES: usize = 512 * 1024;
/// The shortest and the longest lease of a runner, in milliseconds. The first is some elections of a leader; the second is the longest
/// that the leader grants to candidates.
pub const MIN_LEASE_MS: u64 = 3_000;
pub const MAX_LEASE_MS: u64 = 60_000;
/// The longest that an older candidate waits for newer ones that have left, and a runner that has resigned keeps out.
const MAX_HOLD_MS: u64 = 3_600_000;
const MIN_RESIGN_PAUSE_MS: u64 = 1_000;
/// Maximum steps of one chain.
const MAX_STEPS: usize = 1_000;
/// The longest name of a step: a DNS subdomain.
pub const MAX_STEP_NAME_BYTES: usize = 253;
/// A SHA-512 in hexadecimal, with its name.
const MAX_STEP_DIGEST_BYTES: usize = 160;
/// Maximum waves of one definition.
pub(crate) const MAX_WAVES: u32 = 1_000;

pub(crate) fn wave_range() -> String {
    format!("waves are counted from 0 to {}", MAX_WAVES - 1)
}
/// The longest period, pause or run: a year, in milliseconds.
const MAX_DURATION_MS: u64 = 366 * 24 * 3_600_000;
/// Maximum reconcilers that one may depend on.
const MAX_DEPENDENCIES: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reconciler} {release}: {why}")]
pub struct BadDefinition {
    pub reconciler: String,
    pub release: String,
    pub why: String,
}

/// SHA-256, in hexadecimal, of the definition as JSON without the server's additions. Equivalent definitions have the same
/// digest: maps and objects are sorted by key.
pub fn digest(definition: &Definition) -> String {
    let mut bare =
        Definition { digest: String::new(), applied_at: WallTime(0), revision: Revision(0), ..definition.clone() };
    if let Action::Objects(objects) = &mut bare.action {
        objects.sort_by(|a, b| a.key.cmp(&b.key));
    }
    sha256_hex(&serde_json::to_vec(&bare).unwrap_or_default())
}

/// The definition with its digest, if it is valid.
pub fn sealed(mut definition: Definition) -> Result<Definition, BadDefinition> {
    let why = fault(&definition);
    if let Some(why) = why {
        let (reconciler, release) = (definition.reconciler.clone(), definition.release.to_string());
        return Err(BadDefinition { reconciler, release, why });
    }
    if let Action::Chain(steps) = &mut definition.action {
        for step in steps.iter_mut().filter(|step| step.digest.is_empty()) {
            step.digest = step_digest(&step.command);
        }
    }
    definition.digest = digest(&definition);
    Ok(definition)
}

fn fault(d: &Definition) -> Option<String> {
    if !is_dns_label(&d.reconciler) || !is_dns_label(&d.scope) {
        return Some(format!("a name and a scope are {DNS_LABEL}"));
    }
    if let Err(why) = d.release.plain() {
        return Some(why.to_string());
    }
    if let Some(from) = d.from_at_least.filter(|from| *from > d.release.triple) {
        return Some(format!("from_at_least {from} is above the release itself"));
    }
    if d.floor > d.release.triple {
        return Some(format!("the floor {} is above the release itself, which could then never serve", d.floor));
    }
    if d.every_ms.is_some_and(|ms| ms < 1_000) {
        return Some("it can be applied again once a second at most".to_owned());
    }
    if [d.every_ms.unwrap_or(0), d.settle_ms, d.run_timeout_ms].into_iter().any(|ms| ms > MAX_DURATION_MS) {
        return Some("every, settle and timeout are a year at most".to_owned());
    }
    if d.resign_after == 0 {
        return Some("resign_after is 1 at least: the failures in a row after which a runner resigns".to_owned());
    }
    if let Some(why) = fault_of_timing(&d.options.timing) {
        return Some(why);
    }
    if d.depends_on.len() > MAX_DEPENDENCIES {
        return Some(format!("{} dependencies; {MAX_DEPENDENCIES} is the limit", d.depends_on.len()));
    }
    if d.depends_on.contains(&d.reconciler) {
        return Some("it depends on itself".to_owned());
    }
    if let Some(bad) = d.depends_on.iter().find(|name| !is_dns_label(name)) {
        return Some(format!("depends_on {bad:?}: a name is {DNS_LABEL}"));
    }
    if let Some(why) = fault_of_options(d) {
        return Some(why);
    }
    match &d.action {
        Action::Objects(objects) => fault_of_objects(objects),
        Action::Command(command) => fault_of_command(command),
        Action::Handler => None,
        Action::Chain(steps) => fault_of_chain(steps),
    }
    .or_else(|| {
        let bytes = serde_json::to_vec(d).map_or(0, |text| text.len());
        (bytes > MAX_DEFINITION_BYTES).then(|| format!("{bytes} bytes; {MAX_DEFINITION_BYTES} is the limit"))
    })
}

fn fault_of_timing(timing: &DefinitionTiming) -> Option<String> {
    let DefinitionTiming { lease_ms, hold_ms, resign_pause_ms } = *timing;
    if let Some(ms) = lease_ms.filter(|ms| !(MIN_LEASE_MS..=MAX_LEASE_MS).contains(ms)) {
        return Some(format!(
            "a lease of {:?}: it is 3 s to 60 s. A shorter one would end with each change of the cluster's leader, and leave a \
             command, which has a third of it to end, no time to do so; a longer one is how long a dead runner holds up the others",
            Duration::from_millis(ms)
        ));
    }
    if let Some(ms) = hold_ms.filter(|ms| *ms > MAX_HOLD_MS) {
        return Some(format!(
            "a hold of {:?}: it is an hour at most. Meanwhile, no older candidate takes over from newer ones that have left",
            Duration::from_millis(ms)
        ));
    }
    let pause = resign_pause_ms.filter(|ms| !(MIN_RESIGN_PAUSE_MS..=MAX_HOLD_MS).contains(ms));
    pause.map(|ms| {
        format!(
            "a resign_pause of {:?}: it is 1 s to 1 h. A shorter one would give the work back to the node that has just failed at it",
            Duration::from_millis(ms)
        )
    })
}

fn fault_of_chain(steps: &[ChainStep]) -> Option<String> {
    if steps.len() > MAX_STEPS {
        return Some(format!("{} steps; {MAX_STEPS} is the limit", steps.len()));
    }
    let mut names = BTreeSet::new();
    steps.iter().find_map(|step| {
        let name = &step.name;
        if !is_dns_subdomain(name) {
            return Some(format!(
                "step {name:?}: a name is a DNS subdomain (RFC 1123): lower-case letters, digits, '-' and '.'"
            ));
        }
        if !names.insert(name) {
            return Some(format!("step {name} is listed twice"));
        }
        if step.digest.len() > MAX_STEP_DIGEST_BYTES {
            return Some(format!("step {name}: a digest has {MAX_STEP_DIGEST_BYTES} bytes at most"));
        }
        fault_of_command(&step.command).map(|why| format!("step {name}: {why}"))
    })
}

/// The digest of a step whose author gave none.
fn step_digest(command: &CommandAction) -> String {
    sha256_hex(&serde_json::to_vec(command).unwrap_or_default())
}

fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn fault_of_command(command: &CommandAction) -> Option<String> {
    if command.argv.first().is_none_or(String::is_empty) {
        return Some("the command is empty".to_owned());
    }
    let (names, values) = (command.env.keys(), command.env.values());
    if command.argv.iter().chain(values).any(|text| text.contains('\0')) {
        return Some("neither a command nor its environment can hold a zero byte".to_owned());
    }
    let is_variable = |name: &&String| {
        let part = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        name.bytes().all(part) && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
    };
    if let Some(bad) = names.clone().find(|name| !is_variable(name)) {
        return Some(format!("env {bad:?}: a variable is a letter or _, then letters, digits and _"));
    }
    let ours = names.into_iter().find(|name| name.starts_with("MUSTER_"));
    ours.map(|name| format!("env {name}: variables that begin with MUSTER_ are set by Muster"))
}

fn fault_of_objects(objects: &[DesiredObject]) -> Option<String> {
    if objects.len() > MAX_OBJECTS {
        return Some(format!("{} objects; {MAX_OBJECTS} is the limit", objects.len()));
    }
    let mut keys: Vec<_> = objects.iter().map(|object| &object.key).collect();
    keys.sort_unstable();
    if let Some(twice) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
        return Some(format!("{} is listed twice", twice[0]));
    }
    objects.iter().find_map(|object| {
        let (key, why) = (&object.key, |why: &str| Some(format!("{}: {why}", object.key)));
        if ![&key.kind, &key.namespace].into_iter().all(|text| is_dns_label(text)) || !is_dns_subdomain(&key.name) {
            return why("kind and namespace are DNS labels, a name is a DNS subdomain (RFC 1123)");
        }
        if object.wave >= MAX_WAVES {
            return why(&wave_range());
        }
        if object.labels.contains_key(RECONCILER_LABEL) {
            return why("the label muster.dev/reconciler is written by the reconciler itself");
        }
        match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&object.body) {
            Ok(_) => None,
            Err(_) => why("its body is not a JSON object"),
        }
    })
}

/// Whether an object could be part of a definition.
pub fn sound_object(object: &DesiredObject) -> Result<(), String> {
    if object.body.len() > MAX_DEFINITION_BYTES {
        return Err(format!("{} bytes; {MAX_DEFINITION_BYTES} is the limit", object.body.len()));
    }
    fault_of_objects(std::slice::from_ref(object)).map_or(Ok(()), Err)
}

/// Maximum bytes of a runner's report, by kind of text.
const MAX_WORD_BYTES: usize = 64;
const MAX_SENTENCE_BYTES: usize = 2 * 1024;
/// The end of a command's output is kept.
const MAX_OUTPUT_BYTES: usize = 64 * 1024;

/// The error in a report, if any: it is replicated, and shown to people.
pub fn fault_of_progress(progress: &Progress) -> Option<String> {
    let texts = [
        ("reconciler", progress.reconciler.as_str(), MAX_WORD_BYTES),
        ("phase", progress.phase.text(), MAX_WORD_BYTES),
        ("reason", progress.reason.text(), MAX_WORD_BYTES),
        ("message", progress.message.as_str(), MAX_SENTENCE_BYTES),
        ("output", progress.output.as_str(), MAX_OUTPUT_BYTES),
    ];
    let error = progress.last_error.as_ref().map(|error| ("last_error", error.as_str(), MAX_SENTENCE_BYTES));
    let long = texts.into_iter().chain(error).find(|(_, text, most)| text.len() > *most);
    too_long(long)
}

/// What is wrong with the record of a run: it comes from a program, and is stored. Its texts are cut to what is kept.
pub fn fault_of_run(run: &RunRecord) -> Option<String> {
    let step = run.step.as_deref().unwrap_or_default();
    let texts = [("reconciler", run.reconciler.as_str(), MAX_WORD_BYTES), ("step", step, MAX_STEP_NAME_BYTES)];
    too_long(texts.into_iter().find(|(_, text, most)| text.len() > *most))
        .or_else(|| run.release.plain().err().map(|why| format!("release {}: {why}", run.release)))
}

fn too_long(text: Option<(&str, &str, usize)>) -> Option<String> {
    text.map(|(what, text, most)| format!("{what}: {} bytes; {most} is the limit", text.len()))
}
