//! A cluster of ten thousand nodes, from a backup with their records: what the dashboard costs its leader. The nodes themselves do not run.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use muster_messages::{Liveness, Name, NodeId, Role};
use muster_store::backup;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{ForegroundMuster, World, eventually_so, scenario_pause};

const NODES: u32 = 10_000;
/// How long processor time is counted.
const SPAN: Duration = Duration::from_secs(60);
/// A deadline that only a broken build reaches.
const PAINTED: Duration = Duration::from_secs(60);
/// The bound of a page.
const MAX_PAGE: usize = 2_000_000;

/// Writes a backup of this world's cluster to which copies of its worker `n2` were added.
fn widened(world: &mut World) -> String {
    let file = world.folder().join("wide.backup").display().to_string();
    world.muster(&["backup", &file]).ended(0);
    let (head, mut tables) = backup::decode(&std::fs::read(&file).expect("it was written")).expect("it is a backup");
    let (id, of) = tables.nodes.iter().find(|(_, node)| node.role == Role::Worker).expect("n2 joined");
    let (of, certificates) = ((**of).clone(), tables.certificates.get(id).cloned());
    for number in 3..=NODES {
        let id = NodeId::from_entropy(u128::from(number) << 64);
        let mut node = of.clone();
        (node.id, node.name) = (id, Name::sanitized(&format!("w{number}")));
        node.addr = format!("10.{}.{}.{}:4400", number >> 16, number >> 8 & 255, number & 255);
        node.labels = [("zone".to_owned(), format!("z{}", number % 7))].into();
        node.liveness = Liveness::Down;
        if let Some(certificates) = &certificates {
            tables.certificates.insert(id, certificates.clone());
        }
        tables.nodes.insert(id, Arc::new(node));
    }
    let bytes = backup::encode(&tables, head.term, head.taken_at).expect("a cluster");
    std::fs::write(&file, bytes).expect("it is ours");
    file
}

/// Processor time of a process, with that of the kernel for it.
fn processor_time(pid: i32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(") ").expect("its name ends");
    let ticks: u64 = fields.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10) // 100 ticks a second on every Linux
}

/// The part of a processor that it used within [`SPAN`].
fn load(pid: i32) -> f64 {
    let (before, begun) = (processor_time(pid), Instant::now());
    scenario_pause("the span of the measurement", SPAN);
    let used = processor_time(pid).saturating_sub(before);
    100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64()
}

/// A browser that is logged in.
struct Browser {
    port: String,
    secrets: String,
}

impl Browser {
    fn log_in(link: &str) -> Self {
        let (port, secret) = link.strip_prefix("http://127.0.0.1:").and_then(|it| it.split_once("/#")).expect("a link");
        let body = json!({"link": secret}).to_string();
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
        let head = format!(
            "POST /login HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")?.split(';').next());
        let given: Value = serde_json::from_str(answer.rsplit("\r\n\r\n").next().unwrap_or_default()).expect("secrets");
        let tab = given["tab"].as_str().expect("a tab's secret");
        let secrets = format!("Cookie: {}\r\nMuster-Tab: {tab}\r\n", cookie.expect("a cookie"));
        Self { port: port.to_owned(), secrets }
    }

    /// Opens a page; returns its stream at its first whole view with this text, and the greatest view.
    fn open(&self, page: &str, text: &str) -> (BufReader<TcpStream>, usize) {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{}", self.port)).expect("it listens");
        stream.set_read_timeout(Some(PAINTED)).expect("a duration");
        let Self { port, secrets } = self;
        write!(stream, "GET /stream{page} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{secrets}\r\n").expect("it reads");
        let begun = Instant::now();
        let (mut lines, mut largest, mut line) = (BufReader::new(stream), 0, String::new());
        loop {
            line.clear();
            assert!(lines.read_line(&mut line).expect("it answers") > 0, "{page} ended");
            largest = largest.max(line.len());
            assert!(begun.elapsed() < PAINTED, "{page} never had {text:?}");
            if line.contains(text) {
                return (lines, largest);
            }
        }
    }
}

/// Keeps a page open until the dashboard ends.
fn reader(mut open: BufReader<TcpStream>) -> JoinHandle<u64> {
    open.get_ref().set_read_timeout(None).expect("none is legal");
    std::thread::spawn(move || std::io::copy(&mut open, &mut std::io::sink()).unwrap_or(0))
}

/// Measurements are printed (docs/performance.md).
#[test]
#[ignore = "full tier"]
fn dashboard_of_ten_thousand_nodes() {
    let mut world = World::with(1, 1);
    let file = widened(&mut world);
    for name in ["n1", "n2"] {
        world.node(name).stop();
    }
    world.node("n9").start(&["--restore", &file]).ready();
    let pid = world.node("n9").pid();
    let counted = || world.muster_insists_at("n9", &["status"])["nodes"]["total"] == NODES + 1;
    eventually_so("all nodes are in the state", counted);
    let socket = world.socket("n9").display().to_string();
    let folder = world.folder().to_owned();
    println!("without a dashboard: {:.2} % of a processor", load(pid));
    for (page, text, is_measured) in [
        ("", "node=w", true),
        ("/health", " writes", true),
        ("/nodes", "more nodes match", false),
        ("/certificates", "in all", false),
    ] {
        let arguments = ["--socket", &socket, "-o", "json", "dashboard", "--no-open"];
        let mut dashboard = ForegroundMuster::start(&folder, &arguments);
        dashboard.wait_for_line("}");
        let printed: Value = serde_json::from_str(dashboard.seen()).expect("one JSON document");
        let browser = Browser::log_in(printed["url"].as_str().expect("a link"));
        let own = i32::try_from(printed["pid"].as_i64().expect("a number")).expect("a pid");
        let begun = Instant::now();
        let (open, largest) = browser.open(page, text);
        let took = begun.elapsed();
        assert!(largest < MAX_PAGE, "{page:?}: {largest} bytes");
        println!("{page:?}: whole after {took:?}, {largest} bytes");
        if !is_measured {
            continue;
        }
        let reader = reader(open);
        let before = processor_time(own);
        let leader = load(pid);
        let of_the_dashboard = processor_time(own).saturating_sub(before);
        dashboard.signal(Signal::TERM);
        assert_eq!(dashboard.exit(), Some(0));
        let sent = reader.join().expect("it does not panic");
        println!(
            "{page:?}: then {sent} bytes in {SPAN:?}; the leader used {leader:.2} % of a processor, the dashboard {:.2} %",
            100.0 * of_the_dashboard.as_secs_f64() / SPAN.as_secs_f64()
        );
    }
}
