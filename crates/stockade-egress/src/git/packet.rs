//! Git's packet lines (gitprotocol-common(5)): a length in four hexadecimal
//! digits, itself included, and the payload.
//!
//! What the payload means is left to others.

/// Largest packet with its length, in bytes (gitprotocol-common(5)).
pub const PACKET_BYTES_MAX: usize = 65520;
/// Largest payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = PACKET_BYTES_MAX - LENGTH_BYTES;

const LENGTH_BYTES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    Data(&'a [u8]),
    /// `0000`, the end of a section.
    Flush,
    /// `0001`, between sections of protocol version 2.
    Delimiter,
    /// `0002`, the end of a response of a stateless connection.
    ResponseEnd,
}

/// Band of the side-band multiplexing (gitprotocol-pack(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Band {
    Data = 1,
    /// Shown to the user behind `remote: `.
    Progress = 2,
    /// Shown to the user, and the end of the conversation.
    Error = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPacket {
    #[error("the length of a packet is not four hexadecimal digits")]
    NotHexadecimal,
    #[error("a packet has the reserved length 3")]
    Reserved,
    #[error("a packet is longer than {PACKET_BYTES_MAX} bytes")]
    TooLong,
}

/// The packet at the start of `input` and how many bytes it takes; `None`
/// when not all of it is there yet.
pub fn parse(input: &[u8]) -> Result<Option<(Packet<'_>, usize)>, BadPacket> {
    let Some(digits) = input.get(..LENGTH_BYTES) else {
        // Wrong digits are refused at once, not when four are there.
        length_of(input)?;
        return Ok(None);
    };
    let packet = match length_of(digits)? {
        0 => Packet::Flush,
        1 => Packet::Delimiter,
        2 => Packet::ResponseEnd,
        3 => return Err(BadPacket::Reserved),
        length if length > PACKET_BYTES_MAX => return Err(BadPacket::TooLong),
        length => {
            let payload = input.get(LENGTH_BYTES..length);
            return Ok(payload.map(|payload| (Packet::Data(payload), length)));
        }
    };
    Ok(Some((packet, LENGTH_BYTES)))
}

/// Appends packets with `payload`, as many as it takes, and none when it is
/// empty.
pub fn write_data(output: &mut Vec<u8>, payload: &[u8]) {
    for chunk in payload.chunks(PAYLOAD_BYTES_MAX) {
        output.extend_from_slice(format!("{:04x}", chunk.len() + LENGTH_BYTES).as_bytes());
        output.extend_from_slice(chunk);
    }
}

/// Appends `payload` in packets of a band.
pub fn write_band(output: &mut Vec<u8>, band: Band, payload: &[u8]) {
    for chunk in payload.chunks(PAYLOAD_BYTES_MAX - 1) {
        let mut packet = Vec::with_capacity(chunk.len() + 1);
        packet.push(band as u8);
        packet.extend_from_slice(chunk);
        write_data(output, &packet);
    }
}

pub fn write_flush(output: &mut Vec<u8>) {
    output.extend_from_slice(b"0000");
}

/// A packet that ends the conversation and whose text git shows
/// (gitprotocol-pack(5), `error-line`).
pub fn write_error(output: &mut Vec<u8>, message: &str) {
    let text: String = message.chars().take(ERROR_TEXT_CHARACTERS_MAX).collect();
    write_data(output, format!("ERR {text}\n").as_bytes());
}

/// Cut so that it always fits one packet, and a terminal.
const ERROR_TEXT_CHARACTERS_MAX: usize = 2000;

fn length_of(digits: &[u8]) -> Result<usize, BadPacket> {
    digits.iter().try_fold(0, |length, digit| {
        let value = char::from(*digit)
            .to_digit(16)
            .ok_or(BadPacket::NotHexadecimal)?;
        Ok(length * 16 + value as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_read_when_they_are_whole() {
        assert_eq!(parse(b""), Ok(None));
        assert_eq!(parse(b"00"), Ok(None));
        assert_eq!(parse(b"0008abc"), Ok(None));
        assert_eq!(parse(b"0008abcd0000"), Ok(Some((Packet::Data(b"abcd"), 8))));
        assert_eq!(parse(b"0004"), Ok(Some((Packet::Data(b""), 4))));
        assert_eq!(parse(b"0000x"), Ok(Some((Packet::Flush, 4))));
        assert_eq!(parse(b"0001"), Ok(Some((Packet::Delimiter, 4))));
        assert_eq!(parse(b"0002"), Ok(Some((Packet::ResponseEnd, 4))));
    }

    #[test]
    fn lengths_that_no_git_writes_are_refused() {
        assert_eq!(parse(b"0003"), Err(BadPacket::Reserved));
        assert_eq!(parse(b"fff1"), Err(BadPacket::TooLong));
        assert_eq!(parse(b"+008abcd"), Err(BadPacket::NotHexadecimal));
        assert_eq!(parse(b"P"), Err(BadPacket::NotHexadecimal));
        assert_eq!(parse(b" 008"), Err(BadPacket::NotHexadecimal));
    }

    #[test]
    fn what_is_written_is_read() {
        let payload = vec![7; PAYLOAD_BYTES_MAX + 1];
        let mut output = Vec::new();
        write_data(&mut output, &payload);
        let (first, used) = parse(&output).unwrap().unwrap();
        assert_eq!(first, Packet::Data(&payload[..PAYLOAD_BYTES_MAX]));
        let (second, _) = parse(&output[used..]).unwrap().unwrap();
        assert_eq!(second, Packet::Data(&[7]));

        let mut output = Vec::new();
        write_band(&mut output, Band::Progress, b"hello\n");
        assert_eq!(output, b"000b\x02hello\n");
    }
}
