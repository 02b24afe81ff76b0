//! The little of D-Bus that the Secret Service needs: method calls and their
//! answers over the session bus (D-Bus Specification 0.42).
//!
//! Written here because the clients that exist bring a runtime or a C library
//! with them. The bus is the user's own, and its answers are bounded and
//! checked all the same.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use percent_encoding::percent_decode_str;
use rustix::process::geteuid;
use zeroize::Zeroizing;

/// How long an answer is waited for. A service that has to be started first
/// takes a second or two.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Messages that are skipped while an answer is waited for (signals).
const SKIPPED_MAX: usize = 64;

const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;

/// A connection to the session bus.
pub(super) struct Bus {
    stream: UnixStream,
    serial: u32,
}

/// Where a method is.
pub(super) struct Method<'a> {
    pub destination: &'a str,
    pub path: &'a str,
    pub interface: &'a str,
    pub name: &'a str,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum BusError {
    /// No bus, or nobody on it who offers the service.
    Absent,
    /// The service answered with this error.
    Refused(String),
    Failed(String),
}

impl Bus {
    pub(super) fn connect() -> Result<Self, BusError> {
        let stream = open().ok_or(BusError::Absent)?;
        let timeout = Some(ANSWER_WAIT);
        stream.set_read_timeout(timeout).map_err(failed)?;
        stream.set_write_timeout(timeout).map_err(failed)?;
        let mut bus = Self { stream, serial: 0 };
        bus.authenticate()?;
        let hello = Method {
            destination: "org.freedesktop.DBus",
            path: "/org/freedesktop/DBus",
            interface: "org.freedesktop.DBus",
            name: "Hello",
        };
        bus.call(&hello, "", &Writer::new())?;
        Ok(bus)
    }

    /// Calls a method whose arguments have the given signature.
    pub(super) fn call(
        &mut self,
        method: &Method<'_>,
        signature: &str,
        body: &Writer,
    ) -> Result<Reader, BusError> {
        self.serial += 1;
        let message = message(self.serial, method, signature, &body.bytes);
        self.stream.write_all(&message).map_err(failed)?;
        for _ in 0..SKIPPED_MAX {
            let answer = self.receive()?;
            if answer.answers != Some(self.serial) {
                continue;
            }
            return match answer.kind {
                RETURN => Ok(Reader::new(answer.body)),
                _ => Err(refusal(answer.error.unwrap_or_default())),
            };
        }
        Err(BusError::Failed("the bus does not answer".to_owned()))
    }

    /// `EXTERNAL`: the kernel tells the bus who we are.
    fn authenticate(&mut self) -> Result<(), BusError> {
        let user = geteuid().as_raw().to_string();
        let digits: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
        let hello = format!("\0AUTH EXTERNAL {digits}\r\n");
        self.stream.write_all(hello.as_bytes()).map_err(failed)?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).map_err(failed)?;
            line.push(byte[0]);
            if line.len() > 1024 {
                return Err(BusError::Failed(
                    "the bus speaks another protocol".to_owned(),
                ));
            }
        }
        if !line.starts_with(b"OK ") {
            return Err(BusError::Failed("the bus does not let us in".to_owned()));
        }
        self.stream.write_all(b"BEGIN\r\n").map_err(failed)
    }

    fn receive(&mut self) -> Result<Answer, BusError> {
        let mut fixed = [0; 16];
        self.stream.read_exact(&mut fixed).map_err(failed)?;
        let damaged = || BusError::Failed("an answer of the bus is damaged".to_owned());
        // Everyone on a machine has its byte order.
        let native = if cfg!(target_endian = "little") {
            b'l'
        } else {
            b'B'
        };
        if fixed[0] != native || fixed[3] != 1 {
            return Err(damaged());
        }
        let number = |at: usize| {
            let bytes = [fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]];
            usize::try_from(u32::from_ne_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let (body_length, fields_length) = (number(4), number(12));
        if body_length > MESSAGE_BYTES_MAX || fields_length > MESSAGE_BYTES_MAX {
            return Err(damaged());
        }
        let mut fields = vec![0; fields_length.next_multiple_of(8)];
        self.stream.read_exact(&mut fields).map_err(failed)?;
        fields.truncate(fields_length);
        let mut body = Zeroizing::new(vec![0; body_length]);
        self.stream.read_exact(&mut body).map_err(failed)?;
        let mut answer = Answer {
            kind: fixed[1],
            answers: None,
            error: None,
            body,
        };
        answer.read_fields(fields).ok_or_else(damaged)?;
        Ok(answer)
    }
}

