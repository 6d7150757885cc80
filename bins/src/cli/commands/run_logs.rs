//! `muster reconciler logs`: the output of a run, part by part, from the node that ran it.

use std::io::IsTerminal as _;
use std::time::Duration;

use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::{ReconcilerRequest, Request};
use muster_messages::{RunLogView, detail};

use super::Context;
use crate::cli::output::{print, print_failure, print_part, printable_lines};
use crate::cli::render;

/// How long a node waits for more output: the most that it accepts.
const WAIT: Duration = Duration::from_secs(2);
/// The pause between two attempts while the node does not answer, or does not wait because others do.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// A shorter part of a run in progress is its newest, and the run may never end.
const SHORT_PART_BYTES: usize = 32 * 1024;

/// Prints the output of a run; `None`: of the newest one. `follow`: until it has ended.
pub async fn print_log(ctx: &mut Context, name: String, run: Option<u64>, follow: bool) -> Outcome<u8> {
    let is_terminal = std::io::stdout().is_terminal();
    let wait_ms = if follow { crate::cli::duration::millis(WAIT) } else { 0 };
    let (mut run, mut offset, mut ends_line, mut trouble) = (run, 0, true, false);
    loop {
        let asked = tokio::time::Instant::now();
        let request = ReconcilerRequest::Log { name: name.clone(), run, offset, wait_ms };
        let text = match ctx.client.call(Request::Reconciler(request)).await {
            Ok(text) => text,
            Err(failure) if follow && run.is_some() && failure.may_pass() => {
                if !std::mem::replace(&mut trouble, true) {
                    print_failure(&failure, ctx.out.format);
                }
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
            Err(failure) => return Err(with_record(ctx, failure)),
        };
        trouble = false;
        let part: RunLogView = parse(&text)?;
        // The newest run may be another one the next time.
        run = Some(part.number);
        if part.skipped > 0 {
            ctx.out.note(format!(
                "{} bytes of the output are missing here: a long output keeps its first and newest part, and a slow or full disk loses some",
                part.skipped
            ));
        }
        let is_end = part.text.is_empty() && !part.running;
        if ctx.out.is_json() {
            // The end is said, too.
            if !part.text.is_empty() || is_end {
                print(&text);
            }
        } else if !part.text.is_empty() {
            print_part(&shown(&part.text, is_terminal));
            ends_line = part.text.ends_with('\n');
        }
        let is_newest = part.running && part.text.len() < SHORT_PART_BYTES;
        if is_end || !follow && is_newest {
            if is_terminal && !ends_line {
                print_part("\n");
            }
            return Ok(0);
        }
        if part.text.is_empty() && asked.elapsed() < RETRY_PAUSE {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        offset = part.next_offset;
    }
}

/// Output as it is, except on a terminal, whose cursor and title it must not move.
fn shown(text: &str, is_terminal: bool) -> String {
    if is_terminal { printable_lines(text) } else { text.to_owned() }
}

/// Prints what the cluster has on record of a run whose output cannot be read.
fn with_record(ctx: &Context, failure: Failure) -> Failure {
    if let Some(run) = failure.detail(detail::RUN)
        && !ctx.out.is_json()
    {
        print(&render::run_on_record(&run));
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced_on_terminals_only() {
        let output = "a\x1b]0;title\x07\tb\r\n";
        assert_eq!(shown(output, true), "a\u{fffd}]0;title\u{fffd}\tb\u{fffd}\n");
        assert_eq!(shown(output, false), output);
    }
}
