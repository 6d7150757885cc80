//! One connection of a flood, from its first packet to its end.

use std::io;
use std::time::Duration;

use muster_messages::wire::{self, ApiCall, JoinFrame, JoinRequest, Request};
use muster_messages::{NodeId, RequestId, Role, Secret};
use rand::{Rng, RngCore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Door, Flood, Kind, http2};
use crate::caller::Caller;

/// One write of garbage.
const WRITE_SIZE: usize = 4096;
/// Garbage per connection: a victim that reads this much reads without limit.
const MAX_GARBAGE: usize = 256 * 1024;
/// How long an attacker waits for an answer before it connects again.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Totals of the flood's connections.
#[derive(Debug, Default)]
pub struct Done {
    pub bytes: usize,
    pub requests: usize,
}

/// Runs the attack once. Ends when the victim ends the connection, when everything is sent, or at `until`.
pub async fn connection(flood: Flood, caller: &Caller, until: Instant, up: impl FnOnce()) -> io::Result<Done> {
    if flood.door == Door::Tcp || flood.kind == Kind::HalfHandshake {
        let tcp = caller.tcp().await?;
        up();
        return send_before_tls(flood, tcp, until).await;
    }
    let tls = caller.tls().await?;
    up();
    match flood.kind {
        Kind::Random => random(flood.door, tls, until).await,
        Kind::Oversized => oversized(flood.door, tls, until).await,
        Kind::Withheld => Box::pin(withheld(flood.door, tls, until)).await,
        Kind::Requests => requests(flood.door, tls, until).await,
        Kind::HalfOpen | Kind::HalfHandshake => half_open(flood.door, tls, until).await,
    }
}

/// The first bytes of a ClientHello: a handshake record with a message header of the largest size.
const HANDSHAKE: [u8; 9] = [22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];

async fn send_before_tls<S: AsyncRead + AsyncWrite + Unpin>(
    flood: Flood,
    mut tcp: S,
    until: Instant,
) -> io::Result<Done> {
    let mut done = Done::default();
    match flood.kind {
        Kind::Random => garbage(&mut tcp, &mut done, until).await?,
        Kind::Oversized => write(&mut tcp, &[22, 3, 1, 0xff, 0xff, 1, 0xff, 0xff, 0xff], &mut done).await?,
        Kind::HalfHandshake => {
            // A third of the connections sends nothing, a third begins a record, a third begins a long message.
            let begun = [0, 5, HANDSHAKE.len()][rand::rng().random_range(0..3)];
            write(&mut tcp, &HANDSHAKE[..begun], &mut done).await?;
        }
        _ => {
            // The largest handshake message without its end, in records of the largest size.
            let mut records = HANDSHAKE.to_vec();
            records.resize(5 + 0x4000, 0);
            for _ in 0..2 {
                records.extend_from_slice(&[22, 3, 3, 0x40, 0]);
                records.resize(records.len() + 0x4000, 0);
            }
            write(&mut tcp, &records, &mut done).await?;
        }
    }
    drain(&mut tcp, until).await;
    Ok(done)
}

async fn random<S: AsyncRead + AsyncWrite + Unpin>(door: Door, mut tls: S, until: Instant) -> io::Result<Done> {
    let mut done = Done::default();
    // Raw bytes fail at the first length; inside a valid frame they reach the decoders.
    let framed = rand::rng().random_bool(0.5);
    if framed && door.is_native() {
        let mut body = vec![0; rand::rng().random_range(2..WRITE_SIZE)];
        rand::rng().fill_bytes(&mut body);
        body[0] = wire::WIRE_VERSION;
        body[1] %= 24; // usually an existing variant
        write(&mut tls, &frame(&body), &mut done).await?;
    } else if framed && door == Door::H2 {
        let mut frames = http2::hello();
        for stream in 1..64u32 {
            let mut body = [0; 64];
            rand::rng().fill_bytes(&mut body);
            frames.extend(http2::frame(rand::rng().random_range(0..12), rand::rng().random(), 2 * stream - 1, &body));
        }
        write(&mut tls, &frames, &mut done).await?;
    } else if framed {
        let mut line = b"GET /v1/".to_vec();
        line.extend((0..200).map(|_| rand::rng().random_range(33u8..=255)));
        line.extend(b" HTTP/1.1\r\nhost: x\r\n\r\n");
        write(&mut tls, &line, &mut done).await?;
    } else {
        garbage(&mut tls, &mut done, until).await?;
    }
    drain(&mut tls, until.min(Instant::now() + REPLY_TIMEOUT)).await;
    Ok(done)
}