struct Answer {
    kind: u8,
    answers: Option<u32>,
    error: Option<String>,
    body: Zeroizing<Vec<u8>>,
}

impl Answer {
    /// The array of fields, which begins at offset 16: aligned as if at 0.
    fn read_fields(&mut self, fields: Vec<u8>) -> Option<()> {
        let mut reader = Reader::new(Zeroizing::new(fields));
        while !reader.is_empty() {
            reader.align(8)?;
            let code = reader.byte()?;
            match (code, reader.signature()?.as_str()) {
                (5, "u") => self.answers = Some(reader.u32()?),
                (4, "s") if self.kind == ERROR => self.error = Some(reader.string()?),
                (_, "s" | "o") => drop(reader.string()?),
                (_, "g") => drop(reader.signature()?),
                (_, "u") => drop(reader.u32()?),
                _ => return None,
            }
        }
        Some(())
    }
}

/// The address of the session bus; only unix sockets are used.
fn open() -> Option<UnixStream> {
    let addresses = std::env::var("DBUS_SESSION_BUS_ADDRESS").unwrap_or_default();
    for address in addresses.split(';') {
        let Some(pairs) = address.strip_prefix("unix:") else {
            continue;
        };
        for (key, value) in pairs.split(',').filter_map(|pair| pair.split_once('=')) {
            let value: Vec<u8> = percent_decode_str(value).collect();
            let socket = match key {
                "path" => SocketAddr::from_pathname(os_string(value)),
                "abstract" => SocketAddr::from_abstract_name(value),
                _ => continue,
            };
            if let Ok(stream) = socket.and_then(|socket| UnixStream::connect_addr(&socket)) {
                return Some(stream);
            }
        }
    }
    if !addresses.is_empty() {
        return None;
    }
    let directory = std::env::var_os("XDG_RUNTIME_DIR")?;
    UnixStream::connect(std::path::Path::new(&directory).join("bus")).ok()
}

fn os_string(bytes: Vec<u8>) -> std::ffi::OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes)
}

fn message(serial: u32, method: &Method<'_>, signature: &str, body: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut fields = Writer::new();
    for (code, kind, text) in [
        (1, "o", method.path),
        (2, "s", method.interface),
        (3, "s", method.name),
        (6, "s", method.destination),
    ] {
        fields.align(8);
        fields.bytes.push(code);
        fields.signature(kind);
        fields.string(text);
    }
    if !signature.is_empty() {
        fields.align(8);
        fields.bytes.push(8);
        fields.signature("g");
        fields.signature(signature);
    }
    let mut out = Writer::new();
    let native = if cfg!(target_endian = "little") {
        b'l'
    } else {
        b'B'
    };
    out.bytes.extend_from_slice(&[native, CALL, 0, 1]);
    out.length(body.len());
    out.u32(serial);
    out.length(fields.bytes.len());
    out.bytes.extend_from_slice(&fields.bytes);
    out.align(8);
    out.bytes.extend_from_slice(body);
    out.bytes
}

fn refusal(name: String) -> BusError {
    let is_absent = [
        "org.freedesktop.DBus.Error.ServiceUnknown",
        "org.freedesktop.DBus.Error.NameHasNoOwner",
        "org.freedesktop.DBus.Error.Spawn.ServiceNotFound",
    ]
    .contains(&name.as_str());
    match is_absent || name.starts_with("org.freedesktop.DBus.Error.Spawn.") {
        true => BusError::Absent,
        false => BusError::Refused(name),
    }
}

fn failed(error: std::io::Error) -> BusError {
    BusError::Failed(error.to_string())
}

