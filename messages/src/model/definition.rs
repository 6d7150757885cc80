//! Definitions: what one release applies under a reconciler's name, and how they are encoded.
//!
//! What feature level 5 introduced ([`DefinitionOptions`], [`Action::Chain`]) is a kind of action of its own in the encoding, so that
//! a definition without it has the bytes that it always had, and an older build, also that of a worker, reads one with it as
//! unreadable instead of carrying out half of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    DEFINITIONS_LEVEL, Finalize, GateTarget, ManagedKey, NodeId, RECONCILERS_LEVEL, Release, Revision, RunnerChoice,
    Triple, WallTime,
};

/// A runner's work. Its encoding alone, as inside of `WrittenAction::With`, numbers the variants without `With`: the next one
/// is 4 here, and 5 in the encoding of a definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Objects in Muster's own store; each write is fenced by the runner's term.
    Objects(Vec<DesiredObject>),
    Command(CommandAction),
    /// Code of a program that embeds the runner.
    Handler,
    /// Commands, each of which runs once, in order: [`ChainRecord`](super::ChainRecord) has those that have run. From
    /// [`DEFINITIONS_LEVEL`] on.
    Chain(Vec<ChainStep>),
}

/// A step of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainStep {
    /// Unique in its chain.
    pub name: String,
    pub command: CommandAction,
    /// Of its content: what its author gave, else the SHA-256 of its command. A step that has run must keep it.
    pub digest: String,
}

impl Action {
    /// Hides what only operators and the node that runs it may see.
    pub fn redact(&mut self) {
        match self {
            Action::Objects(_) | Action::Handler => {}
            Action::Command(command) => *command = command.redacted(),
            Action::Chain(steps) => steps.iter_mut().for_each(|step| step.command = step.command.redacted()),
        }
    }
}

/// An object as the definition wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredObject {
    pub key: ManagedKey,
    pub labels: BTreeMap<String, String>,
    /// A JSON object as text.
    pub body: String,
    /// Waves are applied in order; one begins when all objects of earlier waves exist.
    pub wave: u32,
}

/// A command that a runner executes on its node. It must be idempotent: it can be interrupted at any point and restarted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandAction {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
}

/// In the place of hidden arguments. A program's argument cannot contain a zero byte, so this is never a real one.
const HIDDEN: &str = "\0hidden";

impl CommandAction {
    /// The program alone: arguments and environment are for operators and for the node that runs it.
    #[must_use]
    pub fn redacted(&self) -> Self {
        let program = self.argv.first().cloned().unwrap_or_default();
        Self { argv: vec![program, HIDDEN.to_owned()], env: BTreeMap::new() }
    }
    /// Whether parts are hidden: it must not be run.
    pub fn is_redacted(&self) -> bool {
        self.argv.iter().any(|argument| argument == HIDDEN)
    }
}

/// Which nodes apply a definition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Applies {
    /// Those of its release.
    #[default]
    Exact,
    /// Those of its release and of later ones, up to the next release that has a definition.
    OrLater,
}

/// Durations of candidates and runners, in milliseconds. `None`: those of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DefinitionTiming {
    /// Of the runner's lease: how long a takeover takes at most after the runner died.
    pub lease_ms: Option<u64>,
    /// How long a newer candidate that has left still holds back older ones.
    pub hold_ms: Option<u64>,
    /// How long a runner that has resigned keeps out.
    pub resign_pause_ms: Option<u64>,
}

impl DefinitionTiming {
    /// How long older candidates wait for newer ones that have left, unless a definition says otherwise.
    pub const DEFAULT_HOLD: Duration = Duration::from_secs(30);
    /// How long a candidate that has resigned keeps out, unless a definition says otherwise.
    pub const DEFAULT_RESIGN_PAUSE: Duration = Duration::from_secs(60);

    /// How long a newer candidate that has left still holds back older ones. `usual`: that of the process.
    pub fn hold(&self, usual: Duration) -> Duration {
        self.hold_ms.map_or(usual, Duration::from_millis)
    }
    /// How long a runner that has resigned keeps out. `usual`: that of the process.
    pub fn resign_pause(&self, usual: Duration) -> Duration {
        self.resign_pause_ms.map_or(usual, Duration::from_millis)
    }
}

/// What must be true of an object in Muster's store before a wave counts as done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaveCondition {
    pub wave: u32,
    pub key: ManagedKey,
    /// A JSON pointer (RFC 6901) into the body.
    pub path: String,
    /// JSON as text.
    pub equals: String,
}

/// Which nodes may run it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Placement {
    /// Labels that the node has, all of them.
    pub node_selector: BTreeMap<String, String>,
}

/// Limits of a command's processes. `None`: those of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommandLimits {
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
    pub open_files: Option<u64>,
    pub cpu_secs: Option<u64>,
}

/// How a command runs, also each of a chain's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommandOptions {
    /// `None`: the daemon's own.
    pub user: Option<String>,
    /// The working directory. `None`: the daemon's own.
    pub directory: Option<String>,
    /// Files of `NAME=VALUE` lines on the node, read when the command starts.
    pub env_files: Vec<String>,
    pub limits: CommandLimits,
}

