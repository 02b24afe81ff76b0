//! Where a head, or the trailers of a chunked body, ends.

use super::{BadHead, HEAD_BYTES_MAX, HEADERS_MAX};

/// Which part of a message the lines belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::front) enum Section {
    /// Begins with a line that is not empty.
    Head,
    /// May be nothing but its empty line.
    Trailers,
}

/// Looks for the empty line that ends a head in a buffer that grows; each byte
/// is looked at once, and a bad one is refused as soon as it is there.
#[derive(Debug)]
pub struct HeadReader {
    section: Section,
    scanned: usize,
    lines: usize,
    /// Bytes of the line so far, without its end.
    line_bytes: usize,
    /// The last byte was a CR.
    carriage_return: bool,
}

impl Default for HeadReader {
    fn default() -> Self {
        Self::new(Section::Head)
    }
}

impl HeadReader {
    pub(in crate::front) fn new(section: Section) -> Self {
        Self {
            section,
            scanned: 0,
            lines: 0,
            line_bytes: 0,
            carriage_return: false,
        }
    }

    /// Call with all bytes since the head began, each time more arrived. Gives
    /// how long the head is, with its empty line; `None` while it goes on.
    pub fn read(&mut self, buffer: &[u8]) -> Result<Option<usize>, BadHead> {
        let before = self.scanned;
        let more = buffer.get(before..).unwrap_or_default();
        Ok(self.feed(more)?.map(|taken| before + taken))
    }

    /// The same for bytes that come after those of the last call: how many of
    /// them belong to the head that ends in them.
    pub(in crate::front) fn feed(&mut self, bytes: &[u8]) -> Result<Option<usize>, BadHead> {
        for (index, byte) in bytes.iter().enumerate() {
            self.scanned += 1;
            if self.scanned > HEAD_BYTES_MAX {
                return Err(BadHead::TooLong);
            }
            if self.ends_with(*byte)? {
                return Ok(Some(index + 1));
            }
        }
        Ok(None)
    }

    fn ends_with(&mut self, byte: u8) -> Result<bool, BadHead> {
        match (self.carriage_return, byte) {
            (true, b'\n') => self.end_line(),
            (true, _) | (false, b'\n') => Err(BadHead::LineEnd),
            (false, b'\r') => {
                self.carriage_return = true;
                Ok(false)
            }
            (false, b'\t' | b' '..=b'~') => {
                self.line_bytes += 1;
                Ok(false)
            }
            _ => Err(BadHead::ForbiddenByte),
        }
    }

    fn end_line(&mut self) -> Result<bool, BadHead> {
        if self.line_bytes == 0 {
            return match (self.section, self.lines) {
                (Section::Head, 0) => Err(BadHead::EmptyFirstLine),
                _ => Ok(true),
            };
        }
        self.lines += 1;
        self.line_bytes = 0;
        self.carriage_return = false;
        // The first line of a head is no field.
        let lines_max = match self.section {
            Section::Head => HEADERS_MAX + 1,
            Section::Trailers => HEADERS_MAX,
        };
        if self.lines > lines_max {
            return Err(BadHead::TooManyHeaders);
        }
        Ok(false)
    }
}
