//! Where commands of reconcilers run, and as what: labels of nodes, users, directories, files with the environment, limits.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;

use crate::harness::{World, eventually, eventually_so};

/// A definition of the nodes' release that runs a script, with more keys.
fn apply(world: &World, script: &str, more: &str) {
    apply_with(world, script, "env = {}", more);
}

/// The same, with an environment.
fn apply_with(world: &World, script: &str, env: &str, more: &str) {
    let text = format!(
        "name = \"placed\"\nrelease = \"0.1.0\"\nscope = \"shop\"\nfloor = \"0.1.0\"\nsettle = \"0s\"\n\
         command = {{ argv = [\"/bin/sh\", \"-c\", '''{script}'''], {env} }}\n{more}\n"
    );
    let file = world.folder().join("placed.toml");
    std::fs::write(&file, text).expect("the world's folder is writable");
    let file = file.to_str().expect("the folder's path is text");
    world.muster(&["reconciler", "apply", "-f", file, "--replace"]).ended(0);
    world.muster(&["reconciler", "retry", "placed"]).ended(0);
}

fn status(world: &World) -> Value {
    world.muster(&["reconciler", "status", "placed"]).ended(0).json()
}

/// The output of a run that succeeds.
#[track_caller]
fn output(world: &World) -> String {
    let done = eventually("it has run", || Some(status(world)).filter(|status| status["phase"] == "idle"));
    done["output"].as_str().expect("text").to_owned()
}

/// Why the last run failed.
#[track_caller]
fn failure(world: &World, what: &str) -> String {
    eventually(what, || status(world)["last_error"].as_str().map(str::to_owned).filter(|error| error.contains(what)))
}

/// `[reconcilers]` of every node: any program, and these keys.
fn world_with(keys: &str, workers: usize) -> World {
    World::with_settings(&format!("[reconcilers]\ncommands = true\n{keys}\n"), 1, workers)
}

fn env_file(world: &World, name: &str, text: &str, mode: u32) -> PathBuf {
    let file = world.folder().join(name);
    std::fs::write(&file, text).expect("the world's folder is writable");
    std::fs::set_permissions(&file, Permissions::from_mode(mode)).expect("the file is ours");
    file
}

#[test]
#[ignore = "full tier"]
fn only_nodes_with_the_labels_run_it_and_changes_count_at_once() {
    let world = world_with("", 2);
    let script = "echo \"$$ on $PPID\"; touch ran; sleep 1000";
    let folder = world.folder().display();
    apply(&world, script, &format!("process = {{ directory = \"{folder}\" }}\nnode_selector = {{ disk = \"ssd\" }}"));
    let refused = eventually("no node has the label", || {
        let is_named =
            |status: &Value| status["message"].as_str().is_some_and(|text| text.contains("n2 has no disk=ssd"));
        Some(status(&world)).filter(|status| status["reason"] == "not-selected" && is_named(status))
    });
    let message = refused["message"].as_str().expect("text");
    assert!(message.contains("--label-add disk=ssd"), "{refused}");
    assert_eq!((&refused["phase"], &refused["candidates"]), (&"no-candidate".into(), &0.into()), "{refused}");
    let runner = || status(&world)["runner"]["node"].as_str().map(str::to_owned);
    let label = |node: &str, change: &str, label: &str| world.muster(&["node", "update", node, change, label]).ended(0);
    label("n2", "--label-add", "disk=ssd");
    eventually_so("n2 runs it", || runner().as_deref() == Some("n2") && world.folder().join("ran").exists());
    label("n3", "--label-add", "disk=ssd");
    label("n2", "--label-rm", "disk");
    eventually_so("n3 takes it over", || runner().as_deref() == Some("n3"));
    assert_eq!(status(&world)["candidates"], 1);
}

