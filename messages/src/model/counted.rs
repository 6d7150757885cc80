//! Numbers of things in sentences.

/// So many of them, whose plural ends in `s`: `1 manager`, `3 managers`.
pub fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Which part of the managers answers.
pub fn answering(count: usize, voters: usize) -> String {
    let answer = if voters == 1 { "answers" } else { "answer" };
    format!("{count} of {} {answer}", counted(voters, "manager"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "worker")), ["0 workers", "1 worker", "2 workers"]);
        assert_eq!(
            (answering(1, 1).as_str(), answering(1, 3).as_str()),
            ("1 of 1 manager answers", "1 of 3 managers answer")
        );
    }
}
