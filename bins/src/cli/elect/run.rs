//! Runs `muster elect`, from its flags to its exit status.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_client::{Failure, Outcome, Target, no_socket};
use muster_elector::{
    BY_PRIORITY, Candidacy, Candidate, Election, ElectorConfig, Ending, LeaderElector, Link, Managers, PRIORITY,
    RunningCandidacy, Session, Setup, Socket, StartError, Term,
};
use muster_messages::wire::LeaseRef;
use muster_messages::{ErrorCode, Name};
use tokio::sync::{mpsc, watch};

use super::args::ElectArgs;
use super::command::{End, Forwarded, Speaker, guard};
use crate::cli::args::Global;
use crate::cli::discover;
use crate::cli::output::Out;
use crate::guard::{self, Exit, Launch, Number};

/// The exit status of a command that lost its lease while it ran.
const EXIT_LEADERSHIP_LOST: u8 = 7;

pub async fn run(args: ElectArgs, out: Out, global: &Global) -> Outcome<u8> {
    let (renew_deadline, retry_period) = args.deadlines();
    let lease = LeaseRef { namespace: args.namespace, name: args.lease };
    let identity = args.id.unwrap_or_else(default_identity);
    let config = ElectorConfig {
        lease_duration: args.lease_duration,
        renew_deadline,
        retry_period,
        campaign_again: false,
        coordinated: args.priority.is_some(),
        ..ElectorConfig::new(lease, identity)
    };
    let invalid = |error: &dyn std::fmt::Display| Failure::new(ErrorCode::Invalid, error.to_string());
    config.validate().map_err(|refusal| invalid(&refusal))?;
    let mut signals = Forwarded::listen()?;
    // Orphans of a killed guardian become children of this process.
    guard::adopt().map_err(|e| Failure::io("cannot become a subreaper", &e.into()))?;
    let link = match discover::client(global).await?.target() {
        // A daemon that is down returns to its socket. A socket that does not exist is a mistake: waiting for it has no end.
        Target::Socket(path) if !path.exists() => return Err(no_socket(path, &ErrorKind::NotFound.into()).into()),
        Target::Socket(path) => Link::new(Socket(path.clone())),
        Target::Managers { dialer, managers } => Link::new(Managers::new((**dialer).clone(), managers.clone())),
    };
    let timeout = args.timeout;
    let (signal_sender, signal_receiver) = mpsc::channel(16);
    let running_candidacy = args.priority.map(|priority| candidacy(&config, priority).start(Arc::new(link.clone())));
    let work = Arc::new(Work::new(args.command, &config, Speaker::new(out), signal_receiver));
    let election = Election::Muster(Session::new(Arc::new(link)));
    let elector = LeaderElector::start(Setup::new(config, election, Arc::clone(&work) as Arc<dyn Candidate>)).await;
    let elector = elector.map_err(|error| match error {
        StartError::Config(refusal) => invalid(&refusal),
        StartError::Fault(_) => Failure::internal(error),
    })?;
    let trouble = running_candidacy.as_ref().map(RunningCandidacy::trouble);
    let interrupted = wait_for_end(&elector, &work, trouble, timeout, &mut signals, &signal_sender).await;
    if let Some(running_candidacy) = running_candidacy {
        running_candidacy.end().await;
    }
    work.outcome(interrupted?)
}

/// By priority, with muster's own release as version: muster does not know the command's.
fn candidacy(config: &ElectorConfig, priority: i32) -> Candidacy {
    Candidacy {
        name: config.identity.clone(),
        lease: config.lease.clone(),
        strategy: BY_PRIORITY.to_owned(),
        binary_version: env!("CARGO_PKG_VERSION").to_owned(),
        emulation_version: env!("CARGO_PKG_VERSION").to_owned(),
        annotations: BTreeMap::from([(PRIORITY.to_owned(), priority.to_string())]),
    }
}

