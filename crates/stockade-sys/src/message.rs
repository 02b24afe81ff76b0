//! Messages with descriptors over unix sockets (SCM_RIGHTS in unix(7)). A call
//! that a signal interrupts is made again.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};

/// How many descriptors the kernel passes with one message (SCM_MAX_FD).
pub const DESCRIPTORS_MAX: usize = 253;

/// Whether a call waits until it can do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Yes,
    /// `WouldBlock` instead.
    No,
}

/// A message that was received.
#[derive(Debug)]
pub struct Message {
    pub bytes: Vec<u8>,
    /// In the order in which they were sent; closed on exec.
    pub descriptors: Vec<OwnedFd>,
}

/// Sends one message on a socket that keeps messages apart. `InvalidInput`
/// with more than [`DESCRIPTORS_MAX`]; SIGPIPE is not raised.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    wait: Wait,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty()
        && (descriptors.len() > DESCRIPTORS_MAX
            || !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)))
    {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = match wait {
        Wait::Yes => SendFlags::NOSIGNAL,
        Wait::No => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    };
    let sent = retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags))?;
    match sent {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Receives one message of at most `bytes_max` bytes; `None` when the other
/// side is gone. A longer one is dropped and `InvalidData`.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes_max: usize,
    wait: Wait,
) -> io::Result<Option<Message>> {
    // The length first: a buffer for the longest message would touch many
    // pages for most messages' few bytes.
    let peek = RecvFlags::PEEK | RecvFlags::TRUNC | flags(wait);
    let length = match retry_on_intr(|| recv(socket, &mut [0u8; 0][..], peek)) {
        Ok((_, length)) => length,
        Err(Errno::CONNRESET) => 0,
        Err(error) => return Err(error.into()),
    };
    // A message that is too long is taken all the same, or it would be met
    // again.
    let mut bytes = vec![0; length.min(bytes_max)];
    let received = receive_into(socket, &mut bytes, wait)?;
    match received {
        Some((length, descriptors)) => {
            bytes.truncate(length);
            Ok(Some(Message { bytes, descriptors }))
        }
        None => Ok(None),
    }
}

/// As [`receive`], into a buffer of the caller's: how many bytes of it are
/// filled, and the descriptors.
pub fn receive_into(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    wait: Wait,
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | flags(wait);
    let mut parts = [IoSliceMut::new(buffer)];
    let received = retry_on_intr(|| recvmsg(socket, &mut parts, &mut ancillary, flags));
    let received = match received {
        Ok(received) => received,
        Err(Errno::CONNRESET) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            descriptors.extend(sent);
        }
    }
    if received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        let what = "a message that is too long, or a descriptor that did not arrive";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    match received.bytes {
        0 => Ok(None),
        length => Ok(Some((length, descriptors))),
    }
}

fn flags(wait: Wait) -> RecvFlags {
    match wait {
        Wait::Yes => RecvFlags::empty(),
        Wait::No => RecvFlags::DONTWAIT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::Write;
    use std::os::fd::AsFd;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn descriptors_arrive_in_order() {
        let (ours, theirs) = pair();
        let sent: Vec<_> = (0..DESCRIPTORS_MAX)
            .map(|_| std::io::pipe().unwrap().1)
            .collect();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut borrowed: Vec<_> = sent.iter().map(AsFd::as_fd).collect();
        borrowed[7] = writer.as_fd();
        send(ours.as_fd(), b"here", &borrowed, Wait::Yes).unwrap();
        let message = receive(theirs.as_fd(), 4, Wait::No).unwrap().unwrap();
        assert_eq!(message.bytes, b"here");
        assert_eq!(message.descriptors.len(), DESCRIPTORS_MAX);
        let mut eighth = std::fs::File::from(message.descriptors[7].try_clone().unwrap());
        eighth.write_all(b"x").unwrap();
        drop((eighth, writer, message));
        let mut text = String::new();
        std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "x");
    }

    #[test]
    fn too_much_is_refused_and_an_end_is_seen() {
        let (ours, theirs) = pair();
        let (_reader, writer) = std::io::pipe().unwrap();
        let many = vec![writer.as_fd(); DESCRIPTORS_MAX + 1];
        assert!(send(ours.as_fd(), b"here", &many, Wait::Yes).is_err());
        send(ours.as_fd(), b"long", &[], Wait::Yes).unwrap();
        send(ours.as_fd(), b"abc", &[], Wait::Yes).unwrap();
        assert!(receive(theirs.as_fd(), 3, Wait::No).is_err());
        let next = receive(theirs.as_fd(), 3, Wait::No).unwrap().unwrap();
        assert_eq!(next.bytes, b"abc");
        let none = receive(theirs.as_fd(), 3, Wait::No).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        drop(ours);
        assert!(receive(theirs.as_fd(), 3, Wait::Yes).unwrap().is_none());
    }
}
