//! Events of the way out, in their stored form.
//!
//! They come from a process that reads hostile bytes: every text is made
//! printable and cut here, whatever it says of itself.

use serde::{Deserialize, Serialize};
use stockade_egress::wire::{self, Entry, NetworkEvent};
use stockade_policy::path::printable;

use super::Event;

/// Longest text of one field, in bytes before it is made printable.
const TEXT_BYTES_MAX: usize = 2048;
/// Most credentials that the end of one connection names.
const CREDENTIALS_MAX: usize = 64;

/// Code of a decision that was taken for the user while learning.
pub const LEARNED: &str = "learned";
/// The same, where the host was found at a private address; the event's
/// reason is then the lines of policy that permit it.
pub const LEARNED_PRIVATE: &str = "learned-private";

/// A connection, a name or a request was judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkDecision {
    /// Counts the connections of the run; requests share their connection's.
    pub connection: u64,
    /// The way by which it came: `connect`, `socks`, `transparent`, …
    pub entry: String,
    pub verdict: Verdict,
    /// `HOST:PORT`.
    pub destination: String,
    /// Method and path without its query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Id of the rule that spoke, and where it is written.
    pub rule: String,
    pub origin: String,
    /// How often the rules had been replaced by then.
    pub generation: u64,
    /// For denials: a stable code and a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The least that a policy would have to say to allow this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smallest_grant: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Allowed,
    Denied,
    /// Held until a person answers.
    Held,
}

impl Verdict {
    /// The name used in the stored form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Held => "held",
        }
    }
}

/// A connection is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkEnd {
    pub connection: u64,
    pub destination: String,
    pub rule: String,
    pub generation: u64,
    pub uploaded_bytes: u64,
    pub downloaded_bytes: u64,
    pub duration_ms: u64,
    pub requests: u64,
    /// Names of the credentials that were attached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<String>,
    /// How often a secret was taken out of a response.
    #[serde(default)]
    pub scrubbed: u64,
}

/// A person, or the lack of one, answered a held request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalAnswer {
    /// `HOST:PORT`.
    pub destination: String,
    /// `once`, `run`, `always` or `deny`.
    pub answer: String,
    /// `terminal`, or `control` for `stockade approvals`.
    pub by: String,
    /// The command that asked, as it called itself; not verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The stored form of what the egress process says.
pub fn event(event: NetworkEvent) -> Event {
    match event {
        NetworkEvent::Decided {
            connection,
            entry,
            destination,
            request,
            verdict,
            rule,
            origin,
            generation,
            code,
            reason,
            smallest_grant,
        } => Event::NetworkDecided(NetworkDecision {
            connection,
            entry: entry_name(entry).to_owned(),
            verdict: verdict.into(),
            destination: text(&destination),
            request: request.as_deref().map(text),
            rule: text(&rule),
            origin: text(&origin),
            generation,
            code: text(&code),
            reason: match code == LEARNED_PRIVATE {
                true => "found at a private address, and permitted for this run".to_owned(),
                false => text(&reason),
            },
            smallest_grant: match code == LEARNED_PRIVATE {
                true => Some(lines(&reason)),
                false => smallest_grant.as_deref().map(lines),
            },
        }),
        NetworkEvent::CredentialUsed {
            connection,
            credential,
            destination,
        } => Event::CredentialUsed {
            connection,
            credential: text(&credential),
            destination: text(&destination),
        },
        NetworkEvent::Alert {
            connection,
            code,
            destination,
            detail,
        } => Event::NetworkAlert {
            connection,
            code: text(&code),
            destination: text(&destination),
            detail: text(&detail),
        },
        NetworkEvent::Closed {
            connection,
            destination,
            rule,
            generation,
            uploaded_bytes,
            downloaded_bytes,
            duration_ms,
            requests,
            credentials,
            scrubbed,
        } => Event::NetworkClosed(NetworkEnd {
            connection,
            destination: text(&destination),
            rule: text(&rule),
            generation,
            uploaded_bytes,
            downloaded_bytes,
            duration_ms,
            requests,
            credentials: names(&credentials),
            scrubbed,
        }),
    }
}

fn names(credentials: &[String]) -> Vec<String> {
    let kept = credentials.iter().take(CREDENTIALS_MAX);
    kept.map(|name| text(name)).collect()
}

/// How a way in is called in events and questions.
pub fn entry_name(entry: Entry) -> &'static str {
    match entry {
        Entry::Connect => "connect",
        Entry::HttpProxy => "http_proxy",
        Entry::Socks => "socks",
        Entry::Transparent => "transparent",
        Entry::Name => "name",
        Entry::HostPort => "host_port",
        Entry::Unix => "unix",
        Entry::Publish => "publish",
    }
}

impl From<wire::Verdict> for Verdict {
    fn from(verdict: wire::Verdict) -> Self {
        match verdict {
            wire::Verdict::Allowed => Self::Allowed,
            wire::Verdict::Denied => Self::Denied,
            wire::Verdict::Held => Self::Held,
        }
    }
}

/// One line that a terminal shows as it is.
pub(crate) fn text(text: &str) -> String {
    printable(&text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)])
}

/// Lines of a policy: the only texts that keep their line breaks.
fn lines(text: &str) -> String {
    text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)]
        .split(|&byte| byte == b'\n')
        .map(printable)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_inside_cannot_forge_output() {
        let decided = event(NetworkEvent::Decided {
            connection: 1,
            entry: Entry::Connect,
            destination: "a\u{1b}[2J:443".into(),
            request: Some("GET /\r\nx".into()),
            verdict: wire::Verdict::Denied,
            rule: String::new(),
            origin: String::new(),
            generation: 0,
            code: "not-allowed".into(),
            reason: "x".repeat(10 * TEXT_BYTES_MAX),
            smallest_grant: Some("[network]\nallow = [\"a\u{7}\"]".into()),
        });
        let Event::NetworkDecided(decision) = decided else {
            panic!("{decided:?}");
        };
        assert_eq!(decision.destination, "a\\u{1b}[2J:443");
        assert_eq!(decision.request.as_deref(), Some("GET /\\r\\nx"));
        assert_eq!(decision.reason.len(), TEXT_BYTES_MAX);
        let grant = decision.smallest_grant.unwrap();
        assert_eq!(grant.lines().count(), 2);
        assert!(!grant.contains('\u{7}'));
    }
}
