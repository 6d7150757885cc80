//! A real systemd in namespaces of its own, with the package installed: what the unit promises.
//!
//! It boots from this machine's own files below an overlay: what it writes is in memory and ends with it. Needs root.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::{Permit, eventually_so, permit};
use crate::package;

/// Becomes the first process of the namespaces. $0: an empty folder.
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
cd "$root/etc"
echo 11111111111111111111111111111111 > machine-id
rm -rf systemd/system
mkdir systemd/system
# It changes nothing of the machine's kernel.
for unit in systemd-sysctl systemd-modules-load systemd-binfmt; do ln -s /dev/null "systemd/system/$unit.service"; done
# Of its own first process systemd expects that mounts propagate: credentials are mounted by another.
exec chroot "$root" sh -c 'mount --make-rshared / && exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=basic.target --log-target=journal --show-status=0'
"#;

struct Machine {
    unshare: Child,
    /// The pid of its systemd, seen from here.
    first: String,
    _folder: tempfile::TempDir,
    _permit: std::sync::Arc<Permit>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The kernel ends every process of the namespaces with the first one, and that one with `unshare`.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

impl Machine {
    /// `None`, with the reason printed: there is none on this machine.
    fn boot() -> Option<Self> {
        let permit = permit();
        if !rustix::process::geteuid().is_root() || !Path::new("/lib/systemd/systemd").exists() {
            println!("not root, or no systemd: nothing was checked");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--kill-child", "--fork", "--propagation", "private"]);
        command.args(["--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup", "sh", "-c", BOOT]).arg(folder.path());
        let mut unshare = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("util-linux is there");
        let mut first = String::new();
        eventually_so("the first process runs, or cannot", || {
            let pid = unshare.id();
            first = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            first = first.trim().to_owned();
            let name = std::fs::read_to_string(format!("/proc/{first}/comm")).unwrap_or_default();
            name == "systemd\n" || unshare.try_wait().is_ok_and(|ended| ended.is_some())
        });
        if unshare.try_wait().is_ok_and(|ended| ended.is_some()) {
            let mut why = String::new();
            let _ = unshare.stderr.take().expect("it is piped").read_to_string(&mut why);
            println!("systemd cannot be booted here, nothing was checked: {why}");
            return None;
        }
        let machine = Self { unshare, first, _folder: folder, _permit: permit };
        eventually_so("it has booted", || machine.tries("systemctl is-system-running").0);
        Some(machine)
    }

    /// A path of the machine, seen from here.
    fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.first))
    }

    fn write(&self, inside: &str, text: &str) {
        let path = self.path(inside);
        std::fs::create_dir_all(path.parent().expect("an absolute path")).expect("it is ours");
        std::fs::write(path, text).expect("it is ours");
    }

    /// Whether a shell's line succeeds there, and what it prints.
    fn tries(&self, line: &str) -> (bool, String) {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first, "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup", "--root"]);
        let ended = command.args(["--wdns=/", "sh", "-c", line]).output().expect("util-linux is there");
        let text = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (ended.status.success(), text)
    }

    #[track_caller]
    fn runs(&self, line: &str) -> String {
        let (succeeded, text) = self.tries(line);
        assert!(succeeded, "{line}: {text}");
        text
    }

    fn muster(&self, node: &str, args: &str) -> String {
        self.runs(&format!("muster --socket /run/muster-{node}/muster.sock {args}"))
    }

    fn property(&self, node: &str, name: &str) -> String {
        self.runs(&format!("systemctl show --value --property {name} muster-{node}")).trim().to_owned()
    }

    #[track_caller]
    fn shows(&self, node: &str, name: &str, text: &str) {
        eventually_so(&format!("{name} of {node}: {text}"), || self.property(node, name).contains(text));
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
}

