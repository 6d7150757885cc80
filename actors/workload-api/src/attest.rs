//! What this node can find out about a process: from what the kernel reports of a socket's peer, and from `/proc`.
//!
//! Owns        the handle of a peer's process.
//! Invariants  SPIFFE-2, the look: facts are those of the process that connected, and only while it lives. Its handle is opened when it
//!             is accepted, and after each look the handle must still refer to the same process, started at the same time.
//! Why a look at `/proc` and then at the handle, and not the other way round: a process id is free for another process only once its
//! process is gone. If the handle refers to a living process after the look, the look was at that process.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::UnknownSelectorView;
use rustix::process::{Pid, PidfdFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use crate::core::{Facts, Needs, NotAttested, Wanted};
use crate::limits::Looks;

/// Bytes that are read of a file in `/proc`: a status with 65,536 groups, which is the most that Linux allows, fits.
const MAX_PROC_FILE: u64 = 1 << 20;

/// How long a look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);
/// The groups that the kernel does not report of a socket's peer.
const SUPPLEMENTARY: &str = "unix:gid (supplementary groups)";
/// What the kernel reports of a peer is about the moment of the connection, and `/proc` is about now. They are not mixed.
const CHANGED_USER: &str = "the process has changed its user or group since it connected";

fn unknown(selector: &str, why: String) -> UnknownSelectorView {
    UnknownSelectorView { selector: selector.to_owned(), why }
}

/// The process at the other end of a socket.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    gid: u32,
    process: Result<Process, String>,
}

/// A process that cannot be mistaken for another one with the same id.
#[derive(Debug)]
struct Process {
    pid: Pid,
    /// When it started, in ticks since the machine did.
    started: u64,
    handle: AsyncFd<OwnedFd>,
}

impl Peer {
    /// The peer of a connection, at once after it was accepted. An error: its process has ended already.
    pub(crate) fn of(stream: &UnixStream) -> Result<Self, NotAttested> {
        let peer = stream.peer_cred().map_err(|error| NotAttested::Failed(error.to_string()))?;
        let (uid, gid) = (peer.uid(), peer.gid());
        let Some(pid) = peer.pid().filter(|pid| *pid > 0).and_then(Pid::from_raw) else {
            let why = "the process is in another process namespace, or its id is not known".to_owned();
            return Ok(Self { uid, gid, process: Err(why) });
        };
        Ok(Self { uid, gid, process: Process::open(pid, Some((uid, gid)))? })
    }

    /// A process by its id, for a person who asks about it.
    pub(crate) fn by_pid(pid: u32) -> Result<Self, NotAttested> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(NotAttested::Ended)?;
        let process = Process::open(pid, None)?;
        if let Err(why) = process {
            return Err(NotAttested::Failed(why));
        }
        let (uid, gid) = Status::of(pid).and_then(|status| status.ids()).map_err(|_| NotAttested::Ended)?;
        Ok(Self { uid, gid, process })
    }

    /// Resolves once the process has ended; never, if there is no handle of it.
    pub(crate) async fn ended(&self) {
        if let Ok(process) = &self.process
            && process.handle.readable().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }

    /// What the kernel reports of the socket's peer, and no more.
    fn without_process(&self, why: &str) -> Facts {
        let of = |selector| unknown(selector, why.to_owned());
        let unknown = vec![of(SUPPLEMENTARY), of("systemd:unit"), of("unix:path")];
        Facts { uid: self.uid, gid: self.gid, unknown, ..Facts::default() }
    }

    /// Finds out what is needed. Reads files, and may block.
    pub(crate) fn facts(&self, needs: &Needs) -> Result<Facts, NotAttested> {
        let process = match &self.process {
            Ok(process) => process,
            Err(why) => return Ok(self.without_process(why)),
        };
        let mut facts = Facts { uid: self.uid, gid: self.gid, ..Facts::default() };
        let mut missing = |selector, why: String| facts.unknown.push(unknown(selector, why));
        if needs.unit {
            match unit_of(process.pid) {
                Ok(Some(unit)) => facts.unit = Some(unit),
                Ok(None) => missing("systemd:unit", "the process belongs to no unit".to_owned()),
                Err(error) => missing("systemd:unit", error.to_string()),
            }
        }
        if !needs.path.is_nothing() {
            match executable_of(process.pid, &needs.path) {
                Ok(path) => facts.path = path,
                Err(why) => missing("unix:path", why),
            }
        }
        // The last look is at the user: a program that gives its process another one must not lend it its path.
        let status = Status::of(process.pid).and_then(|status| Ok((status.ids()?, status.groups(&needs.groups)?)));
        match status {
            Ok((ids, groups)) if ids == (self.uid, self.gid) => facts.groups = groups,
            Ok(_) => facts = self.without_process(CHANGED_USER),
            Err(error) => facts = self.without_process(&error.to_string()),
        }
        if process.lives() { Ok(facts) } else { Err(NotAttested::Ended) }
    }
}

