//! The handshake pool: threads for connections that no service has yet.
//!
//! Unauthenticated clients determine the number of handshakes, so these must not share a queue with anything that the
//! cluster depends on: a thousand of them ahead of a heartbeat cost a leader its leadership. One thread only accepts, so
//! that the kernel's queue never fills (a first packet dropped there is resent after a second); handshakes, refusals and
//! waits for a first byte have separate threads. [`HandshakePool::move_to_services`] moves an admitted connection to the runtime of its
//! service.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};

/// The most threads for handshakes: each does about a thousand per second, and services need the other cores.
const MAX_HANDSHAKE_THREADS: usize = 4;

/// The threads. Dropping it ends them and all connections waiting there.
#[derive(Debug)]
pub(crate) struct HandshakePool {
    // `Some` until dropped: a runtime must end in the background, because a task may drop it.
    accepting: Option<Runtime>,
    waiting: Option<Runtime>,
    /// The runtime of the services, in which this pool was created.
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

impl HandshakePool {
    /// # Errors
    /// Out of threads or file descriptors.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn open() -> io::Result<Self> {
        let half = available_parallelism().map_or(1, |cores| cores.get() / 2);
        Ok(Self {
            accepting: Some(runtime("accept", 1)?),
            waiting: Some(runtime("handshake", half.clamp(1, MAX_HANDSHAKE_THREADS))?),
            services: Handle::current(),
        })
    }

    pub(crate) fn accepting(&self) -> &Handle {
        self.accepting.as_ref().expect("the threads exist until the drop").handle()
    }

    /// Handles connections until a service has them.
    pub(crate) fn waiting(&self) -> &Handle {
        self.waiting.as_ref().expect("the threads exist until the drop").handle()
    }

    /// Takes a listener over from the runtime in which it was bound.
    pub(crate) fn take_over(&self, listener: TcpListener) -> io::Result<TcpListener> {
        let listener = listener.into_std()?;
        let _inside = self.accepting().enter();
        TcpListener::from_std(listener)
    }

    /// The next connection, registered with the runtime of waiting connections.
    pub(crate) async fn accept(&self, listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        std::future::poll_fn(|cx| {
            let _inside = self.waiting().enter();
            listener.poll_accept(cx)
        })
        .await
    }

    /// Moves a socket to the services' runtime, which then polls its readiness.
    ///
    /// # Errors
    /// Out of file descriptors: the socket briefly has two.
    pub(crate) fn move_to_services(&self, socket: &mut TcpStream) -> io::Result<()> {
        let same = std::net::TcpStream::from(socket.as_fd().try_clone_to_owned()?);
        let _inside = self.services.enter();
        *socket = TcpStream::from_std(same)?;
        Ok(())
    }
}

impl Drop for HandshakePool {
    fn drop(&mut self) {
        for runtime in [self.accepting.take(), self.waiting.take()].into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}
