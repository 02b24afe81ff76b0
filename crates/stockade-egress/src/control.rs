//! The channel to the engine: one message a packet, descriptors attached.
//!
//! The engine is trusted; what is refused here is what cannot be meant. What
//! the messages say is in `wire`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use stockade_sys::message::{self, Wait};
use stockade_sys::rustix::fs::{SeekFrom, fstat, seek};
use tokio::net::UnixDatagram;
use zeroize::Zeroizing;

use crate::wire::{self, FromEgress, MESSAGE_BYTES_MAX, SETUP_BYTES_MAX, SetUp, ToEgress};

/// A message and its descriptors; `None` when the engine has gone.
pub fn receive(
    control: BorrowedFd<'_>,
    wait: Wait,
) -> io::Result<Option<(ToEgress, Vec<OwnedFd>)>> {
    let Some(received) = message::receive(control, MESSAGE_BYTES_MAX, wait)? else {
        return Ok(None);
    };
    let message = wire::decode(&received.bytes)
        .map_err(|error| malformed(&format!("a message of the engine: {error}")))?;
    Ok(Some((message, received.descriptors)))
}

/// Sends one message.
pub fn send(control: BorrowedFd<'_>, message: &FromEgress, wait: Wait) -> io::Result<()> {
    let bytes = wire::encode(message)
        .map_err(|error| malformed(&format!("a message to the engine: {error}")))?;
    message::send(control, &bytes, &[], wait)
}

/// Reads the set-up that is attached to a message, which must have exactly
/// that one descriptor. The bytes, secrets included, are wiped.
pub fn read_set_up(descriptors: Vec<OwnedFd>) -> io::Result<SetUp> {
    let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors)
        .map_err(|_| malformed("a set-up comes with exactly one descriptor"))?;
    let size = usize::try_from(fstat(descriptor.as_fd())?.st_size)
        .ok()
        .filter(|&size| size <= SETUP_BYTES_MAX)
        .ok_or_else(|| malformed("the set-up is too large"))?;
    seek(&descriptor, SeekFrom::Start(0))?;
    // Reserved at once, so that no grown-out-of buffer keeps a copy.
    let mut bytes = Zeroizing::new(Vec::with_capacity(size + 1));
    File::from(descriptor)
        .take(size as u64)
        .read_to_end(&mut bytes)?;
    SetUp::decode(&bytes).map_err(|error| malformed(&format!("the set-up: {error}")))
}

/// A socket that keeps messages apart, for a runtime to wait on. It need not
/// be one of datagrams: the runtime asks for readiness only, and messages are
/// moved by `stockade_sys::message`.
pub fn watched(socket: OwnedFd) -> io::Result<UnixDatagram> {
    let socket = std::os::unix::net::UnixDatagram::from(socket);
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_sys::rustix::net::{
        AddressFamily, SendFlags, SocketFlags, SocketType, send as send_bytes, socketpair,
    };

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
    }

    #[test]
    fn descriptors_arrive_with_their_message_and_the_end_is_seen() {
        let (engine, egress) = pair();
        let bytes = wire::encode(&ToEgress::Replace).unwrap();
        let attached = [engine.as_fd(), engine.as_fd()];
        message::send(engine.as_fd(), &bytes, &attached, Wait::Yes).unwrap();
        let (message, descriptors) = receive(egress.as_fd(), Wait::Yes).unwrap().unwrap();
        assert!(matches!(message, ToEgress::Replace));
        assert_eq!(descriptors.len(), 2);
        // These were copies of the engine's end.
        drop(descriptors);
        drop(engine);
        assert!(receive(egress.as_fd(), Wait::Yes).unwrap().is_none());
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        let (engine, egress) = pair();
        send_bytes(&engine, &[255, 1, 2], SendFlags::empty()).unwrap();
        assert!(receive(egress.as_fd(), Wait::Yes).is_err());
        assert!(read_set_up(Vec::new()).is_err());
    }
}
