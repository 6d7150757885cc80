//! `musterd --check-config`: what a start would find out one by one, in one run and without starting anything.
//!
//! Beyond the configuration itself it checks what the configuration names on this machine. It changes nothing, and asks no other machine but
//! the resolver of names.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;

use muster_kernel::UnixSocket;
use muster_pki::private::check_folder;
use muster_pki::{IdentityStore, JoinToken};
use rustix::fs::{Access, access};
use serde_json::json;

use super::boot::{missing_token, print, say};
use super::config::{self, Args, Config, ConfigFault, Faults, OutputFormat, TokenSource};
use super::lock::{self, LockFault};
use super::logging;

/// Prints the outcome: exit 0, or 2 with every fault.
pub fn report(args: Args, format: OutputFormat) -> ExitCode {
    let faults = faults_of(args);
    match format {
        OutputFormat::Text if faults.is_empty() => print("the configuration can be used\n"),
        OutputFormat::Text => faults.iter().for_each(say),
        OutputFormat::Json => print(&format!("{}\n", json!({"faults": faults}))),
    }
    ExitCode::from(if faults.is_empty() { 0 } else { 2 })
}

/// The faults of the values, and of what sound values name on this machine.
fn faults_of(args: Args) -> Vec<ConfigFault> {
    let (config, mut faults) = config::read(args);
    faults_here(&config, &mut faults);
    faults.into_found()
}

/// What a start with this configuration would refuse on this machine.
fn faults_here(config: &Config, faults: &mut Faults) {
    let mut check = |key: &str, find: &dyn Fn() -> Result<(), String>| {
        if faults.is_sound(key) {
            faults.check(key, find());
        }
    };
    // The daemon that runs on the directory holds what this one would bind.
    let runs = lock::is_held(&config.data_dir) || UnixSocket::is_served(&config.socket);
    // It is not known where the file that would name it cannot be read.
    if !config.data_dir.as_os_str().is_empty() {
        check("data_dir", &|| own_directory(&config.data_dir));
    }
    check("socket", &|| muster_api::AdminSocket::check(&config.socket).map_err(|fault| fault.to_string()));
    if let Some(path) = &config.workload_socket {
        check("workload_socket", &|| muster_workload_api::check_socket_path(path).map_err(|fault| fault.to_string()));
    }
    if !runs {
        check("listen", &|| can_listen("--listen", &config.listen));
        if config.metrics != "off" {
            check("metrics", &|| can_listen("--metrics", &config.metrics));
        }
    }
    if config.advertise != config.listen {
        check("advertise", &|| reachable_for_others(&config.listen, &config.advertise));
    }
    check("join", &|| config.join.iter().try_for_each(|addr| resolved("--join", addr).map(drop)));
    let of_the_token = if config.token_from == TokenSource::File { "token_file" } else { "token" };
    check(of_the_token, &|| usable_token(config));
    if let Some(file) = &config.unlock_key_file {
        check("unlock_key_file", &|| readable("--unlock-key-file", file));
    }
    check("log", &|| logging::parse(&config.log).map(drop));
    let settings = &config.settings;
    check("unlock.command", &|| runnable("[unlock] command", settings.unlock.command.first()));
    let upstream = settings.authority.upstream_command.first();
    check("authority.upstream_command", &|| runnable("[authority] upstream_command", upstream));
    if let Some(audit) = settings.audit.target(&config.data_dir).filter(|audit| audit.path != Path::new("-")) {
        let dir = audit.path.parent().filter(|dir| *dir != config.data_dir);
        check("audit.file", &|| dir.map_or(Ok(()), |dir| existing_directory("[audit] file", dir)));
    }
}

/// What the daemon would do with its directory: one that is missing is created.
fn own_directory(dir: &Path) -> Result<(), String> {
    if dir.exists() {
        return check_folder(dir).map_err(|why| LockFault::from(why).to_string());
    }
    let above = dir.ancestors().skip(1).find(|dir| dir.exists());
    match above {
        Some(above) if above.is_dir() && access(above, Access::WRITE_OK | Access::EXEC_OK).is_ok() => Ok(()),
        _ => Err(format!("--data-dir {}: this user cannot create it", dir.display())),
    }
}

fn existing_directory(flag: &str, dir: &Path) -> Result<(), String> {
    if dir.is_dir() { Ok(()) } else { Err(format!("{flag}: {} is not a directory", dir.display())) }
}

