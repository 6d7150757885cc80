//! What the process of a command has of its own: its user, its working directory, its limits.
//!
//! They travel in an environment variable through the keeper and the guardian, which keep the daemon's rights: they must be able to end
//! the command. The process that is about to become the command applies them, and removes the variable.

use std::path::PathBuf;

use muster_messages::CommandLimits;
use rustix::process::{Gid, Resource, Rlimit, Uid, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

/// The environment variable that carries them.
const ATTRIBUTES: &str = "MUSTER_COMMAND_ATTRIBUTES";

/// See the module. The default changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// `None`: that of the daemon.
    pub user: Option<UserIds>,
    /// `None`: that of the daemon.
    pub directory: Option<PathBuf>,
    pub limits: CommandLimits,
}

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserIds {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// All groups that it is in.
    pub groups: Vec<u32>,
}

impl Attributes {
    /// The environment variable with which a keeper is started. `None`: there is nothing to change.
    pub(super) fn to_variable(&self) -> Option<(String, String)> {
        if *self == Self::default() {
            return None;
        }
        let text = serde_json::to_string(self).expect("names and numbers are JSON");
        Some((ATTRIBUTES.to_owned(), text))
    }

    /// Those that this process was started with.
    pub(super) fn of_this_process() -> Result<Self, String> {
        match std::env::var(ATTRIBUTES) {
            Err(std::env::VarError::NotPresent) => Ok(Self::default()),
            Err(error) => Err(format!("{ATTRIBUTES}: {error}")),
            Ok(text) => serde_json::from_str(&text).map_err(|error| format!("{ATTRIBUTES}: {error}")),
        }
    }

    /// Applies limits and user to this process, which has one thread. Afterwards it may have fewer rights, and no parent-death signal.
    pub(super) fn apply(&self) -> Result<(), String> {
        let CommandLimits { memory_bytes, processes, open_files, cpu_secs } = self.limits;
        for (resource, name, limit) in [
            (Resource::As, "memory", memory_bytes),
            (Resource::Nproc, "processes", processes),
            (Resource::Nofile, "open_files", open_files),
            (Resource::Cpu, "cpu", cpu_secs),
        ] {
            if let Some(limit) = limit {
                set_limit(resource, limit).map_err(|error| {
                    format!("cannot limit {name} to {limit}: {error}; the daemon's own limit may be lower, and only root raises it")
                })?;
            }
        }
        let Some(UserIds { name, uid, gid, groups }) = &self.user else { return Ok(()) };
        let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
        // The user comes last: afterwards the groups can no longer be changed.
        set_thread_groups(&groups)
            .and_then(|()| set_thread_res_gid(gid, gid, gid))
            .and_then(|()| set_thread_res_uid(uid, uid, uid))
            .map_err(|error| {
                format!("cannot become user {name}: {error}; musterd needs the capabilities CAP_SETUID and CAP_SETGID on this node")
            })?;
        drop_capabilities(uid)
            .map_err(|error| format!("cannot give up the capabilities of musterd as user {name}: {error}"))
    }

    /// Changes to the working directory, as the user that it has become.
    pub(super) fn enter(&self) -> Result<(), String> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let user = self.user.as_ref().map(|user| format!(" as user {}", user.name)).unwrap_or_default();
        std::env::set_current_dir(directory)
            .map_err(|error| format!("cannot change to the directory {}{user}: {error}", directory.display()))
    }

    /// Removes the variable from the environment of a command.
    pub(super) fn hide(command: &mut std::process::Command) {
        command.env_remove(ATTRIBUTES);
    }
}

/// The kernel takes them from a process that was root, unless its securebits say otherwise, and from no other one: a daemon's ambient
/// capabilities would become the command's, and with them root's files and every user.
fn drop_capabilities(uid: Uid) -> rustix::io::Result<()> {
    clear_ambient_capability_set()?;
    if uid.is_root() {
        return Ok(());
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Both limits: the command cannot raise it again. Only root can set one above the daemon's own.
fn set_limit(resource: Resource, limit: u64) -> rustix::io::Result<()> {
    setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })
}

#[cfg(test)]
mod tests {
    use rustix::thread::{capabilities, capability_is_in_ambient_set, configure_capability_in_ambient_set};
    use rustix::thread::{set_keep_capabilities, set_thread_uid};

    use super::*;

    /// As root only. A thread has a user and capabilities of its own.
    #[test]
    fn capabilities_end_with_the_change_of_user() {
        let held = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
        if !rustix::process::geteuid().is_root() || !capabilities(None).unwrap().permitted.contains(held) {
            eprintln!("not tested: only root with CAP_SETUID, CAP_SETGID and CAP_KILL can");
            return;
        }
        let changed = std::thread::spawn(move || {
            // A daemon that is not root, with ambient capabilities.
            set_keep_capabilities(true).unwrap();
            set_thread_uid(Uid::from_raw(65534)).unwrap();
            set_capabilities(None, CapabilitySets { effective: held, permitted: held, inheritable: held }).unwrap();
            for capability in held {
                configure_capability_in_ambient_set(capability, true).unwrap();
            }
            let user = UserIds { name: "other".into(), uid: 65533, gid: 65533, groups: vec![65533] };
            Attributes { user: Some(user), ..Attributes::default() }.apply().unwrap();
            let ambient = held.into_iter().any(|capability| capability_is_in_ambient_set(capability).unwrap());
            (capabilities(None).unwrap(), ambient, std::fs::read_to_string("/proc/thread-self/status").unwrap())
        });
        let (left, ambient, status) = changed.join().unwrap();
        let none = CapabilitySet::empty();
        assert_eq!(left, CapabilitySets { effective: none, permitted: none, inheritable: none });
        assert!(!ambient && status.contains("Uid:\t65533\t65533\t65533\t65533"), "{status}");
    }

    #[test]
    fn attributes_round_trip_through_the_environment() {
        assert_eq!(Attributes::default().to_variable(), None);
        let user = UserIds { name: "migrate".into(), uid: 7, gid: 8, groups: vec![8, 9] };
        let limits = CommandLimits { open_files: Some(64), ..CommandLimits::default() };
        let attributes = Attributes { user: Some(user), directory: Some("/opt/shop".into()), limits };
        let (name, text) = attributes.to_variable().unwrap();
        assert!(name.starts_with("MUSTER_"), "an environment that a definition gives cannot have it");
        assert_eq!(serde_json::from_str::<Attributes>(&text).unwrap(), attributes);
    }
}
