//! Requests of clients that name a Unix socket as their host.
//!
//! Owns        one connection's bytes between its socket and hyper.
//! Why: gRPC's C core, on which its libraries for Python and C++ rest, sends the socket's path as `:authority`, percent-encoded. That is
//! no host, and hyper's HTTP/2 refuses the request before a service sees it. Nothing here depends on the host, so its illegal characters
//! are replaced. They are replaced one for one: sizes of frames and of the compression's table stay as the client counts them.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::uri::Authority;
use tokio::io::{AsyncRead, Join, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// What a client sends before its first frame (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;
const FRAME_HEAD_BYTES: usize = 9;
/// The largest frame, unless a server asks for larger ones.
const MAX_FRAME_BYTES: usize = 16 << 10;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// `:authority` in the static table of HPACK (RFC 7541, appendix A).
const AUTHORITY: usize = 1;

/// Bytes read at once.
const READ_BYTES: usize = 4 << 10;

/// A client's bytes, with hosts that hyper accepts.
#[derive(Debug)]
struct Frames {
    /// Bytes that pass as they are.
    passing: usize,
    /// The begin of a frame that is not complete.
    held: Vec<u8>,
}

impl Frames {
    fn new() -> Self {
        Self { passing: PREFACE_BYTES, held: Vec::new() }
    }

    /// Appends to `out` what can be passed on.
    fn pass(&mut self, mut read: &[u8], out: &mut Vec<u8>) {
        while !read.is_empty() {
            let wanted = if self.passing > 0 { self.passing } else { self.frame_bytes() - self.held.len() };
            let (now, rest) = read.split_at(wanted.min(read.len()));
            read = rest;
            if self.passing > 0 {
                self.passing -= now.len();
                out.extend_from_slice(now);
                continue;
            }
            self.held.extend_from_slice(now);
            if self.held.len() < FRAME_HEAD_BYTES {
                continue;
            }
            if !self.is_block() {
                self.passing = payload_bytes(&self.held);
                out.append(&mut self.held);
            } else if self.held.len() == self.frame_bytes() {
                let flags = self.held[4];
                repair(&mut self.held[FRAME_HEAD_BYTES..], flags);
                out.append(&mut self.held);
            }
        }
    }

    /// The bytes of the present frame that are needed before a decision about it.
    fn frame_bytes(&self) -> usize {
        let known = self.held.len() >= FRAME_HEAD_BYTES && self.is_block();
        FRAME_HEAD_BYTES + if known { payload_bytes(&self.held) } else { 0 }
    }
    /// A whole block of a request's metadata. Blocks in several frames pass as they are: no client sends that much.
    fn is_block(&self) -> bool {
        self.held[3] == HEADERS && self.held[4] & END_HEADERS != 0 && payload_bytes(&self.held) <= MAX_FRAME_BYTES
    }
}

fn payload_bytes(head: &[u8]) -> usize {
    usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])
}

/// Replaces what is illegal in a host. A malformed payload stays as it is, for hyper to refuse.
fn repair(payload: &mut [u8], flags: u8) {
    let mut begin = 0;
    let mut end = payload.len();
    if flags & PADDED != 0 {
        let Some(padding) = payload.first().copied() else { return };
        begin += 1;
        end = end.saturating_sub(usize::from(padding));
    }
    if flags & PRIORITY != 0 {
        begin += 5;
    }
    let Some(block) = payload.get_mut(begin..end) else { return };
    let mut at = 0;
    while at < block.len() {
        let Some((authority, next)) = field(block, at) else { return };
        if let Some(value) = authority
            && Authority::try_from(&block[value.clone()]).is_err()
        {
            let legal = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
            block[value].iter_mut().filter(|byte| !legal(byte)).for_each(|byte| *byte = b'-');
        }
        at = next;
    }
}

/// The field of a block that begins here: where its value is, if it is a host in clear, and where the next field begins.
fn field(block: &[u8], at: usize) -> Option<(Option<Range<usize>>, usize)> {
    let prefix = match block.get(at)? {
        0x80.. => 7,
        0x40.. => 6,
        0x20.. => 5,
        _ => 4,
    };
    let (index, at) = number(block, at, prefix)?;
    if prefix == 7 || prefix == 5 {
        return Some((None, at)); // a whole field of the table, or the table's size
    }
    let (is_authority, at) = match index {
        0 => {
            let (name, coded) = text(block, at)?;
            (!coded && block[name.clone()] == *b":authority", name.end)
        }
        _ => (index == AUTHORITY, at),
    };
    let (value, coded) = text(block, at)?;
    let end = value.end;
    Some(((is_authority && !coded).then_some(value), end))
}

/// A string, and whether it is Huffman-coded.
fn text(block: &[u8], at: usize) -> Option<(Range<usize>, bool)> {
    let coded = block.get(at)? & 0x80 != 0;
    let (bytes, begin) = number(block, at, 7)?;
    let end = begin.checked_add(bytes).filter(|end| *end <= block.len())?;
    Some((begin..end, coded))
}

