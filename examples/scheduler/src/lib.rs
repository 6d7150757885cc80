//! A job scheduler of several processes: each does jobs, and one of them, elected by a Muster cluster, hands them out. docs/scheduler.md
//! shows it at work.
//!
//! ```text
//! scheduler work SOCKET FOLDER NAME    # under `muster wait-ready`, which sets the release
//! scheduler add FOLDER JOB…
//! scheduler migrate FOLDER SCHEMA
//! scheduler show FOLDER
//! ```

mod journal;
mod state;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_elector::{
    BoxFuture, Candidate, Election, ElectorConfig, LeaderElector, LeaseRef, Link, Session, Setup, Socket, Term,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::journal::Journal;
use crate::state::{Progress, Record};

/// How often each process looks at the journal.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long a job takes.
const WORK: Duration = Duration::from_millis(100);
/// A worker that takes longer is given up, and its job given to another one.
const WORK_LIMIT: Duration = Duration::from_secs(2);
/// A leader that is not confirmed for this long has been replaced.
const LEASE: Duration = Duration::from_secs(3);

/// Runs the arguments; returns the exit status.
pub fn run(args: &[String]) -> u8 {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["work", socket, folder, name] => work(socket, folder, name),
        ["add", folder, ref jobs @ ..] => add(folder, jobs),
        ["migrate", folder, schema] => schema.parse().map_err(io::Error::other).and_then(|to| migrate(folder, to)),
        ["show", folder] => show(folder),
        _ => {
            eprintln!(
                "usage: scheduler work SOCKET FOLDER NAME | add FOLDER JOB… | migrate FOLDER SCHEMA | show FOLDER"
            );
            return 2;
        }
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("scheduler: {error}");
            1
        }
    }
}

fn add(folder: &str, jobs: &[&str]) -> io::Result<()> {
    let mut journal = Journal::open(folder.into())?;
    for job in jobs {
        journal.append(|state| {
            let queue = (state.schema >= 2).then(|| "default".to_owned());
            let record = Record::Add { job: (*job).to_owned(), queue };
            state.refusal(&record).is_none().then_some(record)
        })?;
    }
    Ok(())
}

/// Brings the data to a format. Repeated, it changes nothing: a run of a migration that was killed runs again.
fn migrate(folder: &str, schema: u64) -> io::Result<()> {
    let record = Record::Schema(schema);
    let done =
        Journal::open(folder.into())?.append(|state| state.refusal(&record).is_none().then(|| record.clone()))?;
    println!("{}", done.map_or_else(|| "the data has that format".to_owned(), |record| record.to_string()));
    Ok(())
}

fn show(folder: &str) -> io::Result<()> {
    let state = Journal::open(folder.into())?.state;
    println!("leader {}, token {}", state.leader, state.token);
    for (job, progress) in state.jobs {
        match progress {
            Progress::Waiting => println!("{job} waits"),
            Progress::Given { worker, .. } => println!("{job} is given to {worker}"),
            Progress::Done { worker } => println!("{job} done by {worker}"),
        }
    }
    Ok(())
}

/// The format that this release reads and writes: the first number of it. Two releases are one program here.
fn own_schema() -> io::Result<u64> {
    let release = std::env::var("MUSTER_RELEASE").unwrap_or_default();
    let major = release.split('.').next().and_then(|major| major.parse().ok());
    major.ok_or_else(|| io::Error::other("MUSTER_RELEASE has no release: start it under `muster wait-ready`"))
}

