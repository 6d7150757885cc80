//! The guardian process, and the last step before the command.
//!
//! ```text
//! muster, or a keeper ── socket ── guardian ── command, in a group of its own
//! ```
//!
//! `muster` is killed or frozen: the guardian ends the command in time. The guardian is killed: the kernel kills the command (its
//! parent-death signal), `muster` the rest. The command ends: the guardian kills its remaining processes, then reports the end. The
//! guardian has its own session: neither Ctrl-C nor Ctrl-Z in a terminal reaches it or the command; `muster` forwards signals for the
//! command.

mod core;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::future::pending;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use muster_elector::{BootTime, Timekeeper};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::mpsc;

pub use self::core::{Effect, Exit, Guardian, Input, KILL_RETRY_PAUSE, Number, Report};
use super::attributes::Attributes;
use super::line::{FRAME, News, news_frame, order_of};
use super::{apart, carried, family};

use crate::stderr::say;

/// The first argument that makes a process a guardian. The command follows.
pub const GUARDIAN: &str = "guard-guardian";
/// The first argument that makes a process the command, tied to its guardian. The guardian's pid and the command follow.
pub const COMMAND: &str = "guard-command";

/// A shell's exit codes for a command that cannot be run, and for one that is not found.
pub const NOT_RUNNABLE: u8 = 126;
pub const NOT_FOUND: u8 = 127;

/// Runs the guardian of this command until nothing is left to guard.
pub fn main(command: &[OsString]) -> ExitCode {
    apart("guardian", async |socket, input| guard(socket, Stdio::from(input), command).await)
}

async fn guard(socket: UnixStream, input: Stdio, command: &[OsString]) -> io::Result<()> {
    let _ignored = ignored()?;
    let mut children = signal(SignalKind::child())?;
    let (reader, mut writer) = socket.into_split();
    let mut orders = Some(orders(reader));
    let clock = BootTime;
    let mut body = Body { command, input: Some(input), child: None };
    let mut core = Guardian::default();
    let mut wake_at = None;
    loop {
        let order = async {
            match &mut orders {
                Some(orders) => orders.recv().await,
                None => pending().await,
            }
        };
        let alarm = async {
            match wake_at {
                Some(at) => clock.until(at).await,
                None => pending().await,
            }
        };
        let mut inputs = VecDeque::new();
        tokio::select! {
            order = order => match order {
                Some(order) => inputs.push_back(order),
                None => {
                    orders = None;
                    inputs.push_back(Input::HungUp);
                }
            },
            _ = children.recv() => inputs.extend(body.reap()),
            () = alarm => {}
        }
        inputs.push_back(Input::Woke); // check the clock after every event
        while let Some(input) = inputs.pop_front() {
            let mut effects = Vec::new();
            core.step(clock.now(), input, &mut effects);
            wake_at = None;
            for effect in effects {
                match effect {
                    Effect::Start => match body.start() {
                        Ok(group) => tell(&mut writer, News::Started { group }).await,
                        Err(error) => {
                            say(format_args!("muster: cannot start the command: {error}"));
                            inputs.extend([Input::Ended(Exit::Code(NOT_RUNNABLE)), Input::Gone]);
                        }
                    },
                    Effect::Signal(number) => body.signal(Signal::from_named_raw(number.into())),
                    Effect::Terminate => {
                        body.signal(Some(Signal::TERM));
                        body.signal(Some(Signal::CONT));
                    }
                    Effect::Kill => {
                        body.kill();
                        inputs.extend(body.reap());
                    }
                    Effect::Tell(report) => tell(&mut writer, News::Report(report)).await,
                    Effect::WakeAt(at) => wake_at = Some(at),
                    Effect::Leave => return Ok(()),
                }
            }
        }
    }
}

/// Ignores signals that are not for the guardian. Kept alive: none of them ends it.
pub(super) fn ignored() -> io::Result<Vec<Signals>> {
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::quit(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
    ];
    kinds.into_iter().map(signal).collect()
}

/// The other side's orders; ends with it, or at an invalid order.
pub(super) fn orders(mut reader: tokio::net::unix::OwnedReadHalf) -> mpsc::Receiver<Input> {
    let (tell, orders) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut frame = [0; FRAME];
        while reader.read_exact(&mut frame).await.is_ok() {
            let Some(order) = order_of(&frame) else { return };
            if tell.send(order).await.is_err() {
                return;
            }
        }
    });
    orders
}

async fn tell(writer: &mut tokio::net::unix::OwnedWriteHalf, news: News) {
    // The other side may be gone: the reader notices that.
    let _gone = writer.write_all(&news_frame(news)).await;
}

/// The command's processes.
struct Body<'a> {
    command: &'a [OsString],
    input: Option<Stdio>,
    child: Option<Pid>,
}

impl Body<'_> {
    fn start(&mut self) -> io::Result<i32> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("muster").arg(COMMAND).arg(getpid().to_string()).args(self.command);
        command.stdin(self.input.take().unwrap_or_else(Stdio::null)).process_group(0);
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        self.child = Pid::from_raw(pid);
        Ok(pid)
    }

    fn signal(&self, signal: Option<Signal>) {
        if let (Some(group), Some(signal)) = (self.child, signal) {
            family::signal(group, signal);
        }
    }

    fn kill(&self) {
        family::kill(self.child);
    }

    fn reap(&self) -> Vec<Input> {
        let reaped = family::reap();
        let ours = reaped.ended.into_iter().find(|(pid, _)| Some(*pid) == self.child);
        let ended = ours.map(|(_, exit)| Input::Ended(exit));
        ended.into_iter().chain((!reaped.left).then_some(Input::Gone)).collect()
    }
}

/// Becomes the command: it dies with the guardian that started it, from the first instruction on.
pub fn become_command(args: &[OsString]) -> ExitCode {
    let refuse = |why: String| {
        say(format_args!("muster: {why}"));
        ExitCode::from(NOT_RUNNABLE)
    };
    let guardian = args.first().and_then(|pid| pid.to_str()?.parse::<i32>().ok());
    let Some((program, rest)) = args.get(1..).and_then(|command| command.split_first()) else {
        return refuse("no command".to_owned());
    };
    let attributes = match Attributes::of_this_process() {
        Ok(attributes) => attributes,
        Err(why) => return refuse(why),
    };
    if let Err(why) = attributes.apply() {
        return refuse(why);
    }
    // After the user was changed, which clears it.
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    // The guardian may have died before the request took effect: then this process has another parent.
    let orphan = getppid().map(|pid| pid.as_raw_nonzero().get()) != guardian;
    if orphan || tied.is_err() {
        return ExitCode::from(NOT_RUNNABLE);
    }
    if let Err(why) = attributes.enter() {
        return refuse(why);
    }
    let mut command = Command::new(program);
    command.args(rest);
    Attributes::hide(&mut command);
    carried::hand_over(&mut command);
    let error = command.exec();
    say(format_args!("muster: cannot run {}: {error}", program.display()));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE })
}
