//! Hand-written HTTP/2, enough for attacks (RFC 9113, RFC 7541).

/// The client's preface and empty settings.
pub fn hello() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(4, 0, 0, &[])].concat()
}

/// Acknowledges the server's settings.
pub fn settled() -> Vec<u8> {
    frame(4, 1, 0, &[])
}

/// A request for a path; `last`: without body.
pub fn request(stream: u32, post: bool, path: &str, last: bool) -> Vec<u8> {
    let length = u8::try_from(path.len()).expect("paths here are short");
    let mut block = vec![if post { 0x83 } else { 0x82 }, 0x87, 0x04, length];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(&[0x01, 1, b'x']);
    frame(1, 4 | u8::from(last), stream, &block)
}

/// Part of a body.
pub fn data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(0, 0, stream, bytes)
}

/// Cancels a request.
pub fn reset(stream: u32) -> Vec<u8> {
    frame(3, 0, stream, &8u32.to_be_bytes())
}

/// Any frame.
pub fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("frames here are small").to_be_bytes();
    let mut out = vec![length[1], length[2], length[3], kind, flags];
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(body);
    out
}