#[test]
#[ignore = "full tier"]
fn command_gets_directory_limits_and_environment_of_files() {
    let here = tempfile::tempdir().expect("there is room");
    let file = |name: &str| here.path().join(name).display().to_string();
    let (first, second, open) = (file("first.env"), file("second.env"), file("open.env"));
    let missing = file("missing.env");
    let world = world_with(&format!("env_files = [{first:?}, {second:?}, {open:?}, {missing:?}]"), 0);
    let write = |path: &str, text: &str, mode: u32| {
        std::fs::write(path, text).expect("the folder is writable");
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("the file is ours");
    };
    write(&first, "# secrets\nCOLOUR=red\nSHAPE=round\n", 0o600);
    write(&second, "COLOUR=blue\n", 0o400);
    write(&open, "COLOUR=green\n", 0o644);
    let script = "pwd; echo $COLOUR $SHAPE; ulimit -n; ulimit -t; ulimit -v; awk \"/Max processes/ {print \\$3}\" /proc/self/limits; \
                  env | grep -c ATTRIBUTES; true";
    let limits = "limits = { open_files = 77, cpu = \"600s\", memory = 4294967296, processes = 5000 }";
    let directory = std::fs::canonicalize(here.path()).expect("it exists");
    let process = |files: &str| format!("process = {{ directory = {directory:?}, env_files = [{files}], {limits} }}");
    apply(&world, script, &process(&format!("{first:?}, {second:?}")));
    let expected = format!("{}\nblue round\n77\n600\n4194304\n5000\n0\n", directory.display());
    assert_eq!(output(&world), expected);
    // Each failure says what to do on the node.
    apply(&world, "echo later", &process(&format!("{missing:?}")));
    let why = failure(&world, "missing on this node");
    assert!(why.contains("missing.env") && why.contains("0600"), "{why}");
    apply(&world, "echo later still", &process(&format!("{open:?}")));
    let why = failure(&world, "chmod 0600");
    assert!(!why.contains("green"), "{why}");
    apply(&world, "true", "process = { directory = \"/nowhere/at/all\" }");
    failure(&world, "the working directory /nowhere/at/all");
    // A file that the node's configuration does not list, and a user likewise: the node is not a candidate.
    let unlisted = env_file(&world, "unlisted.env", "A=1\n", 0o600);
    for process in [format!("process = {{ env_files = [{unlisted:?}] }}"), "process = { user = \"daemon\" }".to_owned()]
    {
        apply(&world, "true", &process);
        let none = eventually("no candidate", || Some(status(&world)).filter(|s| s["phase"] == "no-candidate"));
        assert!(none["message"].as_str().expect("text").contains("[reconcilers]"), "{none}");
    }
}

/// The processes that start a command have musterd's rights, and a definition must not direct their loader.
#[test]
#[ignore = "full tier"]
fn loader_variables_of_a_definition_act_only_in_its_command() {
    let here = tempfile::tempdir().expect("there is room");
    let trace = here.path().join("d");
    let world = world_with("", 0);
    // Built-in commands only: no other process.
    let env = format!("env = {{ LD_DEBUG = \"libs\", LD_DEBUG_OUTPUT = {trace:?}, COLOUR = \"red\" }}");
    apply_with(&world, "echo $$ $COLOUR", &env, "");
    let text = output(&world);
    let pid = text.strip_suffix(" red\n").expect("the command has its environment").to_owned();
    let traced =
        std::fs::read_dir(here.path()).expect("it exists").map(|file| file.expect("it can be read").file_name());
    assert_eq!(traced.collect::<Vec<_>>(), [format!("d.{pid}").as_str()], "the pids that obeyed it");
}

/// As root only: no other user can become one.
#[test]
#[ignore = "full tier"]
fn command_runs_as_a_listed_user_and_ends_with_its_term() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut world = world_with("users = [\"nobody\", \"no-such-user\"]", 0);
    apply(&world, "id -u", "");
    let none = eventually("root is not listed", || Some(status(&world)).filter(|s| s["phase"] == "no-candidate"));
    assert!(none["message"].as_str().expect("text").contains("[reconcilers]"), "{none}");
    let script = "id -u; id -G; echo $USER $HOME; grep NoNewPrivs /proc/self/status | tr -d '\\t'; \
                  grep -c 'Cap[IPEA].*:.*0000000000000000' /proc/self/status";
    apply(&world, script, "process = { user = \"nobody\", directory = \"/\" }");
    let text = output(&world);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines[3]), ("65534", "NoNewPrivs:1"), "{text}");
    assert_eq!(lines[4], "4", "no capability is left: {text}");
    assert!(lines[2].starts_with("nobody /") && !lines[1].split(' ').any(|group| group == "0"), "{text}");
    apply(&world, "true", "process = { user = \"no-such-user\" }");
    failure(&world, "no user no-such-user in /etc/passwd");
    // It ends when its daemon is killed: the guardian is still root's.
    let here = tempfile::tempdir().expect("there is room");
    std::fs::set_permissions(here.path(), Permissions::from_mode(0o777)).expect("the folder is ours");
    let file = here.path().join("pid");
    let script = format!("trap '' TERM; echo $$ > {}; while :; do sleep 1; done", file.display());
    apply(&world, &script, "process = { user = \"nobody\" }");
    let pid = eventually("it runs", || std::fs::read_to_string(&file).ok()?.trim().parse().ok());
    assert_eq!(owner_of(pid), Some(65534));
    world.node("n1").kill();
    eventually_so("the command has ended with its daemon", || owner_of(pid).is_none());
}

/// The user of a process. `None`: it has ended.
fn owner_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let state = status.lines().find_map(|line| line.strip_prefix("State:"))?;
    if state.trim().starts_with('Z') {
        return None;
    }
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}
