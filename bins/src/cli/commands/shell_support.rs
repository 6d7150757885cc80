//! What a package installs beside the programs: completions for shells, and manual pages. Both follow from the arguments alone.

use std::fs::File;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use muster_client::{Failure, Outcome};

use crate::cli::args::Cli;
use crate::cli::output::print;

pub(super) fn completion(shell: Shell) -> Outcome<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "muster", &mut script);
    print(String::from_utf8_lossy(&script).trim_end());
    Ok(0)
}

/// `muster.1` with a page for each command, and `musterd.8`. The same arguments give the same bytes.
pub(super) fn manual_pages(dir: &Path) -> Outcome<u8> {
    let failed =
        |error: std::io::Error| Failure::io(format!("cannot write manual pages into {}", dir.display()), &error);
    std::fs::create_dir_all(dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(failed)?;
    let mut page = File::create(dir.join("musterd.8")).map_err(failed)?;
    Man::new(crate::daemon::command()).section("8").render(&mut page).map_err(failed)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_pages_of_all_commands_are_reproducible() {
        let dir = tempfile::tempdir().unwrap();
        let pages = |name: &str| {
            let dir = dir.path().join(name);
            manual_pages(&dir).unwrap();
            let read = |entry: std::io::Result<std::fs::DirEntry>| {
                let path = entry.unwrap().path();
                (path.file_name().unwrap().to_owned(), std::fs::read_to_string(path).unwrap())
            };
            std::fs::read_dir(dir).unwrap().map(read).collect::<std::collections::BTreeMap<_, _>>()
        };
        let (first, second) = (pages("a"), pages("b"));
        assert_eq!(first, second);
        for page in ["muster.1", "muster-node-promote.1", "muster-ca-rotate.1", "musterd.8"] {
            assert!(first.contains_key(std::ffi::OsStr::new(page)), "{page}: {:?}", first.keys());
        }
        assert!(first[std::ffi::OsStr::new("musterd.8")].contains("check\\-config"));
    }

    #[test]
    fn bash_completes_the_name_of_a_command() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Cli::command(), "muster", &mut script);
        script.extend_from_slice(
            b"\nCOMP_WORDS=(muster node pro) COMP_CWORD=2\n_muster muster pro node\necho \"${COMPREPLY[@]}\"\n",
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), script).unwrap();
        let Ok(ended) = std::process::Command::new("bash").arg("--norc").arg(file.path()).output() else {
            println!("bash is not installed: nothing was checked with it");
            return;
        };
        assert_eq!(String::from_utf8_lossy(&ended.stdout), "promote\n", "{}", String::from_utf8_lossy(&ended.stderr));
    }

    #[test]
    fn completions_of_every_shell_know_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "muster", &mut script);
            let script = String::from_utf8(script).unwrap();
            for word in ["promote", "may-stop", "autolock"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }
}
