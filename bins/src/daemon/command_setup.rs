//! What a definition may ask of this node for its command: a user, a working directory, files with its environment, limits.
//!
//! Invariants  RUN-8  a command runs as the user that runs musterd, unless this node's configuration lists another one; and it gets
//!                    only files that this node's configuration lists. Where musterd is root and the configuration lists users, root
//!                    must be one of them.
//! Why both are this node's own configuration: an operator's stolen identity must not become root, or read secrets, on every node.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use muster_messages::CommandOptions;
use muster_pki::private::{Symlinks, is_trusted, open_regular, read_text};

use super::settings::Reconcilers;
use crate::guard::{Attributes, UserIds};

/// The largest file of an environment in bytes.
const MAX_ENV_FILE_BYTES: u64 = 64 * 1024;
/// Permissions of the group and of all others.
const OPEN_TO_OTHERS: u32 = 0o077;

/// The user of every command that names none, if musterd is root.
const ROOT: &str = "root";

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// What a command is started with, beside what its definition says itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CommandSetup {
    pub attributes: Attributes,
    /// Of its files and its user. What the definition itself sets counts more.
    pub environment: Vec<(String, String)>,
}

/// The user that runs musterd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnUser {
    uid: u32,
    /// Its names on this machine.
    names: BTreeSet<String>,
}

impl OwnUser {
    /// Reads the names once: actors ask [`permits`], and must not wait for a file.
    pub fn of_this_process() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { uid, names: names_in(&std::fs::read_to_string(PASSWD).unwrap_or_default(), uid) }
    }
}

/// Whether this node's configuration permits these options to a musterd of this user. What it does not permit makes the node no candidate.
/// A root that lists users says as whom commands run: it would otherwise be the one user that cannot be forbidden.
pub(super) fn permits(own: &OwnUser, configured: &Reconcilers, options: &CommandOptions) -> Result<(), String> {
    let only_listed = own.uid == 0 && !configured.users.is_empty();
    let is_listed = |name: &str| configured.users.iter().any(|listed| listed == name);
    match &options.user {
        None if only_listed && !is_listed(ROOT) => {
            return Err(
                "this node does not run commands as root, as which its musterd runs: `[reconcilers] users` of its configuration lists \
                 others; name one of them in the definition (`[process] user`)"
                    .to_owned(),
            );
        }
        Some(name) if !is_listed(name) && (only_listed || !own.names.contains(name)) => {
            return Err(format!(
                "this node does not run commands as user {name}: `[reconcilers] users` of its configuration lists those that it may become"
            ));
        }
        _ => {}
    }
    match options.env_files.iter().find(|file| !configured.env_files.contains(file)) {
        None => Ok(()),
        Some(file) => Err(format!(
            "this node does not read {file} for commands: `[reconcilers] env_files` of its configuration lists the files"
        )),
    }
}

/// Reads what the options name, now. The text says what is missing on this node.
pub(super) fn set_up(
    own: &OwnUser,
    configured: &Reconcilers,
    options: &CommandOptions,
) -> Result<CommandSetup, String> {
    permits(own, configured, options)?;
    let mut setup = CommandSetup::default();
    setup.attributes.limits = options.limits;
    if let Some(name) = &options.user {
        let found = user(name)?;
        let own = own.uid;
        if found.uid != own {
            if !may_become_another_user() {
                return Err(format!(
                    "the command is to run as user {name}, and musterd (user {own}) has no right on this node to become another user and to \
                     end its processes (CAP_SETUID, CAP_SETGID, CAP_KILL); run musterd as root with these capabilities here, or leave \
                     `user` out of the definition"
                ));
            }
            let home = found.home.clone();
            setup.environment = [("HOME", home.as_str()), ("LOGNAME", name.as_str()), ("USER", name.as_str())]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .to_vec();
            let UserRecord { uid, gid, groups, .. } = found;
            setup.attributes.user = Some(UserIds { name: name.clone(), uid, gid, groups });
        }
    }
    if let Some(directory) = &options.directory {
        // Another user may see less, and finds out when it changes to it.
        match std::fs::metadata(directory) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(format!("the working directory {directory} is not a directory on this node")),
            Err(error) => {
                return Err(format!(
                    "the working directory {directory} cannot be used on this node: {error}; create it here"
                ));
            }
        }
        setup.attributes.directory = Some(directory.into());
    }
    for file in &options.env_files {
        setup.environment.extend(read_environment(Path::new(file)).map_err(|why| format!("{file}: {why}"))?);
    }
    Ok(setup)
}

