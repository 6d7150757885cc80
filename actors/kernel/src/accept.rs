//! Accepting connections of a Unix socket, over errors that pass.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};

/// After an error of the socket. Most likely the process is out of files: that passes when connections close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts the connections of one socket. Errors are logged when they begin and when they end: there is an attempt every 100 ms.
#[derive(Debug)]
pub struct Acceptor {
    listener: UnixListener,
    /// For the log, such as "admin socket".
    name: &'static str,
    is_failing: AtomicBool,
}

impl Acceptor {
    pub(crate) fn new(listener: UnixListener, name: &'static str) -> Self {
        Self { listener, name, is_failing: AtomicBool::new(false) }
    }

    /// The next connection. Cancelled: no connection is lost.
    pub async fn accept(&self) -> UnixStream {
        loop {
            let accepted = self.listener.accept().await;
            self.log(accepted.as_ref().err());
            match accepted {
                Ok((stream, _)) => return stream,
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn log(&self, error: Option<&io::Error>) {
        let (socket, was_failing) = (self.name, self.is_failing.swap(error.is_some(), Ordering::Relaxed));
        match error {
            Some(error) if !was_failing => tracing::warn!(%error, socket, "cannot accept connections; retrying"),
            None if was_failing => tracing::info!(socket, "connections are accepted again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use crate::{Access, UnixSocket};

    use super::*;

    /// The levels of the events of one thread.
    #[derive(Clone, Default)]
    struct Levels(Arc<Mutex<Vec<Level>>>);
    impl Subscriber for Levels {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            if event.metadata().target() == module_path!().trim_end_matches("::tests") {
                self.0.lock().unwrap().push(*event.metadata().level());
            }
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// Too many files are open, for as long as they are.
    #[tokio::test]
    async fn failing_socket_is_logged_when_it_begins_and_ends() {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixSocket::bind(&dir.path().join("sock"), "--socket", Access::Owner).unwrap();
        let acceptor = socket.acceptor("the socket").unwrap();
        let levels = Levels::default();
        tracing::subscriber::with_default(levels.clone(), || {
            let error = io::Error::other("too many open files");
            for attempt in [None, Some(&error), Some(&error), Some(&error), None, None, Some(&error)] {
                acceptor.log(attempt);
            }
        });
        assert_eq!(*levels.0.lock().unwrap(), [Level::WARN, Level::INFO, Level::WARN]);
    }
}
