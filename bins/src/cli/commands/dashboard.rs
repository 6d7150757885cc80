//! `muster dashboard`: serves the cluster's pages to a browser of this machine until interrupted.

use std::io::{BufRead, IsTerminal};
use std::time::Duration;

use muster_client::{Failure, Outcome};
use muster_dashboard::{Dashboard, LINK_LIFETIME, LoginEvent, Redirect, Settings};
use muster_kernel::Clock;
use muster_messages::ErrorCode;
use serde_json::json;
use tokio::sync::mpsc;

use super::Context;
use crate::cli::args::DashboardArgs;
use crate::cli::output::{print, print_failure};
use crate::cli::signals::Interrupts;

/// A browser that has not asked by then may be unable to read the redirect file, as those in a sandbox are: the link is printed, too.
const BROWSER_START: Duration = Duration::from_secs(5);

const LINK_USED_TWICE: &str = "a link was used twice, so the session that it opened has ended. If you did not open it again yourself, \
as from the browser's history, another user of this machine has read it";

pub(super) async fn run(ctx: &Context, args: DashboardArgs) -> Outcome<u8> {
    let mut interrupts = Interrupts::listen()?;
    let settings = Settings { port: args.port, allow_hosts: args.allow_host, actions: args.actions };
    let mut dashboard = Dashboard::bind(ctx.client.target().clone(), &settings).await?;
    // A task of its own: the server goes on while this one prints or waits for Enter.
    let mut serving = tokio::spawn(dashboard.serve());
    let link = dashboard.link();
    let mut browser = if args.no_open { None } else { Redirect::open(&link) };
    match &browser {
        Some(_) if !ctx.out.is_json() => ctx.out.say("opening a browser; Ctrl-C ends the dashboard"),
        _ => show(ctx, &link, args.actions),
    }
    // Without a terminal no person can press Enter, and a background job that reads is stopped.
    let mut enter = std::io::stdin().is_terminal().then(entered);
    let mut shown = false;
    let late = tokio::time::sleep(BROWSER_START);
    tokio::pin!(late);
    loop {
        tokio::select! {
            _signal = interrupts.next() => return Ok(0),
            _ended = &mut serving => return Err(Failure::new(ErrorCode::Internal, "the dashboard's server has ended; start it again")),
            () = &mut late, if browser.is_some() => match shown {
                false => {
                    shown = true;
                    late.as_mut().reset(tokio::time::Instant::now() + LINK_LIFETIME - BROWSER_START);
                    if !dashboard.in_use() {
                        show(ctx, &link, args.actions);
                    }
                }
                // The link has ended, and with it the file's use.
                true => browser = None,
            },
            line = async { enter.as_mut()?.recv().await }, if enter.is_some() => match line {
                Some(()) => show(ctx, &dashboard.link(), args.actions),
                None => enter = None,
            },
            event = dashboard.login_event() => match event {
                LoginEvent::LoggedIn => {
                    browser = None;
                    ctx.out.note("a browser logged in; press Enter for a link for another one");
                }
                LoginEvent::LinkUsedTwice => print_failure(&Failure::refused("link_used_twice", LINK_USED_TWICE), ctx.out.format),
                LoginEvent::LoggedOut => ctx.out.note("logged out; press Enter for another link"),
            },
        }
    }
}

/// Lines that are entered. A thread of its own waits for them: it ends with the process, whatever it waits for.
fn entered() -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines().map_while(Result::ok);
        lines.map(|_line| sender.blocking_send(())).take_while(Result::is_ok).count()
    });
    receiver
}

/// Prints a link.
fn show(ctx: &Context, link: &str, actions: bool) {
    if ctx.out.is_json() {
        let until = Clock.wall().plus(LINK_LIFETIME);
        let document = json!({"url": link, "pid": std::process::id(), "expires_at": until, "actions": actions});
        print(&document.to_string());
    } else {
        print(&if ctx.out.quiet { link.to_owned() } else { format!("{link}  (good for one login within a minute)") });
    }
}
