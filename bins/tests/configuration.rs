//! The daemon's configuration as users see it: flags, environment, file, `--print-config`, and the document that explains them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const DOCUMENT: &str = include_str!("../../docs/configuration.md");

struct RunOutput {
    status: i32,
    stdout: String,
    stderr: String,
}

fn musterd(args: &[&str], env: &[(&str, &str)]) -> RunOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_musterd"));
    let out = command.env_clear().envs(env.iter().copied()).args(args).output().expect("musterd was built");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("musterd writes UTF-8");
    RunOutput { status: out.status.code().unwrap_or(-1), stdout: text(out.stdout), stderr: text(out.stderr) }
}

fn printed(args: &[&str], env: &[(&str, &str)]) -> toml::Table {
    let output = musterd(&[args, &["--print-config"]].concat(), env);
    assert_eq!(output.status, 0, "{}", output.stderr);
    output.stdout.parse().expect("what it prints is TOML")
}

fn file(dir: &tempfile::TempDir, text: &str) -> String {
    let path = dir.path().join("musterd.toml");
    std::fs::write(&path, text).expect("the folder is writable");
    path.display().to_string()
}

fn text<'a>(config: &'a toml::Table, key: &str) -> &'a str {
    config[key].as_str().unwrap_or_else(|| panic!("{key} is not a text: {}", config[key]))
}

#[test]
fn printed_configuration_is_an_equivalent_file() {
    let dir = tempfile::tempdir().unwrap();
    let given = file(
        &dir,
        "data_dir = \"/d\"\nname = \"n\"\njoin = [\"h:1\", \"h:2\"]\nmetrics = \"off\"\n[labels]\nzone = \"a,b\"\n\
         [agent]\nheartbeat = \"700ms\"\n[gateway]\njoins_per_second = 3\n[debug]\ncrash = true\n",
    );
    let first = musterd(&["--config", &given, "--print-config"], &[]).stdout;
    let reprinted = file(&dir, &first);
    assert_eq!(musterd(&["--config", &reprinted, "--print-config"], &[]).stdout, first);
    let config: toml::Table = first.parse().unwrap();
    assert_eq!(config["labels"]["zone"].as_str(), Some("a,b"));
    // Three missed heartbeats of 770 ms, the agent's longest pause, and time for the digest: less than two digests.
    assert_eq!(config["dispatcher"]["grace"].as_str(), Some("10s"), "a derived key is filled in");
}

#[test]
fn flags_beat_environment_file_and_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(
        &dir,
        "data_dir = \"/file\"\nname = \"file\"\nlisten = \"file:1\"\nrelease = \"1.1.1\"\n[labels]\na = \"file\"\nb = \"file\"\n",
    );
    let env = [("MUSTER_CONFIG", file.as_str()), ("MUSTER_NAME", "env"), ("MUSTER_LISTEN", "env:2")];
    let config = printed(&["--name", "flag", "--label", "a=flag"], &env);
    let got = ["name", "listen", "release", "data_dir", "cluster_name"].map(|key| text(&config, key));
    assert_eq!(got, ["flag", "env:2", "1.1.1", "/file", "default"]);
    assert_eq!(config["labels"], toml::Value::Table(toml::toml! { a = "flag"  b = "file" }), "labels are merged");
}

