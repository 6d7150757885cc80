//! A network between the nodes of one test whose links can be cut, slowed down or made longer.
//!
//! Owns        one proxy per node: the address that it advertises. A connection to a proxy is forwarded to its node.
//! Invariants  NETWORK-1  nothing crosses a cut link, in new and existing connections, and neither end is notified: as with a firewall
//!                        that drops packets. Once the link is restored, held data arrives in order, as TCP would retransmit it.
//!             NETWORK-2  every connection is attributed: one with an unknown dialler is closed.
//!             NETWORK-3  all connections of one link together carry at most the set number of bytes per second, in each direction.
//!             NETWORK-4  all data takes the set time from end to end, however much is on its way; a new connection takes it twice
//!                        before its first byte, as TCP's handshake does.
//! Why no network namespaces: they need root. The kernel tells which process owns the other end of a loopback connection, so a
//! proxy knows the dialler.
//!
//! A link has a direction: `n1` may receive from `n2` without sending to it. Admin sockets are not part of the network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// From and to.
pub type Link = (String, String);

/// Buffer of one direction of a connection.
const BUFFER: usize = 64 << 10;
/// How many of them may be on their way at once.
const ON_THE_WAY: usize = 256;

/// On drop every connection through it ends.
pub struct Network {
    runtime: Runtime,
    known: Arc<Known>,
    cut: watch::Sender<BTreeSet<Link>>,
    speed: Arc<Speed>,
}

/// Speed and length of every link.
#[derive(Default)]
struct Speed {
    /// Bytes per second, and until when sent data keeps each link busy.
    rate: Mutex<(Option<u32>, BTreeMap<Link, Instant>)>,
    /// Microseconds from end to end.
    delay: AtomicU32,
}

/// The node of each process.
#[derive(Default)]
pub struct Known(Mutex<BTreeMap<i32, String>>);

impl Network {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let cut = watch::Sender::new(BTreeSet::new());
        Self { runtime: runtime.expect("a runtime"), known: Arc::default(), cut, speed: Arc::default() }
    }

    /// A proxy for the node that listens here; returns its address.
    pub fn proxy(&self, node: &str, listens: SocketAddr) -> SocketAddr {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        listener.set_nonblocking(true).expect("the listener is not shared");
        let proxy = listener.local_addr().expect("it listens");
        let (known, cut, to) = (Arc::clone(&self.known), self.cut.subscribe(), node.to_owned());
        let speed = Arc::clone(&self.speed);
        self.runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a listener of this runtime");
            while let Ok((dialler, address)) = listener.accept().await {
                if let Some(from) = known.who_holds(address, proxy) {
                    tokio::spawn(relay_connection(
                        (from, to.clone()),
                        dialler,
                        listens,
                        cut.clone(),
                        Arc::clone(&speed),
                    ));
                }
            }
        });
        proxy
    }

    /// The owners of processes.
    pub fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known)
    }

    /// Cuts these links and restores all others.
    pub fn cut(&self, links: impl IntoIterator<Item = Link>) {
        self.cut.send_replace(links.into_iter().collect());
    }

    /// Cuts all links between two groups, in both directions.
    pub fn part(&self, one: &[&str], other: &[&str]) {
        let pairs = one.iter().flat_map(|a| other.iter().map(move |b| ((*a).to_owned(), (*b).to_owned())));
        self.cut(pairs.flat_map(|(a, b)| [(a.clone(), b.clone()), (b, a)]));
    }

    /// Limits a link to this many bytes per second in each direction.
    pub fn slow(&self, bytes_per_second: u32) {
        self.speed.rate.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(bytes_per_second);
    }

    /// What is sent from now on arrives this much later: half a round trip.
    pub fn lengthen(&self, delay: Duration) {
        self.speed.delay.store(u32::try_from(delay.as_micros()).expect("a short time"), Ordering::Relaxed);
    }

    /// Restores every link.
    pub fn restore(&self) {
        self.cut([]);
    }
}

impl Known {
    /// Assigns this process to a node.
    pub fn runs(&self, node: &str, pid: i32) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, name| name != node);
        known.insert(pid, node.to_owned());
    }

    /// The node that owns the socket at this end of a loopback connection.
    fn who_holds(&self, end: SocketAddr, other: SocketAddr) -> Option<String> {
        let socket = format!("socket:[{}]", inode(end, other)?);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let holds = |pid: &i32| {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            files.map(|file| std::fs::read_link(file.path())).any(|link| link.is_ok_and(|l| l.as_os_str() == &*socket))
        };
        known.into_iter().find(|(pid, _)| holds(pid)).map(|(_, node)| node)
    }
}

/// The socket at one end of a connection in the format of proc(5): hexadecimal addresses in the machine's byte order.
fn inode(end: SocketAddr, other: SocketAddr) -> Option<u64> {
    let written = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(v4.ip().octets()), v4.port())),
        SocketAddr::V6(_) => None,
    };
    let (end, other) = (written(end)?, written(other)?);
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1..3)? == [&*end, &*other]).then(|| fields.get(9)?.parse().ok())?
    })
}