/// See capabilities(7). Without the right to end it, a command would outlive its term. Root only: where another user has these rights as
/// ambient capabilities, each command without a `user` inherits them, and could become any user.
fn may_become_another_user() -> bool {
    const NEEDED: u64 = 1 << 5 | 1 << 6 | 1 << 7; // CAP_KILL, CAP_SETGID, CAP_SETUID
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let is_held = |held: u64| held & NEEDED == NEEDED;
    rustix::process::geteuid().is_root()
        && effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).is_some_and(is_held)
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct UserRecord {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    home: String,
}

fn user(name: &str) -> Result<UserRecord, String> {
    let read = |file: &str| std::fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"));
    let missing = || {
        format!(
            "this node has no user {name} in {PASSWD}; create it here, or pin the definition to a node that has it (`pin`)"
        )
    };
    user_in(&read(PASSWD)?, &read(GROUP).unwrap_or_default(), name).ok_or_else(missing)
}

/// The names of a user. See passwd(5).
fn names_in(passwd: &str, uid: u32) -> BTreeSet<String> {
    let name = |line: &str| match line.split(':').collect::<Vec<_>>().as_slice() {
        [name, _, id, ..] if id_in(id) == Some(uid) => Some((*name).to_owned()),
        _ => None,
    };
    passwd.lines().filter_map(name).collect()
}

/// See passwd(5) and group(5).
fn user_in(passwd: &str, group: &str, name: &str) -> Option<UserRecord> {
    let mut fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let (uid, gid, home) = fields.find_map(|fields| match fields.as_slice() {
        [of, _, uid, gid, _, home, ..] if *of == name => Some((id_in(uid)?, id_in(gid)?, (*home).to_owned())),
        _ => None,
    })?;
    let mut groups = vec![gid];
    for line in group.lines() {
        if let [_, _, id, members] = line.split(':').collect::<Vec<_>>().as_slice()
            && members.split(',').any(|member| member == name)
            && let Some(id) = id_in(id)
            && !groups.contains(&id)
        {
            groups.push(id);
        }
    }
    Some(UserRecord { uid, gid, groups, home })
}

/// `u32::MAX` is not a valid id: setresuid(2) reads it as “leave unchanged”.
fn id_in(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX)
}

/// `NAME=VALUE` lines of a file that only its owner can read. No refusal repeats its content.
fn read_environment(path: &Path) -> Result<Vec<(String, String)>, String> {
    let file = open_regular(path, Symlinks::Refused).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            "this file with the command's environment is missing on this node; create it with mode 0600".to_owned()
        }
        _ => format!("cannot open this file with the command's environment: {error}"),
    })?;
    check(&file)?;
    let text = read_text(file, MAX_ENV_FILE_BYTES)
        .map_err(|error| format!("cannot read this file with the command's environment: {error}"))?;
    environment_in(&text)
}

fn check(file: &File) -> Result<(), String> {
    let found = file.metadata().map_err(|error| format!("cannot inspect it: {error}"))?;
    if !is_trusted(found.uid()) {
        return Err(format!(
            "it belongs to user {}; it must belong to root or to the user that runs musterd",
            found.uid()
        ));
    }
    let mode = found.mode() & 0o7777;
    if mode & OPEN_TO_OTHERS != 0 {
        return Err(format!("other users can access it (mode {mode:04o}); run `chmod 0600` on it"));
    }
    Ok(())
}

/// Empty lines and those that begin with `#` are left out. A value is everything after the first `=`.
fn environment_in(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let line_number = at + 1;
        let Some((name, value)) = line.split_once('=') else {
            return Err(format!("line {line_number} is not NAME=VALUE"));
        };
        let is_part = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let is_name = name.bytes().all(is_part) && name.bytes().next().is_some_and(|first| !first.is_ascii_digit());
        if !is_name || value.contains('\0') {
            return Err(format!(
                "line {line_number} is not NAME=VALUE: a name is a letter or _, then letters, digits and _"
            ));
        }
        if name.starts_with("MUSTER_") {
            return Err(format!("line {line_number}: variables that begin with MUSTER_ are set by Muster"));
        }
        found.push((name.to_owned(), value.to_owned()));
    }
    Ok(found)
}

#[cfg(test)]
#[path = "command_setup_tests.rs"]
mod tests;
