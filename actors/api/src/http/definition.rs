//! Definitions of reconcilers as people write them: the document that `muster reconciler apply` reads from files and
//! that `POST /v1/reconcilers` takes as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{
    Action, Applies, ChainStep, CommandAction, CommandLimits, CommandOptions, Definition, DefinitionOptions,
    DefinitionTiming, DesiredObject, Finalize, ManagedKey, NodeId, Placement, RunnerChoice, Triple, WaveCondition,
    millis,
};
use serde::{Deserialize, Deserializer, de};

/// One definition. Omitted fields default as in [`Definition::new`]; unknown fields are refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    name: String,
    release: Triple,
    scope: String,
    floor: Triple,
    #[serde(default)]
    depends_on: Vec<String>,
    /// Applied again at this interval; absent: once for a command, every 30 s for objects.
    every: Option<Cadence>,
    settle: Option<Span>,
    timeout: Option<Span>,
    #[serde(default)]
    finalize: Finalize,
    #[serde(default)]
    elect: RunnerChoice,
    pin: Option<NodeId>,
    downgrade: Option<Downgrade>,
    from_at_least: Option<Triple>,
    resign_after: Option<u32>,
    objects: Option<Vec<Object>>,
    command: Option<Command>,
    /// A chain.
    steps: Option<Vec<Step>>,
    #[serde(default)]
    handler: bool,
    #[serde(default)]
    applies: AppliesTo,
    #[serde(default)]
    timing: Timing,
    /// Conditions between waves.
    #[serde(default)]
    waits: Vec<Wait>,
    /// Labels that the node has on which it runs.
    #[serde(default)]
    node_selector: BTreeMap<String, String>,
    #[serde(default)]
    process: Process,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    wave: u32,
    kind: String,
    #[serde(default = "default_namespace")]
    namespace: String,
    name: String,
    path: String,
    equals: serde_json::Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum AppliesTo {
    #[default]
    Exact,
    OrLater,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Timing {
    lease: Option<Span>,
    hold: Option<Span>,
    resign_pause: Option<Span>,
}

/// A step of a chain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    name: String,
    argv: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Of its content, as the author counts it. Absent: of the command.
    #[serde(default)]
    digest: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Downgrade {
    Allow,
    Deny,
}

#[derive(Debug)]
enum Cadence {
    Once,
    Every(Duration),
}
impl<'de> Deserialize<'de> for Cadence {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        match text.as_str() {
            "once" => Ok(Self::Once),
            _ => parse_duration(&text).map(Self::Every).map_err(|why| de::Error::custom(format!("`once`, or {why}"))),
        }
    }
}

#[derive(Debug)]
struct Span(Duration);
impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        parse_duration(&String::deserialize(d)?).map(Self).map_err(de::Error::custom)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Object {
    kind: String,
    #[serde(default = "default_namespace")]
    namespace: String,
    name: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    wave: u32,
    #[serde(default)]
    body: serde_json::Map<String, serde_json::Value>,
}

fn default_namespace() -> String {
    "default".to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    argv: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

/// What the process of a command, or of each step of a chain, has of its own.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Process {
    user: Option<String>,
    directory: Option<String>,
    #[serde(default)]
    env_files: Vec<String>,
    #[serde(default)]
    limits: Limits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    /// Bytes.
    memory: Option<u64>,
    processes: Option<u64>,
    open_files: Option<u64>,
    /// Of processor time; counted in whole seconds.
    cpu: Option<Span>,
}

impl From<Process> for CommandOptions {
    fn from(process: Process) -> Self {
        let Process { user, directory, env_files, limits } = process;
        let Limits { memory, processes, open_files, cpu } = limits;
        let cpu_secs = cpu.map(|cpu| cpu.0.as_secs());
        Self {
            user,
            directory,
            env_files,
            limits: CommandLimits { memory_bytes: memory, processes, open_files, cpu_secs },
        }
    }
}

impl TryFrom<Document> for Definition {
    type Error = String;
    fn try_from(document: Document) -> Result<Self, String> {
        let name = &document.name;
        let action = match (document.objects, document.command, document.steps, document.handler) {
            (Some(objects), None, None, false) => Action::Objects(objects.into_iter().map(desired).collect()),
            (None, Some(command), None, false) => {
                Action::Command(CommandAction { argv: command.argv, env: command.env })
            }
            (None, None, Some(steps), false) => Action::Chain(steps.into_iter().map(chain_step).collect()),
            (None, None, None, true) => Action::Handler,
            // A forgotten or mistyped set is not an empty one: that would delete everything.
            (None, None, None, false) => {
                let rule = "set objects, command, steps, or handler = true; `objects = []` keeps no objects";
                return Err(format!("{name}: {rule}"));
            }
            _ => return Err(format!("{name}: objects, command, steps and handler are mutually exclusive")),
        };
        let usual = Definition::new(&document.name, document.release.into(), &document.scope, document.floor, action);
        let span = |given: Option<Span>, usual: u64| given.map_or(usual, |span| millis(span.0));
        let ms = |given: Option<Span>| given.map(|span| millis(span.0));
        let options = DefinitionOptions {
            applies: match document.applies {
                AppliesTo::Exact => Applies::Exact,
                AppliesTo::OrLater => Applies::OrLater,
            },
            timing: DefinitionTiming {
                lease_ms: ms(document.timing.lease),
                hold_ms: ms(document.timing.hold),
                resign_pause_ms: ms(document.timing.resign_pause),
            },
            wave_conditions: document.waits.into_iter().map(condition).collect(),
            placement: Placement { node_selector: document.node_selector },
            command: document.process.into(),
        };
        Ok(Definition {
            options,
            depends_on: document.depends_on,
            every_ms: match document.every {
                Some(Cadence::Once) => None,
                Some(Cadence::Every(period)) => Some(millis(period)),
                None => usual.every_ms,
            },
            settle_ms: span(document.settle, usual.settle_ms),
            run_timeout_ms: span(document.timeout, usual.run_timeout_ms),
            finalize: document.finalize,
            choice: document.elect,
            pinned: document.pin,
            downgrade: document.downgrade.map_or(usual.downgrade, |given| matches!(given, Downgrade::Allow)),
            from_at_least: document.from_at_least,
            resign_after: document.resign_after.unwrap_or(usual.resign_after),
            ..usual
        })
    }
}

fn chain_step(step: Step) -> ChainStep {
    let Step { name, argv, env, digest } = step;
    ChainStep { name, command: CommandAction { argv, env }, digest }
}

fn condition(wait: Wait) -> WaveCondition {
    let Wait { wave, kind, namespace, name, path, equals } = wait;
    WaveCondition { wave, key: ManagedKey { kind, namespace, name }, path, equals: equals.to_string() }
}

fn desired(object: Object) -> DesiredObject {
    let Object { kind, namespace, name, labels, wave, body } = object;
    let body = serde_json::Value::Object(body).to_string();
    DesiredObject { key: ManagedKey { kind, namespace, name }, labels, body, wave }
}

/// Reads a number with its unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let rule = || "a duration is a number with a unit: 500ms, 30s, 10m, 2h, 90d".to_owned();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(rule)?;
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| rule())?;
    let secs = number
        * match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(rule()),
        };
    Duration::try_from_secs_f64(secs).map_err(|_| rule())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_needs_its_unit() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("90d"), Ok(Duration::from_secs(90 * 86_400)));
        for bad in ["", "30", "s", "-1s", "1w", "1..2s", "1e400s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
