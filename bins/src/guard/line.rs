//! The protocol of `muster` and its guardian, over a socket pair: frames of one size, so none can be torn or grow. The first byte
//! carries the command's standard input as a file descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use muster_elector::Hold;
use muster_messages::Moment;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::guardian::{Exit, Input, Report};

/// Bytes of a frame: a kind and two numbers.
pub const FRAME: usize = 17;
pub type Frame = [u8; FRAME];

fn frame(kind: u8, a: u64, b: u64) -> Frame {
    let mut frame = [kind; FRAME];
    frame[1..9].copy_from_slice(&a.to_be_bytes());
    frame[9..].copy_from_slice(&b.to_be_bytes());
    frame
}
fn parts(frame: &Frame) -> (u8, u64, u64) {
    let number = |at: usize| u64::from_be_bytes(frame[at..at + 8].try_into().expect("eight bytes are a number"));
    (frame[0], number(1), number(9))
}

/// `muster`'s frames.
pub fn order_frame(order: Input) -> Option<Frame> {
    match order {
        Input::Until(hold) => Some(frame(b'u', hold.step_down_at.0, hold.over_at.0)),
        Input::Signal(number) => Some(frame(b's', number.into(), 0)),
        Input::End => Some(frame(b'e', 0, 0)),
        _ => None, // observed by the guardian itself
    }
}
pub fn order_of(frame: &Frame) -> Option<Input> {
    match parts(frame) {
        (b'u', step_down, over) => Some(Input::Until(Hold { step_down_at: Moment(step_down), over_at: Moment(over) })),
        (b's', number, _) => Some(Input::Signal(u8::try_from(number).ok()?)),
        (b'e', ..) => Some(Input::End),
        _ => None,
    }
}

/// A guardian's reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The command runs in the process group with this number.
    Started {
        group: i32,
    },
    Report(Report),
}

pub fn news_frame(news: News) -> Frame {
    match news {
        News::Started { group } => frame(b'g', u64::from(group.unsigned_abs()), 0),
        News::Report(Report::Lapsed) => frame(b'l', 0, 0),
        News::Report(Report::Ended(Exit::Code(code))) => frame(b'c', code.into(), 0),
        News::Report(Report::Ended(Exit::Signal(number))) => frame(b'k', number.into(), 0),
    }
}
pub fn news_of(frame: &Frame) -> Option<News> {
    let byte = |number: u64| u8::try_from(number).ok();
    match parts(frame) {
        (b'g', group, _) => Some(News::Started { group: i32::try_from(group).ok()? }),
        (b'l', ..) => Some(News::Report(Report::Lapsed)),
        (b'c', code, _) => Some(News::Report(Report::Ended(Exit::Code(byte(code)?)))),
        (b'k', number, _) => Some(News::Report(Report::Ended(Exit::Signal(byte(number)?)))),
        _ => None,
    }
}

/// Sends a file descriptor.
pub fn send_input(stream: &UnixStream, input: impl AsFd) -> io::Result<()> {
    let descriptors = [input.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is space for one descriptor");
    sendmsg(stream, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a file descriptor. `None`: the other side is gone.
pub fn receive_input(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(stream, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn all_orders_and_reports_round_trip_through_frames() {
        let hold = Hold { step_down_at: Moment(u64::MAX), over_at: Moment(7) };
        for order in [Input::Until(hold), Input::Signal(15), Input::End] {
            assert_eq!(order_frame(order).as_ref().and_then(order_of), Some(order));
        }
        let reports = [Report::Lapsed, Report::Ended(Exit::Code(255)), Report::Ended(Exit::Signal(9))];
        for news in reports.map(News::Report).into_iter().chain([News::Started { group: i32::MAX }]) {
            assert_eq!(news_of(&news_frame(news)), Some(news));
        }
        assert_eq!(order_of(&[0; FRAME]), None);
        assert_eq!(news_of(&[255; FRAME]), None);
    }

    #[test]
    fn standard_input_travels_as_a_descriptor() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut reads, mut writes) = UnixStream::pair().unwrap();
        send_input(&ours, &reads).unwrap();
        let mut input = UnixStream::from(receive_input(&theirs).unwrap().unwrap());
        drop(ours);
        assert!(receive_input(&theirs).unwrap().is_none());
        writes.write_all(b"hello").unwrap();
        drop(writes);
        let mut text = String::new();
        input.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        assert_eq!(reads.read(&mut [0]).unwrap(), 0, "it is the same one");
    }
}