impl Process {
    /// `ids`: the user and group that connected. If the process has others by now, or is another one, only what the kernel reports of the peer counts.
    fn open(pid: Pid, ids: Option<(u32, u32)>) -> Result<Result<Self, String>, NotAttested> {
        let handle = match rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(handle) => handle,
            Err(rustix::io::Errno::SRCH) => return Err(NotAttested::Ended),
            Err(error) => return Ok(Err(format!("no handle of the process: {error}"))),
        };
        #[expect(deprecated, reason = "its replacement is unsafe; an OwnedFd keeps the promise that it asks for")]
        let handle = match AsyncFd::with_interest(handle, Interest::READABLE) {
            Ok(handle) => handle,
            Err(error) => return Ok(Err(format!("no handle of the process: {error}"))),
        };
        let started = started(pid).map_err(|_| NotAttested::Ended)?;
        let process = Self { pid, started, handle };
        let now = Status::of(pid).and_then(|status| status.ids()).map_err(|_| NotAttested::Ended)?;
        if !process.lives() {
            return Err(NotAttested::Ended);
        }
        if ids.is_some_and(|ids| ids != now) {
            return Ok(Err(CHANGED_USER.to_owned()));
        }
        Ok(Ok(process))
    }

    fn lives(&self) -> bool {
        // The kernel shows -1 for a process whose id is free again.
        let info = read(format!("/proc/self/fdinfo/{}", self.handle.get_ref().as_raw_fd())).unwrap_or_default();
        let pid = field(&info, "Pid:").and_then(|pid| pid.parse::<i32>().ok());
        pid == Some(self.pid.as_raw_pid()) && started(self.pid).is_ok_and(|started| started == self.started)
    }
}

