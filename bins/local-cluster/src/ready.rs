//! The ready line on a daemon's stdout.

use muster_messages::Role;

/// The line that a daemon prints once it serves its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    pub node: String,
    pub role: Role,
    pub listen: String,
    /// The address of the metrics, or `off`.
    pub metrics: String,
}

impl Ready {
    /// Parses `musterd ready node=<id> role=<role> listen=<addr> …`.
    pub fn parse(line: &str) -> Option<Self> {
        let rest = line.strip_prefix("musterd ready ")?;
        let field = |key: &str| rest.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        Some(Self {
            node: field("node")?.to_owned(),
            role: field("role")?.parse().ok()?,
            listen: field("listen")?.to_owned(),
            metrics: field("metrics")?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_is_read_by_its_keys() {
        let line = "musterd ready node=abc role=manager listen=127.0.0.1:4400 socket=/s metrics=127.0.0.1:1";
        let ready = Ready {
            node: "abc".into(),
            role: Role::Manager,
            listen: "127.0.0.1:4400".into(),
            metrics: "127.0.0.1:1".into(),
        };
        assert_eq!(Ready::parse(line), Some(ready));
        assert_eq!(Ready::parse("musterd starting"), None);
    }
}
