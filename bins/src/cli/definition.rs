//! Definitions of reconcilers as people write them: one TOML document, or YAML documents, in a file.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{
    Action, CommandAction, Definition, DesiredObject, Finalize, ManagedKey, NodeId, Release, RunnerChoice, Triple,
};
use serde::{Deserialize, Deserializer, de};

use super::duration::{millis, parse_duration};

/// Bytes of a file: a definition that is larger would be refused anyway.
pub const MOST_BYTES: u64 = 4 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: String,
    release: Release,
    scope: String,
    floor: Triple,
    #[serde(default)]
    depends_on: Vec<String>,
    /// Applied again each time this has passed; absent: once for a command, every 30 s for objects.
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
    #[serde(default)]
    objects: Vec<Object>,
    command: Option<Command>,
    #[serde(default)]
    handler: bool,
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

/// The definitions of a file. Its name says which language it is in; without a telling one TOML is tried first.
pub fn parse(name: &str, text: &str) -> Result<Vec<Definition>, String> {
    let toml = || toml::from_str::<Document>(text).map(|document| vec![document]).map_err(|e| e.to_string());
    let yaml = || {
        let documents = serde_saphyr::from_multiple::<Document>(text);
        documents.map_err(|e| e.to_string())
    };
    let documents = if name.ends_with(".toml") {
        toml()
    } else if [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end)) {
        yaml()
    } else {
        toml().or_else(|as_toml| yaml().map_err(|as_yaml| format!("neither TOML ({as_toml}) nor YAML ({as_yaml})")))
    };
    let definitions = documents.and_then(|all| all.into_iter().map(definition).collect::<Result<Vec<_>, _>>());
    definitions.map_err(|why| format!("{name}: {}", why.trim_end()))
}

fn definition(document: Document) -> Result<Definition, String> {
    let name = document.name.clone();
    let kinds = [!document.objects.is_empty(), document.command.is_some(), document.handler];
    if kinds.into_iter().filter(|there| *there).count() > 1 {
        return Err(format!("{name}: objects, command and handler exclude each other"));
    }
    let action = match document.command {
        Some(command) => Action::Command(CommandAction { argv: command.argv, env: command.env }),
        None if document.handler => Action::Handler,
        None => Action::Objects(document.objects.into_iter().map(desired).collect()),
    };
    let usual = Definition::new(&document.name, document.release, &document.scope, document.floor, action);
    let span = |said: Option<Span>, usual: u64| said.map_or(usual, |span| millis(span.0));
    Ok(Definition {
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
        downgrade: document.downgrade.map_or(usual.downgrade, |said| matches!(said, Downgrade::Allow)),
        from_at_least: document.from_at_least,
        resign_after: document.resign_after.unwrap_or(usual.resign_after),
        ..usual
    })
}

fn desired(object: Object) -> DesiredObject {
    let Object { kind, namespace, name, labels, wave, body } = object;
    let body = serde_json::Value::Object(body).to_string();
    DesiredObject { key: ManagedKey { kind, namespace, name }, labels, body, wave }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOML: &str = r#"
        name = "schema"
        release = "2.0.0"
        scope = "db"
        floor = "1.5.0"
        every = "10s"
        [[objects]]
        kind = "table"
        name = "users"
        labels = { tier = "one" }
        [objects.body]
        columns = ["id", "name"]
    "#;

    #[test]
    fn the_same_definition_reads_the_same_in_both_languages() {
        let yaml = "name: schema\nrelease: 2.0.0\nscope: db\nfloor: 1.5.0\nevery: 10s\nobjects:\n- kind: table\n  name: users\n  labels: {tier: one}\n  body: {columns: [id, name]}\n";
        let (toml, yaml) = (parse("d.toml", TOML).unwrap(), parse("d.yaml", yaml).unwrap());
        assert_eq!(toml, yaml);
        let [one] = &toml[..] else { panic!("one") };
        assert_eq!((one.every_ms, one.settle_ms, one.downgrade), (Some(10_000), 0, true));
        let Action::Objects(objects) = &one.action else { panic!("objects") };
        assert_eq!(objects[0].body, r#"{"columns":["id","name"]}"#);
    }

    #[test]
    fn a_command_runs_once_settles_and_does_not_go_back_unless_it_says_so() {
        let text =
            "name = \"m\"\nrelease = \"1.0.0\"\nscope = \"s\"\nfloor = \"1.0.0\"\n[command]\nargv = [\"true\"]\n";
        let one = &parse("-", text).unwrap()[0];
        assert_eq!((one.every_ms, one.settle_ms, one.downgrade), (None, 5_000, false));
    }

    #[test]
    fn what_is_mistyped_is_named() {
        for (text, word) in [
            (TOML.replace("floor", "flor"), "flor"),
            (TOML.replace("2.0.0", "2.0"), "MAJOR.MINOR.PATCH"),
            (TOML.replace("10s", "10"), "once"),
            (format!("{TOML}\n[command]\nargv = [\"x\"]\n"), "exclude"),
        ] {
            let why = parse("d.toml", &text).unwrap_err();
            assert!(why.contains(word) && why.starts_with("d.toml"), "{why}");
        }
    }
}
