//! Two actors of a program's own, in the tree of its daemon. `notifier` follows the cluster's events and decides what is worth a note; `notes`
//! writes notes to a file. docs/embedding.md shows them at work, and `tests/` how they are tested without a cluster.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster::daemon::Host;
use muster_client::{Client, ErrorCode, EventKind, EventView, EventWatch, EventsView, Outcome, Revision};
use muster_kernel::{Address, Children, Cx, Fault, Named, Recipient, Shell, Slot, Spec};
use serde_json::{Value, json};

/// How long one question to the daemon may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a failure that may pass.
const PAUSE: Duration = Duration::from_secs(1);

/// Starts both in a daemon, in this order.
pub fn start(host: &Host, children: &Children) -> Result<(), Fault> {
    let (notes, notifier) = (Address::<NotesMsg>::new(256), Address::new(8));
    let (file, position) = (host.data_dir.join("own-notes"), Slot::new());
    position.set(last_noted(&file)?);
    children.start(Spec::actor("notes", notes.clone(), move || Ok(Notes { file: file.clone(), written: 0 })));
    let socket = host.socket.clone();
    children.start(
        Spec::actor("notifier", notifier, move || {
            let events = Followed { client: Client::to_socket(&socket, TIMEOUT), watch: None };
            Ok(Notifier::new(Box::new(events), notes.recipient(), position.clone()))
        })
        .requires("notes"),
    );
    Ok(())
}

/// The revision of the last note: a process resumes where the one before has stopped. 0 without notes.
fn last_noted(file: &Path) -> Result<Revision, Fault> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Revision(0)),
        read => read?,
    };
    let Some(line) = text.lines().next_back() else { return Ok(Revision(0)) };
    let number = line.split(' ').next().and_then(|word| word.parse().ok());
    number.map(Revision).ok_or_else(|| Fault(format!("{}: the last line has no revision", file.display())))
}

/// Where events come from. A test has its own.
pub trait Events: Send + 'static {
    /// The next ones after a position; 0: from the oldest one that is kept.
    fn next(&mut self, after: Revision) -> BoxFuture<'_, Outcome<EventsView<EventView>>>;
}

/// The events of a cluster, by the socket of the daemon around.
struct Followed {
    client: Client,
    watch: Option<EventWatch>,
}

impl Events for Followed {
    fn next(&mut self, after: Revision) -> BoxFuture<'_, Outcome<EventsView<EventView>>> {
        let watch = self.watch.get_or_insert_with(|| self.client.watch_events(after));
        Box::pin(watch.next())
    }
}

/// Messages of the notifier: only its own task sends it any.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum NotifierMsg {
    /// The next events, or why there are none. With the source, for the next question. Lost with the incarnation that asked: the next one
    /// asks from the same position.
    Arrived { events: Box<dyn Events>, page: Outcome<EventsView<EventView>> },
}

/// Follows events, and has notes written of those about nodes.
pub struct Notifier {
    events: Option<Box<dyn Events>>,
    notes: Recipient<NotesMsg>,
    /// Up to where notes were sent. It outlives a crash of the actor, and not one of the process.
    position: Slot<Revision>,
    noted: usize,
}

impl Notifier {
    /// A notifier for these events.
    pub fn new(events: Box<dyn Events>, notes: Recipient<NotesMsg>, position: Slot<Revision>) -> Self {
        Self { events: Some(events), notes, position, noted: 0 }
    }

    fn ask(&self, cx: &Cx<NotifierMsg>, mut events: Box<dyn Events>, pause: Duration) {
        let after = self.position.get().unwrap_or(Revision(0));
        cx.report(async move {
            tokio::time::sleep(pause).await;
            let page = events.next(after).await;
            NotifierMsg::Arrived { events, page }
        });
    }
}

impl Shell for Notifier {
    type Msg = NotifierMsg;
    const KIND: &'static str = "Notifier";

    async fn started(&mut self, cx: &Cx<NotifierMsg>) -> Result<(), Fault> {
        let events = self.events.take().expect("a new incarnation has them");
        self.ask(cx, events, Duration::ZERO);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<NotifierMsg>, msg: NotifierMsg) -> Result<(), Fault> {
        let NotifierMsg::Arrived { events, page } = msg;
        match page {
            Ok(page) => {
                let lines: Vec<String> = page.items.iter().filter_map(note).collect();
                self.noted += lines.len();
                if !lines.is_empty() {
                    // A full mailbox is a fault: the next incarnation asks for the same events again.
                    self.notes.tell(NotesMsg::Append { lines })?;
                }
                self.position.set(page.revision);
                self.ask(cx, events, Duration::ZERO);
            }
            Err(failure) if failure.may_pass() => self.ask(cx, events, PAUSE),
            Err(failure) => {
                // Those after the position are lost, or it is of another cluster: the next incarnation takes all that are kept.
                if failure.is(ErrorCode::Expired) {
                    self.position.set(Revision(0));
                }
                return Err(Fault(failure.to_string()));
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        json!({"position": self.position.get(), "noted": self.noted})
    }
}

/// What is noted of an event, if it is.
fn note(event: &EventView) -> Option<String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let kind = event.kind.known()?;
    [EventKind::Node, EventKind::Role, EventKind::Membership]
        .contains(&kind)
        .then(|| format!("{} {}: {} -> {}", event.revision, event.reason, text(&event.before), text(&event.after)))
}

/// Messages of the writer.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum NotesMsg {
    /// Appends the notes of one page. Lost if the actor fails before they are written; repeated: written twice.
    Append { lines: Vec<String> },
}

/// Appends a page as a whole, or nothing of it: a full disk takes the first part of a write.
fn append<F: Write>(file: &mut F, page: &[u8], cut: impl FnOnce(&mut F) -> std::io::Result<()>) -> std::io::Result<()> {
    let written = file.write_all(page);
    if written.is_err() {
        cut(file)?;
    }
    written
}

/// Writes notes to a file. A failure of the disk is a fault, and its supervisor starts it again.
pub struct Notes {
    file: PathBuf,
    written: usize,
}

impl Shell for Notes {
    type Msg = NotesMsg;
    const KIND: &'static str = "Notes";

    async fn handle(&mut self, _cx: &Cx<NotesMsg>, NotesMsg::Append { lines }: NotesMsg) -> Result<(), Fault> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.file)?;
        let end = file.metadata()?.len();
        append(&mut file, (lines.join("\n") + "\n").as_bytes(), |file: &mut File| file.set_len(end))?;
        self.written += lines.len();
        Ok(())
    }

    fn view(&self) -> Value {
        json!({"written": self.written})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for so many bytes.
    struct Disk(Vec<u8>, usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let taken = bytes.len().min(self.1 - self.0.len());
            self.0.extend_from_slice(&bytes[..taken]);
            if taken == 0 { Err(ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn full_disk_keeps_no_part_of_a_page() {
        let mut disk = Disk(Vec::new(), 16);
        for (page, fits) in [("7 one\n", true), ("8 two\n9 three\n", false), ("8 two\n", true)] {
            let end = disk.0.len();
            let written = append(&mut disk, page.as_bytes(), |disk| {
                disk.0.truncate(end);
                Ok(())
            });
            assert_eq!(written.is_ok(), fits, "{page}");
        }
        assert_eq!(disk.0, b"7 one\n8 two\n");
    }
}
