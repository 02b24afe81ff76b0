//! The engine's end of the channel to an egress process.
//!
//! The peer reads bytes of hostile origin and may have been taken over, so
//! nothing here waits for it without a deadline and nothing that it says is
//! larger than the bounds of [`wire`]. What its messages mean is left to
//! [`super`].

use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use std::vec;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use stockade_egress::wire::{self, FromEgress, SetUp, ToEgress, WireError};
use stockade_sys::message::{self, Wait};

/// Why nothing more can be said to or heard from the egress process.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("the egress process ended")]
    Gone,
    #[error("the egress process did not answer within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the egress process broke the protocol: {0}")]
    Protocol(String),
    #[error("{what}: {error}")]
    System {
        what: &'static str,
        error: io::Error,
    },
}

impl From<WireError> for ChannelError {
    fn from(error: WireError) -> Self {
        Self::Protocol(error.to_string())
    }
}

/// A connected `SOCK_SEQPACKET` socket.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// The rest of the packet that was received last.
    rest: vec::IntoIter<FromEgress>,
}

/// What is there to be read.
#[derive(Debug)]
pub enum Heard {
    Message(FromEgress),
    /// Nothing more at the moment.
    Nothing,
}

impl Channel {
    /// A channel and the end that the egress process gets.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let channel = Self {
            socket: ours,
            buffer: vec![0; wire::MESSAGE_BYTES_MAX],
            rest: Vec::new().into_iter(),
        };
        Ok((channel, theirs))
    }

    /// Sends a message without waiting for room: these are few and small, so
    /// a full socket means a peer that has stopped reading.
    pub fn send(
        &self,
        request: &ToEgress,
        attached: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let bytes = wire::encode(request)?;
        message::send(self.socket.as_fd(), &bytes, attached, Wait::No).map_err(|error| match error
            .kind()
        {
            ErrorKind::InvalidInput => ChannelError::Protocol("too many descriptors".into()),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::NotConnected => {
                ChannelError::Gone
            }
            _ => ChannelError::System {
                what: "sendmsg",
                error,
            },
        })
    }

    /// Sends `message` with the set-up in a sealed memory file, so that it
    /// cannot change while it is read.
    pub fn send_set_up(&self, message: &ToEgress, set_up: &SetUp) -> Result<(), ChannelError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("stockade-egress", flags)
            .map_err(|error| system("memfd_create", error))?;
        let mut file = std::fs::File::from(file);
        let failed = |error| ChannelError::System {
            what: "write of the set-up",
            error,
        };
        file.write_all(&set_up.encode()?).map_err(failed)?;
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(|error| system("F_ADD_SEALS", error))?;
        self.send(message, &[file.as_fd()])
    }

    /// The next message that is there already.
    pub fn try_receive(&mut self) -> Result<Heard, ChannelError> {
        if let Some(message) = self.rest.next() {
            return Ok(Heard::Message(message));
        }
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        match recv(&self.socket, &mut self.buffer[..], flags) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => Err(ChannelError::Gone),
            Ok((_, length)) => match self.buffer.get(..length) {
                Some(bytes) => {
                    self.rest = wire::decode_packet(bytes)?.into_iter();
                    // A packet has one message at least.
                    Ok(self.rest.next().map_or(Heard::Nothing, Heard::Message))
                }
                None => Err(WireError::TooLong.into()),
            },
            Err(Errno::AGAIN | Errno::INTR) => Ok(Heard::Nothing),
            Err(error) => Err(system("recv", error)),
        }
    }

    /// Whether there are messages that were received already, of which the
    /// socket tells nothing any more.
    pub fn holds_more(&self) -> bool {
        !self.rest.as_slice().is_empty()
    }

    /// The next message, waiting for it until `patience` is over.
    pub fn receive(&mut self, patience: Duration) -> Result<FromEgress, ChannelError> {
        let deadline = Instant::now() + patience;
        loop {
            if let Heard::Message(message) = self.try_receive()? {
                return Ok(message);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ChannelError::Late(patience));
            }
            let left = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(system("poll", error)),
            }
        }
    }
}

/// Readable when there is a message, or the peer is gone.
impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn system(what: &'static str, error: Errno) -> ChannelError {
    ChannelError::System {
        what,
        error: error.into(),
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{SendFlags, send};

    use super::*;

    fn say(peer: &OwnedFd, message: &FromEgress) {
        let bytes = wire::encode(message).unwrap();
        send(peer, &bytes, SendFlags::empty()).unwrap();
    }

    #[test]
    fn messages_come_in_order_and_a_closed_end_shows() {
        let (mut channel, peer) = Channel::pair().unwrap();
        assert!(matches!(channel.try_receive().unwrap(), Heard::Nothing));
        say(&peer, &FromEgress::AskGone { ask: 1 });
        say(&peer, &FromEgress::Replaced { generation: 2 });
        drop(peer);
        let first = channel.receive(Duration::from_secs(10)).unwrap();
        assert_eq!(first, FromEgress::AskGone { ask: 1 });
        let second = channel.receive(Duration::from_secs(10)).unwrap();
        assert_eq!(second, FromEgress::Replaced { generation: 2 });
        let third = channel.receive(Duration::from_secs(10));
        assert!(matches!(third, Err(ChannelError::Gone)), "{third:?}");
        let answer = channel.send(&ToEgress::Finish, &[]);
        assert!(matches!(answer, Err(ChannelError::Gone)), "{answer:?}");
    }

    #[test]
    fn a_packet_of_several_messages_is_heard_whole() {
        let (mut channel, peer) = Channel::pair().unwrap();
        let said: Vec<_> = (1..4).map(|ask| FromEgress::AskGone { ask }).collect();
        let packet = said.iter().flat_map(|one| wire::encode(one).unwrap());
        let packet: Vec<u8> = packet.collect();
        send(&peer, &packet, SendFlags::empty()).unwrap();
        let mut heard = Vec::new();
        while let Heard::Message(message) = channel.try_receive().unwrap() {
            heard.push(message);
            assert_eq!(channel.holds_more(), heard.len() < said.len());
        }
        assert_eq!(heard, said);
        // A part of a message after a whole one spoils all.
        send(&peer, &packet[..packet.len() - 1], SendFlags::empty()).unwrap();
        assert!(matches!(
            channel.try_receive(),
            Err(ChannelError::Protocol(_))
        ));
    }

    #[test]
    fn a_silent_peer_and_one_that_talks_nonsense_are_errors() {
        let (mut channel, peer) = Channel::pair().unwrap();
        let late = channel.receive(Duration::from_millis(1));
        assert!(matches!(late, Err(ChannelError::Late(_))), "{late:?}");
        send(&peer, &[0xff; 9], SendFlags::empty()).unwrap();
        let nonsense = channel.receive(Duration::from_secs(10));
        assert!(matches!(nonsense, Err(ChannelError::Protocol(_))));
        send(
            &peer,
            &vec![0; wire::MESSAGE_BYTES_MAX + 1],
            SendFlags::empty(),
        )
        .unwrap();
        let long = channel.receive(Duration::from_secs(10));
        assert!(matches!(long, Err(ChannelError::Protocol(_))));
    }
}