/// Writes values in the wire format, in this machine's byte order.
pub(super) struct Writer {
    bytes: Zeroizing<Vec<u8>>,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self {
            bytes: Zeroizing::new(Vec::new()),
        }
    }

    pub(super) fn align(&mut self, to: usize) {
        let length = self.bytes.len().next_multiple_of(to);
        self.bytes.resize(length, 0);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.align(4);
        self.bytes.extend_from_slice(&value.to_ne_bytes());
    }

    pub(super) fn string(&mut self, text: &str) {
        self.blob(text.as_bytes());
        self.bytes.push(0);
    }

    /// An array of bytes.
    pub(super) fn blob(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Signatures are constants of ours, far below 255 bytes.
    pub(super) fn signature(&mut self, text: &str) {
        self.bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
    }

    pub(super) fn boolean(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// An array whose elements begin at multiples of `alignment`.
    pub(super) fn array(&mut self, alignment: usize, fill: impl FnOnce(&mut Self)) {
        self.u32(0);
        let at = self.bytes.len() - 4;
        self.align(alignment);
        let start = self.bytes.len();
        fill(self);
        // Secrets and names are bounded by their callers.
        let length = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        self.bytes[at..at + 4].copy_from_slice(&length.to_ne_bytes());
    }

    fn length(&mut self, length: usize) {
        // A message that long is refused by the bus.
        self.u32(u32::try_from(length).unwrap_or(u32::MAX));
    }
}

/// Reads values; `None` when they are not there.
pub(super) struct Reader {
    bytes: Zeroizing<Vec<u8>>,
    at: usize,
}

impl Reader {
    fn new(bytes: Zeroizing<Vec<u8>>) -> Self {
        Self { bytes, at: 0 }
    }

    fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(super) fn align(&mut self, to: usize) -> Option<()> {
        self.at = self.at.next_multiple_of(to);
        (self.at <= self.bytes.len()).then_some(())
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.align(4)?;
        let bytes = self.take(4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.align(8)?;
        let bytes = self.take(8)?.try_into().ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    pub(super) fn string(&mut self) -> Option<String> {
        let bytes = self.blob()?.to_vec();
        self.byte().filter(|end| *end == 0)?;
        String::from_utf8(bytes).ok()
    }

    pub(super) fn blob(&mut self) -> Option<&[u8]> {
        let length = usize::try_from(self.u32()?).ok()?;
        self.take(length)
    }

    pub(super) fn signature(&mut self) -> Option<String> {
        let length = usize::from(self.byte()?);
        let text = String::from_utf8(self.take(length)?.to_vec()).ok()?;
        self.byte().filter(|end| *end == 0)?;
        Some(text)
    }

    /// An array of strings or object paths.
    pub(super) fn strings(&mut self) -> Option<Vec<String>> {
        let length = usize::try_from(self.u32()?).ok()?;
        let end = self.at.checked_add(length)?;
        let mut strings = Vec::new();
        while self.at < end {
            strings.push(self.string()?);
        }
        (self.at == end).then_some(strings)
    }

    /// A dictionary of strings.
    pub(super) fn dictionary(&mut self) -> Option<Vec<(String, String)>> {
        let length = usize::try_from(self.u32()?).ok()?;
        self.align(8)?;
        let end = self.at.checked_add(length)?;
        let mut entries = Vec::new();
        while self.at < end {
            self.align(8)?;
            entries.push((self.string()?, self.string()?));
        }
        (self.at == end).then_some(entries)
    }

    fn take(&mut self, length: usize) -> Option<&[u8]> {
        let end = self.at.checked_add(length)?;
        let bytes = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::new();
        writer.string("ab");
        writer.array(8, |writer| {
            for (key, value) in [("k", "v"), ("key", "value")] {
                writer.align(8);
                writer.string(key);
                writer.string(value);
            }
        });
        writer.blob(b"xyz");
        writer.boolean(true);
        let mut reader = Reader::new(writer.bytes);
        assert_eq!(reader.string().as_deref(), Some("ab"));
        let entries = reader.dictionary().unwrap();
        assert_eq!(entries[1], ("key".to_owned(), "value".to_owned()));
        assert_eq!(reader.blob(), Some(b"xyz".as_slice()));
        assert_eq!(reader.u32(), Some(1));
        assert!(reader.is_empty() && reader.byte().is_none());
    }

    #[test]
    fn lengths_that_lie_read_nothing() {
        for bytes in [vec![255; 4], vec![255; 12], vec![9, 0, 0, 0, b'a'], vec![]] {
            let read = |bytes: &Vec<u8>| Reader::new(Zeroizing::new(bytes.clone()));
            assert!(read(&bytes).string().is_none());
            assert!(read(&bytes).strings().is_none());
            assert!(read(&bytes).dictionary().is_none());
        }
    }
}
