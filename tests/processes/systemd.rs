//! A real systemd in namespaces of its own, with the package installed: what the unit promises.
//!
//! It boots from this machine's own files below an overlay: what it writes is in memory and ends with it. Needs root.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use muster_local_cluster::ProcessId;
use rustix::process::Signal;

use crate::harness::{Permit, WAIT_LIMIT, between_checks, eventually_so, permit};
use crate::package;

/// What the machine needs of this one. `find` and a shell are everywhere.
const PROGRAMS: [&str; 4] = ["dpkg-deb", "setpriv", "unshare", "nsenter"];

/// A file of the folder: the machine's control groups, one path a line.
const GROUPS: &str = "groups";

/// Moves itself to control groups of the machine's own, and starts [`BOOT`] in namespaces. $0: an empty folder. $1: `BOOT`.
const PREPARE: &str = r#"
set -e
name="muster-machine-$$"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    # At the root: any other group that has processes cannot limit the memory of groups below it.
    echo "/sys/fs/cgroup/$name"
else
    while IFS=: read -r _ controllers own; do
        case "$controllers" in
            cpuset) continue ;; # takes no process before it has processors; systemd does not use it
            '') hierarchy=unified ;;
            *) hierarchy="${controllers#name=}" ;;
        esac
        if [ -d "/sys/fs/cgroup/$hierarchy" ]; then echo "/sys/fs/cgroup/$hierarchy$own/$name"; fi
    done </proc/self/cgroup
fi >"$0/groups"
while read -r group; do
    mkdir "$group"
    echo $$ >"$group/cgroup.procs"
done <"$0/groups"
exec unshare --kill-child --fork --propagation private --mount --pid --ipc --uts --net --cgroup sh -c "$1" "$0"
"#;

/// Becomes the first process of the namespaces. $0: the folder. Nothing of the overlay is opened before the `chroot`: outside of it, an
/// absolute link leads to a file of this machine.
const BOOT: &str = r#"
set -e
mount -t tmpfs tmpfs "$0"
mkdir "$0/upper" "$0/work" "$0/root"
root="$0/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$0/upper,workdir=$0/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
for folder in run tmp dev sys/fs/cgroup; do mount -t tmpfs tmpfs "$root/$folder"; done
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    if ! grep -qw memory "$root/sys/fs/cgroup/cgroup.controllers"; then
        echo "control groups here cannot limit memory" >&2
        exit 1
    fi
else
    cd "$root/sys/fs/cgroup"
    mkdir systemd unified memory pids
    mount -t cgroup2 cgroup2 unified
    mount -t cgroup -o none,name=systemd systemd systemd
    for controller in memory pids; do mount -t cgroup -o "$controller" "$controller" "$controller"; done
fi
cd "$root/dev"
for device in null zero full random urandom tty; do touch "$device"; mount --bind "/dev/$device" "$device"; done
mkdir shm pts
ip link set lo up
exec chroot "$root" sh -ec '
cd /etc
rm -rf machine-id systemd/system
echo 11111111111111111111111111111111 >machine-id
mkdir systemd/system
# These would change settings of the kernel, which is also that of this machine.
for unit in systemd-sysctl systemd-modules-load systemd-binfmt; do ln -s /dev/null "systemd/system/$unit.service"; done
# As systemd does where it is not in a container: it mounts credentials in another namespace, from which they must propagate.
mount --make-rshared /
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=basic.target --log-target=journal --show-status=0
'
"#;

/// HARNESS-1: its processes end when it is dropped, and with the test's process. If that is killed, empty control groups stay.
struct Machine {
    unshare: Child,
    folder: tempfile::TempDir,
    _permit: Arc<Permit>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The kernel ends all processes of the namespaces before the first one, and `unshare` waits for that one.
        if !self.has_ended() {
            match self.first() {
                Some(first) => first.signal(Signal::KILL),
                None => drop(self.unshare.kill()),
            }
        }
        let _ = self.unshare.wait();
        for group in self.file(GROUPS).lines() {
            let _ = Command::new("find").arg(group).args(["-depth", "-type", "d", "-delete"]).status();
        }
    }
}

