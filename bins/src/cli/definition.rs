//! Parses files of reconciler definitions: one TOML document, or YAML documents.

use muster_api::definition::Document;
use muster_messages::Definition;

/// The largest file in bytes: a larger definition would be refused anyway.
pub const MAX_FILE_BYTES: u64 = 4 << 20;

/// The definitions of a file. Its extension selects the format; without a known one, TOML is tried first.
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
    let definitions =
        documents.and_then(|all| all.into_iter().map(Definition::try_from).collect::<Result<Vec<_>, _>>());
    definitions.map_err(|why| format!("{name}: {}", why.trim_end()))
}

#[cfg(test)]
mod tests {
    use muster_messages::Action;

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
    fn definition_parses_alike_in_toml_and_yaml() {
        let yaml = "name: schema\nrelease: 2.0.0\nscope: db\nfloor: 1.5.0\nevery: 10s\nobjects:\n- kind: table\n  name: users\n  labels: {tier: one}\n  body: {columns: [id, name]}\n";
        let (toml, yaml) = (parse("d.toml", TOML).unwrap(), parse("d.yaml", yaml).unwrap());
        assert_eq!(toml, yaml);
        let [one] = &toml[..] else { panic!("one") };
        assert_eq!((one.every_ms, one.settle_ms, one.downgrade), (Some(10_000), 0, true));
        let Action::Objects(objects) = &one.action else { panic!("objects") };
        assert_eq!(objects[0].body, r#"{"columns":["id","name"]}"#);
    }

    #[test]
    fn empty_object_list_must_be_explicit() {
        let head = &TOML[..TOML.find("[[").unwrap()];
        let one = &parse("d.toml", &format!("{head}objects = []\n")).unwrap()[0];
        assert_eq!(one.action, Action::Objects(vec![]));
        let head = "name: s\nrelease: 1.0.0\nscope: s\nfloor: 1.0.0\n";
        assert!(parse("d.yaml", head).is_err() && parse("d.yaml", &format!("{head}objects: []\n")).is_ok());
    }

    #[test]
    fn command_defaults_to_once_settle_and_no_downgrade() {
        let text =
            "name = \"m\"\nrelease = \"1.0.0\"\nscope = \"s\"\nfloor = \"1.0.0\"\n[command]\nargv = [\"true\"]\n";
        let one = &parse("-", text).unwrap()[0];
        assert_eq!((one.every_ms, one.settle_ms, one.downgrade), (None, 5_000, false));
    }

    #[test]
    fn a_chain_its_range_and_its_timings_are_read() {
        let text = "name = \"m\"\nrelease = \"1.0.0\"\nscope = \"s\"\nfloor = \"1.0.0\"\napplies = \"or-later\"\n\
            [timing]\nlease = \"3s\"\nhold = \"5m\"\n\
            [[steps]]\nname = \"a\"\nargv = [\"up\", \"a\"]\n[[steps]]\nname = \"b\"\nargv = [\"up\"]\ndigest = \"d\"\n";
        let one = &parse("-", text).unwrap()[0];
        let Action::Chain(steps) = &one.action else { panic!("a chain") };
        assert_eq!((steps.len(), steps[0].name.as_str(), steps[1].digest.as_str()), (2, "a", "d"));
        let timing = one.options.timing;
        assert_eq!((timing.lease_ms, timing.hold_ms, timing.resign_pause_ms), (Some(3000), Some(300_000), None));
        assert!(one.applies_to("1.0.1".parse().unwrap()) && !one.applies_to("0.9.0".parse().unwrap()));
        assert_eq!((one.every_ms, one.settle_ms, one.downgrade), (None, 5_000, false), "as of a command");
        assert!(parse("-", &text.replace("hold =", "held =")).is_err());
    }

    #[test]
    fn parse_error_names_the_mistake() {
        for (text, word) in [
            (TOML.replace("floor", "flor"), "flor"),
            (TOML.replace("2.0.0", "2.0"), "MAJOR.MINOR.PATCH"),
            (TOML.replace("10s", "10"), "once"),
            (format!("{TOML}\n[command]\nargv = [\"x\"]\n"), "mutually exclusive"),
            (TOML[..TOML.find("[[").unwrap()].to_owned(), "objects = []"),
        ] {
            let why = parse("d.toml", &text).unwrap_err();
            assert!(why.contains(word) && why.starts_with("d.toml"), "{why}");
        }
    }
}
