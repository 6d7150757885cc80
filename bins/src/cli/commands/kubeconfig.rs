//! `muster kubeconfig`: what unmodified clients of Kubernetes need to use this cluster as their lock server.

use std::os::fd::AsFd;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, Name};
use rustix::fs::FileType;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Asking;
use crate::cli::args::KubeconfigArgs;
use crate::cli::duration::millis;
use crate::cli::output::print;

/// What the leader made for this file.
#[derive(Deserialize)]
struct Access {
    token: String,
    root_pem: String,
    managers: Vec<String>,
    cluster: String,
}

pub async fn run(asking: &mut Asking, args: KubeconfigArgs) -> Outcome<u8> {
    let KubeconfigArgs { user, namespace, server, ttl, out } = args;
    server.as_deref().map_or(Ok(()), server_is_sane)?;
    let file = out.filter(|path| path != Path::new("-"));
    if let Some(path) = file.as_deref().filter(|path| path.exists()) {
        return Err(Failure::refused("file_exists", format!("{} exists already; name another file", path.display())));
    }
    let user = user.map_or_else(|| user_of(&namespace), Ok)?;
    let request =
        Request::AccessTokenCreate { user: user.clone(), namespace: namespace.to_string(), ttl_ms: Some(millis(ttl)) };
    let access: Access = parse(&asking.client.call(request).await?)?;
    let server = server.or_else(|| access.managers.first().cloned()).unwrap_or_default();
    let document = kubeconfig(&access, &server, user.as_str(), namespace.as_str());
    let text = if asking.out.is_json() { document.to_string() } else { yaml(&document, 0).trim_start().to_owned() };
    match file {
        Some(path) => {
            let write = || muster_pki::write_atomic(&std::path::absolute(&path)?, format!("{text}\n").as_bytes());
            write().map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))?;
            let written = json!({"file": path.display().to_string(), "user": user, "namespace": namespace});
            asking.out.document(
                &written.to_string(),
                || path.display().to_string(),
                || format!("kubeconfig of {user} written to {}; it holds a bearer token", path.display()),
            );
        }
        None => {
            if others_read(std::io::stdout()) {
                asking.out.say("note: other users can read the file that this goes to, and it holds a bearer token; --out FILE writes one for you alone");
            }
            print(&text);
        }
    }
    Ok(0)
}

/// Whether this is a file that other users may read.
fn others_read(output: impl AsFd) -> bool {
    let Ok(found) = rustix::fs::fstat(output) else { return false };
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_mode & 0o077 != 0
}

/// Refuses what is not a host and a port. (A path or a scheme would make a URL that no client understands.)
fn server_is_sane(server: &str) -> Result<(), Failure> {
    let sane = |host: &str| match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c)),
    };
    let parts = server.rsplit_once(':');
    if parts.is_some_and(|(host, port)| sane(host) && port.parse::<u16>().is_ok_and(|port| port > 0)) {
        return Ok(());
    }
    let text = format!("{server:?} is not a server: it takes HOST:PORT, the address of a node (`muster node ls`)");
    Err(Failure::new(ErrorCode::Invalid, text))
}

/// The name that the server's certificate is checked against, where that is not the one it is reached by. A node's certificate
/// has its addresses and `localhost` in it; host names of the network are in none.
fn tls_server_name(server: &str) -> Option<&'static str> {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let known = host == "localhost" || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    (!known).then_some("localhost")
}

/// The user that is made for a namespace, where none is named.
fn user_of(namespace: &Name) -> Result<Name, Failure> {
    let user = format!("kube-{namespace}");
    user.parse().map_err(|_| {
        Failure::new(ErrorCode::Invalid, format!("{user} is too long for a user's name; name another with --user"))
    })
}

fn kubeconfig(access: &Access, server: &str, user: &str, namespace: &str) -> Value {
    let cluster = format!("muster-{}", access.cluster);
    let context = format!("{user}@{cluster}");
    let mut document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": {
            "server": format!("https://{server}"),
            "certificate-authority-data": STANDARD.encode(&access.root_pem),
        }}],
        "users": [{"name": user, "user": {"token": access.token}}],
        "contexts": [{"name": context, "context": {"cluster": cluster, "user": user, "namespace": namespace}}],
        "current-context": context,
    });
    if let Some(name) = tls_server_name(server) {
        document["clusters"][0]["cluster"]["tls-server-name"] = name.into();
    }
    document
}

/// A document as YAML in block style. Every text is quoted as in JSON, which is YAML too.
fn yaml(value: &Value, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) => {
            let line = |(key, value): (&String, &Value)| format!("\n{indent}{key}:{}", yaml(value, depth + 1));
            map.iter().map(line).collect()
        }
        Value::Array(items) => {
            let item = |item: &Value| {
                let block = yaml(item, depth + 1);
                format!("\n{indent}- {}", block.trim_start())
            };
            items.iter().map(item).collect()
        }
        scalar => format!(" {scalar}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_too_long_for_a_users_name_asks_for_one() {
        let namespace = |length: usize| "n".repeat(length).parse::<Name>().unwrap();
        assert_eq!(user_of(&namespace(58)).unwrap().as_str().len(), 63);
        assert!(user_of(&namespace(59)).unwrap_err().message.contains("--user"));
    }

    #[test]
    fn a_file_that_others_may_read_is_told_from_other_outputs() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        let mode = |mode| std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o600);
        assert!(!others_read(file.as_file()));
        mode(0o644);
        assert!(others_read(file.as_file()));
        assert!(!others_read(std::fs::File::open("/dev/null").unwrap()));
    }

    #[test]
    fn server_is_a_host_and_a_port() {
        for sane in ["127.0.0.1:4400", "n1.example:4400", "[::1]:4400", "localhost:1"] {
            assert!(server_is_sane(sane).is_ok(), "{sane}");
        }
        for bad in
            ["nonsense", "", ":4400", "n1:", "n1:0", "n1:70000", "https://n1:4400", "n1:44/x", "::1:4400", "[n1]:1"]
        {
            assert_eq!(server_is_sane(bad).unwrap_err().code, "invalid", "{bad}");
        }
    }

    #[test]
    fn host_names_are_checked_against_a_name_that_is_in_the_certificate() {
        assert_eq!(tls_server_name("vm:4400"), Some("localhost"));
        for known in ["127.0.0.1:4400", "localhost:4400", "[::1]:4400"] {
            assert_eq!(tls_server_name(known), None, "{known}");
        }
        let access = Access { token: String::new(), root_pem: String::new(), managers: vec![], cluster: String::new() };
        assert_eq!(kubeconfig(&access, "vm:1", "u", "n")["clusters"][0]["cluster"]["tls-server-name"], "localhost");
    }

    #[test]
    fn a_kubeconfig_is_block_style_yaml_with_quoted_texts() {
        let access = Access {
            token: "muster-abc-def".to_owned(),
            root_pem: "PEM".to_owned(),
            managers: vec![],
            cluster: "xyz".to_owned(),
        };
        let text = yaml(&kubeconfig(&access, "127.0.0.1:1", "ann", "prod"), 0);
        let expected = r#"
apiVersion: "v1"
clusters:
  - cluster:
      certificate-authority-data: "UEVN"
      server: "https://127.0.0.1:1"
    name: "muster-xyz"
contexts:
  - context:
      cluster: "muster-xyz"
      namespace: "prod"
      user: "ann"
    name: "ann@muster-xyz"
current-context: "ann@muster-xyz"
kind: "Config"
users:
  - name: "ann"
    user:
      token: "muster-abc-def""#;
        assert_eq!(text, expected);
    }
}