impl Machine {
    /// `None`, with the reason printed: there cannot be one here.
    fn boot() -> Option<Self> {
        if !PROGRAMS.iter().all(|program| package::is_installed(program)) {
            return None;
        }
        if !rustix::process::geteuid().is_root() || !Path::new("/lib/systemd/systemd").exists() {
            println!("not root, or no systemd: nothing was checked");
            return None;
        }
        let permit = permit();
        let folder = tempfile::tempdir().expect("a temporary directory");
        let errors = std::fs::File::create(folder.path().join("errors")).expect("it is ours");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "sh", "-c", PREPARE]).arg(folder.path()).arg(BOOT);
        let unshare =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn().expect("it is installed");
        let mut machine = Self { unshare, folder, _permit: permit };
        eventually_so("its first process is systemd, or has ended", || machine.is_systemd() || machine.has_ended());
        if machine.has_ended() {
            println!("systemd cannot be booted here, nothing was checked: {}", machine.file("errors"));
            return None;
        }
        eventually_so("it has booted", || {
            assert!(!machine.has_ended(), "{}", machine.file("errors"));
            // Not its state as a whole, which a failed unit of this machine's own would spoil.
            machine.tries("systemctl is-active basic.target").0
        });
        Some(machine)
    }

    /// Its first process: the only child of `unshare`.
    fn first(&self) -> Option<ProcessId> {
        let unshare = self.unshare.id();
        let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).ok()?;
        ProcessId::of(children.trim().parse().ok()?)
    }

    /// The pid of its systemd, seen from here.
    fn pid(&self) -> i32 {
        self.first().expect("systemd runs").pid
    }

    fn is_systemd(&self) -> bool {
        let name = |first: ProcessId| std::fs::read_to_string(format!("/proc/{}/comm", first.pid)).ok();
        self.first().and_then(name).is_some_and(|name| name == "systemd\n")
    }

    fn has_ended(&mut self) -> bool {
        self.unshare.try_wait().is_ok_and(|ended| ended.is_some())
    }

    /// A text beside the machine.
    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// A path of the machine, seen from here. No absolute link may be on it.
    fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.pid()))
    }

    fn write(&self, inside: &str, text: &str) {
        let path = self.path(inside);
        std::fs::create_dir_all(path.parent().expect("an absolute path")).expect("it is ours");
        std::fs::write(path, text).expect("it is ours");
    }

    /// Whether a shell's line succeeds there, and what it prints.
    fn tries(&self, line: &str) -> (bool, String) {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid().to_string(), "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup"]);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let ended = command.args(["--root", "--wd", "sh", "-c", line]).output().expect("it is installed");
        let text = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (ended.status.success(), text)
    }

    #[track_caller]
    fn runs(&self, line: &str) -> String {
        let (succeeded, text) = self.tries(line);
        assert!(succeeded, "{line}: {text}");
        text
    }

    #[track_caller]
    fn muster(&self, node: &str, args: &str) -> String {
        self.runs(&format!("muster --socket /run/muster-{node}/muster.sock {args}"))
    }

    #[track_caller]
    fn property(&self, node: &str, name: &str) -> String {
        self.runs(&format!("systemctl show --value --property {name} muster-{node}")).trim().to_owned()
    }

    #[track_caller]
    fn shows(&self, node: &str, name: &str, one_of: &[&str]) {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            let shown = self.property(node, name);
            if one_of.iter().any(|text| shown.contains(text)) {
                return;
            }
            let journal = || self.runs(&format!("journalctl --no-pager --lines 5 --output cat --unit muster-{node}"));
            assert!(Instant::now() < deadline, "{name} of {node} is {shown:?}, not {one_of:?}:\n{}", journal());
            between_checks();
        }
    }

    /// A second unit beside the package's, with folders of its own: otherwise the package's text.
    fn unit(&self, node: &str, config: &str) {
        let name = format!("muster-{node}");
        let shipped = std::fs::read_to_string(self.path("/usr/lib/systemd/system/musterd.service"));
        let unit = shipped
            .expect("the package has it")
            .replace("/etc/muster/", &format!("/etc/{name}/"))
            .replace("/var/lib/muster", &format!("/var/lib/{name}"))
            .replace("/run/muster/", &format!("/run/{name}/"))
            .replace("Directory=muster", &format!("Directory={name}"));
        self.write(&format!("/etc/systemd/system/{name}.service"), &unit);
        self.write(&format!("/etc/{name}/musterd.toml"), &format!("name = \"{node}\"\n{config}"));
    }

    /// A reconciler that runs this script, on the node that may run commands: n2.
    fn apply(&self, name: &str, script: &str) {
        let text = format!(
            "name = \"{name}\"\nscope = \"{name}\"\nrelease = \"0.1.0\"\nfloor = \"0.1.0\"\n\
             [command]\nargv = [\"sh\", \"-c\", '''{script}''']\n"
        );
        self.write(&format!("/tmp/{name}.toml"), &text);
        self.muster("n1", &format!("reconciler apply --file /tmp/{name}.toml"));
    }
}

/// A9. Each step continues with the cluster that the one before has left.
#[test]
#[ignore = "full tier"]
fn unit_keeps_its_promises_under_a_real_systemd() {
    let Some(machine) = Machine::boot() else { return };
    install(&machine);
    three_managers(&machine);
    starts_return_without_a_quorum(&machine);
    frozen_daemon_is_restarted(&machine);
    commands_end_before_their_daemon(&machine);
    removed_node_stays_stopped(&machine);
}

fn install(machine: &Machine) {
    let built = package::build("deb", &machine.folder.path().join("deb"));
    std::fs::copy(&built, machine.path("/tmp/muster.deb")).expect("it is ours");
    let installed = machine.runs("dpkg --install --force-depends /tmp/muster.deb");
    assert!(installed.contains("nothing was started"), "{installed}");
    assert!(!machine.tries("systemctl is-active musterd").0);
}