/// What a definition may say from [`DEFINITIONS_LEVEL`] on. The default is what each one meant before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DefinitionOptions {
    pub applies: Applies,
    pub timing: DefinitionTiming,
    pub wave_conditions: Vec<WaveCondition>,
    pub placement: Placement,
    pub command: CommandOptions,
}

/// What one release applies under a reconciler's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    pub reconciler: String,
    pub release: Release,
    pub scope: String,
    /// The lowest release of a participant that is compatible with the outcome. Never above `release`.
    pub floor: Triple,
    pub action: Action,
    /// Reconcilers whose gate must be done before this one runs.
    pub depends_on: Vec<String>,
    /// Applied again at this interval. `None`: once.
    pub every_ms: Option<u64>,
    /// Pause before a run, so that a predecessor's last writes have arrived.
    pub settle_ms: u64,
    pub run_timeout_ms: u64,
    pub finalize: Finalize,
    pub choice: RunnerChoice,
    /// Only this node runs it.
    pub pinned: Option<NodeId>,
    /// Whether it may follow a newer release.
    pub downgrade: bool,
    /// Refuses to follow an older release.
    pub from_at_least: Option<Triple>,
    /// A runner with this many failures in a row gives way to another candidate, if there is one.
    pub resign_after: u32,
    pub options: DefinitionOptions,
    /// SHA-256, in hexadecimal, of all of the above.
    pub digest: String,
    pub applied_at: WallTime,
    pub revision: Revision,
}

/// A definition's key: one per name and release.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DefinitionKey {
    pub reconciler: String,
    pub release: Triple,
}

impl Definition {
    /// With the usual defaults: objects and handlers are applied again every 30 s, a command or a chain once; actions that cannot be fenced wait
    /// 5 s for a predecessor's last writes, and do not allow a downgrade.
    pub fn new(reconciler: &str, release: Release, scope: &str, floor: Triple, action: Action) -> Self {
        let fenced = matches!(action, Action::Objects(_));
        let once = matches!(action, Action::Command(_) | Action::Chain(_));
        Self {
            reconciler: reconciler.to_owned(),
            release,
            scope: scope.to_owned(),
            floor,
            every_ms: if once { None } else { Some(30_000) },
            action,
            depends_on: Vec::new(),
            settle_ms: if fenced { 0 } else { 5_000 },
            run_timeout_ms: 600_000,
            finalize: Finalize::Auto,
            choice: RunnerChoice::Newest,
            pinned: None,
            downgrade: fenced,
            from_at_least: None,
            resign_after: 5,
            options: DefinitionOptions::default(),
            digest: String::new(),
            applied_at: WallTime(0),
            revision: Revision(0),
        }
    }
    /// The feature level from which on it can be encoded.
    pub fn needs_level(&self) -> u32 {
        let is_newer = matches!(self.action, Action::Chain(_)) || self.options != DefinitionOptions::default();
        if is_newer { DEFINITIONS_LEVEL } else { RECONCILERS_LEVEL }
    }
    /// Whether nodes of this release may apply it, apart from newer definitions.
    pub fn applies_to(&self, release: Triple) -> bool {
        match self.options.applies {
            Applies::Exact => release == self.release.triple,
            Applies::OrLater => release >= self.release.triple,
        }
    }
    pub fn key(&self) -> DefinitionKey {
        DefinitionKey { reconciler: self.reconciler.clone(), release: self.release.triple }
    }
    /// The gate's content once it is applied.
    pub fn target(&self) -> GateTarget {
        GateTarget { release: self.release.clone(), digest: self.digest.clone(), floor: self.floor }
    }
}

/// The encoding. Written and read by the pairs below, whose fields have the same names and order.
#[derive(Serialize)]
#[serde(rename = "Definition")]
struct Written<'a> {
    reconciler: &'a str,
    release: &'a Release,
    scope: &'a str,
    floor: Triple,
    action: WrittenAction<'a>,
    depends_on: &'a [String],
    every_ms: Option<u64>,
    settle_ms: u64,
    run_timeout_ms: u64,
    finalize: Finalize,
    choice: RunnerChoice,
    pinned: Option<NodeId>,
    downgrade: bool,
    from_at_least: Option<Triple>,
    resign_after: u32,
    digest: &'a str,
    applied_at: WallTime,
    revision: Revision,
}

#[derive(Deserialize)]
#[serde(rename = "Definition")]
struct Read {
    reconciler: String,
    release: Release,
    scope: String,
    floor: Triple,
    action: ReadAction,
    depends_on: Vec<String>,
    every_ms: Option<u64>,
    settle_ms: u64,
    run_timeout_ms: u64,
    finalize: Finalize,
    choice: RunnerChoice,
    pinned: Option<NodeId>,
    downgrade: bool,
    from_at_least: Option<Triple>,
    resign_after: u32,
    digest: String,
    applied_at: WallTime,
    revision: Revision,
}

