//! Asking for a secret at the terminal.

use std::future::poll_fn;
use std::io::{BufRead as _, Write as _, stdin};
use std::task::Poll;

use muster_client::{Failure, Outcome};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};
use zeroize::Zeroizing;

use crate::unlock_text::key_buffer;

/// Added to a signal's number in the exit status of a program that it ended, as shells report it.
const SIGNALLED: i32 = 128;

/// Reads one line that the terminal does not show. Its mode is restored on every way out, also when a signal ends the process.
pub async fn without_echo(prompt: &str) -> Outcome<Zeroizing<String>> {
    let failed = |what: &str, error: std::io::Error| Failure::io(what, &error);
    // First: no signal may come while what is typed is hidden and no handler restores the terminal.
    let mut ending = Ending::listen().map_err(|e| failed("cannot listen for signals", e))?;
    let hidden = Hidden::begin().map_err(|e| failed("cannot hide what is typed", e))?;
    let mut err = std::io::stderr();
    let _closed = write!(err, "{prompt}").and_then(|()| err.flush());
    let line = tokio::task::spawn_blocking(|| {
        let mut line = key_buffer();
        stdin().lock().read_line(&mut line).map(|_| line)
    });
    let line = tokio::select! {
        line = line => line.map_err(Failure::internal)?,
        status = ending.next() => {
            drop(hidden);
            let _closed = writeln!(err);
            // The thread that reads would delay an orderly end.
            std::process::exit(status);
        }
    };
    drop(hidden);
    // The end of the input (Ctrl-D) ends no line.
    if !matches!(&line, Ok(line) if line.ends_with('\n')) {
        let _closed = writeln!(err);
    }
    // From now on the process handles these signals, and they must still end it.
    tokio::spawn(async move { std::process::exit(ending.next().await) });
    line.map_err(|e| failed("cannot read the terminal", e))
}

/// The signals that end a program unless it handles them, and that a person or the terminal sends.
struct Ending(Vec<(Signal, i32)>);

impl Ending {
    fn listen() -> std::io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
        let listen = |kind: SignalKind| Ok((signal(kind)?, SIGNALLED + kind.as_raw_value()));
        kinds.into_iter().map(listen).collect::<std::io::Result<_>>().map(Self)
    }

    /// The exit status for the next one.
    async fn next(&mut self) -> i32 {
        poll_fn(|cx| {
            let came =
                self.0.iter_mut().find_map(|(signal, status)| signal.poll_recv(cx).is_ready().then_some(*status));
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The terminal without echo, until dropped.
struct Hidden(Termios);

impl Hidden {
    fn begin() -> std::io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        // The newline is still shown.
        hidden.local_modes.insert(LocalModes::ECHONL | LocalModes::ICANON);
        tcsetattr(stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _gone = tcsetattr(stdin(), OptionalActions::Flush, &self.0);
    }
}
