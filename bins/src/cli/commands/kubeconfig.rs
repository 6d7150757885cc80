//! `muster kubeconfig`: the file with which unmodified Kubernetes clients use this cluster for their leases.

use std::os::fd::AsFd;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::Request;
use muster_messages::{AccessTokenView, ErrorCode, Name};
use rustix::fs::FileType;
use serde_json::{Value, json};

use super::Context;
use crate::cli::args::KubeconfigArgs;
use crate::cli::duration::millis;
use crate::cli::output::print;

pub async fn run(ctx: &mut Context, args: KubeconfigArgs) -> Outcome<u8> {
    let KubeconfigArgs { user, namespace, server, ttl, out } = args;
    server.as_deref().map_or(Ok(()), check_server)?;
    let file = out.filter(|path| path != Path::new("-"));
    if let Some(path) = file.as_deref().filter(|path| path.exists()) {
        return Err(Failure::refused("file_exists", format!("{} already exists; choose another file", path.display())));
    }
    let user = user.map_or_else(|| default_user(&namespace), Ok)?;
    let request =
        Request::AccessTokenCreate { user: user.clone(), namespace: namespace.to_string(), ttl_ms: Some(millis(ttl)) };
    let access: AccessTokenView = parse(&ctx.client.call(request).await?)?;
    let server = server.or_else(|| access.managers.first().cloned()).unwrap_or_default();
    let document = kubeconfig(&access, &server, user.as_str(), namespace.as_str())?;
    let text = if ctx.out.is_json() { document.to_string() } else { yaml(&document, 0).trim_start().to_owned() };
    match file {
        Some(path) => {
            let write = || muster_pki::write_atomic(&std::path::absolute(&path)?, format!("{text}\n").as_bytes());
            write().map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))?;
            let written = json!({"file": path.display().to_string(), "user": user, "namespace": namespace});
            ctx.out.document(
                &written.to_string(),
                || path.display().to_string(),
                || format!("kubeconfig of {user} written to {}; it contains a bearer token", path.display()),
            );
        }
        None => {
            if readable_by_others(std::io::stdout()) {
                ctx.out.say("note: other users can read the output file, and it contains a bearer token; --out FILE writes a file readable only by you");
            }
            print(&text);
        }
    }
    Ok(0)
}

/// Whether this is a regular file that other users may read.
fn readable_by_others(output: impl AsFd) -> bool {
    let Ok(found) = rustix::fs::fstat(output) else { return false };
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_mode & 0o077 != 0
}

/// Refuses anything but a host and a port. A path or a scheme would make a URL that no client understands.
fn check_server(server: &str) -> Result<(), Failure> {
    let valid = |host: &str| match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c)),
    };
    let parts = server.rsplit_once(':');
    if parts.is_some_and(|(host, port)| valid(host) && port.parse::<u16>().is_ok_and(|port| port > 0)) {
        return Ok(());
    }
    let text = format!("invalid server {server:?}: expected HOST:PORT, the address of a node (`muster node ls`)");
    Err(Failure::new(ErrorCode::Invalid, text))
}

/// The name to verify the server's certificate against, if it is not the host of the URL. A node's certificate contains its IP
/// addresses and `localhost`, but no host names of the network.
fn tls_server_name(server: &str) -> Option<&'static str> {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let known = host == "localhost" || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    (!known).then_some("localhost")
}

/// The default user of a namespace.
fn default_user(namespace: &Name) -> Result<Name, Failure> {
    let user = format!("kube-{namespace}");
    user.parse().map_err(|_| {
        Failure::new(ErrorCode::Invalid, format!("{user} is too long for a user name; choose another with --user"))
    })
}

fn kubeconfig(access: &AccessTokenView, server: &str, user: &str, namespace: &str) -> Outcome<Value> {
    let (Some(cluster), Some(root_pem)) = (&access.cluster, &access.root_pem) else {
        return Err(Failure::internal("the daemon does not know its cluster yet; retry later"));
    };
    let cluster = format!("muster-{cluster}");
    let context = format!("{user}@{cluster}");
    let mut document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": {
            "server": format!("https://{server}"),
            "certificate-authority-data": STANDARD.encode(root_pem),
        }}],
        "users": [{"name": user, "user": {"token": access.token}}],
        "contexts": [{"name": context, "context": {"cluster": cluster, "user": user, "namespace": namespace}}],
        "current-context": context,
    });
    if let Some(name) = tls_server_name(server) {
        document["clusters"][0]["cluster"]["tls-server-name"] = name.into();
    }
    Ok(document)
}

/// A document as YAML in block style. Strings are quoted as in JSON, which is valid YAML.
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

    fn access() -> AccessTokenView {
        let answer = json!({"user": "ann", "namespace": "prod", "id": "abc", "token": "muster-abc-def", "expires_at": null,
            "root_pem": "PEM", "cluster": "xyz", "managers": []});
        serde_json::from_value(answer).unwrap()
    }

    #[test]
    fn namespace_too_long_for_a_user_name_requires_user_flag() {
        let namespace = |length: usize| "n".repeat(length).parse::<Name>().unwrap();
        assert_eq!(default_user(&namespace(58)).unwrap().as_str().len(), 63);
        assert!(default_user(&namespace(59)).unwrap_err().message.contains("--user"));
    }

    #[test]
    fn only_files_readable_by_others_are_reported() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        let mode = |mode| std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o600);
        assert!(!readable_by_others(file.as_file()));
        mode(0o644);
        assert!(readable_by_others(file.as_file()));
        assert!(!readable_by_others(std::fs::File::open("/dev/null").unwrap()));
    }

    #[test]
    fn server_must_be_host_and_port() {
        for valid in ["127.0.0.1:4400", "n1.example:4400", "[::1]:4400", "localhost:1"] {
            assert!(check_server(valid).is_ok(), "{valid}");
        }
        for bad in
            ["nonsense", "", ":4400", "n1:", "n1:0", "n1:70000", "https://n1:4400", "n1:44/x", "::1:4400", "[n1]:1"]
        {
            assert_eq!(check_server(bad).unwrap_err().code, ErrorCode::Invalid, "{bad}");
        }
    }

    #[test]
    fn host_names_are_verified_as_localhost() {
        assert_eq!(tls_server_name("vm:4400"), Some("localhost"));
        for known in ["127.0.0.1:4400", "localhost:4400", "[::1]:4400"] {
            assert_eq!(tls_server_name(known), None, "{known}");
        }
        assert_eq!(
            kubeconfig(&access(), "vm:1", "u", "n").unwrap()["clusters"][0]["cluster"]["tls-server-name"],
            "localhost"
        );
    }

    #[test]
    fn a_kubeconfig_is_block_style_yaml_with_quoted_texts() {
        let text = yaml(&kubeconfig(&access(), "127.0.0.1:1", "ann", "prod").unwrap(), 0);
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
