//! The environment of a command, on its way past the processes that start it.
//!
//! Keeper, guardian and the last step before the command are this program and have the rights of the process that wants the command:
//! root's, where a daemon runs commands as other users. The dynamic loader and libraries obey variables (`LD_PRELOAD`, `LD_DEBUG_OUTPUT`),
//! so what the author of a definition sets must not be in force in them: each variable travels under another name, and the command alone
//! gets it under its own.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

/// Put before each name. Definitions and files cannot name variables that begin with `MUSTER_`.
const CARRIED: &str = "MUSTER_COMMAND_ENV_";

/// Gives the variables to a process that starts the command, without putting them in force there.
pub(super) fn carry(starter: &mut Command, environment: &[(String, String)]) {
    starter.envs(environment.iter().map(|(name, value)| (format!("{CARRIED}{name}"), value)));
}

/// Puts what this process carries in force in the command.
pub(super) fn hand_over(command: &mut Command) {
    for (carried, value) in std::env::vars_os() {
        if let Some(name) = carried.as_bytes().strip_prefix(CARRIED.as_bytes()) {
            command.env_remove(&carried);
            if !name.is_empty() {
                command.env(OsStr::from_bytes(name), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// The next test starts it with a variable that it carries.
    #[test]
    fn last_step_of_a_carried_environment() {
        if std::env::var_os("MUSTER_COMMAND_ENV_COLOUR").is_some() {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", "echo \"<$COLOUR$LD_DEBUG> $(env | grep -c MUSTER_COMMAND_ENV_)\""]);
            hand_over(&mut command);
            assert!(command.status().unwrap().success());
        }
    }

    #[test]
    fn carried_environment_is_in_force_only_in_the_command() {
        let folder = tempfile::tempdir().unwrap();
        let mut last = Command::new("/proc/self/exe");
        last.args(["--exact", "guard::carried::tests::last_step_of_a_carried_environment", "--nocapture"]);
        let output = folder.path().join("d");
        let output = output.to_str().unwrap();
        let environment = [("COLOUR", "red"), ("LD_DEBUG", "libs"), ("LD_DEBUG_OUTPUT", output)];
        carry(&mut last, &environment.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let last = last.stdout(Stdio::piped()).spawn().unwrap();
        let traced_if_obeyed = format!("{output}.{}", last.id());
        let said = String::from_utf8(last.wait_with_output().unwrap().stdout).unwrap();
        assert!(said.contains("<redlibs> 0"), "{said}");
        assert!(!std::fs::exists(traced_if_obeyed).unwrap(), "the loader of the last step obeyed it");
    }
}
