//! The arguments of `muster elect`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use crate::cli::duration::parse_duration;

#[derive(Debug, Args)]
#[command(
    after_help = "The command's environment has MUSTER_LEASE, MUSTER_NAMESPACE, MUSTER_HOLDER and MUSTER_FENCING_TOKEN. \
When leadership is lost, the command gets TERM, then KILL before another candidate can hold the lease, and muster exits 7. \
Otherwise muster exits with the command's status, 128+n for signal n. Processes that the command leaves behind are killed. \
Signals are forwarded to it.\n\n\
The command has no controlling terminal: a shell has no job control, /dev/tty does not open (sudo and ssh cannot ask for \
a password), and Ctrl-Z does nothing."
)]
pub struct ElectArgs {
    /// Lease to hold, created if missing
    pub lease: String,
    /// Namespace of the lease
    #[arg(short, long, value_name = "NS", default_value = "default")]
    pub namespace: String,
    /// Identity of this process, unique among candidates [default: host name, pid and a random number]
    #[arg(long)]
    pub id: Option<String>,
    /// Validity of the lease without a renewal: the longest wait for the next holder when this one dies
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub lease_duration: Duration,
    /// Duration of leadership without a renewal; the rest is the command's time to end [default: two thirds of the lease
    /// duration]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub renew_deadline: Option<Duration>,
    /// Renewal period [default: a fifth of the renew deadline]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub retry_period: Option<Duration>,
    /// Register as a candidate with this priority: the cluster elects the highest, and asks a lower-priority holder to
    /// yield (its command is ended as after a loss)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Give up if not elected within this time (exit 3) [default: never]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Command to run while holding the lease
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

impl ElectArgs {
    /// The renew deadline and the retry period. Values not given follow from those given: 15 s, 10 s and 2 s by default.
    pub fn deadlines(&self) -> (Duration, Duration) {
        let renew = self.renew_deadline.unwrap_or(self.lease_duration * 2 / 3);
        (renew, self.retry_period.unwrap_or(renew / 5))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::{Cli, Command};

    fn timeout(line: &str) -> Option<Duration> {
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Elect(elect) => elect.timeout,
            Command::WaitReady(waits) => waits.timeout,
            _ => panic!("{line} has no timeout of its own"),
        }
    }

    #[test]
    fn deadlines_follow_the_lease_duration() {
        let deadlines = |flags: &str| {
            let line = format!("muster elect job {flags} -- true");
            let Command::Elect(elect) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else { panic!() };
            let (renew, retry) = elect.deadlines();
            [elect.lease_duration, renew, retry].map(|d| d.as_millis())
        };
        assert_eq!(deadlines(""), [15_000, 10_000, 2_000]);
        assert_eq!(deadlines("--lease-duration 1s"), [1_000, 666, 133]);
        assert_eq!(deadlines("--lease-duration 6s --renew-deadline 3s"), [6_000, 3_000, 600]);
        assert_eq!(deadlines("--lease-duration 6s --retry-period 1s"), [6_000, 4_000, 1_000]);
    }

    /// The global flag has a default; a wait without limit has none.
    #[test]
    fn waits_have_no_time_limit_by_default() {
        assert_eq!(timeout("muster elect job -- true"), None);
        assert_eq!(timeout("muster wait-ready db --release 1.0.0"), None);
        assert_eq!(timeout("muster elect job --timeout 5s -- true"), Some(Duration::from_secs(5)));
        assert_eq!(timeout("muster --timeout 5s elect job -- true"), Some(Duration::from_secs(5)));
    }
}