#[test]
fn every_flag_has_its_variable() {
    let env = [
        ("MUSTER_DATA_DIR", "/e", "data_dir"),
        ("MUSTER_LISTEN", "e:1", "listen"),
        ("MUSTER_ADVERTISE", "e:2", "advertise"),
        ("MUSTER_NAME", "e", "name"),
        ("MUSTER_INIT", "false", "init"),
        ("MUSTER_CLUSTER_NAME", "e", "cluster_name"),
        ("MUSTER_JOIN", "e:3,e:4", "join"),
        ("MUSTER_TOKEN", "MSTR-1-secret", ""),
        ("MUSTER_TOKEN_FILE", "/e/token", ""),
        ("MUSTER_RELEASE", "3.2.1", "release"),
        ("MUSTER_LABEL", "a=1,b=2", "labels"),
        ("MUSTER_METRICS", "off", "metrics"),
        ("MUSTER_SOCKET", "/e/s", "socket"),
        ("MUSTER_WORKLOAD_SOCKET", "/e/w", "workload_socket"),
        ("MUSTER_UNLOCK_KEY_FILE", "/e/key", "unlock_key_file"),
        ("MUSTER_LOG", "debug", "log"),
        ("MUSTER_LOG_FORMAT", "json", "log_format"),
    ];
    let config = printed(&[], &env.map(|(variable, value, _)| (variable, value)));
    for (variable, value, key) in env.iter().filter(|(_, _, key)| !key.is_empty()) {
        let got = match &config[*key] {
            toml::Value::String(text) => text.clone(),
            toml::Value::Boolean(yes) => yes.to_string(),
            toml::Value::Array(all) => all.iter().filter_map(|v| v.as_str()).collect::<Vec<_>>().join(","),
            toml::Value::Table(all) => {
                all.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or("?"))).collect::<Vec<_>>().join(",")
            }
            other => panic!("{key}: {other}"),
        };
        assert_eq!(&got, value, "{variable}");
    }
    let help = musterd(&["--help"], &[]).stdout;
    let flags = help.matches("\n      --").count() + help.matches("\n  -").count();
    let variables = help.matches("[env: MUSTER_").count();
    // Help, version, --print-config, --check-config, recovery, its plan and a restore are actions, not configuration.
    assert_eq!(
        (flags, variables),
        (env.len() + 1 + 7, env.len() + 1),
        "the one more is the configuration file\n{help}"
    );
    for (variable, _, _) in env {
        assert!(DOCUMENT.contains(&format!("`{variable}`")), "{variable} is in docs/configuration.md");
    }
}

#[test]
fn the_token_is_not_printed() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(&dir, "data_dir = \"/d\"\ntoken = \"MSTR-1-secret\"\n");
    assert!(!musterd(&["--config", &file, "--print-config"], &[]).stdout.contains("secret"));
    let help = musterd(&["--help"], &[("MUSTER_TOKEN", "MSTR-1-secret")]).stdout;
    assert!(help.contains("MUSTER_TOKEN") && !help.contains("secret"), "{help}");
}

/// Also where a variable has the same value.
#[test]
fn token_of_the_command_line_counts_as_flag() {
    let given = ["--data-dir", "/d", "--token", "MSTR-1-a-b", "--token-file", "/e/token", "--print-config"];
    let env = [("MUSTER_TOKEN", "MSTR-1-a-b"), ("MUSTER_TOKEN_FILE", "/e/token")];
    let refused = musterd(&given, &env).stderr;
    assert!(refused.contains("--token and --token-file: give one of them"), "{refused}");
    assert!(musterd(&["--data-dir", "/d", "--print-config"], &env).stderr.is_empty(), "variables");
}

#[test]
fn mistakes_end_with_status_2_and_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    for (text, words) in [
        ("data_dir = \"/d\"\n[agnet]\n", "agnet"),
        ("data_dir = \"/d\"\n[agent]\nheartbeet = \"1s\"\n", "heartbeet"),
        ("data_dir = \"/d\"\n[agent]\nheartbeat = \"1 second\"\n", "write 150ms, 5s, 10m, 2h or 90d"),
        ("data_dir = \"/d\"\n[raft]\nelection_timeout = \"100ms\"\n", "three times [raft] heartbeat"),
        ("data_dir = \"/d\"\ninit = true\njoin = [\"h:1\"]\n", "give one of them"),
        ("", "--data-dir"),
    ] {
        let output = musterd(&["--config", &file(&dir, text), "--print-config"], &[]);
        assert!(output.status == 2 && output.stderr.contains(words), "{text}: {} {}", output.status, output.stderr);
    }
    let output = musterd(&["--config", "/does/not/exist"], &[]);
    assert!(output.status == 2 && output.stderr.contains("/does/not/exist"), "{}", output.stderr);
}