/// A9. Starts return although there is no quorum yet, a frozen daemon is restarted, a command that uses up the memory is killed alone, a
/// stop ends commands first, and a node that was removed stays stopped.
#[test]
#[ignore = "full tier"]
fn unit_keeps_its_promises_under_a_real_systemd() {
    let Some(machine) = Machine::boot() else { return };
    let built = package::build("deb", &machine._folder.path().join("deb"));
    std::fs::copy(&built, machine.path("/tmp/muster.deb")).expect("it is ours");
    let installed = machine.runs("dpkg --install --force-depends /tmp/muster.deb");
    assert!(installed.contains("nothing was started"), "{installed}");
    assert!(!machine.tries("systemctl is-active musterd").0);

    machine.unit("n1", "listen = \"127.0.0.1:4401\"\ninit = true\n");
    let commands = "[reconcilers]\ncommands = [\"sh\"]\n";
    machine.unit("n2", &format!("listen = \"127.0.0.1:4402\"\njoin = [\"127.0.0.1:4401\"]\n{commands}"));
    machine.unit("n3", "listen = \"127.0.0.1:4403\"\njoin = [\"127.0.0.1:4401\"]\n");
    machine.runs("systemctl daemon-reload && systemctl start muster-n1");
    machine.shows("n1", "StatusText", "manager, leader");
    let token = machine.muster("n1", "token create --role manager --uses 2 --ttl 1h -q");
    for node in ["n2", "n3"] {
        // The daemon's user could not read it: systemd passes it on.
        machine.write(&format!("/etc/muster-{node}/join-token"), &token);
        machine.runs(&format!("chmod 600 /etc/muster-{node}/join-token && systemctl start muster-{node}"));
        machine.shows(node, "StatusText", "manager, follower of n1");
    }

    // Cold, and one after the other: the first one waits for a quorum and says so, and its start has returned.
    machine.runs("rm /etc/muster-n?/join-token && systemctl stop muster-n1 muster-n2 muster-n3");
    machine.runs("systemctl start muster-n1");
    machine.shows("n1", "StatusText", "1 of 3 managers reachable, missing: n2, n3");
    assert_eq!(machine.property("n1", "ActiveState"), "active");
    machine.runs("systemctl start muster-n2 && systemctl start muster-n3");
    machine.shows("n3", "StatusText", "3 of 3 managers reachable");

    let frozen = machine.property("n3", "MainPID");
    machine.runs(&format!("kill -STOP {frozen}"));
    machine.shows("n3", "NRestarts", "1");
    machine.shows("n3", "StatusText", "3 of 3 managers reachable");
    assert!(machine.runs("journalctl --unit muster-n3").contains("Watchdog timeout"));

    let daemon = machine.property("n2", "MainPID");
    machine.runs("systemctl set-property --runtime muster-n2 MemoryMax=400M MemorySwapMax=0");
    let definition = |name: &str, script: &str| {
        let text = format!(
            "name = \"{name}\"\nscope = \"{name}\"\nrelease = \"0.1.0\"\nfloor = \"0.1.0\"\n\
             [command]\nargv = [\"sh\", \"-c\", '''{script}''']\n"
        );
        machine.write(&format!("/tmp/{name}.toml"), &text);
        machine.muster("n1", &format!("reconciler apply --file /tmp/{name}.toml"));
    };
    definition("eats", "text=x; while :; do text=$text$text; done");
    eventually_so("the command is killed", || machine.muster("n1", "reconciler runs eats").contains("signal 9"));
    assert_eq!((machine.property("n2", "MainPID"), machine.property("n2", "NRestarts")), (daemon, "0".to_owned()));
    machine.muster("n1", "reconciler delete eats");

    definition(
        "slow",
        "trap \"sleep 1; touch /tmp/ended; exit 75\" TERM; touch /tmp/begun; while :; do sleep 0.1; done",
    );
    eventually_so("the command runs", || machine.path("/tmp/begun").exists());
    machine.runs("systemctl stop muster-n2");
    assert!(machine.path("/tmp/ended").exists(), "the command ended first");
    assert_eq!(
        (machine.property("n2", "Result"), machine.property("n2", "ExecMainStatus")),
        ("success".to_owned(), "0".to_owned())
    );
    machine.runs("systemctl start muster-n2");
    machine.shows("n2", "StatusText", "3 of 3 managers reachable");

    machine.muster("n1", "node demote n3 --wait");
    machine.muster("n1", "node rm n3 --force");
    // Its process stays to say why; a start ends with status 6.
    machine.shows("n3", "StatusText", "removed");
    machine.tries("systemctl restart muster-n3");
    machine.shows("n3", "ActiveState", "failed");
    assert_eq!(
        (machine.property("n3", "ExecMainStatus"), machine.property("n3", "NRestarts")),
        ("6".to_owned(), "0".to_owned())
    );
    machine.runs("systemctl stop muster-n1 muster-n2");
}
