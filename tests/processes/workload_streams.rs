//! A thousand programs at the socket of one node. One user may have 400 streams, so they belong to three users, whom only root can become.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use muster_local_cluster::{parent, until};
use muster_workload_api::client::WorkloadClient;
use tokio::time::timeout;

use crate::election::played::{ChildProgram, words_for};
use crate::harness::{World, eventually_so};
use crate::workloads::{LIMIT, Svids, serves_at};

/// Three of them have more than a thousand streams.
const USERS: [u32; 3] = [60_001, 60_002, 60_003];
const STREAMS_OF_USER: usize = 334;
/// Nearly as many as a user may have.
const STREAMS_ALONE: usize = 390;
const STREAMS_OF_CONNECTION: usize = 30;
/// From the first stream of a user to the next root: the streams of the others open meanwhile.
const NEXT_ROOT_LIMIT: Duration = Duration::from_secs(300);

const OPEN: &str = "every stream is open";
const FOLLOWED: &str = "every stream has the next root";

/// A program with streams, of this user or another one. Killed on drop.
struct Program {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// `program`: this test program, where that user may read it.
    fn start(program: &Path, uid: Option<u32>, socket: &Path, count: usize) -> Self {
        let words: Vec<OsString> = words_for(program, &ChildProgram::Streams { socket: socket.to_owned(), count });
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped());
        parent::tie(&mut command);
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        Self { child, lines }
    }

    /// It has deadlines of its own, and ends after them.
    #[track_caller]
    fn wait_for_line(&mut self, text: &str) {
        let mut lines = self.lines.by_ref().map(|line| line.expect("it prints text"));
        assert!(lines.any(|line| line == text), "it ended before {text:?}: {:?}", self.child.try_wait());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// The program: opens so many streams, waits until each has another root than at first, and holds them until it is killed.
pub fn hold(socket: &Path, count: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut streams = Vec::new();
        while streams.len() < count {
            let client = until("a connection", async || Ok(WorkloadClient::connect(socket).await.ok()));
            let client = client.await.unwrap_or_else(|failure| panic!("{failure}"));
            for _ in 0..STREAMS_OF_CONNECTION.min(count - streams.len()) {
                // A user has 50 a second after the first 200; a client that is refused comes back.
                let stream = until("one more stream", async || Ok(opened(client.clone()).await));
                streams.push(stream.await.unwrap_or_else(|failure| panic!("{failure}")));
            }
        }
        // The test harness has printed a part of a line.
        println!("\n{OPEN}");
        let one_root = streams.first().expect("there are streams").1;
        assert!(streams.iter().all(|(_, roots)| *roots == one_root), "each began with the same root");
        for (stream, _) in &mut streams {
            timeout(NEXT_ROOT_LIMIT, follows(stream, one_root)).await.expect("another root in time");
        }
        println!("{FOLLOWED}");
        std::future::pending::<()>().await;
    });
}

/// A stream with its first message, and how many bytes of roots that has.
async fn opened(mut client: WorkloadClient) -> Option<(Svids, usize)> {
    let mut stream = client.fetch_x509_svid().await.ok()?;
    let first = timeout(LIMIT, stream.message()).await.expect("an answer").ok()??;
    assert_eq!(first.svids.len(), 1, "each user is one workload");
    Some((stream, first.svids[0].bundle.len()))
}

/// The stream continues, and gets another root: a program that misses it refuses the others.
async fn follows(stream: &mut Svids, one_root: usize) {
    loop {
        let next = stream.message().await.expect("the stream continues").expect("a stream ends with a status");
        if next.svids[0].bundle.len() > one_root {
            return;
        }
    }
}

/// As root, a thousand streams; otherwise as many as one user may have.
#[test]
#[ignore = "full tier"]
fn thousand_streams_of_three_users_follow_a_root_rotation() {
    let mut world = World::with(1, 1);
    // Other users may look into this folder, but not into that of the nodes, nor perhaps where this program was built.
    let open = tempfile::tempdir().expect("there is room");
    std::fs::set_permissions(open.path(), std::fs::Permissions::from_mode(0o755)).expect("the folder is ours");
    let (program, socket) = (open.path().join("program"), open.path().join("w"));
    std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("there is room");
    serves_at(&mut world, "n2", &socket);

    let own = rustix::process::geteuid();
    let users: Vec<(u32, Option<u32>, usize)> = if own.is_root() {
        USERS.iter().map(|uid| (*uid, Some(*uid), STREAMS_OF_USER)).collect()
    } else {
        println!("not root: no other user's streams, only {STREAMS_ALONE} of this one's");
        vec![(own.as_raw(), None, STREAMS_ALONE)]
    };
    for (uid, ..) in &users {
        let (name, selector) = (format!("shop/u{uid}"), format!("unix:uid:{uid}"));
        world.muster(&["workload", "set", &name, "--selector", &selector, "--yes"]).ended(0);
    }
    let mut programs: Vec<Program> =
        users.iter().map(|(_, uid, count)| Program::start(&program, *uid, &socket, *count)).collect();
    for program in &mut programs {
        program.wait_for_line(OPEN);
    }
    let in_all: usize = users.iter().map(|(.., count)| count).sum();
    eventually_so(&format!("the node counts {in_all} streams"), || {
        let inspected = world.muster_insists(&["actors", "inspect", "node/workloads", "--node", "n2"]);
        inspected["view"]["streams"] == in_all
    });

    let begun = Instant::now();
    world.muster(&["ca", "rotate", "--wait=300s"]).ended(0);
    let rotated = begun.elapsed();
    for program in &mut programs {
        program.wait_for_line(FOLLOWED);
    }
    println!("rotated after {rotated:?}, {in_all} streams have the next root after {:?}", begun.elapsed());
}
