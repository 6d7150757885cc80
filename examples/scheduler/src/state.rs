//! What the journal's records mean. Pure: who may append what, by the state alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The data has this format from now on.
    Schema(u64),
    /// Work to do. Format 2 has queues.
    Add { job: String, queue: Option<String> },
    /// A leader begins, under the fencing token of its lease.
    Lead { token: u64, name: String },
    /// A worker asks for work.
    Idle { worker: String },
    /// The leader with this token gives a job to a worker, or gives it again to another one.
    Give { job: String, worker: String, token: u64 },
    /// A worker has done what the record of this number gave it.
    Done { job: String, worker: String, given: u64 },
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Schema(schema) => write!(f, "schema {schema}"),
            Self::Add { job, queue: None } => write!(f, "add {job}"),
            Self::Add { job, queue: Some(queue) } => write!(f, "add {job} {queue}"),
            Self::Lead { token, name } => write!(f, "lead {token} {name}"),
            Self::Idle { worker } => write!(f, "idle {worker}"),
            Self::Give { job, worker, token } => write!(f, "give {job} {worker} {token}"),
            Self::Done { job, worker, given } => write!(f, "done {job} {worker} {given}"),
        }
    }
}

impl FromStr for Record {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse().map_err(|_| format!("{word:?} is no number in {line:?}"));
        Ok(match words[..] {
            ["schema", schema] => Self::Schema(number(schema)?),
            ["add", job] => Self::Add { job: job.to_owned(), queue: None },
            ["add", job, queue] => Self::Add { job: job.to_owned(), queue: Some(queue.to_owned()) },
            ["lead", token, name] => Self::Lead { token: number(token)?, name: name.to_owned() },
            ["idle", worker] => Self::Idle { worker: worker.to_owned() },
            ["give", job, worker, token] => {
                Self::Give { job: job.to_owned(), worker: worker.to_owned(), token: number(token)? }
            }
            ["done", job, worker, given] => {
                Self::Done { job: job.to_owned(), worker: worker.to_owned(), given: number(given)? }
            }
            _ => return Err(format!("{line:?} is no record of this program")),
        })
    }
}

/// How far a job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    Waiting,
    /// To a worker, by the record of this number.
    Given {
        worker: String,
        given: u64,
    },
    Done {
        worker: String,
    },
}

/// What all records together make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    records: u64,
    /// The format of the data; 0: there is none yet.
    pub schema: u64,
    /// The newest leader's token and name.
    pub token: u64,
    pub leader: String,
    pub jobs: BTreeMap<String, Progress>,
    /// Workers without work.
    pub idle: BTreeSet<String>,
}

impl State {
    /// How many records there are.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Whether a record may follow: the reason, if not. Every process decides by this before it appends.
    pub fn refusal(&self, record: &Record) -> Option<String> {
        let progress = |job: &String| self.jobs.get(job);
        match record {
            Record::Schema(schema) if *schema <= self.schema => Some(format!("the data has format {}", self.schema)),
            Record::Add { job, .. } if progress(job).is_some() => Some(format!("{job} was added before")),
            Record::Lead { token, .. } if *token <= self.token => Some(format!("token {} has led", self.token)),
            Record::Give { token, .. } if *token != self.token => Some(format!("token {} leads", self.token)),
            Record::Give { job, worker, .. } => match progress(job) {
                None | Some(Progress::Done { .. }) => Some(format!("{job} is not to be done")),
                _ if !self.idle.contains(worker) => Some(format!("{worker} has work")),
                _ => None,
            },
            Record::Done { job, given, .. } => match progress(job) {
                Some(Progress::Given { given: current, .. }) if current == given => None,
                _ => Some(format!("{job} was given to another worker meanwhile")),
            },
            _ => None,
        }
    }

    /// Takes a record in.
    pub fn apply(&mut self, record: &Record) {
        self.records += 1;
        match record.clone() {
            Record::Schema(schema) => self.schema = schema,
            Record::Add { job, .. } => {
                self.jobs.insert(job, Progress::Waiting);
            }
            Record::Lead { token, name } => (self.token, self.leader) = (token, name),
            Record::Idle { worker } => {
                self.idle.insert(worker);
            }
            Record::Give { job, worker, .. } => {
                self.idle.remove(&worker);
                self.jobs.insert(job, Progress::Given { worker, given: self.records });
            }
            Record::Done { job, worker, .. } => {
                self.jobs.insert(job, Progress::Done { worker });
            }
        }
    }

    /// The job that a worker is to do, and the number of the record that gave it.
    pub fn given_to(&self, me: &str) -> Option<(String, u64)> {
        self.jobs.iter().find_map(|(job, progress)| match progress {
            Progress::Given { worker, given } if worker == me => Some((job.clone(), *given)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(lines: &[&str]) -> State {
        let mut state = State::default();
        for line in lines {
            let record: Record = line.parse().unwrap();
            assert_eq!(record.to_string(), *line);
            assert_eq!(state.refusal(&record), None, "{line}");
            state.apply(&record);
        }
        state
    }

    fn refused(state: &State, line: &str) -> bool {
        state.refusal(&line.parse().unwrap()).is_some()
    }

    #[test]
    fn former_leader_gives_nothing() {
        let state = after(&["schema 1", "add a", "lead 7 n1", "idle n1", "lead 9 n2"]);
        assert!(refused(&state, "give a n1 7") && !refused(&state, "give a n1 9"));
        assert!(refused(&state, "lead 9 n2") && refused(&state, "lead 8 n1"));
    }

    #[test]
    fn job_is_done_once_by_its_last_worker() {
        let state = after(&["schema 1", "add a", "lead 7 n1", "idle n1", "idle n2", "give a n1 7", "give a n2 7"]);
        assert!(refused(&state, "done a n1 6"), "it was given to another one meanwhile");
        assert_eq!(state.given_to("n1"), None);
        let mut state = after(&["schema 1", "add a", "lead 7 n1", "idle n1", "give a n1 7", "done a n1 5"]);
        assert!(refused(&state, "done a n1 5") && refused(&state, "give a n1 7") && refused(&state, "add a"));
        state.apply(&"idle n1".parse().unwrap());
        assert!(refused(&state, "give a n1 7"), "it is done");
    }

    #[test]
    fn formats_only_rise() {
        let state = after(&["schema 1", "add a", "schema 2", "add b mail"]);
        assert!(refused(&state, "schema 2") && refused(&state, "schema 1"));
        assert!("give a".parse::<Record>().is_err() && "done a n1 x".parse::<Record>().is_err());
    }
}