/// The keys and defaults of the document, as `section.key`.
fn documented() -> BTreeMap<String, String> {
    let mut section = None;
    let mut keys = BTreeMap::new();
    for line in DOCUMENT.lines() {
        if let Some(heading) = line.strip_prefix('#') {
            let name = heading.trim_matches(|c| c == '#' || c == ' ');
            section = name.strip_prefix('[').and_then(|s| s.strip_suffix(']'));
        } else if let (Some(section), Some(row)) = (section, line.strip_prefix("| `")) {
            let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
            let (key, default) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
            assert!(cells.next().is_some_and(|why| why.len() > 4), "{section}.{key} is explained");
            assert!(keys.insert(format!("{section}.{key}"), default).is_none(), "{section}.{key} is explained once");
        }
    }
    keys
}

#[test]
fn every_key_is_documented_with_its_default_and_no_other() {
    let config = printed(&["--data-dir", "/d"], &[]);
    let mut actual = BTreeMap::new();
    for (section, keys) in config.iter().filter(|(name, _)| *name != "labels") {
        match keys {
            toml::Value::Table(keys) => {
                for (key, value) in keys {
                    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    actual.insert(format!("{section}.{key}"), value);
                }
            }
            _ => assert!(DOCUMENT.contains(&format!("| `{section}` |")), "{section} is in the table of flags"),
        }
    }
    assert!(actual.len() > 35, "the configuration is printed whole");
    assert_eq!(documented(), actual);
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md").exists());
}

/// The daemon, `--check-config` and the unit agree about systemd's credential.
#[test]
fn a_join_token_may_be_a_credential() {
    let dir = tempfile::tempdir().unwrap();
    let credential = dir.path().join("muster-join-token");
    let (data, folder) = (dir.path().join("data"), dir.path().display().to_string());
    let flags =
        ["--data-dir", data.to_str().unwrap(), "--listen", "127.0.0.1:0", "--join", "127.0.0.1:1", "--check-config"];
    let check = |more: &[&str]| musterd(&[&flags, more].concat(), &[("CREDENTIALS_DIRECTORY", folder.as_str())]);
    let missing = check(&[]);
    assert!(missing.status == 2 && missing.stderr.contains("credential muster-join-token."), "{}", missing.stderr);
    std::fs::write(&credential, "\n").unwrap();
    let empty = check(&[]);
    assert!(empty.status == 2 && empty.stderr.contains("that systemd passes is empty"), "{}", empty.stderr);
    std::fs::write(&credential, "MSTR-1-hidden\n").unwrap();
    let wrong = check(&[]);
    assert!(wrong.status == 2 && wrong.stderr.contains("the join token: "), "{}", wrong.stderr);
    assert!(!wrong.stderr.contains("hidden") && !wrong.stderr.contains("token_file"), "{}", wrong.stderr);
    let good = format!("MSTR-1-{}-{}", "a".repeat(50), "b".repeat(25));
    std::fs::write(&credential, &good).unwrap();
    let found = check(&[]);
    assert_eq!((found.status, found.stderr.as_str()), (0, ""), "{good}");
    // What was named counts, and its fault is not hidden by the credential.
    let both = check(&["--token-file", "/nowhere"]);
    assert!(both.status == 2 && both.stderr.contains("/nowhere"), "{}", both.stderr);
    std::fs::remove_file(&credential).unwrap();
    std::fs::create_dir(&credential).unwrap();
    let unreadable = check(&[]);
    assert!(unreadable.status == 2 && unreadable.stderr.contains("from the credential"), "{}", unreadable.stderr);
    let unit = include_str!("../../packaging/systemd/musterd.service");
    assert!(
        unit.contains("\nLoadCredential=muster-join-token:/etc/muster/join-token\nSetCredential=muster-join-token:")
    );
}
