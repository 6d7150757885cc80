//! Two actors that restart together: a reader that keeps its place across crashes, and a writer that it feeds. Run it with
//! `cargo run -p muster-kernel --example pipeline`; it ends by itself.

use std::time::Duration;

use muster_kernel::{
    ActorNode, Address, CrashHow, Cx, Fault, Intensity, Named, Recipient, Shell, Slot, Spec, Strategy, Supervisor, Tree,
};

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
enum ReaderMsg {
    Read,
}

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
enum WriterMsg {
    Write(u64),
}

/// Reads a number every 10 ms.
struct Reader {
    /// The next number: the successor of a crashed reader continues there.
    next: Slot<u64>,
    writer: Recipient<WriterMsg>,
}

impl Shell for Reader {
    type Msg = ReaderMsg;
    const KIND: &'static str = "Reader";

    async fn started(&mut self, cx: &Cx<ReaderMsg>) -> Result<(), Fault> {
        cx.after(Duration::ZERO, ReaderMsg::Read);
        Ok(())
    }
    async fn handle(&mut self, cx: &Cx<ReaderMsg>, ReaderMsg::Read: ReaderMsg) -> Result<(), Fault> {
        let number = self.next.get().unwrap_or(0);
        self.writer.tell(WriterMsg::Write(number))?; // a fault if the writer is down: both start again
        self.next.set(number + 1);
        cx.after(Duration::from_millis(10), ReaderMsg::Read);
        Ok(())
    }
}

struct Writer {
    written: Slot<Vec<u64>>,
}

impl Shell for Writer {
    type Msg = WriterMsg;
    const KIND: &'static str = "Writer";

    async fn handle(&mut self, _cx: &Cx<WriterMsg>, WriterMsg::Write(number): WriterMsg) -> Result<(), Fault> {
        let mut written = self.written.get().unwrap_or_default();
        written.push(number);
        self.written.set(written);
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let tree = Tree::new();
    let root = Supervisor::root("app", tree.clone(), Intensity::default()).await.expect("a root starts");
    let (next, written) = (Slot::new(), Slot::new());
    let kept = written.clone();
    root.children().start(Spec::group("pipeline", Strategy::OneForAll, move |children| {
        let (reader, writer) = (Address::new(1), Address::new(64));
        let (to_writer, next, written) = (writer.recipient(), next.clone(), written.clone());
        children.start(Spec::actor("writer", writer, move || Ok(Writer { written: written.clone() })));
        let make = move || Ok(Reader { next: next.clone(), writer: to_writer.clone() });
        children.start(Spec::actor("reader", reader, make).requires("writer"));
        Ok(())
    }));

    until(&tree, "app/pipeline/reader", |actor| actor.handled >= 5).await;
    drop(tree.crash("app/pipeline/writer", CrashHow::Error).expect("the writer runs"));
    let reader = until(&tree, "app/pipeline/reader", |actor| actor.incarnation == 2 && actor.handled >= 10).await;
    println!("the reader: incarnation {}, {} messages", reader.incarnation, reader.handled);
    let writer = tree.inspect("app/pipeline/writer").await.expect("it is in the tree");
    println!("the writer: incarnation {}, ended before by: {}", writer.incarnation, writer.last_exits[0].text);

    root.shut_down().await;
    let written = kept.get().unwrap_or_default();
    assert!(written.is_sorted(), "{written:?}");
    println!("written: {written:?}");
}

async fn until(tree: &Tree, path: &str, holds: impl Fn(&ActorNode) -> bool) -> ActorNode {
    loop {
        match tree.inspect(path).await {
            Ok(actor) if holds(&actor) => return actor,
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}
