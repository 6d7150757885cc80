//! Prints role changes as they happen, and resumes after a restart: `cargo run -p muster-client --example watch [SOCKET] [STORE]`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use muster_client::{Client, ErrorCode, EventKind, EventView, EventsView, Failure, Outcome, Revision};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let socket = args.next().unwrap_or_else(|| "/run/muster/muster.sock".to_owned());
    let store = args.next().unwrap_or_else(|| "position".to_owned());
    match follow(&socket, Path::new(&store)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            failure.exit.into()
        }
    }
}

async fn follow(socket: &str, store: &Path) -> Outcome {
    let mut client = Client::to_socket(socket, Duration::from_secs(5));
    let stored = std::fs::read_to_string(store).ok().and_then(|text| text.parse().ok());
    let since = match stored {
        Some(revision) => Revision(revision),
        None => everything(&mut client).await?,
    };
    let mut watch = client.watch_events(since);
    loop {
        let page: EventsView<EventView> = match watch.next().await {
            Ok(page) => page,
            // No daemon or manager answers at the moment.
            Err(failure) if failure.may_pass() => {
                eprintln!("{failure}");
                continue;
            }
            Err(failure) if failure.is(ErrorCode::Expired) => {
                let since = everything(&mut client).await?;
                watch = client.watch_events(since);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        for event in page.items.iter().filter(|event| event.kind == EventKind::Role) {
            let text = |value: &Option<String>| value.clone().unwrap_or_default();
            println!("{}: {} -> {}", event.revision, text(&event.before), text(&event.after));
        }
        // A real program stores it together with what it has made of the events.
        let next = store.with_extension("new");
        std::fs::write(&next, watch.position().to_string())
            .and_then(|()| std::fs::rename(&next, store))
            .map_err(|e| Failure::io(store.display(), &e))?;
    }
}

/// Prints what there is, and returns the revision from which changes follow.
async fn everything(client: &mut Client) -> Outcome<Revision> {
    let nodes = client.nodes().await?;
    for node in &nodes.items {
        println!("{}: {}", node.name, node.role);
    }
    Ok(nodes.revision)
}
