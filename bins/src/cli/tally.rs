//! The outcomes of one command for several objects.

use muster_client::{Failure, Outcome};

use super::args::Format;
use super::output::print_failure;

/// Collects outcomes for several objects: each is tried, and the highest exit status wins.
#[derive(Debug, Default)]
pub struct Tally {
    failures: Vec<Failure>,
}

impl Tally {
    /// Keeps the value, or prints and remembers the failure.
    pub fn note<T>(&mut self, format: Format, outcome: Outcome<T>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(failure) => {
                print_failure(&failure, format);
                self.failures.push(failure);
                None
            }
        }
    }
    /// The exit status of the command.
    pub fn exit(&self) -> u8 {
        self.failures.iter().map(|f| f.exit).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_messages::ErrorCode;

    #[test]
    fn highest_exit_status_of_several_outcomes_wins() {
        let mut tally = Tally::default();
        assert_eq!(tally.note(Format::Json, Ok(7)), Some(7));
        assert_eq!(tally.exit(), 0);
        tally.note::<()>(Format::Json, Err(Failure::new(ErrorCode::Forbidden, "no")));
        tally.note::<()>(Format::Json, Err(Failure::new(ErrorCode::NotFound, "who")));
        assert_eq!(tally.exit(), 6);
    }
}
