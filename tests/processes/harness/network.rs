//! A network between the nodes of one test whose links can be cut, or slow.
//!
//! Owns   one door per node: the address that it advertises. Whoever dials a door is passed on to the node behind it.
//! Keeps  NETWORK-1  nothing crosses a link that is cut, in neither a new connection nor an old one, and nobody is told: what a firewall
//!                   that drops packets does. Once the link is whole again, what was held back arrives in its order, as TCP would send it anew.
//!        NETWORK-2  nobody gets past it: a connection whose dialler is not known is closed.
//!        NETWORK-3  all connections of one link together carry as many bytes per second as the test says, in each direction.
//! Why no network namespaces: they need root. The kernel says whose socket is at the other end of a connection on loopback, and so a
//! door knows who dials.
//!
//! A link has a direction: `n1` may hear `n2` without being heard. Admin sockets are no part of the network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::Instant;

/// From whom to whom.
pub type Link = (String, String);

/// What one direction of a connection holds on its way.
const BUFFER: usize = 64 << 10;

/// Dropped: every connection through it ends.
pub struct Network {
    runtime: Runtime,
    known: Arc<Known>,
    cut: watch::Sender<BTreeSet<Link>>,
    speed: Arc<Speed>,
}

/// How fast every link is, and until when what was sent keeps it busy.
#[derive(Default)]
struct Speed(Mutex<(Option<u32>, BTreeMap<Link, Instant>)>);

/// Which process is which node.
#[derive(Default)]
pub struct Known(Mutex<BTreeMap<i32, String>>);

impl Network {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let cut = watch::Sender::new(BTreeSet::new());
        Self { runtime: runtime.expect("a runtime"), known: Arc::default(), cut, speed: Arc::default() }
    }

    /// A door to the node that listens here; its address.
    pub fn door(&self, node: &str, listens: SocketAddr) -> SocketAddr {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        listener.set_nonblocking(true).expect("a listener that is only ours");
        let door = listener.local_addr().expect("it listens");
        let (known, cut, to) = (Arc::clone(&self.known), self.cut.subscribe(), node.to_owned());
        let speed = Arc::clone(&self.speed);
        self.runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a listener of this runtime");
            while let Ok((dialler, address)) = listener.accept().await {
                if let Some(from) = known.who_holds(address, door) {
                    tokio::spawn(pass_on((from, to.clone()), dialler, listens, cut.clone(), Arc::clone(&speed)));
                }
            }
        });
        door
    }

    /// Whose processes are whose.
    pub fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known)
    }

    /// From now on nothing crosses these links, and everything all others.
    pub fn cut(&self, links: impl IntoIterator<Item = Link>) {
        self.cut.send_replace(links.into_iter().collect());
    }

    /// Nothing crosses between one side and the other, in either direction.
    pub fn part(&self, one: &[&str], other: &[&str]) {
        let pairs = one.iter().flat_map(|a| other.iter().map(move |b| ((*a).to_owned(), (*b).to_owned())));
        self.cut(pairs.flat_map(|(a, b)| [(a.clone(), b.clone()), (b, a)]));
    }

    /// From now on a link carries so many bytes per second in each direction.
    pub fn slow(&self, bytes_per_second: u32) {
        self.speed.0.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(bytes_per_second);
    }

    /// Every link is whole again.
    pub fn heal(&self) {
        self.cut([]);
    }
}

impl Known {
    /// This process is that node.
    pub fn runs(&self, node: &str, pid: i32) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, name| name != node);
        known.insert(pid, node.to_owned());
    }

    /// The node that holds the socket at this end of a connection on loopback.
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

/// Of the socket at one end of a connection, as proc(5) writes it down: addresses in hexadecimal, in the machine's own order of bytes.
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
    /// Waits as long as these bytes keep the link busy, after what was sent before.
    async fn carries(&self, link: &Link, bytes: usize) {
        let until = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(rate) = state.0 else { return };
            let until = state.1.entry(link.clone()).or_insert_with(Instant::now);
            *until = (*until).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / f64::from(rate));
            *until
        };
        tokio::time::sleep_until(until).await;
    }
}

/// One connection, from the packet that opens it.
async fn pass_on(
    link: Link,
    dialler: TcpStream,
    listens: SocketAddr,
    cut: watch::Receiver<BTreeSet<Link>>,
    speed: Arc<Speed>,
) {
    let back = (link.1.clone(), link.0.clone());
    whole(&link, &mut cut.clone()).await;
    // Nobody listens: the dialler sees its connection end.
    let Ok(node) = TcpStream::connect(listens).await else { return };
    let [_, _] = [&dialler, &node].map(|stream| stream.set_nodelay(true));
    let ((from_dialler, to_dialler), (from_node, to_node)) = (dialler.into_split(), node.into_split());
    tokio::join!(
        carry(&link, from_dialler, to_node, cut.clone(), &speed),
        carry(&back, from_node, to_dialler, cut.clone(), &speed)
    );
}

/// One direction of it, to its end. Neither data nor the end of it crosses a link that is cut.
async fn carry(
    link: &Link,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut cut: watch::Receiver<BTreeSet<Link>>,
    speed: &Speed,
) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        whole(link, &mut cut).await;
        speed.carries(link, read).await;
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    let _gone_already = to.shutdown().await;
}

async fn whole(link: &Link, cut: &mut watch::Receiver<BTreeSet<Link>>) {
    // An error: the network is gone, and this with it.
    let _whole = cut.wait_for(|cut| !cut.contains(link)).await;
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream as StdStream;

    use super::*;
    use crate::harness::PATIENCE;

    /// This process is n1 and dials n2, whose part a thread plays: it sends back what it hears.
    fn echo() -> (Network, SocketAddr) {
        let network = Network::new();
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let door = network.door("n2", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().take(2).flatten() {
                let (mut from, mut to) = (stream.try_clone().unwrap(), stream);
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        });
        (network, door)
    }

    fn dial(door: SocketAddr) -> StdStream {
        let stream = StdStream::connect(door).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// No answer comes for a moment.
    fn is_silent(stream: &mut StdStream) {
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let silence = answers(stream).unwrap_err().kind();
        assert!(matches!(silence, std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut), "{silence}");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }

    /// One byte there and back.
    fn answers(stream: &mut StdStream) -> std::io::Result<()> {
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])
    }

    #[test]
    fn what_is_cut_is_silent_in_either_direction_and_goes_on_when_it_is_healed() {
        let (network, door) = echo();
        network.known().runs("n1", std::process::id().cast_signed());
        let mut old = dial(door);
        answers(&mut old).unwrap();
        for (from, to) in [("n1", "n2"), ("n2", "n1")] {
            network.cut([(from.to_owned(), to.to_owned())]);
            is_silent(&mut old);
            network.heal();
            old.read_exact(&mut [0]).unwrap();
        }
        network.part(&["n1"], &["n2", "n3"]);
        let mut new = dial(door);
        is_silent(&mut new);
        network.heal();
        new.read_exact(&mut [0]).unwrap();
    }

    #[test]
    fn whoever_is_not_known_gets_nowhere() {
        let (_network, door) = echo();
        let mut stranger = dial(door);
        assert!(answers(&mut stranger).is_err_and(|e| e.kind() != std::io::ErrorKind::WouldBlock));
    }
}