async fn oversized<S: AsyncRead + AsyncWrite + Unpin>(door: Door, mut tls: S, until: Instant) -> io::Result<Done> {
    let mut done = Done::default();
    match door {
        Door::H2 => {
            let mut frames = http2::hello();
            frames.extend([0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]);
            write(&mut tls, &frames, &mut done).await?;
            garbage(&mut tls, &mut done, until).await?;
        }
        Door::Http11 | Door::NoAlpn => {
            let header = rand::rng().random_bool(0.5);
            let begin: &[u8] = if header {
                b"GET /v1/nodes HTTP/1.1\r\nhost: x\r\nx-long: "
            } else {
                b"POST /v1/tokens HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000000\r\n\r\n"
            };
            write(&mut tls, begin, &mut done).await?;
            let piece = [b'a'; WRITE_SIZE];
            while done.bytes < 4 << 20 && Instant::now() < until {
                write(&mut tls, &piece, &mut done).await?;
            }
        }
        _ => {
            let length = [u32::MAX, i32::MAX as u32, (1 << 20) + 1][rand::rng().random_range(0..3)];
            write(&mut tls, &length.to_be_bytes(), &mut done).await?;
            garbage(&mut tls, &mut done, until).await?;
        }
    }
    drain(&mut tls, until.min(Instant::now() + REPLY_TIMEOUT)).await;
    Ok(done)
}

async fn half_open<S: AsyncRead + AsyncWrite + Unpin>(door: Door, mut tls: S, until: Instant) -> io::Result<Done> {
    let mut done = Done::default();
    let begun: &[u8] = match (rand::rng().random_range(0..3), door) {
        (0, _) => &[],
        (_, Door::H2) => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        (_, Door::Http11 | Door::NoAlpn) => b"GET /v1/nodes HTTP/1.1\r\nhost: x\r\n",
        _ => &[0, 0, 1],
    };
    write(&mut tls, begun, &mut done).await?;
    drain(&mut tls, until).await;
    Ok(done)
}

async fn withheld<S: AsyncRead + AsyncWrite + Unpin>(door: Door, mut tls: S, until: Instant) -> io::Result<Done> {
    let mut done = Done::default();
    match door {
        Door::H2 => {
            write(&mut tls, &[http2::hello(), http2::settled()].concat(), &mut done).await?;
            let body = [b' '; 16 * 1024 - 64];
            for round in 0..12u32 {
                let mut frames = Vec::new();
                for stream in (round * 10..(round + 1) * 10).map(|n| 2 * n + 1) {
                    frames.extend(http2::request(stream, true, "/v1/tokens", false));
                    (0..4).for_each(|_| frames.extend(http2::data(stream, &body)));
                }
                write(&mut tls, &frames, &mut done).await?;
                // The server grants more window as it reads.
                drain(&mut tls, until.min(Instant::now() + Duration::from_millis(50))).await;
            }
        }
        Door::Http11 | Door::NoAlpn => {
            let head = b"POST /v1/tokens HTTP/1.1\r\nhost: x\r\ncontent-length: 65536\r\n\r\n";
            write(&mut tls, &[&head[..], &[b' '; 65_535]].concat(), &mut done).await?;
        }
        _ => {
            let length = if door == Door::Join { 32 * 1024 } else { 1 << 20 };
            let mut almost = frame(&vec![wire::WIRE_VERSION; length]);
            almost.pop();
            write(&mut tls, &almost, &mut done).await?;
        }
    }
    drain(&mut tls, until).await;
    Ok(done)
}

