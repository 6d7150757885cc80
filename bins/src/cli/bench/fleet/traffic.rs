//! Counts what agents send and receive: a connection like any other, with counters.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_agent::core::Loss;
use muster_agent::{Dial, Dialled};
use muster_gateway::{BoxStream, Dialer, Framed};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The traffic of all agents since they began, inside TLS: after the greeting, with the four bytes before each frame.
#[derive(Debug, Default)]
pub struct Traffic {
    frames: AtomicU64,
    bytes: AtomicU64,
}

/// The traffic up to some moment, or between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub frames: u64,
    pub bytes: u64,
}

impl Traffic {
    pub fn amount(&self) -> Amount {
        Amount { frames: self.frames.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }

    fn add(&self, direction: &mut Direction, bytes: &[u8]) {
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.frames.fetch_add(direction.frames_begun(bytes), Ordering::Relaxed);
    }
}

impl Amount {
    pub fn since(self, before: Self) -> Self {
        Self { frames: self.frames - before.frames, bytes: self.bytes - before.bytes }
    }
}

/// A dialer whose connections are counted.
pub struct CountingDialer {
    pub dialer: Dialer,
    pub traffic: Arc<Traffic>,
}

impl Dial for CountingDialer {
    fn dial(&self, addr: String) -> BoxFuture<'static, Result<Dialled, Loss>> {
        let (dialing, traffic) = (Dial::dial(&self.dialer, addr), Arc::clone(&self.traffic));
        async move {
            let dialled = dialing.await?;
            let counted = Counted {
                stream: dialled.stream.into_inner(),
                traffic,
                read: Direction::default(),
                written: Direction::default(),
            };
            Ok(Dialled { stream: Framed::new(Box::pin(counted)), ..dialled })
        }
        .boxed()
    }
}

struct Counted {
    stream: BoxStream,
    traffic: Arc<Traffic>,
    read: Direction,
    written: Direction,
}

/// Where one direction of a connection is within its frames.
#[derive(Debug, Default)]
struct Direction {
    /// How much of the next frame's length has arrived, and that length.
    header: (u8, u32),
    /// Bytes that the present frame still lacks.
    missing: usize,
}

impl Direction {
    /// The number of frames whose length ends within these bytes.
    fn frames_begun(&mut self, mut bytes: &[u8]) -> u64 {
        let mut begun = 0;
        while let Some((first, rest)) = bytes.split_first() {
            if self.missing > 0 {
                let passed = self.missing.min(bytes.len());
                self.missing -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            let (count, length) = self.header;
            self.header = (count + 1, length << 8 | u32::from(*first));
            if count == 3 {
                begun += 1;
                self.missing = self.header.1 as usize;
                self.header = (0, 0);
            }
            bytes = rest;
        }
        begun
    }
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let this = &mut *self;
        ready!(this.stream.as_mut().poll_read(cx, buf))?;
        this.traffic.add(&mut this.read, &buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let written = ready!(this.stream.as_mut().poll_write(cx, bytes))?;
        this.traffic.add(&mut this.written, &bytes[..written]);
        Poll::Ready(Ok(written))
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_counted_however_they_are_cut() {
        let (near, far) = tokio::io::duplex(7);
        let traffic = Arc::<Traffic>::default();
        let counted = Counted {
            stream: Box::pin(near),
            traffic: Arc::clone(&traffic),
            read: Direction::default(),
            written: Direction::default(),
        };
        let mut ours: Framed<BoxStream> = Framed::new(Box::pin(counted));
        let mut theirs: Framed<BoxStream> = Framed::new(Box::pin(far));
        let text = "a frame longer than the pipe".to_owned();
        for _ in 0..3 {
            let (sent, received) = tokio::join!(ours.send(&text), theirs.recv::<String>());
            assert_eq!((sent.is_ok(), received.unwrap().as_ref()), (true, Some(&text)));
        }
        let sent = traffic.amount();
        assert_eq!(sent.frames, 3);
        let (sent_back, received) = tokio::join!(theirs.send(&text), ours.recv::<String>());
        assert_eq!((sent_back.is_ok(), received.unwrap().as_ref()), (true, Some(&text)));
        let both = traffic.amount();
        assert_eq!(both.since(sent), Amount { frames: 1, bytes: sent.bytes / 3 });
        assert!(sent.bytes > 3 * text.len() as u64, "with their lengths");
    }

    #[test]
    fn frames_in_one_piece_or_in_single_bytes_are_the_same() {
        let stream = [0, 0, 0, 2, 7, 7, 0, 0, 0, 1, 7, 0, 0, 0, 3, 7];
        assert_eq!(Direction::default().frames_begun(&stream), 3);
        let mut slowly = Direction::default();
        assert_eq!(stream.iter().map(|byte| slowly.frames_begun(&[*byte])).sum::<u64>(), 3);
    }
}
