//! A terminal screen that is redrawn in place.

use std::io::{IsTerminal, Write};

use muster_client::{Failure, Outcome};
use rustix::process::Signal;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// Enters the alternate screen without cursor and line wrapping; and leaves it.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The terminal, taken over until this is dropped: on every way out, panics included.
pub struct Screen {
    resized: Signals,
    suspended: Signals,
}

impl Screen {
    /// `None` if stdout is not a terminal, or one that cannot be drawn on.
    pub fn open() -> Outcome<Option<Self>> {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        if dumb || !std::io::stdout().is_terminal() {
            return Ok(None);
        }
        let subscribe = |kind| signal(kind).map_err(|e| Failure::io("cannot listen for signals", &e));
        let (resized, suspended) =
            (subscribe(SignalKind::window_change())?, subscribe(SignalKind::from_raw(Signal::TSTP.as_raw()))?);
        say(ENTER);
        Ok(Some(Self { resized, suspended }))
    }

    /// The current columns and rows.
    pub fn size() -> (usize, usize) {
        match rustix::termios::tcgetwinsize(std::io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// The same of stdout, if it is a terminal.
    pub fn size_of_terminal() -> Option<(usize, usize)> {
        std::io::stdout().is_terminal().then(Self::size)
    }

    /// Draws over the current content. Lines below the last row are left out; the caller makes lines that fit.
    pub fn draw(&self, lines: &[String]) {
        let rows = lines.iter().take(Self::size().1).map(|line| format!("{line}\x1b[K"));
        let frame = rows.collect::<Vec<_>>().join("\r\n");
        // The rest of the screen is cleared last, to avoid flicker.
        say(&format!("\x1b[H{frame}\x1b[J"));
    }

    /// Returns when the screen must be redrawn: after a resize, or after Ctrl-Z.
    pub async fn changed(&mut self) {
        tokio::select! {
            _ = self.resized.recv() => {}
            _ = self.suspended.recv() => {
                say(LEAVE);
                let _stopped = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
                say(ENTER);
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        say(LEAVE);
    }
}

/// Writes to the terminal. If it is gone, the write fails, and SIGHUP ends the command.
fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _gone = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
