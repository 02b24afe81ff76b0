//! Firecracker's API: HTTP/1.1 over a unix socket, one request at a time.
//!
//! The other side is the process that is confined, so its answers are read as
//! strictly as a stranger's: a status line, at most 32 headers, at most 64 KiB
//! of a body of stated length, and nothing else.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use serde::Serialize;

use super::{FirecrackerError, PATIENCE, shown, system};

const LINE_MAX: u64 = 4096;
const HEADERS_MAX: usize = 32;
const BODY_MAX: usize = 64 << 10;

/// A connection that stays.
#[derive(Debug)]
pub struct Api(BufReader<UnixStream>);

struct Answer {
    status: u16,
    body: Vec<u8>,
}

impl Api {
    pub fn new(stream: UnixStream) -> Result<Self, FirecrackerError> {
        let failed = system("set a deadline");
        stream.set_read_timeout(Some(PATIENCE)).map_err(&failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(&failed)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Changes something; `doing` is for the message when that is refused.
    pub fn change<Body: Serialize>(
        &mut self,
        doing: &'static str,
        method: &'static str,
        resource: &'static str,
        body: &Body,
    ) -> Result<(), FirecrackerError> {
        let body = serde_json::to_vec(body).map_err(|error| system(doing)(error.into()))?;
        self.ask(doing, method, resource, &body).map(drop)
    }

    /// Reads something.
    pub fn read(
        &mut self,
        doing: &'static str,
        resource: &'static str,
    ) -> Result<serde_json::Value, FirecrackerError> {
        let body = self.ask(doing, "GET", resource, &[])?;
        serde_json::from_slice(&body).map_err(|error| violation(&error.to_string()))
    }

    fn ask(
        &mut self,
        doing: &'static str,
        method: &str,
        resource: &str,
        body: &[u8],
    ) -> Result<Vec<u8>, FirecrackerError> {
        let mut request = format!(
            "{method} {resource} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.0
            .get_mut()
            .write_all(&request)
            .map_err(system(doing))?;
        let answer = answer(&mut self.0)?;
        match answer.status {
            200 | 204 => Ok(answer.body),
            status => Err(FirecrackerError::Refused {
                doing,
                status,
                reason: fault(&answer.body),
            }),
        }
    }
}

/// What Firecracker says about a refusal: `{"fault_message": "…"}`.
fn fault(body: &[u8]) -> String {
    let value: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = value
        .as_ref()
        .and_then(|value| value["fault_message"].as_str());
    shown(message.map_or(body, str::as_bytes))
}

fn violation(reason: &str) -> FirecrackerError {
    FirecrackerError::Violation {
        who: "Firecracker's API",
        reason: shown(reason.as_bytes()),
    }
}

fn answer(stream: &mut impl BufRead) -> Result<Answer, FirecrackerError> {
    let first = line(stream)?;
    let status = first
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
        .filter(|status| status.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| violation("no status line"))?;
    let mut length = None;
    for _ in 0..=HEADERS_MAX {
        let header = line(stream)?;
        if header.is_empty() {
            let mut body = vec![0; length.unwrap_or(0)];
            stream
                .read_exact(&mut body)
                .map_err(system("read an answer of Firecracker"))?;
            return Ok(Answer { status, body });
        }
        let (name, value) = header
            .split_once(':')
            .ok_or_else(|| violation("a header without a name"))?;
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(violation("a body without a length"));
        }
        if name.eq_ignore_ascii_case("content-length") {
            let value = value.trim();
            let stated = value
                .parse()
                .ok()
                .filter(|&bytes| bytes <= BODY_MAX && !value.starts_with('+'));
            if length.is_some() || stated.is_none() {
                return Err(violation("a body of an impossible length"));
            }
            length = stated;
        }
    }
    Err(violation("too many headers"))
}

/// One line without its end.
fn line(stream: &mut impl BufRead) -> Result<String, FirecrackerError> {
    let mut bytes = Vec::new();
    stream
        .take(LINE_MAX)
        .read_until(b'\n', &mut bytes)
        .map_err(system("read an answer of Firecracker"))?;
    let text = bytes
        .strip_suffix(b"\r\n")
        .ok_or_else(|| violation("a line without an end"))?;
    String::from_utf8(text.to_vec()).map_err(|_| violation("a line that is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(u16, Vec<u8>), String> {
        let answer = answer(&mut text.as_bytes()).map_err(|error| error.to_string())?;
        Ok((answer.status, answer.body))
    }

    #[test]
    fn answers_as_firecracker_gives_them_are_understood() {
        let none = "HTTP/1.1 204 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n";
        assert_eq!(read(none), Ok((204, vec![])));
        let refused = "HTTP/1.1 400 \r\nContent-Type: application/json\r\nContent-Length: 22\r\n\r\n\
                       {\"fault_message\":\"no\"}and more";
        let (status, body) = read(refused).unwrap();
        assert_eq!((status, &*fault(&body)), (400, "no"));
        assert_eq!(fault(b"\x1b]0;title"), " ]0;title");
    }

    #[test]
    fn anything_else_is_not_believed() {
        let long = format!("HTTP/1.1 200 {}\r\n\r\n", "x".repeat(5000));
        let many = format!("HTTP/1.1 200 \r\n{}\r\n", "A: b\r\n".repeat(40));
        for text in [
            "",
            "HTTP/1.1 200",
            "HTTP/1.0 200 \r\n\r\n",
            "HTTP/1.1 20x \r\n\r\n",
            "HTTP/1.1 \u{663}00 \r\n\r\n",
            "HTTP/1.1 200 \n\n",
            "HTTP/1.1 200 \r\nnothing\r\n\r\n",
            "HTTP/1.1 200 \r\nContent-Length: 70000\r\n\r\n",
            "HTTP/1.1 200 \r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 \r\nContent-Length: +1\r\n\r\nx",
            "HTTP/1.1 200 \r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
            "HTTP/1.1 200 \r\nContent-Length: 9\r\n\r\nshort",
            "HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            &long,
            &many,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
