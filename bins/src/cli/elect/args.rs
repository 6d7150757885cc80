//! What `muster elect` accepts.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use crate::cli::duration::parse_duration;

#[derive(Debug, Args)]
#[command(after_help = "The command sees MUSTER_LEASE, MUSTER_NAMESPACE, MUSTER_HOLDER and MUSTER_FENCING_TOKEN. \
When leadership is lost it gets TERM, then KILL before the lease can be another's, and muster exits 7; otherwise muster exits \
as the command does, 128+n for a signal. What the command leaves behind when it ends is killed. Signals are passed on to it.\n\n\
The command has no controlling terminal: a shell has no job control, /dev/tty does not open (so sudo and ssh cannot ask for \
a password), and Ctrl-Z does nothing.")]
pub struct ElectArgs {
    /// The lease to hold; it is made if there is none
    pub lease: String,
    /// The lease's namespace
    #[arg(short, long, value_name = "NS", default_value = "default")]
    pub namespace: String,
    /// Who we are; no two processes may share it [default: host name, pid and a random number]
    #[arg(long)]
    pub id: Option<String>,
    /// How long the lease is good for without a renewal: the longest wait for the next holder when this one dies
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub lease_duration: Duration,
    /// How long leadership goes on without a renewal; the rest is the command's time to end [default: two thirds of the lease
    /// duration]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub renew_deadline: Option<Duration>,
    /// How often the lease is renewed [default: a fifth of the renew deadline]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub retry_period: Option<Duration>,
    /// Stand as a candidate with this priority: the cluster has the highest one lead, and asks one that leads to make room
    /// (then its command is ended as after a loss)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Give up after this long without having led (exit 3) [default: never]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// What to run while holding the lease
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

impl ElectArgs {
    /// The renew deadline and the retry period. What is not given follows what is: 15 s, 10 s and 2 s.
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

    fn patience(line: &str) -> Option<Duration> {
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Elect(elect) => elect.timeout,
            Command::WaitReady(waits) => waits.timeout,
            _ => panic!("{line} waits for an answer alone"),
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

    /// The flag of every command has a default, which is none for a wait that may last for ever.
    #[test]
    fn nobody_gives_up_unless_told() {
        assert_eq!(patience("muster elect job -- true"), None);
        assert_eq!(patience("muster wait-ready db --release 1.0.0"), None);
        assert_eq!(patience("muster elect job --timeout 5s -- true"), Some(Duration::from_secs(5)));
        assert_eq!(patience("muster --timeout 5s elect job -- true"), Some(Duration::from_secs(5)));
    }
}