async fn requests<S: AsyncRead + AsyncWrite + Unpin>(door: Door, mut tls: S, until: Instant) -> io::Result<Done> {
    let mut done = Done::default();
    let mut answer = vec![0; 16 * 1024];
    match door {
        Door::H2 => {
            write(&mut tls, &[http2::hello(), http2::settled()].concat(), &mut done).await?;
            // Requests that are cancelled before their answers.
            for round in 0..50u32 {
                let streams = (round * 20..(round + 1) * 20).map(|n| 2 * n + 1);
                let pair = |s| [http2::request(s, false, "/v1/nodes", true), http2::reset(s)].concat();
                let frames: Vec<u8> = streams.flat_map(pair).collect();
                write(&mut tls, &frames, &mut done).await?;
                done.requests += 20;
                if matches!(timeout(Duration::from_millis(1), tls.read(&mut answer)).await, Ok(Ok(0) | Err(_))) {
                    break;
                }
            }
        }
        Door::Http11 | Door::NoAlpn => {
            while Instant::now() < until {
                write(&mut tls, b"GET /v1/nodes HTTP/1.1\r\nhost: x\r\n\r\n", &mut done).await?;
                if timeout(REPLY_TIMEOUT, tls.read(&mut answer)).await?? == 0 {
                    break;
                }
                done.requests += 1;
            }
        }
        Door::Api => {
            for id in 0..1000 {
                let request = Request::TokenShow { role: Role::Manager };
                let call = ApiCall { id, request_id: RequestId(id.into()), timeout_ms: 1000, request };
                write(&mut tls, &frame(&wire::encode(&call).expect("small")), &mut done).await?;
                if timeout(REPLY_TIMEOUT, tls.read(&mut answer)).await?? == 0 {
                    break;
                }
                done.requests += 1;
            }
        }
        Door::Join => {
            let join = JoinRequest {
                request_id: RequestId::fresh(muster_kernel::Clock.wall(), rand::random()),
                node: NodeId::from_entropy(rand::random()),
                token_secret: Secret::new("0000000000000000000000000"),
                csr_pem: String::new(),
                name: "evil".parse().expect("a name"),
                advertise: "127.0.0.1:1".to_owned(),
                release: "0.0.0".to_owned(),
                labels: std::collections::BTreeMap::new(),
                rekey: None,
            };
            let bytes = wire::encode(&JoinFrame::Join(join)).expect("small");
            write(&mut tls, &frame(&bytes), &mut done).await?;
            done.requests += 1;
            drain(&mut tls, until.min(Instant::now() + REPLY_TIMEOUT)).await;
        }
        _ => {
            done.requests += 1;
            drain(&mut tls, until.min(Instant::now() + REPLY_TIMEOUT)).await;
        }
    }
    Ok(done)
}

fn frame(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("frames here are small");
    [&length.to_be_bytes()[..], body].concat()
}

/// Writes, unless the victim stops reading.
async fn write<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8], done: &mut Done) -> io::Result<()> {
    let writing = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    timeout(REPLY_TIMEOUT, writing).await??;
    done.bytes += bytes.len();
    Ok(())
}

async fn garbage<S: AsyncWrite + Unpin>(stream: &mut S, done: &mut Done, until: Instant) -> io::Result<()> {
    let mut piece = [0; WRITE_SIZE];
    let most = done.bytes + MAX_GARBAGE;
    while done.bytes < most && Instant::now() < until {
        rand::rng().fill_bytes(&mut piece);
        write(stream, &piece, done).await?;
    }
    Ok(())
}

/// Reads until the victim ends the connection.
async fn drain<S: AsyncRead + Unpin>(stream: &mut S, until: Instant) {
    let mut sink = [0; 1024];
    while let Ok(Ok(read)) = timeout_at(until, stream.read(&mut sink)).await {
        if read == 0 {
            break;
        }
    }
}