fn resolved(flag: &str, addr: &str) -> Result<Vec<SocketAddr>, String> {
    let found = addr.to_socket_addrs().map_err(|error| format!("{flag} {addr}: cannot resolve it: {error}"))?;
    Ok(found.collect())
}

fn can_listen(flag: &str, addr: &str) -> Result<(), String> {
    let found = resolved(flag, addr)?;
    let bound = TcpListener::bind(found.as_slice());
    bound.map(drop).map_err(|error| format!("{flag} {addr}: cannot listen there: {error}"))
}

fn reachable_for_others(listen: &str, advertise: &str) -> Result<(), String> {
    let listens = resolved("--listen", listen).unwrap_or_default();
    let advertised = resolved("--advertise", advertise)?;
    let only_here = |addrs: &[SocketAddr]| !addrs.is_empty() && addrs.iter().all(|addr| addr.ip().is_loopback());
    if only_here(&listens) && !only_here(&advertised) {
        let why = "other nodes would dial an address at which it does not listen";
        return Err(format!("--listen {listen} is this machine's loopback and --advertise {advertise} is not: {why}"));
    }
    Ok(())
}

/// A directory with an identity needs no token.
fn usable_token(config: &Config) -> Result<(), String> {
    let has_identity = IdentityStore::exists(&config.data_dir)
        .map_err(|why| format!("--data-dir {}: cannot look for an identity: {why}", config.data_dir.display()))?;
    match &config.token {
        _ if has_identity => Ok(()),
        Some(Ok(token)) => JoinToken::parse(token.expose()).map(drop).map_err(|why| format!("the join token: {why}")),
        Some(Err(why)) => Err(why.clone()),
        None if config.join.is_empty() => Ok(()),
        None => Err(missing_token(config)),
    }
}

fn readable(flag: &str, file: &Path) -> Result<(), String> {
    let shown = file.display();
    let found = std::fs::metadata(file).map_err(|error| format!("{flag}: cannot read {shown}: {error}"))?;
    if found.is_dir() {
        return Err(format!("{flag}: {shown} is a directory"));
    }
    // Without opening it: it may be a pipe.
    access(file, Access::READ_OK).map_err(|error| format!("{flag}: cannot read {shown}: {error}"))
}

