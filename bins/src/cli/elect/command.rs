//! A command under its guardian, from start to end, and the signals forwarded to it.

use futures_util::FutureExt;
use muster_client::{Failure, Outcome};
use muster_elector::Hold;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::cli::args::Format;
use crate::cli::output::{Out, printable};
use crate::guard::{Exit, Guarded, Launch, News, Number, Report};
use crate::stderr::say;

/// Prints messages for people, on stderr: stdout belongs to the command.
#[derive(Clone, Copy)]
pub struct Speaker {
    enabled: bool,
}

impl Speaker {
    /// Silent with `-o json` and with `-q`.
    pub fn new(out: Out) -> Self {
        Self { enabled: out.format == Format::Table && !out.quiet }
    }
    pub fn say(self, text: &str) {
        if self.enabled {
            say(format_args!("muster: {}", printable(text)));
        }
    }
}

/// How the command ended.
#[derive(Clone, Debug)]
pub enum End {
    Exited(Exit),
    /// Its guardian ended it because its hold had expired.
    Lapsed,
    Failed(Failure),
}

/// Runs the command until none of its processes is left. When `ended` resolves, the command gets TERM, and KILL before the
/// `hold` of that moment expires. Later holds do not count: the lease is renewed until the command has ended, so a command
/// that ignores TERM would never be killed.
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
    let (mut asked_to_end, mut expired) = (false, false);
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
            Ok(()) = hold.changed(), if !asked_to_end => {
                let later = *hold.borrow_and_update();
                guarded.until(later).await;
            }
            () = &mut ended, if !asked_to_end => {
                asked_to_end = true;
                guarded.end().await;
            }
            Some(number) = signalled => guarded.signal(number).await,
            news = guarded.next() => match news {
                Some(News::Started { .. }) => {}
                Some(News::Report(Report::Lapsed)) => expired = true,
                Some(News::Report(Report::Ended(_))) if expired => return End::Lapsed,
                Some(News::Report(Report::Ended(exit))) => return End::Exited(exit),
                None if expired && guarded.group().is_none() => return End::Lapsed, // the command was never started
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

/// The signals that are forwarded to the command.
pub struct Forwarded {
    all: Vec<(Number, Signal)>,
}

/// The signals that end a `muster` without a running command: HUP, INT, QUIT, TERM.
const ENDING_SIGNALS: [i32; 4] = [1, 2, 3, 15];

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
        let subscribe = |kind: SignalKind| Ok((u8::try_from(kind.as_raw_value()).unwrap_or(0), signal(kind)?));
        let all: std::io::Result<_> = kinds.into_iter().map(subscribe).collect();
        all.map(|all| Self { all }).map_err(|e| Failure::io("cannot listen for signals", &e))
    }

    /// Whether this signal ends a `muster` without a running command.
    pub fn ends(&self, number: Number) -> bool {
        ENDING_SIGNALS.contains(&number.into())
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Number {
        let waits = self.all.iter_mut().map(|(number, signal)| {
            async move {
                let _received = signal.recv().await;
                *number
            }
            .boxed()
        });
        futures_util::future::select_all(waits).await.0
    }
}