fn read(path: impl Into<PathBuf>) -> io::Result<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path.into())?.take(MAX_PROC_FILE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// When a living process started.
fn started(pid: Pid) -> io::Result<u64> {
    started_in(&read(format!("/proc/{}/stat", pid.as_raw_pid()))?)
        .ok_or_else(|| io::Error::other("the process has ended"))
}

/// From the text of `/proc/PID/stat`: nothing, if the process has ended and was not yet waited for.
fn started_in(stat: &str) -> Option<u64> {
    // The second field is the program's name in brackets, and may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X" | "x")).then_some(started)
}

/// Users and groups: the text of `/proc/PID/status`, of which only what is asked for is parsed.
struct Status(String);

impl Status {
    fn of(pid: Pid) -> io::Result<Self> {
        read(format!("/proc/{}/status", pid.as_raw_pid())).map(Self)
    }
    /// The effective user and group, which the kernel reports of a socket's peer, too.
    fn ids(&self) -> io::Result<(u32, u32)> {
        let effective = |name| field(&self.0, name)?.split_whitespace().nth(1)?.parse().ok();
        effective("Uid:").zip(effective("Gid:")).ok_or_else(Self::malformed)
    }
    /// The supplementary groups, as far as they matter.
    fn groups(&self, wanted: &Wanted<u32>) -> io::Result<BTreeSet<u32>> {
        if wanted.is_nothing() {
            return Ok(BTreeSet::new());
        }
        let groups = field(&self.0, "Groups:").ok_or_else(Self::malformed)?.split_whitespace().map(str::parse);
        let matter = groups.filter(|group| !group.as_ref().is_ok_and(|group| !wanted.contains(group)));
        matter.collect::<Result<_, _>>().map_err(|_| Self::malformed())
    }
    fn malformed() -> io::Error {
        io::Error::other("unexpected form of /proc/PID/status")
    }
}

/// The systemd unit of a process: of the system's manager, not of a user's.
fn unit_of(pid: Pid) -> io::Result<Option<String>> {
    Ok(unit_in(&read(format!("/proc/{}/cgroup", pid.as_raw_pid()))?))
}

/// From the text of `/proc/PID/cgroup`: the first group below the slices. A user may name the groups below its own unit as it likes, also
/// with colons: only the first two fields of a line are the kernel's own words. The named hierarchy counts only on a machine whose unified
/// one is not in use.
fn unit_in(text: &str) -> Option<String> {
    let path_in = |id: Option<&str>, controllers: &str| {
        text.lines().find_map(|line| {
            let (of, rest) = line.split_once(':')?;
            let (named, path) = rest.split_once(':')?;
            (named == controllers && id.is_none_or(|id| id == of)).then_some(path)
        })
    };
    match path_in(Some("0"), "").filter(|path| *path != "/") {
        Some(unified) => unit_of_path(unified),
        None => path_in(None, "name=systemd").and_then(unit_of_path),
    }
}

fn unit_of_path(path: &str) -> Option<String> {
    let group = path.split('/').filter(|group| !group.is_empty()).find(|group| !group.ends_with(".slice"))?;
    let unit = group.strip_prefix('_').unwrap_or(group); // systemd's way to escape a name that the kernel reserves
    let kinds = [".service", ".scope", ".socket", ".mount", ".swap"];
    let named = kinds.iter().filter_map(|kind| unit.strip_suffix(kind)).any(|name| !name.is_empty());
    named.then(|| unit.to_owned())
}

/// The file that a process executes, by its path on this node, if that matters. Only then is the file itself looked at: its file system may
/// hang, and may be the process' own.
fn executable_of(pid: Pid, wanted: &Wanted<String>) -> Result<Option<String>, String> {
    let link = format!("/proc/{}/exe", pid.as_raw_pid());
    let path = fs::read_link(&link).map_err(|error| error.to_string())?;
    let path = path.into_os_string().into_string().map_err(|_| "the path is not UTF-8".to_owned())?;
    if !wanted.contains(&path) {
        return Ok(None);
    }
    // A process may show any path from a mount namespace of its own, and a file that was replaced has the path of another one.
    let (executed, here) = (fs::metadata(&link), fs::metadata(&path));
    let same = |a: &fs::Metadata, b: &fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    match (executed, here) {
        (Ok(executed), Ok(here)) if same(&executed, &here) => {}
        (Err(error), _) => return Err(error.to_string()),
        _ => return Err(format!("{path} is another file on this node, or was replaced")),
    }
    Ok(Some(path))
}

/// Looks at a process, on a thread that may block. A look that hangs keeps its permit.
pub(crate) async fn look(peer: Arc<Peer>, needs: Needs, looks: Looks) -> Result<Facts, NotAttested> {
    let failed = |why: &str| NotAttested::Failed(why.to_owned());
    let look = async {
        let permit = looks.begin(peer.uid).await.ok_or_else(|| failed("the node stops"))?;
        let looked = tokio::task::spawn_blocking(move || {
            let facts = peer.facts(&needs);
            drop(permit);
            facts
        });
        looked.await.map_err(|panicked| NotAttested::Failed(panicked.to_string()))?
    };
    tokio::time::timeout(LOOK_TIMEOUT, look).await.unwrap_or_else(|_| Err(failed("the look took too long")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_is_the_first_group_below_the_slices() {
        for (text, unit) in [
            ("0::/system.slice/nginx.service\n", Some("nginx.service")),
            ("0::/system.slice/system-getty.slice/getty@tty1.service/sub\n", Some("getty@tty1.service")),
            ("0::/user.slice/user-1000.slice/session-2.scope\n", Some("session-2.scope")),
            ("0::/init.scope\n", Some("init.scope")),
            // What a user named so itself, below its own manager.
            ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/nginx.service\n", Some("user@1000.service")),
            ("0::/user.slice/user-1000.slice/user@1000.service/nginx.service\n", Some("user@1000.service")),
            ("0::/docker/0123/system.slice/nginx.service\n", None),
            ("0::/../system.slice/nginx.service\n", None),
            ("0::/system.slice/nginx.service (deleted)\n", None),
            ("0::/system.slice/.service\n", None),
            ("0::/system.slice/_cgroup.service\n", Some("cgroup.service")),
            ("0::/\n", None),
            ("2:cpu:/system.slice/a.service\n1:name=systemd:/system.slice/b.service\n0::/\n", Some("b.service")),
            ("1:cpu:/system.slice/a.service\n", None),
            // Groups that a user named like another hierarchy.
            ("0::/docker/0123/x:name=systemd:/system.slice/nginx.service\n", None),
            (
                "5:cpu:/user/x:name=systemd:/system.slice/nginx.service\n1:name=systemd:/init.scope\n",
                Some("init.scope"),
            ),
            ("5:cpu:/x:0::/system.slice/nginx.service\n0::/\n", None),
            ("1:name=systemd:/system.slice/nginx.service\n0::/docker/0123\n", None),
            ("", None),
        ] {
            assert_eq!(unit_in(text).as_deref(), unit, "{text}");
        }
    }

    #[test]
    fn start_time_is_read_behind_any_program_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(started_in(&format!("12 (a) b) {rest}")), Some(4711));
        assert_eq!(started_in(&format!("12 (zombie) {}", rest.replacen('S', "Z", 1))), None);
        assert_eq!(started_in("12 (a"), None);
    }

    #[test]
    fn status_gives_effective_ids_and_wanted_groups() {
        let text = "Name:\ta\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t4 100 \n";
        let status = Status(text.to_owned());
        assert_eq!(status.ids().unwrap(), (2, 6));
        assert_eq!(status.groups(&Wanted::All).unwrap(), BTreeSet::from([4, 100]));
        let named = Wanted::These(Arc::new(BTreeSet::from([5, 100])));
        assert_eq!(status.groups(&named).unwrap(), BTreeSet::from([100]));
        let status = Status(text.replace("100", "x"));
        assert!(status.ids().is_ok() && status.groups(&named).is_err());
    }

    #[tokio::test]
    async fn own_process_is_found_out_completely() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&ours).unwrap();
        let facts = peer.facts(&Needs::ALL).unwrap();
        assert_eq!(facts.uid, rustix::process::geteuid().as_raw());
        let program = std::env::current_exe().unwrap();
        assert_eq!(facts.path.as_deref(), program.to_str());
        let by_pid = Peer::by_pid(std::process::id()).unwrap().facts(&Needs::ALL).unwrap();
        assert_eq!(by_pid, facts);
        let wants =
            |path: &str| Needs { path: Wanted::These(Arc::new(BTreeSet::from([path.to_owned()]))), ..Needs::default() };
        assert_eq!(peer.facts(&wants(program.to_str().unwrap())).unwrap().path, facts.path);
        for needs in [Needs::default(), wants("/bin/another")] {
            let facts = peer.facts(&needs).unwrap();
            assert_eq!((facts.path, facts.unit, facts.unknown), (None, None, Vec::new()));
        }
    }

    /// A process that ends with its test.
    struct Child(std::process::Child);
    impl Child {
        fn start(program: &std::path::Path) -> Self {
            Self(std::process::Command::new(program).arg("1000").spawn().unwrap())
        }
        fn peer(&self) -> Result<Peer, NotAttested> {
            Peer::by_pid(self.0.id())
        }
    }
    impl Drop for Child {
        fn drop(&mut self) {
            let _ended = (self.0.kill(), self.0.wait());
        }
    }

    #[tokio::test]
    async fn process_that_has_ended_has_no_facts() {
        let mut child = Child::start("/bin/sleep".as_ref());
        let peer = child.peer().unwrap();
        assert!(peer.facts(&Needs::ALL).is_ok());
        child.0.kill().unwrap();
        // Not waited for: it is a zombie, and its id is not free.
        peer.ended().await;
        assert_eq!(peer.facts(&Needs::ALL), Err(NotAttested::Ended));
        child.0.wait().unwrap();
        assert_eq!(peer.facts(&Needs::ALL), Err(NotAttested::Ended));
        assert_eq!(child.peer().err(), Some(NotAttested::Ended));
    }

    /// Another process with the id of the one that connected: the handle refers to the first.
    #[tokio::test]
    async fn reused_process_id_has_no_facts() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut peer = Peer::of(&ours).unwrap();
        let process = peer.process.as_mut().unwrap();
        process.started -= 1;
        assert_eq!(peer.facts(&Needs::ALL), Err(NotAttested::Ended));
    }

    /// A process connects, passes its socket to a child, and executes a program that gives it another user or group.
    #[tokio::test]
    async fn process_with_another_user_lends_no_path() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&ours).unwrap();
        let (uid, gid) = (peer.uid, peer.gid);
        for changed in [Peer { uid: uid + 1, ..Peer::of(&ours).unwrap() }, Peer { gid: gid + 1, ..peer }] {
            let facts = changed.facts(&Needs::ALL).unwrap();
            assert_eq!((facts.uid, facts.gid), (changed.uid, changed.gid), "as it connected");
            assert_eq!((facts.path, facts.unit, facts.groups), (None, None, BTreeSet::new()));
            assert_eq!(facts.unknown.len(), 3);
            assert!(facts.unknown.iter().all(|unknown| unknown.why == CHANGED_USER));
        }
    }

    #[tokio::test]
    async fn program_that_was_replaced_has_no_path() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::copy("/bin/sleep", &program).unwrap();
        let child = Child::start(&program);
        let peer = child.peer().unwrap();
        assert_eq!(peer.facts(&Needs::ALL).unwrap().path.as_deref(), program.to_str());
        fs::rename(&program, dir.path().join("moved")).unwrap();
        fs::copy("/bin/sleep", &program).unwrap();
        let facts = peer.facts(&Needs::ALL).unwrap();
        assert_ne!(facts.path.as_deref(), program.to_str());
        fs::remove_file(dir.path().join("moved")).unwrap();
        let facts = peer.facts(&Needs::ALL).unwrap();
        assert_eq!(facts.path, None, "{:?}", facts.unknown);
    }
}