fn three_managers(machine: &Machine) {
    machine.unit("n1", "listen = \"127.0.0.1:4401\"\ninit = true\n");
    let commands = "[reconcilers]\ncommands = [\"sh\"]\n";
    machine.unit("n2", &format!("listen = \"127.0.0.1:4402\"\njoin = [\"127.0.0.1:4401\"]\n{commands}"));
    machine.unit("n3", "listen = \"127.0.0.1:4403\"\njoin = [\"127.0.0.1:4401\"]\n");
    machine.runs("systemctl daemon-reload && systemctl start muster-n1");
    machine.shows("n1", "StatusText", &["manager, leader"]);
    let token = machine.muster("n1", "token create --role manager --uses 2 --ttl 1h -q");
    for node in ["n2", "n3"] {
        // The daemon's user could not read it: systemd passes it on.
        machine.write(&format!("/etc/muster-{node}/join-token"), &token);
        machine.runs(&format!("chmod 600 /etc/muster-{node}/join-token && systemctl start muster-{node}"));
        machine.shows(node, "StatusText", &["manager, follower of n1"]);
        let process = format!("/proc/{}", machine.property(node, "MainPID"));
        let shown =
            format!("systemctl show muster-{node}; tr '\\0' ' ' <{process}/environ; tr '\\0' ' ' <{process}/cmdline");
        let shown = machine.runs(&shown);
        assert!(shown.contains("/usr/bin/musterd --config") && !shown.contains(token.trim()), "{shown}");
    }
}

/// One after the other, from none: the first one waits for a quorum and reports it, and its start has returned.
fn starts_return_without_a_quorum(machine: &Machine) {
    machine.runs("rm /etc/muster-n?/join-token && systemctl stop muster-n1 muster-n2 muster-n3");
    machine.runs("systemctl start muster-n1");
    machine.shows("n1", "StatusText", &["1 of 3 managers reachable, missing: n2, n3"]);
    assert_eq!(machine.property("n1", "ActiveState"), "active");
    machine.runs("systemctl start muster-n2 && systemctl start muster-n3");
    machine.shows("n3", "StatusText", &["3 of 3 managers reachable"]);
}

fn frozen_daemon_is_restarted(machine: &Machine) {
    let frozen = machine.property("n3", "MainPID");
    machine.runs(&format!("kill -STOP {frozen}"));
    // Until its successor runs, systemd shows the status of the frozen one.
    eventually_so("another daemon runs", || {
        ![frozen.as_str(), "0"].contains(&machine.property("n3", "MainPID").as_str())
    });
    machine.shows("n3", "StatusText", &["3 of 3 managers reachable"]);
    assert_eq!(machine.property("n3", "NRestarts"), "1");
    assert!(machine.runs("journalctl --unit muster-n3").contains("Watchdog timeout"));
}

/// One that uses up the memory is killed, and the daemon is not; one that runs at a stop ends before the daemon. systemd applies
/// `OOMPolicy` only where there is one hierarchy of control groups (version 2): elsewhere only the kernel chooses.
fn commands_end_before_their_daemon(machine: &Machine) {
    let daemon = machine.property("n2", "MainPID");
    machine.runs("systemctl set-property --runtime muster-n2 MemoryMax=400M MemorySwapMax=0");
    machine.apply("eats", "text=x; while :; do text=$text$text; done");
    eventually_so("the command is killed", || machine.muster("n1", "reconciler runs eats").contains("signal 9"));
    machine.muster("n1", "reconciler delete eats --yes");

    // The daemon must wait for this second: the file is written before the stop returns.
    machine.apply(
        "slow",
        "trap \"sleep 1; touch /tmp/ended; exit 75\" TERM; touch /tmp/begun; while :; do sleep 0.1; done",
    );
    eventually_so("the command runs", || machine.path("/tmp/begun").exists());
    assert_eq!((machine.property("n2", "MainPID"), machine.property("n2", "NRestarts")), (daemon, "0".to_owned()));
    machine.runs("systemctl stop muster-n2");
    assert!(machine.path("/tmp/ended").exists(), "the command ended first");
    assert_eq!(
        (machine.property("n2", "Result"), machine.property("n2", "ExecMainStatus")),
        ("success".to_owned(), "0".to_owned())
    );
    machine.runs("systemctl start muster-n2");
    machine.shows("n2", "StatusText", &["3 of 3 managers reachable"]);
}

fn removed_node_stays_stopped(machine: &Machine) {
    machine.muster("n1", "node demote n3 --wait");
    machine.muster("n1", "node rm n3 --force");
    // Its process stays to report why; a start ends with status 6. The reason is `blocked` if its session was disconnected before the notice
    // of its removal arrived, and another manager refused the next one.
    machine.shows("n3", "StatusText", &["removed", "blocked"]);
    assert!(!machine.tries("systemctl restart muster-n3").0);
    machine.shows("n3", "ActiveState", &["failed"]);
    assert_eq!(
        (machine.property("n3", "ExecMainStatus"), machine.property("n3", "NRestarts")),
        ("6".to_owned(), "0".to_owned())
    );
    machine.runs("systemctl stop muster-n1 muster-n2");
}
