//! Asking for a secret at the terminal.

use std::io::{BufRead as _, Write as _, stdin};

use muster_client::{Failure, Outcome};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

/// The exit status of a program that was interrupted, as shells report it.
const INTERRUPTED: i32 = 130;

/// Reads one line that the terminal does not show. Its mode is restored on every way out, Ctrl-C included.
pub async fn without_echo(prompt: &str) -> Outcome<Zeroizing<String>> {
    let failed = |what: &str, error: std::io::Error| Failure::io(what, &error);
    let hidden = Hidden::begin().map_err(|e| failed("cannot hide what is typed", e))?;
    let mut err = std::io::stderr();
    let _closed = write!(err, "{prompt}").and_then(|()| err.flush());
    let line = tokio::task::spawn_blocking(|| {
        let mut line = Zeroizing::new(String::new());
        stdin().lock().read_line(&mut line).map(|_| line)
    });
    let line = tokio::select! {
        line = line => line.map_err(Failure::internal)?,
        _ = tokio::signal::ctrl_c() => {
            drop(hidden);
            // The thread that reads would delay an orderly end.
            std::process::exit(INTERRUPTED);
        }
    };
    drop(hidden);
    line.map_err(|e| failed("cannot read the terminal", e))
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
