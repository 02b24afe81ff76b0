//! The ClientHello at the head of a TLS connection, read without ending it.
//!
//! It may be cut into records and packets at any byte. What a lenient reader
//! could understand differently (two server names, bytes left over, records
//! of another kind in between) is refused. RFC 8446 §4.1.2, RFC 6066 §3.

mod extensions;

use stockade_policy::network::Name;

use extensions::Extensions;

/// Most bytes on the wire, record headers included. The largest hellos in
/// use, with post-quantum key shares and a session ticket, have 4 KiB.
pub const HELLO_BYTES_MAX: usize = 16 * 1024;

const RECORD_HEADER_BYTES: usize = 5;
const HANDSHAKE_RECORD: u8 = 22;
/// 2^14, for records that are not encrypted (RFC 8446 §5.1).
const RECORD_BYTES_MAX: usize = 1 << 14;
const MESSAGE_HEADER_BYTES: usize = 4;
const CLIENT_HELLO: u8 = 1;
const RANDOM_BYTES: usize = 32;
const SESSION_BYTES_MAX: usize = 32;

/// What a client says about itself before anything is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// `None` when the client names no server.
    pub server_name: Option<Name>,
    /// Application protocols (RFC 7301) in the client's order.
    pub alpn: Vec<Vec<u8>>,
    /// The true hello may be encrypted inside this one, with another server
    /// name (Encrypted Client Hello, or the drafts before it).
    pub ech: bool,
    /// Protocol versions offered, among them numbers that mean nothing
    /// (RFC 8701).
    pub versions: Vec<u16>,
}

/// Why bytes are no ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHello {
    #[error("the connection does not begin with a TLS handshake")]
    NotTls,
    #[error("a TLS record is empty or longer than the protocol allows")]
    RecordLength,
    #[error("the ClientHello is longer than {HELLO_BYTES_MAX} bytes")]
    TooLong,
    #[error("the first message of the handshake is no ClientHello")]
    NotClientHello,
    #[error("a length inside the ClientHello does not fit")]
    Malformed,
    #[error("there are bytes behind the ClientHello in its record")]
    TrailingBytes,
    #[error("an extension of the ClientHello is there twice")]
    RepeatedExtension,
    #[error("the ClientHello names more than one server, or something that is no host name")]
    ServerName,
}

/// Reads a hello from a buffer that grows; linear however it is cut.
#[derive(Debug, Default)]
pub struct HelloReader {
    /// Where the next record begins in the buffer.
    offset: usize,
    /// The message, as far as whole records carried it.
    message: Vec<u8>,
}

impl HelloReader {
    /// Call with all bytes of the connection so far, each time more arrived.
    /// Gives the hello and how many bytes its records have, or `None` while
    /// there is more to come. After the first answer or error it is used up.
    pub fn read(&mut self, buffer: &[u8]) -> Result<Option<(ClientHello, usize)>, BadHello> {
        while let Some(record) = self.next_record(buffer)? {
            self.message.extend_from_slice(record);
            if let Some(body) = complete_message(&self.message)? {
                return Ok(Some((parse_hello(body)?, self.offset)));
            }
        }
        if buffer.len() >= HELLO_BYTES_MAX {
            return Err(BadHello::TooLong);
        }
        Ok(None)
    }

    fn next_record<'a>(&mut self, buffer: &'a [u8]) -> Result<Option<&'a [u8]>, BadHello> {
        let bytes = buffer.get(self.offset..).unwrap_or_default();
        // As early as possible, so that other protocols are refused at once.
        if bytes.first().is_some_and(|kind| *kind != HANDSHAKE_RECORD)
            || bytes.get(1).is_some_and(|major| *major != 3)
        {
            return Err(BadHello::NotTls);
        }
        let Some((header, rest)) = bytes.split_at_checked(RECORD_HEADER_BYTES) else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if length == 0 || length > RECORD_BYTES_MAX {
            return Err(BadHello::RecordLength);
        }
        if self.offset + RECORD_HEADER_BYTES + length > HELLO_BYTES_MAX {
            return Err(BadHello::TooLong);
        }
        let Some(record) = rest.get(..length) else {
            return Ok(None);
        };
        self.offset += RECORD_HEADER_BYTES + length;
        Ok(Some(record))
    }
}

/// The body of the handshake message, once it is all there.
fn complete_message(message: &[u8]) -> Result<Option<&[u8]>, BadHello> {
    if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Err(BadHello::NotClientHello);
    }
    let Some((header, body)) = message.split_at_checked(MESSAGE_HEADER_BYTES) else {
        return Ok(None);
    };
    let length = header[1..]
        .iter()
        .fold(0, |length, byte| length << 8 | usize::from(*byte));
    if length > HELLO_BYTES_MAX {
        return Err(BadHello::TooLong);
    }
    match body.len().cmp(&length) {
        std::cmp::Ordering::Less => Ok(None),
        std::cmp::Ordering::Equal => Ok(Some(body)),
        // A client has nothing to say before it is answered.
        std::cmp::Ordering::Greater => Err(BadHello::TrailingBytes),
    }
}

fn parse_hello(body: &[u8]) -> Result<ClientHello, BadHello> {
    let mut body = Bytes(body);
    let legacy_version = body.number()?;
    body.take(RANDOM_BYTES)?;
    if body.short_list()?.len() > SESSION_BYTES_MAX {
        return Err(BadHello::Malformed);
    }
    let suites = body.long_list()?;
    let compressions = body.short_list()?;
    if suites.is_empty() || suites.len() % 2 != 0 || compressions.is_empty() {
        return Err(BadHello::Malformed);
    }
    // Before TLS 1.3 a hello may end here.
    let extensions = match body.is_empty() {
        true => Extensions::default(),
        false => Extensions::parse(body.long_list()?)?,
    };
    if !body.is_empty() {
        return Err(BadHello::TrailingBytes);
    }
    Ok(ClientHello {
        server_name: extensions.server_name,
        alpn: extensions.alpn,
        ech: extensions.ech,
        versions: extensions.versions.unwrap_or(vec![legacy_version]),
    })
}

/// What is left of a structure of the TLS presentation language.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], BadHello> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(BadHello::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, BadHello> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u16, BadHello> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// With a length of one byte.
    fn short_list(&mut self) -> Result<&'a [u8], BadHello> {
        let length = self.byte()?;
        self.take(usize::from(length))
    }

    /// With a length of two bytes.
    fn long_list(&mut self) -> Result<&'a [u8], BadHello> {
        let length = self.number()?;
        self.take(usize::from(length))
    }
}

#[cfg(test)]
mod tests;
