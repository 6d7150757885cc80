//! Names by RFC 1123: of namespaces, leases, scopes, members and reconcilers.

/// As literals, from which longer sentences are made.
macro_rules! label_rule {
    () => {
        "1 to 63 of [a-z0-9-], first and last a letter or digit"
    };
}
macro_rules! subdomain_rule {
    () => {
        "[a-z0-9.-], each part between dots beginning and ending with a letter or digit"
    };
}
pub(super) use {label_rule, subdomain_rule};

/// The rule of [`is_dns_label`], for people.
pub const DNS_LABEL: &str = label_rule!();
/// The rule of [`is_dns_subdomain`], for people, without the length.
pub const DNS_SUBDOMAIN: &str = subdomain_rule!();

fn part(text: &str) -> bool {
    let edge = |b: &u8| b.is_ascii_digit() || b.is_ascii_lowercase();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(edge) && bytes.last().is_some_and(edge) && bytes.iter().all(|b| edge(b) || *b == b'-')
}

/// A DNS name that only managers' certificates carry. A client that requires a manager requests it.
pub const MANAGER_NAME: &str = "muster-manager";

/// 1 to 63 of `[a-z0-9-]`, first and last a letter or digit.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && part(text)
}

/// Up to 253 bytes; each part between dots like a label, of any length.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_rfc_1123_says() {
        let long = "a".repeat(64);
        for (text, label, subdomain) in [
            ("a", true, true),
            ("a-1", true, true),
            ("a.b", false, true),
            (&long, false, true),
            ("", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("A", false, false),
            ("a_b", false, false),
            ("a..b", false, false),
            ("ä", false, false),
        ] {
            assert_eq!((is_dns_label(text), is_dns_subdomain(text)), (label, subdomain), "{text:?}");
        }
        assert!(!is_dns_subdomain(&"a.".repeat(127)) && !is_dns_subdomain(&"a".repeat(254)));
    }
}