/// An integer (RFC 7541, 5.1), and where it ends.
fn number(block: &[u8], at: usize, prefix: u32) -> Option<(usize, usize)> {
    let most = (1usize << prefix) - 1;
    let mut value = usize::from(*block.get(at)?) & most;
    let mut at = at + 1;
    if value < most {
        return Some((value, at));
    }
    for shift in (0..28).step_by(7) {
        let byte = usize::from(*block.get(at)?);
        at += 1;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
    }
    None
}

/// What a client sends, repaired.
pub(crate) struct ClientReader {
    stream: OwnedReadHalf,
    frames: Frames,
    /// What hyper has not taken yet, from `taken` on.
    ready: Vec<u8>,
    taken: usize,
}

/// A client's connection.
pub(crate) fn client_stream(stream: UnixStream) -> Join<ClientReader, OwnedWriteHalf> {
    let (stream, write) = stream.into_split();
    tokio::io::join(ClientReader { stream, frames: Frames::new(), ready: Vec::new(), taken: 0 }, write)
}

impl AsyncRead for ClientReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.taken == this.ready.len() {
            this.ready.clear();
            this.taken = 0;
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.frames.pass(read.filled(), &mut this.ready);
        }
        let fits = (this.ready.len() - this.taken).min(buf.remaining());
        buf.put_slice(&this.ready[this.taken..this.taken + fits]);
        this.taken += fits;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::Rng;

    use super::*;

    const PREFACE: &[u8; PREFACE_BYTES] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let bytes = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&bytes[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }
    fn string(text: &str) -> Vec<u8> {
        [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
    }
    /// What passes when it is read in parts of this size.
    fn passed(sent: &[u8], part: usize) -> Vec<u8> {
        let (mut frames, mut out) = (Frames::new(), PREFACE.to_vec());
        frames.pass(PREFACE, &mut Vec::new());
        sent.chunks(part).for_each(|part| frames.pass(part, &mut out));
        out.split_off(PREFACE_BYTES)
    }

    /// The block that gRPC's C core sends.
    fn c_core(authority: &str) -> Vec<u8> {
        let text = [
            &b"\x40\x05:path\x20/SpiffeWorkloadAPI/FetchX509SVID"[..],
            b"\x40\x0a:authority",
            &string(authority),
            b"\x83\x86\x40\x02te\x08trailers\x00\x12workload.spiffe.io\x04true",
        ];
        text.concat()
    }

    #[test]
    fn hosts_of_clients_become_legal() {
        for (sent, passes) in [
            ("run%2Fmuster%2Fworkloads.sock", "run-2Fmuster-2Fworkloads.sock"),
            ("/run/workloads.sock", "-run-workloads.sock"),
            ("localhost", "localhost"),
            ("localhost:80", "localhost:80"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(passed(&frame(1, 4, &c_core(sent)), 4096), frame(1, 4, &c_core(passes)), "{sent}");
            let by_index = |host| frame(1, 5, &[&[0x01][..], &string(host), &[0x82]].concat());
            assert_eq!(passed(&by_index(sent), 4096), by_index(passes));
            let padded = |host: &str| frame(1, 4 | 8 | 32, &[&[3, 0, 0, 0, 0, 9][..], &c_core(host), &[0; 3]].concat());
            assert_eq!(passed(&padded(sent), 4096), padded(passes));
        }
    }

    #[test]
    fn other_bytes_pass_as_they_are_in_any_parts() {
        let data = frame(0, 1, b"\x40\x0a:authority\x03a%b");
        let open = frame(1, 0, &c_core("a%2Fb"));
        let path = frame(1, 4, b"\x40\x05:path\x05/a%2F");
        let coded = frame(1, 4, b"\x41\x83%%%");
        let all = [frame(4, 0, &[]), data, open, path, coded, frame(6, 0, &[0; 8])].concat();
        for part in [1, 2, 7, 9, 10, 4096] {
            assert_eq!(passed(&all, part), all, "{part}");
            let request = frame(1, 4, &c_core("a%b"));
            assert_eq!(passed(&request, part), frame(1, 4, &c_core("a-b")), "{part}");
        }
    }

    #[test]
    fn no_bytes_are_lost_or_too_many_to_hold() {
        let mut rng = Rng::seeded(5);
        for _ in 0..2000 {
            let size = rng.index(200);
            let mut bytes: Vec<u8> = (0..size).map(|_| u8::try_from(rng.below(256)).unwrap()).collect();
            if rng.one_in(2) {
                bytes = frame(1, u8::try_from(rng.below(64)).unwrap(), &bytes);
            }
            let (mut frames, mut out) = (Frames::new(), Vec::new());
            frames.pass(PREFACE, &mut out);
            frames.pass(&bytes, &mut out);
            assert_eq!(out.len() + frames.held.len(), PREFACE_BYTES + bytes.len());
            assert!(frames.held.len() < FRAME_HEAD_BYTES + MAX_FRAME_BYTES);
        }
    }
}
