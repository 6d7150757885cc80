//! Rules for names, keys and values of labels. Each returns the violated rule, or nothing.

use muster_messages::{is_dns_label, is_dns_subdomain};

/// Begins and ends with a letter or digit; `between` is also allowed inside.
fn has_alphanumeric_ends(text: &str, between: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()].into_iter().all(|b| b.is_some_and(u8::is_ascii_alphanumeric));
    ends && bytes.iter().all(|b| b.is_ascii_alphanumeric() || between.contains(b))
}

/// RFC 1123: `my-name`.
pub(crate) fn dns_label(name: &str) -> Option<&'static str> {
    if name.len() > 63 {
        return Some("must be no more than 63 bytes");
    }
    (!is_dns_label(name)).then_some(
        "must consist of lower case letters, digits and '-', and must begin and end with a letter or a digit",
    )
}

/// RFC 1123: `my.name`.
pub(crate) fn dns_subdomain(name: &str) -> Option<&'static str> {
    if name.len() > 253 {
        return Some("must be no more than 253 bytes");
    }
    (!is_dns_subdomain(name)).then_some(
        "must consist of lower case letters, digits, '-' and '.', and each part between dots must begin and end with \
         a letter or a digit",
    )
}

/// Names of candidates, and keys of config maps.
pub(crate) fn config_key(name: &str) -> Option<&'static str> {
    if name.len() > 253 {
        return Some("must be no more than 253 bytes");
    }
    if name == "." || name.starts_with("..") {
        return Some("must not be '.' or begin with '..'");
    }
    let legal = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    (!legal).then_some("must consist of letters, digits, '-', '_' and '.'")
}

/// Keys of labels and annotations, and strategies: `name` or `example.com/name`.
pub(crate) fn qualified(key: &str) -> Option<&'static str> {
    let name = match key.split_once('/') {
        None => key,
        Some((prefix, name)) => {
            if dns_subdomain(prefix).is_some() || name.contains('/') {
                return Some("must have at most one '/', and a DNS subdomain before it");
            }
            name
        }
    };
    if name.len() > 63 {
        return Some("its name must be no more than 63 bytes");
    }
    (!has_alphanumeric_ends(name, b"-_.")).then_some(
        "its name must consist of letters, digits, '-', '_' and '.', and must begin and end with a letter or a digit",
    )
}

/// Values of labels, which may be empty.
pub(crate) fn label_value(value: &str) -> Option<&'static str> {
    if value.len() > 63 {
        return Some("must be no more than 63 bytes");
    }
    (!value.is_empty() && !has_alphanumeric_ends(value, b"-_.")).then_some(
        "must be empty or consist of letters, digits, '-', '_' and '.', and must begin and end with a letter or a digit",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: fn(&str) -> Option<&'static str>, good: &[&str], bad: &[&str]) {
        for name in good {
            assert_eq!(rule(name), None, "{name}");
        }
        for name in bad {
            assert!(rule(name).is_some(), "{name}");
        }
    }

    #[test]
    fn names_are_validated() {
        let (long, longest) = ("a".repeat(64), "a.".repeat(127));
        check(dns_label, &["a", "a-b", "0"], &["", "-a", "a-", "A", "a.b", "a_b", "ä", &long]);
        check(dns_subdomain, &["a", "a.b-c", &long, &longest[..253]], &["", ".", "a..b", "a.-b", "A", &longest]);
        check(config_key, &["a", "A_b.c-", "-", ".a", "a.."], &["", ".", "..", "..a", "a/b", "a b"]);
        check(qualified, &["a", "A_b.c", "a.b/C"], &["", "/a", "a/", "a/b/c", "A/b", "-a", &long]);
        check(label_value, &["", "a", "A_b.c"], &["-", "a-", "a b", "a/b", &long]);
    }
}
