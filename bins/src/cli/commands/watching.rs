//! `--watch`: asks every second, and draws the newest answer in place on a terminal.

use std::time::{Duration, Instant};

use muster_client::Outcome;
use muster_kernel::Clock;

use super::Context;
use crate::cli::output::{print, print_failure, printable, without_fraction};
use crate::cli::screen::Screen;
use crate::cli::signals::Interrupts;

/// The time between two questions, and the longest one, after an answer that took long: lists of thousands of nodes.
const INTERVAL: Duration = Duration::from_secs(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(3);
/// How long one answer may take before the screen shows that it is old.
const TIMEOUT: Duration = Duration::from_secs(3);

/// An answer, ready to be shown.
pub(super) trait Picture {
    /// What it shows, for the first line.
    fn title(&self) -> String;
    /// The requested value alone.
    fn brief(&self) -> String;
    /// The whole answer.
    fn text(&self) -> String;
    /// Lines that fit a screen of so many columns and rows.
    fn lines(&mut self, size: (usize, usize)) -> Vec<String>;
    /// Takes over what is known from the former picture.
    fn follow(&mut self, _former: Self)
    where
        Self: Sized,
    {
    }
}

/// A picture that is a text.
pub(super) struct Text {
    pub title: &'static str,
    pub brief: String,
    pub text: String,
    /// What is drawn on a screen, where that is narrower.
    pub narrow: Option<String>,
}

impl Picture for Text {
    fn title(&self) -> String {
        self.title.to_owned()
    }
    fn brief(&self) -> String {
        self.brief.clone()
    }
    fn text(&self) -> String {
        self.text.clone()
    }
    fn lines(&mut self, size: (usize, usize)) -> Vec<String> {
        fit(self.narrow.as_ref().unwrap_or(&self.text), size)
    }
}

/// The first lines of a text, and how many are left out.
fn fit(text: &str, (width, height): (usize, usize)) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(|line| line.chars().take(width).collect()).collect();
    if lines.len() > height {
        let shown = height.saturating_sub(1);
        let left_out = lines.len() - shown;
        lines.truncate(shown);
        lines.push(format!("{left_out} more lines").chars().take(width).collect());
        lines.truncate(height);
    }
    lines
}

/// Asks until interrupted. Transient failures, such as a node that restarts, are retried, and the last answer stays on the screen with
/// its time. `ask` returns the answer as JSON, too.
pub(super) async fn watch<P: Picture>(
    ctx: &mut Context,
    mut ask: impl AsyncFnMut(&mut Context) -> Outcome<(String, P)>,
) -> Outcome<u8> {
    let mut interrupts = Interrupts::listen()?;
    ctx.client.set_timeout(ctx.client.timeout().min(TIMEOUT));
    let mut answered = false;
    let mut screen = None;
    let mut shown: Option<Shown<P>> = None;
    let mut pause = Duration::ZERO;
    loop {
        let (answer, took) = {
            let refresh = async {
                tokio::time::sleep(pause).await;
                let began = Instant::now();
                let answer = ask(ctx).await;
                (answer, began.elapsed())
            };
            tokio::pin!(refresh);
            loop {
                tokio::select! {
                    answered = &mut refresh => break answered,
                    _ = interrupts.next() => return Ok(0),
                    () = changed(&mut screen) => {
                        if let (Some(screen), Some(shown)) = (&screen, &mut shown) {
                            shown.draw(screen);
                        }
                    }
                }
            }
        };
        pause = if answer.is_ok() { took.clamp(INTERVAL, LONGEST_INTERVAL) } else { INTERVAL };
        let first = answer.is_ok() && !std::mem::replace(&mut answered, true);
        match answer {
            Ok((json, _)) if ctx.out.is_json() => print(&json),
            Ok((_, picture)) if ctx.out.quiet => print(&picture.brief()),
            Ok((_, mut picture)) => {
                if let Some(former) = shown.take() {
                    picture.follow(former.picture);
                }
                if first {
                    screen = Screen::open()?;
                }
                let at = without_fraction(&Clock.wall().to_string());
                shown.insert(Shown { picture, at, failure: None }).show(screen.as_ref());
            }
            Err(failure) if !answered || !failure.may_pass() => return Err(failure),
            Err(failure) => match &mut shown {
                Some(shown) => {
                    shown.failure = Some(printable(&failure.message));
                    shown.show(screen.as_ref());
                }
                None => print_failure(&failure, ctx.out.format),
            },
        }
    }
}

async fn changed(screen: &mut Option<Screen>) {
    match screen {
        Some(screen) => screen.changed().await,
        None => std::future::pending().await,
    }
}

/// The last answer.
struct Shown<P> {
    picture: P,
    at: String,
    /// The failure since.
    failure: Option<String>,
}

impl<P: Picture> Shown<P> {
    fn heading(&self) -> String {
        let failure = self.failure.as_ref().map(|why| format!("; no answer since: {why}")).unwrap_or_default();
        format!("{} at {}{failure}", self.picture.title(), self.at)
    }
    /// Draws on the screen; without one prints the whole answer.
    fn show(&mut self, screen: Option<&Screen>) {
        match screen {
            Some(screen) => self.draw(screen),
            None => print(&format!("{}\n{}", self.heading(), self.picture.text())),
        }
    }
    fn draw(&mut self, screen: &Screen) {
        let (width, height) = Screen::size();
        let mut lines = vec![self.heading().chars().take(width).collect()];
        lines.extend(self.picture.lines((width, height.saturating_sub(1))));
        screen.draw(&lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_to_the_screen() {
        let text = "abcdef\ngh\nij\nkl\n";
        assert_eq!(fit(text, (4, 9)), ["abcd", "gh", "ij", "kl"]);
        assert_eq!(fit(text, (20, 3)), ["abcdef", "gh", "2 more lines"]);
        assert_eq!(fit(text, (3, 2)), ["abc", "3 m"]);
        assert_eq!(fit(text, (3, 0)), [""; 0]);
    }
}