fn work(socket: &str, folder: &str, name: &str) -> io::Result<()> {
    let journal = Journal::open(folder.into())?;
    let (own, found) = (own_schema()?, journal.state.schema);
    // The gate has excluded this. A program that looks is safe without it, too.
    if own != found {
        return Err(io::Error::other(format!("the data has format {found}, and this release reads {own}")));
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(take_part(socket, journal, folder, name))
}

/// Does jobs, and leads when elected, until TERM.
async fn take_part(socket: &str, mut journal: Journal, folder: &str, name: &str) -> io::Result<()> {
    let session = Session::new(Arc::new(Link::new(Socket(socket.into()))));
    let lease = LeaseRef { namespace: "default".to_owned(), name: "scheduler".to_owned() };
    let config = ElectorConfig {
        lease_duration: LEASE,
        renew_deadline: LEASE * 2 / 3,
        retry_period: LEASE / 6,
        ..ElectorConfig::new(lease, name)
    };
    let leader = Arc::new(Leader { folder: folder.into(), name: name.to_owned() });
    let elector = LeaderElector::start(Setup::new(config, Election::Muster(session), leader)).await;
    let elector = elector.map_err(io::Error::other)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let ended = loop {
        tokio::select! {
            _ = terminate.recv() => break Ok(()),
            done = one_job(&mut journal, name) => if let Err(error) = done { break Err(error) },
        }
    };
    elector.stop();
    elector.ended().await.map_err(|error| io::Error::other(error.message))?;
    ended
}

/// Does the job that was given to this process; asks for one if there is none.
async fn one_job(journal: &mut Journal, me: &str) -> io::Result<()> {
    journal.read()?;
    let Some((job, given)) = journal.state.given_to(me) else {
        journal.append(|state| {
            let busy = state.idle.contains(me) || state.given_to(me).is_some();
            (!busy).then(|| Record::Idle { worker: me.to_owned() })
        })?;
        tokio::time::sleep(INTERVAL).await;
        return Ok(());
    };
    tokio::time::sleep(WORK).await;
    // What a job does to the world outside should be refused there by the same number.
    let record = Record::Done { job, worker: me.to_owned(), given };
    let done = journal.append(|state| state.refusal(&record).is_none().then(|| record.clone()))?;
    match done {
        Some(record) => println!("{record}"),
        None => println!("late: {record}"),
    }
    Ok(())
}

struct Leader {
    folder: PathBuf,
    name: String,
}

impl Candidate for Leader {
    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()> {
        let (folder, name) = (self.folder.clone(), self.name.clone());
        Box::pin(async move {
            let token = term.token().expect("a Muster cluster gives one").0;
            println!("{name} leads, token {token}");
            // Its writes are refused once another one leads; it stops before, when its term ends.
            let led = tokio::select! {
                led = lead(&folder, &name, token) => led,
                () = term.ended() => Ok(()),
            };
            match led {
                Ok(()) => println!("{name} no longer leads, token {token}"),
                Err(error) => eprintln!("{name} cannot lead: {error}"),
            }
        })
    }
}

/// Hands out jobs until a later leader has begun. A worker that is given up may still be at work: what it reports is refused.
async fn lead(folder: &Path, name: &str, token: u64) -> io::Result<()> {
    let mut journal = Journal::open(folder.to_owned())?;
    let record = Record::Lead { token, name: name.to_owned() };
    journal.append(|state| state.refusal(&record).is_none().then(|| record.clone()))?;
    // Since when this leader has known that a job was given, by the number of the record that gave it.
    let mut known: BTreeMap<u64, Instant> = BTreeMap::new();
    loop {
        journal.read()?;
        let given = journal.state.jobs.values().filter_map(|progress| match progress {
            Progress::Given { given, .. } => Some(*given),
            _ => None,
        });
        known = given.map(|given| (given, known.get(&given).copied().unwrap_or_else(Instant::now))).collect();
        let gave = journal.append(|state| {
            let to_give = state.jobs.iter().find(|(_, progress)| match progress {
                Progress::Waiting => true,
                Progress::Given { given, .. } => known.get(given).is_some_and(|since| since.elapsed() > WORK_LIMIT),
                Progress::Done { .. } => false,
            });
            let (job, worker) = (to_give?.0.clone(), state.idle.first()?.clone());
            let record = Record::Give { job, worker, token };
            state.refusal(&record).is_none().then_some(record)
        })?;
        if journal.state.token != token {
            return Ok(());
        }
        if gave.is_none() {
            tokio::time::sleep(INTERVAL).await;
        }
    }
}