impl Speed {
    /// Waits while these bytes keep the link busy, after earlier ones.
    async fn wait_for_capacity(&self, link: &Link, bytes: usize) {
        let until = {
            let mut state = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(rate) = state.0 else { return };
            let until = state.1.entry(link.clone()).or_insert_with(Instant::now);
            *until = (*until).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / f64::from(rate));
            *until
        };
        tokio::time::sleep_until(until).await;
    }

    fn delay(&self) -> Duration {
        Duration::from_micros(self.delay.load(Ordering::Relaxed).into())
    }
}

/// One connection, from its first packet.
async fn relay_connection(
    link: Link,
    dialler: TcpStream,
    listens: SocketAddr,
    cut: watch::Receiver<BTreeSet<Link>>,
    speed: Arc<Speed>,
) {
    let back = (link.1.clone(), link.0.clone());
    whole(&link, &mut cut.clone()).await;
    tokio::time::sleep(speed.delay() * 2).await;
    // No listener: the dialler's connection ends.
    let Ok(node) = TcpStream::connect(listens).await else { return };
    let [_, _] = [&dialler, &node].map(|stream| stream.set_nodelay(true));
    let ((from_dialler, to_dialler), (from_node, to_node)) = (dialler.into_split(), node.into_split());
    tokio::join!(
        carry(&link, from_dialler, to_node, cut.clone(), &speed),
        carry(&back, from_node, to_dialler, cut.clone(), &speed)
    );
}

/// One direction, to its end. Neither data nor the end crosses a cut link.
async fn carry(
    link: &Link,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut cut: watch::Receiver<BTreeSet<Link>>,
    speed: &Speed,
) {
    let (sent, mut arriving) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let mut sending = cut.clone();
    let send = async {
        let mut buffer = vec![0; BUFFER];
        loop {
            let read = from.read(&mut buffer).await.unwrap_or(0);
            whole(link, &mut sending).await;
            speed.wait_for_capacity(link, read).await;
            // An empty one is the end.
            if sent.send((Instant::now() + speed.delay(), buffer[..read].to_vec())).await.is_err() || read == 0 {
                break std::future::pending().await;
            }
        }
    };
    let receive = async {
        while let Some((at, data)) = arriving.recv().await {
            tokio::time::sleep_until(at).await;
            whole(link, &mut cut).await;
            if data.is_empty() || to.write_all(&data).await.is_err() {
                break;
            }
        }
        let _gone_already = to.shutdown().await;
    };
    tokio::select! {
        () = send => {}
        () = receive => {}
    }
}

async fn whole(link: &Link, cut: &mut watch::Receiver<BTreeSet<Link>>) {
    // An error means that the network was dropped.
    let _whole = cut.wait_for(|cut| !cut.contains(link)).await;
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream as StdStream;

    use super::*;
    use crate::harness::{WAIT_LIMIT, scenario_pause};

    /// This process is n1 and dials n2, a thread that echoes.
    fn echo() -> (Network, SocketAddr) {
        let network = Network::new();
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let proxy = network.proxy("n2", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().take(2).flatten() {
                let (mut from, mut to) = (stream.try_clone().unwrap(), stream);
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        });
        (network, proxy)
    }

    fn dial(proxy: SocketAddr) -> StdStream {
        let stream = StdStream::connect(proxy).unwrap();
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        stream
    }

    /// No answer arrives for a moment.
    fn is_unanswered(stream: &mut StdStream) {
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let silence = answers(stream).unwrap_err().kind();
        assert!(matches!(silence, std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut), "{silence}");
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    }

    /// One byte there and back.
    fn answers(stream: &mut StdStream) -> std::io::Result<()> {
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])
    }

    #[test]
    fn cut_link_is_silent_and_resumes_when_restored() {
        let (network, proxy) = echo();
        network.known().runs("n1", std::process::id().cast_signed());
        let mut old = dial(proxy);
        answers(&mut old).unwrap();
        for (from, to) in [("n1", "n2"), ("n2", "n1")] {
            network.cut([(from.to_owned(), to.to_owned())]);
            is_unanswered(&mut old);
            network.restore();
            old.read_exact(&mut [0]).unwrap();
        }
        network.part(&["n1"], &["n2", "n3"]);
        let mut new = dial(proxy);
        is_unanswered(&mut new);
        network.restore();
        new.read_exact(&mut [0]).unwrap();
    }

    #[test]
    fn data_takes_its_time_on_a_long_link() {
        let (network, proxy) = echo();
        network.known().runs("n1", std::process::id().cast_signed());
        let delay = Duration::from_millis(30);
        network.lengthen(delay);
        let begun = Instant::now();
        let mut stream = dial(proxy);
        answers(&mut stream).unwrap();
        assert!(begun.elapsed() >= delay * 4, "connected, there and back");
        let begun = Instant::now();
        stream.write_all(b"x").unwrap();
        scenario_pause("more follows on the same link", delay / 2);
        stream.write_all(b"y").unwrap();
        stream.read_exact(&mut [0; 2]).unwrap();
        assert!(begun.elapsed() >= delay * 2 + delay / 2);
    }

    #[test]
    fn connections_from_unknown_processes_are_closed() {
        let (_network, proxy) = echo();
        let mut stranger = dial(proxy);
        assert!(answers(&mut stranger).is_err_and(|e| e.kind() != std::io::ErrorKind::WouldBlock));
    }
}
