//! `muster kubeconfig`: what unmodified clients of Kubernetes need to use this cluster as their lock server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, Name};
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
    let KubeconfigArgs { user, namespace, server, ttl } = args;
    let user = user.map_or_else(|| user_of(&namespace), Ok)?;
    let request =
        Request::AccessTokenCreate { user: user.clone(), namespace: namespace.to_string(), ttl_ms: Some(millis(ttl)) };
    let access: Access = parse(&asking.client.call(request).await?)?;
    let server = server.or_else(|| access.managers.first().cloned()).unwrap_or_default();
    let document = kubeconfig(&access, &server, user.as_str(), namespace.as_str());
    if asking.out.is_json() {
        print(&document.to_string());
    } else {
        print(yaml(&document, 0).trim_start_matches('\n'));
    }
    Ok(0)
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
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": {
            "server": format!("https://{server}"),
            "certificate-authority-data": STANDARD.encode(&access.root_pem),
        }}],
        "users": [{"name": user, "user": {"token": access.token}}],
        "contexts": [{"name": context, "context": {"cluster": cluster, "user": user, "namespace": namespace}}],
        "current-context": context,
    })
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