fn runnable(key: &str, program: Option<&String>) -> Result<(), String> {
    let Some(program) = program.filter(|program| program.starts_with('/')) else { return Ok(()) };
    let found = std::fs::metadata(program).map_err(|error| format!("{key}: cannot run {program}: {error}"))?;
    let can_run = found.is_file() && access(program, Access::EXEC_OK).is_ok();
    if can_run { Ok(()) } else { Err(format!("{key}: {program} is not a program that this user may run")) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn faults(text: &str, flags: &[&str]) -> Vec<ConfigFault> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.toml");
        std::fs::write(&file, text).unwrap();
        let args = [&["musterd", "--config", file.to_str().unwrap()], flags].concat();
        faults_of(Args::of(args).unwrap())
    }

    fn of(faults: &[ConfigFault]) -> Vec<(Option<&str>, Option<usize>)> {
        faults.iter().map(|fault| (fault.key.as_deref(), fault.line)).collect()
    }

    #[test]
    fn every_fault_of_a_file_is_named_with_key_and_line() {
        let text = "data_dir = \"/d\"\nlisten = \"4400\"\nname = \"Ü\"\nlissen = \"x\"\nrelease = \"1.2\"\n\
                    token = [\"MSTR-1-a-b\"]\njoin = [\"n1\"]\n\n[raft]\nheartbeat = \"0s\"\nelection_timeout = 7\n\
                    [agent]\nheartbeet = \"5s\"\n[agnet]\nx = 1\n";
        let found = faults(text, &[]);
        let expected = [
            (Some("agent.heartbeet"), Some(13)),
            (Some("agnet"), Some(14)),
            (Some("lissen"), Some(4)),
            (Some("raft.election_timeout"), Some(11)),
            (Some("token"), Some(6)),
            (Some("listen"), Some(2)),
            (Some("name"), Some(3)),
            (Some("release"), Some(5)),
            (Some("join"), Some(7)),
            (Some("raft.heartbeat"), Some(10)),
        ];
        let found_here = of(&found);
        assert_eq!(found_here, expected, "{found:#?}");
        let shown = found.iter().map(|fault| format!("{fault}\n")).collect::<String>();
        assert!(!shown.contains("MSTR") && shown.lines().all(|line| line.contains("m.toml, line ")), "{shown}");
        // A flag replaces the file's value, and is no line of it.
        let found = faults("data_dir = \"/d\"\nlisten = \"4400\"\n", &["--listen", "4401"]);
        assert_eq!(of(&found), [(Some("listen"), None)]);
        // A token at the wrong place is not shown.
        let found = faults("data_dir = \"/d\"\ninit = \"MSTR-1-ab-cd\"\njoin = [\"MSTR-1-ab-cd\"]\n", &[]);
        assert_eq!(of(&found), [(Some("init"), Some(2)), (Some("join"), Some(3)), (Some("token"), None)]);
        assert!(
            found[..2].iter().all(|fault| !fault.message.contains("ab-cd") && fault.message.contains("MSTR-…")),
            "{found:#?}"
        );
        // What is sound is checked on this machine, and what the file sets has its line there too.
        let found = faults("data_dir = \"/d\"\nname = \"Ü\"\nlog = \"inof\"\nunlock_key_file = \"/nowhere\"\n", &[]);
        assert_eq!(of(&found), [(Some("name"), Some(2)), (Some("unlock_key_file"), Some(4)), (Some("log"), Some(3))]);
        // The lines of what is not TOML, all of them, without their text.
        let found = faults("data_dir = \"/d\"\ntoken = MSTR-1-a-b\nname = \"x\nlog = info\n", &[]);
        assert!(found.len() >= 2 && found.iter().all(|fault| !fault.message.contains("MSTR")), "{found:#?}");
    }

    /// The lock of a daemon may be unreadable to this user; its socket still tells that it runs.
    #[test]
    fn ports_of_a_daemon_that_serves_the_socket_are_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, port) = (dir.path().join("s"), TcpListener::bind("127.0.0.1:0").unwrap());
        let served = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let (dir, socket) = (dir.path().to_str().unwrap(), socket.to_str().unwrap());
        let listen = port.local_addr().unwrap().to_string();
        let flags = ["--data-dir", dir, "--socket", socket, "--metrics", "off", "--listen", &listen];
        assert_eq!(of(&faults("", &flags)), []);
        drop(served);
        assert_eq!(of(&faults("", &flags)), [(Some("listen"), None)]);
    }

    #[test]
    fn file_that_cannot_be_read_is_the_only_fault() {
        let found = faults_of(Args::of(["musterd", "--config", "/nowhere/m.toml", "--listen", "127.0.0.1:0"]).unwrap());
        let [fault] = found.as_slice() else { panic!("{found:#?}") };
        assert!(fault.message.contains("/nowhere/m.toml"), "{fault:#?}");
    }

    /// A file with a fault is none without keys: all that it sets would be lost in silence.
    #[test]
    fn unreadable_numbers_are_faults_of_the_file() {
        let flags = ["--data-dir", "/d", "--metrics", "off", "--listen", "127.0.0.1:0"];
        let found = faults("[raft]\nkeep_bytes = 99999999999999999999999999\n", &flags);
        assert_eq!(of(&found), [(None, Some(2))], "{found:#?}");
        assert!(found[0].to_string().contains("m.toml, line 2: "), "{found:#?}");
    }

    /// Otherwise the outcome of `--check-config=json` could not be printed.
    #[test]
    fn a_files_name_in_a_fault_is_text() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(std::ffi::OsStr::from_bytes(b"m\xff.toml"));
        std::fs::write(&file, "data_dir = \"/d\"\nlissen = 1\n").unwrap();
        let args = ["musterd".into(), "--config".into(), file.into_os_string()];
        let found = faults_of(Args::of(args).unwrap());
        let text = serde_json::to_string(&found).unwrap();
        assert!(text.contains("m\u{fffd}.toml") && text.contains("lissen"), "{text}");
    }

    #[test]
    fn token_file_is_a_key_of_the_file_and_a_flag() {
        let dir = tempfile::tempdir().unwrap();
        let good = dir.path().join("token");
        std::fs::write(&good, "MSTR-1-a-b\n").unwrap();
        let token = |text: &str, flags: &[&str]| {
            let file = dir.path().join("m.toml");
            std::fs::write(&file, format!("data_dir = \"/d\"\njoin = [\"127.0.0.1:1\"]\n{text}\n")).unwrap();
            let args = [&["musterd", "--config", file.to_str().unwrap()], flags].concat();
            config::read(Args::of(args).unwrap()).0.token
        };
        let from_file = token(&format!("token_file = {good:?}"), &[]);
        assert!(matches!(&from_file, Some(Ok(token)) if token.expose() == "MSTR-1-a-b"), "{from_file:?}");
        let flag = ["--token-file", good.to_str().unwrap()];
        assert_eq!(token("token_file = \"/nowhere\"", &flag), from_file, "a flag replaces the key");
        let found = faults("data_dir = \"/d\"\njoin = [\"127.0.0.1:1\"]\ntoken_file = \"/nowhere\"\n", &[]);
        assert_eq!(of(&found), [(Some("token_file"), Some(3))], "{found:#?}");
    }

    #[test]
    fn a_relative_data_directory_is_where_it_starts() {
        let args = ["musterd", "--data-dir", "some/where", "--metrics", "off", "--listen", "127.0.0.1:0"];
        let (config, found) = config::read(Args::of(args).unwrap());
        let here = std::env::current_dir().unwrap();
        assert_eq!((&config.data_dir, found.into_found()), (&here.join("some/where"), vec![]));
        assert_eq!(config.socket, here.join("some/where/muster.sock"));
        assert_eq!(faults_of(Args::of(args).unwrap()), []);
        let found = faults("data_dir = \"\"\n", &[]);
        assert_eq!(of(&found)[0], (Some("data_dir"), Some(1)), "{found:#?}");
    }

    /// No fault shows a token, wherever the token was written.
    #[test]
    fn tokens_are_shown_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, "MSTR-1-secret-1\n").unwrap();
        let lines = [
            "token = \"MSTR-1-secret-1\"".to_owned(),
            format!("token_file = {token:?}"),
            "name = \"MSTR-1-secret-1\"".to_owned(),
            "listen = \"MSTR-1-secret-1\"".to_owned(),
            "log = \"MSTR-1-secret-1\"".to_owned(),
            "MSTR-1-secret-1 = 1".to_owned(),
            "labels = { MSTR-1-secret-1 = 1 }".to_owned(),
            "[raft]\nheartbeat = \"MSTR-1-secret-1\"".to_owned(),
            "[MSTR-1-secret-1]".to_owned(),
        ];
        for line in &lines {
            let found = faults(&format!("data_dir = \"/d\"\n{line}\n"), &["--join", "127.0.0.1:1"]);
            let shown = format!("{found:?} {}", serde_json::to_string(&found).unwrap());
            assert!(!found.is_empty() && !shown.contains("secret"), "{line}: {shown}");
        }
    }

    #[test]
    fn what_a_configuration_names_is_checked_on_this_machine() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let at = |text: String| faults(&format!("data_dir = {data:?}\n{text}"), &[]);
        assert_eq!(at("listen = \"127.0.0.1:0\"\nmetrics = \"off\"\n".to_owned()), []);
        assert!(!data.exists(), "nothing is created");
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        std::fs::create_dir(&data).unwrap();
        std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o777)).unwrap();
        let (long, missing) = ("x".repeat(120), dir.path().join("missing"));
        let found = at(format!(
            "listen = \"127.0.0.1:{port}\"\nadvertise = \"192.0.2.1:{port}\"\nsocket = \"/tmp/{long}\"\njoin = [\"127.0.0.1:1\"]\n\
             token = \"MSTR-1-a\"\nmetrics = \"127.0.0.1:{port}\"\nlog = \"muster=loud\"\nunlock_key_file = {missing:?}\n\
             [unlock]\ncommand = [{missing:?}]\n[audit]\nfile = \"{}/audit.log\"\n",
            missing.display()
        ));
        let keys: Vec<&str> = found.iter().filter_map(|fault| fault.key.as_deref()).collect();
        let expected = [
            "data_dir",
            "socket",
            "listen",
            "metrics",
            "advertise",
            "token",
            "unlock_key_file",
            "log",
            "unlock.command",
            "audit.file",
        ];
        assert_eq!(keys, expected, "{found:#?}");
    }
}