/// The variants' numbers are those of the encoding: a new one is appended, after `With`, here and in `ReadAction`.
#[derive(Serialize)]
#[serde(rename = "Action")]
enum WrittenAction<'a> {
    Objects(&'a [DesiredObject]),
    Command(&'a CommandAction),
    Handler,
    Chain(&'a [ChainStep]),
    /// With options that are not the default ones.
    With {
        action: &'a Action,
        options: &'a DefinitionOptions,
    },
}

#[derive(Deserialize)]
#[serde(rename = "Action")]
enum ReadAction {
    Objects(Vec<DesiredObject>),
    Command(CommandAction),
    Handler,
    Chain(Vec<ChainStep>),
    With { action: Action, options: Box<DefinitionOptions> },
}

impl Serialize for Definition {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let action = match &self.action {
            action if self.options != DefinitionOptions::default() => {
                WrittenAction::With { action, options: &self.options }
            }
            Action::Objects(objects) => WrittenAction::Objects(objects),
            Action::Command(command) => WrittenAction::Command(command),
            Action::Handler => WrittenAction::Handler,
            Action::Chain(steps) => WrittenAction::Chain(steps),
        };
        Written {
            reconciler: &self.reconciler,
            release: &self.release,
            scope: &self.scope,
            floor: self.floor,
            action,
            depends_on: &self.depends_on,
            every_ms: self.every_ms,
            settle_ms: self.settle_ms,
            run_timeout_ms: self.run_timeout_ms,
            finalize: self.finalize,
            choice: self.choice,
            pinned: self.pinned,
            downgrade: self.downgrade,
            from_at_least: self.from_at_least,
            resign_after: self.resign_after,
            digest: &self.digest,
            applied_at: self.applied_at,
            revision: self.revision,
        }
        .serialize(s)
    }
}

impl<'de> Deserialize<'de> for Definition {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let read = Read::deserialize(d)?;
        let (action, options) = match read.action {
            ReadAction::Objects(objects) => (Action::Objects(objects), DefinitionOptions::default()),
            ReadAction::Command(command) => (Action::Command(command), DefinitionOptions::default()),
            ReadAction::Handler => (Action::Handler, DefinitionOptions::default()),
            ReadAction::Chain(steps) => (Action::Chain(steps), DefinitionOptions::default()),
            ReadAction::With { action, options } => (action, *options),
        };
        Ok(Self {
            reconciler: read.reconciler,
            release: read.release,
            scope: read.scope,
            floor: read.floor,
            action,
            options,
            depends_on: read.depends_on,
            every_ms: read.every_ms,
            settle_ms: read.settle_ms,
            run_timeout_ms: read.run_timeout_ms,
            finalize: read.finalize,
            choice: read.choice,
            pinned: read.pinned,
            downgrade: read.downgrade,
            from_at_least: read.from_at_least,
            resign_after: read.resign_after,
            digest: read.digest,
            applied_at: read.applied_at,
            revision: read.revision,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode_stored, encode_stored};

    fn definition(action: Action) -> Definition {
        Definition::new("schema", "1.2.0".parse().unwrap(), "db", Triple::new(1, 0, 0), action)
    }
    fn command(program: &str) -> CommandAction {
        CommandAction { argv: vec![program.to_owned()], env: BTreeMap::new() }
    }
    fn or_later() -> DefinitionOptions {
        DefinitionOptions { applies: Applies::OrLater, ..DefinitionOptions::default() }
    }

    #[test]
    fn a_definition_is_read_as_it_was_written() {
        let step = ChainStep { name: "first".to_owned(), command: command("a"), digest: "d".to_owned() };
        let actions =
            [Action::Objects(vec![]), Action::Command(command("a")), Action::Handler, Action::Chain(vec![step])];
        for action in actions {
            for options in [DefinitionOptions::default(), or_later()] {
                let definition = Definition { options, ..definition(action.clone()) };
                let bytes = encode_stored(&definition).unwrap();
                assert_eq!(decode_stored::<Definition>(&bytes).unwrap(), definition);
                let text = serde_json::to_string(&definition).unwrap();
                assert_eq!(serde_json::from_str::<Definition>(&text).unwrap(), definition);
            }
        }
    }

    /// The encoding of level 4: the action's number, after `schema`, the release, the scope and the floor.
    #[test]
    fn only_what_is_new_has_a_new_encoding() {
        let kind_of = |definition: &Definition| {
            let bytes = encode_stored(definition).unwrap();
            let before = encode_stored(&("schema", "1.2.0", "db", "1.0.0")).unwrap().len();
            bytes[before]
        };
        assert_eq!(kind_of(&definition(Action::Objects(vec![]))), 0);
        assert_eq!(kind_of(&definition(Action::Command(command("a")))), 1);
        assert_eq!(kind_of(&definition(Action::Handler)), 2);
        let chain = definition(Action::Chain(vec![]));
        assert_eq!((kind_of(&chain), chain.needs_level()), (3, DEFINITIONS_LEVEL));
        let with = Definition { options: or_later(), ..definition(Action::Handler) };
        assert_eq!((kind_of(&with), with.needs_level()), (4, DEFINITIONS_LEVEL));
        assert_eq!(definition(Action::Handler).needs_level(), RECONCILERS_LEVEL);
        assert!(serde_json::to_string(&definition(Action::Handler)).unwrap().find("options").is_none());
    }
}
