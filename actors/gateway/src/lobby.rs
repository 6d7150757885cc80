//! The threads of connections that no service has yet.
//!
//! Strangers decide how many handshakes there are, so these must not share a queue with anything that holds the cluster
//! together: a thousand of them in front of a heartbeat cost a leader its office. One thread does nothing but accept, so
//! that the kernel's queue never fills (a first packet dropped there comes again after a second); handshakes, refusals and
//! waiting for a first byte have threads of their own. [`Lobby::move_out`] brings an admitted connection to the runtime
//! where its service lives.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};

/// The most threads for handshakes: one does some thousand a second, and services need the other cores.
const MOST_THREADS: usize = 4;

/// The threads. Dropping it ends them, and with them all that waits.
#[derive(Debug)]
pub(crate) struct Lobby {
    // Always there, until dropped: a runtime may only end in the background, because it may be dropped by a task.
    accepting: Option<Runtime>,
    waiting: Option<Runtime>,
    /// Where the services live: the runtime that made this lobby.
    services: Handle,
}

fn runtime(name: &'static str, threads: usize) -> io::Result<Runtime> {
    let next = AtomicUsize::new(0);
    Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name_fn(move || format!("{name}-{}", next.fetch_add(1, Ordering::Relaxed)))
        .enable_all()
        .build()
}

impl Lobby {
    /// # Errors
    /// The system gives no more threads or file descriptors.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn open() -> io::Result<Self> {
        let half = available_parallelism().map_or(1, |cores| cores.get() / 2);
        Ok(Self {
            accepting: Some(runtime("accept", 1)?),
            waiting: Some(runtime("handshake", half.clamp(1, MOST_THREADS))?),
            services: Handle::current(),
        })
    }

    /// Where connections are accepted.
    pub(crate) fn accepting(&self) -> &Handle {
        self.accepting.as_ref().expect("a lobby has its threads until it is dropped").handle()
    }

    /// Where they are until a service has them.
    pub(crate) fn waiting(&self) -> &Handle {
        self.waiting.as_ref().expect("a lobby has its threads until it is dropped").handle()
    }

    /// Takes a listener over from the runtime in which it was bound.
    pub(crate) fn take_over(&self, listener: TcpListener) -> io::Result<TcpListener> {
        let listener = listener.into_std()?;
        let _inside = self.accepting().enter();
        TcpListener::from_std(listener)
    }

    /// The next connection; its readiness is told to the threads of those that wait.
    pub(crate) async fn accept(&self, listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        std::future::poll_fn(|cx| {
            let _inside = self.waiting().enter();
            listener.poll_accept(cx)
        })
        .await
    }

    /// Brings a socket to the services' runtime: their threads hear of its readiness from now on.
    ///
    /// # Errors
    /// Out of file descriptors: for a moment the socket has two.
    pub(crate) fn move_out(&self, socket: &mut TcpStream) -> io::Result<()> {
        let same = std::net::TcpStream::from(socket.as_fd().try_clone_to_owned()?);
        let _inside = self.services.enter();
        *socket = TcpStream::from_std(same)?;
        Ok(())
    }
}

impl Drop for Lobby {
    fn drop(&mut self) {
        for runtime in [self.accepting.take(), self.waiting.take()].into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}
