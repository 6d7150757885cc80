//! Release-gated reconcilers with real nodes and members: upgrades, races, runners that die or wake up late.

mod barrier;
mod chains;
mod deleted;
mod demoted;
mod external;
mod failing;
mod finalizing;
mod frames;
mod gone;
mod holds;
mod plans;
mod race;
mod record;
mod releases;
mod run_history;
mod scopes;
mod sets;
mod terms;
mod upgrade;
mod waits;
mod watching;
mod woken;
mod writes;

use muster_messages::{Rng, Role};
use serde_json::Value;

use crate::harness::{EndedMuster, ForegroundMuster, World};

/// A definition of the reconciler `schema` of the scope `db`, which keeps these objects.
pub fn apply(world: &World, release: &str, floor: &str, objects: &[impl AsRef<str>]) {
    let head =
        format!("name = \"schema\"\nrelease = \"{release}\"\nscope = \"db\"\nfloor = \"{floor}\"\nevery = \"1s\"\n");
    let object = |name: &str| {
        format!("[[objects]]\nkind = \"table\"\nname = \"{name}\"\n[objects.body]\nrelease = \"{release}\"\n")
    };
    let text = head + &objects.iter().map(|name| object(name.as_ref())).collect::<String>();
    let file = world.folder().join(format!("{release}.toml"));
    std::fs::write(&file, text).expect("the world's folder is writable");
    let by = world.other_than(&[]);
    world.muster_at(&by, &["reconciler", "apply", "-f", file.to_str().expect("the folder's path is text")]).ended(0);
}

/// Submits these definitions in one request, each in a file of its own.
fn submit(world: &World, texts: &[&str], more: &[&str]) -> EndedMuster {
    let name = |number: usize| world.folder().join(format!("submitted-{number}.toml"));
    let files: Vec<String> = (0..texts.len()).map(|number| name(number).display().to_string()).collect();
    for (file, text) in files.iter().zip(texts) {
        std::fs::write(file, text).expect("the world's folder is writable");
    }
    let named = files.iter().flat_map(|file| ["-f", file]);
    let by = world.other_than(&[]);
    world.muster_at(
        &by,
        &["reconciler", "apply"].into_iter().chain(named).chain(more.iter().copied()).collect::<Vec<_>>(),
    )
}

/// What `muster reconciler` prints for people, without a terminal.
fn shown(world: &World, args: &[&str]) -> EndedMuster {
    let socket = world.socket(&world.other_than(&[]));
    let socket = socket.to_str().expect("the folder's path is text");
    EndedMuster::new(world.folder(), &[&["--socket", socket, "--timeout", "60s", "reconciler"], args].concat())
}

/// A manager n1 of release 1.0.0, and workers of release 2.0.0.
fn world_with_workers(names: &[&str]) -> World {
    manager_and_workers("1.0.0", "2.0.0", names)
}

/// A manager n1 of one release, and workers of another.
fn manager_and_workers(of_manager: &str, of_workers: &str, names: &[&str]) -> World {
    let mut world = World::new();
    world.node("n1").start(&["--init", "--release", of_manager]).ready();
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    for name in names {
        world.node(name).start(&["--join", &seed, "--token", &token, "--release", of_workers]).ready();
    }
    world.all_settled();
    world
}

/// Three managers of this release.
fn managers_of(release: &str) -> World {
    managers_in(World::new(), release)
}

fn managers_in(world: World, release: &str) -> World {
    let mut world = world;
    world.node("n1").start(&["--init", "--release", release]).ready();
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Manager));
    for name in ["n2", "n3"] {
        world.node(name).start(&["--join", &seed, "--token", &token, "--release", release]).ready();
    }
    world.all_settled();
    world
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn items(list: &Value, key: &str) -> Vec<Value> {
    list[key].as_array().cloned().unwrap_or_default()
}

fn status(world: &World) -> Value {
    let by = world.other_than(&[]);
    world.muster_at(&by, &["reconciler", "status", "schema"]).ended(0).json()
}

/// The blockers in the status.
fn blockers(status: &Value) -> Vec<String> {
    items(status, "blockers").iter().map(|blocker| text(&blocker["member"])).collect()
}

/// The gate at each of its epochs: `STATE RECONCILED FLOOR`.
fn gate_history(world: &World) -> Vec<String> {
    let list = world.muster(&["reconciler", "history", "schema"]).ended(0).json();
    let entry = |g: &Value| format!("{} {} {}", g["state"], g["reconciled"], g["floor"]).replace('"', "");
    items(&list, "history").iter().map(entry).collect()
}

/// A member that serves as long as it may, through a node.
fn member(world: &World, by: &str, name: &str, release: &str) -> ForegroundMuster {
    member_for(world, by, name, release, "1m")
}

/// The same with another duration of its lease, for tests that wait for its end.
fn member_for(world: &World, by: &str, name: &str, release: &str, lease: &str) -> ForegroundMuster {
    let socket = world.socket(by);
    let socket = socket.to_str().expect("the folder's path is text");
    let args = ["--socket", socket, "wait-ready", "db", "--reconciler", "schema", "--needs", release];
    let who = ["--release", release, "--member", name, "--lease-duration", lease, "--exec", "--", "sleep", "1000"];
    ForegroundMuster::start_for_command(world.folder(), &[&args[..], &who].concat())
}

/// The seed of a test; printed, and repeated with this variable.
fn rng() -> Rng {
    let name = "MUSTER_SEED";
    let seed = std::env::var(name).ok().map_or_else(rand::random, |text| text.parse().expect("a number"));
    println!("{name}={seed} repeats the choices of this run; the timing of processes differs");
    Rng::seeded(seed)
}
