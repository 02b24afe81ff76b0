//! A reader of git's configuration format (config.c of git, git-config(1),
//! "Syntax").

/// One setting as git would see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// Section and name in lower case, a quoted subsection as written.
    pub key: Vec<u8>,
    /// `None` without an equals sign, which means true.
    pub value: Option<Vec<u8>>,
    /// From 1.
    pub line: u32,
}

/// A text that git would not read as a configuration, or that programs would
/// read in different ways.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct Malformed {
    /// From 1.
    pub line: u32,
    pub why: &'static str,
}

pub(super) fn settings(text: &[u8]) -> Result<Vec<Setting>, Malformed> {
    if text.len() > super::TEXT_BYTES_MAX {
        return Err(Malformed {
            line: 1,
            why: "the text is longer than any configuration",
        });
    }
    let mut reader = Reader {
        text: text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text),
        at: 0,
        line: 1,
    };
    let mut settings = Vec::new();
    let mut section = Vec::new();
    while let Some(byte) = reader.next()? {
        match byte {
            b'#' | b';' => reader.skip_line()?,
            byte if is_space(byte) => {}
            b'[' => section = reader.section()?,
            byte if byte.is_ascii_alphabetic() => {
                settings.push(reader.setting(&section, byte)?);
            }
            _ => return Err(reader.malformed("neither a section nor a key")),
        }
    }
    Ok(settings)
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    line: u32,
}

impl Reader<'_> {
    /// The next byte, with the two that end a line in DOS as one. A carriage
    /// return elsewhere and NUL are read differently by different programs.
    fn next(&mut self) -> Result<Option<u8>, Malformed> {
        let Some(&byte) = self.text.get(self.at) else {
            return Ok(None);
        };
        self.at += 1;
        match byte {
            b'\r' if self.text.get(self.at) == Some(&b'\n') => {
                self.at += 1;
                self.line += 1;
                Ok(Some(b'\n'))
            }
            b'\r' => Err(self.malformed("a carriage return within a line")),
            0 => Err(self.malformed("a NUL byte")),
            b'\n' => {
                self.line += 1;
                Ok(Some(byte))
            }
            _ => Ok(Some(byte)),
        }
    }

    fn malformed(&self, why: &'static str) -> Malformed {
        // Behind the end of a line the fault is in the line before.
        let behind = self.at > 0 && self.text.get(self.at - 1) == Some(&b'\n');
        Malformed {
            line: self.line - u32::from(behind && self.line > 1),
            why,
        }
    }

    fn skip_line(&mut self) -> Result<(), Malformed> {
        while let Some(byte) = self.next()? {
            if byte == b'\n' {
                break;
            }
        }
        Ok(())
    }

    /// The section behind `[`, with a dot at its end.
    fn section(&mut self) -> Result<Vec<u8>, Malformed> {
        let mut name = Vec::new();
        loop {
            match self.next()? {
                Some(b']') => break,
                Some(byte) if is_space(byte) => {
                    self.subsection(byte, &mut name)?;
                    break;
                }
                Some(byte) if is_key(byte) || byte == b'.' => name.push(byte.to_ascii_lowercase()),
                _ => return Err(self.malformed("the name of a section does not end")),
            }
        }
        if name.is_empty() {
            return Err(self.malformed("a section has no name"));
        }
        name.push(b'.');
        Ok(name)
    }

    fn subsection(&mut self, mut byte: u8, name: &mut Vec<u8>) -> Result<(), Malformed> {
        const OPEN: &str = "a subsection does not end";
        while is_space(byte) {
            if byte == b'\n' {
                return Err(self.malformed(OPEN));
            }
            byte = self.next()?.unwrap_or(b'\n');
        }
        if byte != b'"' {
            return Err(self.malformed("a subsection is not quoted"));
        }
        name.push(b'.');
        loop {
            let byte = match self.next()? {
                Some(b'"') => break,
                Some(b'\\') => self.next()?,
                byte => byte,
            };
            match byte {
                None | Some(b'\n') => return Err(self.malformed(OPEN)),
                Some(byte) => name.push(byte),
            }
        }
        match self.next()? {
            Some(b']') => Ok(()),
            _ => Err(self.malformed("a section does not end behind its subsection")),
        }
    }

    fn setting(&mut self, section: &[u8], first: u8) -> Result<Setting, Malformed> {
        let line = self.line;
        let mut key = section.to_vec();
        let mut byte = Some(first);
        while let Some(part) = byte.filter(|&part| is_key(part)) {
            key.push(part.to_ascii_lowercase());
            byte = self.next()?;
        }
        while matches!(byte, Some(b' ' | b'\t')) {
            byte = self.next()?;
        }
        let value = match byte {
            None | Some(b'\n') => None,
            Some(b'=') => Some(self.value()?),
            Some(_) => return Err(self.malformed("neither a value nor the end of the line")),
        };
        Ok(Setting { key, value, line })
    }

    fn value(&mut self) -> Result<Vec<u8>, Malformed> {
        let mut value = Vec::new();
        // Bytes up to here are kept; white space behind them is only trailing.
        let mut kept = 0;
        let mut quoted = false;
        loop {
            let byte = match self.next()? {
                None | Some(b'\n') if quoted => {
                    return Err(self.malformed("a quoted value does not end"));
                }
                None | Some(b'\n') => break,
                Some(byte) => byte,
            };
            match byte {
                byte if is_space(byte) && !quoted => {
                    if !value.is_empty() {
                        value.push(byte);
                    }
                    continue;
                }
                b'#' | b';' if !quoted => {
                    self.skip_line()?;
                    break;
                }
                // At the end of a line, the value goes on in the next one.
                b'\\' => value.extend(self.escaped()?),
                b'"' => quoted = !quoted,
                byte => value.push(byte),
            }
            kept = value.len();
        }
        value.truncate(kept);
        Ok(value)
    }

    fn escaped(&mut self) -> Result<Option<u8>, Malformed> {
        Ok(Some(match self.next()? {
            // The end of the text counts as the end of a line.
            None | Some(b'\n') => return Ok(None),
            Some(b't') => b'\t',
            Some(b'b') => 8,
            Some(b'n') => b'\n',
            Some(byte @ (b'\\' | b'"')) => byte,
            _ => return Err(self.malformed("an escape that does not exist")),
        }))
    }
}

/// White space as git counts it.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}
