//! A command under its guardian, from its start to its end, and the signals that are meant for it.

use futures_util::FutureExt;
use muster_client::{Failure, Outcome};
use muster_elector::Hold;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::cli::args::Format;
use crate::cli::output::{Out, printable};
use crate::guard::{Exit, Guarded, Launch, News, Number, Report};
use crate::stderr::say;

/// What is said to people, on stderr: stdout is the command's.
#[derive(Clone, Copy)]
pub struct Speaker {
    speaks: bool,
}

impl Speaker {
    /// Silent where programs read, and with `-q`.
    pub fn new(out: Out) -> Self {
        Self { speaks: out.format == Format::Table && !out.quiet }
    }
    pub fn say(self, text: &str) {
        if self.speaks {
            say(format_args!("muster: {}", printable(text)));
        }
    }
}

/// How the command ended, in the end.
#[derive(Clone, Debug)]
pub enum End {
    Exited(Exit),
    /// Its guardian ended it, because time ran out.
    Lapsed,
    Failed(Failure),
}

/// Runs the command until nothing of it is left. It is told to end with `ended`, and killed before `hold`, as it was then,
/// is over: the lease is kept for as long as it takes, so that later ones would never end what ignores being told.
pub async fn guard(
    launch: &Launch,
    mut hold: watch::Receiver<Hold>,
    ended: impl Future<Output = ()>,
    mut signals: Option<mpsc::Receiver<Number>>,
) -> End {
    let mut guarded = match Guarded::start(launch, std::io::stdin()) {
        Ok(guarded) => guarded,
        Err(error) => return End::Failed(Failure::io("cannot start the guardian", &error)),
    };
    let mut ended = std::pin::pin!(ended);
    let (mut told, mut lapsed) = (false, false);
    let first = *hold.borrow_and_update();
    guarded.until(first).await;
    loop {
        let signalled = async {
            match &mut signals {
                Some(signals) => signals.recv().await,
                None => None,
            }
        };
        tokio::select! {
            Ok(()) = hold.changed(), if !told => {
                let later = *hold.borrow_and_update();
                guarded.until(later).await;
            }
            () = &mut ended, if !told => {
                told = true;
                guarded.end().await;
            }
            Some(number) = signalled => guarded.signal(number).await,
            news = guarded.next() => match news {
                Some(News::Started { .. }) => {}
                Some(News::Report(Report::Lapsed)) => lapsed = true,
                Some(News::Report(Report::Ended(_))) if lapsed => return End::Lapsed,
                Some(News::Report(Report::Ended(exit))) => return End::Exited(exit),
                None if lapsed && guarded.group().is_none() => return End::Lapsed, // it was never started
                None => {
                    guarded.end_orphans().await;
                    if guarded.has_hung() {
                        return End::Lapsed;
                    }
                    return End::Failed(Failure::internal("the guardian was killed, and the command with it"));
                }
            }
        }
    }
}

/// The signals that are meant for the command.
pub struct Forwarded {
    all: Vec<(Number, Signal)>,
}

/// Those that end a `muster` which has no command yet: HUP, INT, QUIT, TERM.
const ENDING: [i32; 4] = [1, 2, 3, 15];

impl Forwarded {
    pub fn listen() -> Outcome<Self> {
        let kinds = [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::terminate(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
            SignalKind::window_change(),
        ];
        let hear = |kind: SignalKind| Ok((u8::try_from(kind.as_raw_value()).unwrap_or(0), signal(kind)?));
        let all: std::io::Result<_> = kinds.into_iter().map(hear).collect();
        all.map(|all| Self { all }).map_err(|e| Failure::io("cannot listen for signals", &e))
    }

    /// Whether it ends a `muster` that has no command yet.
    pub fn ends(&self, number: Number) -> bool {
        ENDING.contains(&number.into())
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Number {
        let waits = self.all.iter_mut().map(|(number, signal)| {
            async move {
                let _heard = signal.recv().await;
                *number
            }
            .boxed()
        });
        futures_util::future::select_all(waits).await.0
    }
}
