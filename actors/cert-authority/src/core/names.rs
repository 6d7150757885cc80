//! A free name for a new node.

use muster_messages::Name;

const MAX_NAME: usize = 63;

/// The wanted name, or the first of `name-2`, `name-3`, … that is free.
pub(super) fn unique(wanted: &Name, taken: impl Fn(&Name) -> bool) -> Name {
    if !taken(wanted) {
        return wanted.clone();
    }
    (2u64..).map(|n| suffixed(wanted, n)).find(|name| !taken(name)).expect("there are more numbers than nodes")
}

fn suffixed(wanted: &Name, n: u64) -> Name {
    let suffix = format!("-{n}");
    let keep = (MAX_NAME - suffix.len()).min(wanted.as_str().len());
    let stem = wanted.as_str()[..keep].trim_end_matches(['.', '_', '-']);
    Name::sanitized(&format!("{stem}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_name_gets_the_first_free_number() {
        let taken = ["n1", "n1-2"];
        let name = |t: &str| t.parse::<Name>().unwrap();
        let is_taken = |n: &Name| taken.contains(&n.as_str());
        assert_eq!(unique(&name("n2"), is_taken), name("n2"));
        assert_eq!(unique(&name("n1"), is_taken), name("n1-3"));
    }

    #[test]
    fn long_name_is_shortened_for_its_suffix() {
        let long: Name = format!("{}.a", "x".repeat(61)).parse().unwrap();
        let other = unique(&long, |n| *n == long);
        assert_eq!(other.as_str(), format!("{}-2", "x".repeat(61)));
        assert!(other.as_str().parse::<Name>().is_ok());
    }
}