/// Waits for the elector to end and forwards signals. Returns the signal that ended it before the command ran, if any.
async fn wait_for_end(
    elector: &LeaderElector,
    work: &Work,
    mut trouble: Option<watch::Receiver<Option<String>>>,
    timeout: Option<Duration>,
    signals: &mut Forwarded,
    signal_sender: &mpsc::Sender<Number>,
) -> Outcome<Option<Number>> {
    let mut interrupted = None;
    let mut status = elector.status();
    let mut blocked = None;
    let limit = timeout.map(|timeout| tokio::time::Instant::now() + timeout);
    let mut gave_up = None;
    loop {
        let deadline = async {
            match limit.filter(|_| gave_up.is_none() && !work.runs()) {
                Some(limit) => tokio::time::sleep_until(limit).await,
                None => std::future::pending().await,
            }
        };
        let registration_failed = async {
            let Some(trouble) = &mut trouble else { return std::future::pending().await };
            match trouble.changed().await {
                Ok(()) => trouble.borrow_and_update().clone(),
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = elector.ended() => {
                let refused = ended.err().filter(|_| !work.has_run());
                let timed_out = gave_up.filter(|_| !work.has_run());
                return refused.map(Failure::from).or(timed_out).map_or(Ok(interrupted), Err);
            }
            () = deadline => {
                let why = blocked.clone().or_else(|| work.held_by()).unwrap_or_else(|| "no candidate holds it".to_owned());
                let text = format!("timed out before acquiring {}: {why}", work.lease);
                gave_up = Some(Failure::new(ErrorCode::TimedOut, text));
                elector.stop();
            }
            Ok(()) = status.changed() => {
                let now = status.borrow_and_update().view.blocked.clone();
                // One line per failure, however often it recurs.
                if let (Some(why), None) = (&now, &blocked) {
                    work.speaker.say(&format!("{why}; retrying"));
                }
                blocked = now;
            }
            why = registration_failed => if let Some(why) = why {
                work.speaker.say(&format!("cannot register as a candidate: {why}"));
            },
            number = signals.next() => match work.runs() {
                // A closed channel means that the command has ended.
                true => drop(signal_sender.try_send(number)),
                false if !signals.ends(number) => {}
                // A second signal ends muster at once.
                false if interrupted.is_some() => return Ok(interrupted),
                false => {
                    interrupted = Some(number);
                    elector.stop();
                }
            },
        }
    }
}

/// Host name, pid and a random number.
pub fn default_identity() -> String {
    // The candidate object is named after the identity, so the identity must be a legal object name.
    let host = Name::sanitized(&rustix::system::uname().nodename().to_string_lossy());
    format!("{host}-{}-{:08x}", std::process::id(), rand::random::<u32>())
}

/// The guarded command, as the work of the elector.
struct Work {
    launch: Launch,
    lease: LeaseRef,
    identity: String,
    speaker: Speaker,
    signals: Mutex<Option<mpsc::Receiver<Number>>>,
    running: AtomicBool,
    end: Arc<Mutex<Option<End>>>,
    ending: Mutex<Option<Ending>>,
    /// The last known holder.
    holder: Mutex<Option<String>>,
}

impl Work {
    fn new(command: Vec<OsString>, config: &ElectorConfig, speaker: Speaker, signals: mpsc::Receiver<Number>) -> Self {
        let (lease, identity) = (config.lease.clone(), config.identity.clone());
        let environment = vec![
            ("MUSTER_LEASE".to_owned(), lease.name.clone()),
            ("MUSTER_NAMESPACE".to_owned(), lease.namespace.clone()),
            ("MUSTER_HOLDER".to_owned(), identity.clone()),
        ];
        Self {
            launch: Launch::new(command, environment),
            lease,
            identity,
            speaker,
            signals: Mutex::new(Some(signals)),
            running: AtomicBool::new(false),
            end: Arc::default(),
            ending: Mutex::default(),
            holder: Mutex::default(),
        }
    }

    fn runs(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }
    fn held_by(&self) -> Option<String> {
        locked(&self.holder).as_ref().map(|holder| format!("it is held by {holder}"))
    }
    fn has_run(&self) -> bool {
        locked(&self.end).is_some()
    }

    /// The exit status of `muster`.
    fn outcome(&self, interrupted: Option<Number>) -> Outcome<u8> {
        let ending = locked(&self.ending).clone();
        let lost = ending.filter(Ending::is_loss);
        let end = locked(&self.end).clone();
        match (end, lost, interrupted) {
            (Some(End::Failed(failure)), ..) => Err(failure),
            (Some(_), Some(ending), _) => Err(lost_lease(&self.lease, &ending)),
            (Some(End::Lapsed), None, _) => Err(lost_lease(&self.lease, &Ending::Lapsed)),
            (Some(End::Exited(exit)), None, _) => Ok(exit.status()),
            (None, _, Some(number)) => Ok(Exit::Signal(number).status()),
            (None, ..) => Err(Failure::internal("the election ended without a reason")),
        }
    }
}

fn lost_lease(lease: &LeaseRef, ending: &Ending) -> Failure {
    let message = format!("{lease} was lost while the command ran: {ending}; the command was ended");
    Failure { code: "leadership_lost".into(), exit: EXIT_LEADERSHIP_LOST, message, details: serde_json::json!({}) }
}

impl Candidate for Work {
    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()> {
        self.running.store(true, Ordering::Relaxed);
        let token = term.token().map(|token| token.to_string()).unwrap_or_default();
        self.speaker.say(&format!("leading {} as {}, fencing token {token}", self.lease, self.identity));
        let mut launch = self.launch.clone();
        launch.environment.push(("MUSTER_FENCING_TOKEN".to_owned(), token));
        let signals = locked(&self.signals).take();
        let end = Arc::clone(&self.end);
        async move {
            let ended = guard(&launch, term.hold(), term.ended(), signals).await;
            *locked(&end) = Some(ended);
        }
        .boxed()
    }

    fn on_stopped_leading(&self, ending: &Ending) {
        self.running.store(false, Ordering::Relaxed);
        *locked(&self.ending) = Some(ending.clone());
    }

    fn on_new_leader(&self, leader: Option<&str>) {
        *locked(&self.holder) = leader.map(str::to_owned);
        match leader {
            Some(leader) if leader == self.identity => {}
            Some(leader) => self.speaker.say(&format!("{} is held by {leader}", self.lease)),
            None => {}
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
