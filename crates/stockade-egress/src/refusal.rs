//! What a client is told that is refused.
//!
//! Programs and agents read it, so it has one form everywhere: a status, a
//! header with the stable code, and a JSON body that says how to allow it.

use serde_json::json;
use stockade_policy::network::judge::Denial;

use crate::context::denial;
use crate::front::head::BadHead;

/// Header with the code of a denial.
pub const HEADER: &str = "X-Sandbox-Denied";

/// Status for a denial's code.
pub fn status(code: &str) -> (u16, &'static str) {
    match code {
        "bad-request" => (400, "Bad Request"),
        "misdirected" => (421, "Misdirected Request"),
        "body-too-large" => (413, "Content Too Large"),
        "rate" => (429, "Too Many Requests"),
        "unresolvable"
        | "upstream-tls"
        | "bad-response"
        | "secret-in-response"
        | "unscannable-encoding" => (502, "Bad Gateway"),
        _ => (403, "Forbidden"),
    }
}

/// The body; `host` is `host:port`.
pub fn body(denial: &Denial, host: &str, request_id: &str) -> String {
    let rule = (!denial.rule.is_empty()).then_some(&denial.rule);
    json!({
        "code": denial.code,
        "host": host,
        "rule": rule,
        "reason": denial.reason,
        "how_to_allow": denial.smallest_grant,
        "request_id": request_id,
    })
    .to_string()
}

/// A whole HTTP/1.1 response that ends its connection.
pub fn http1(denial: &Denial, host: &str, request_id: &str) -> Vec<u8> {
    http1_with(status(denial.code), denial, host, request_id)
}

/// What the strict gate had against a head, as it is recorded.
pub fn bad_head(bad: BadHead) -> Denial {
    denial("bad-request", bad.to_string())
}

/// The response to such a head; its status is more exact than the code.
pub fn http1_bad_head(bad: BadHead, host: &str, request_id: &str) -> Vec<u8> {
    let phrase = match bad.status() {
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        505 => "HTTP Version Not Supported",
        _ => "Bad Request",
    };
    http1_with((bad.status(), phrase), &bad_head(bad), host, request_id)
}

/// To a client of the explicit proxy that did not show its token.
pub fn http1_unauthorised(denial: &Denial, request_id: &str) -> Vec<u8> {
    let phrase = "Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"stockade\"";
    http1_with((407, phrase), denial, "", request_id)
}

fn http1_with(
    (status, phrase): (u16, &str),
    denial: &Denial,
    host: &str,
    request_id: &str,
) -> Vec<u8> {
    let body = body(denial, host, request_id);
    format!(
        "HTTP/1.1 {status} {phrase}\r\n{HEADER}: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        denial.code,
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_is_one_response_with_its_code_twice() {
        let mut refused = denial("not-allowed", "no rule names \"a\"\r\nX: y");
        refused.smallest_grant = Some("network.allow = [\"a.test\"]".to_owned());
        let response = String::from_utf8(http1(&refused, "a.test:443", "7")).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\nX-Sandbox-Denied: not-allowed\r\n"));
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["code"], "not-allowed");
        assert_eq!(body["how_to_allow"], "network.allow = [\"a.test\"]");
        assert_eq!(body["rule"], serde_json::Value::Null);
    }
}
