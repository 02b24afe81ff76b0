//! Header fields that end at this hop (RFC 9110 §7.6.1).
//!
//! They are taken away before anything else looks at a request: first this
//! list, then the rules, then the credentials. A client cannot use
//! `Connection` to take away what came from it as a whole message, and what is
//! put in later is never looked up here.

use std::collections::BTreeSet;

use super::{BadHead, fields};

/// The fields of one message that are not passed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HopByHop {
    /// Lower case, as `Connection` named them.
    named: BTreeSet<String>,
}

/// Beside all that begin with `proxy-`.
const ALWAYS: &[&str] = &[
    "connection",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Fields that say where a message goes, who sends it, what it is or who may
/// read it. Taking one away changes what the next hop does, so a message whose
/// `Connection` names one is refused.
const END_TO_END: &[&str] = &[
    "authorization",
    "cache-control",
    "cookie",
    "date",
    "expect",
    "forwarded",
    "host",
    "location",
    "max-forwards",
    "origin",
    "referer",
    "set-cookie",
    "strict-transport-security",
    "vary",
    "via",
    "www-authenticate",
];
const END_TO_END_PREFIXES: &[&str] = &["access-control-", "content-", "sec-", "x-forwarded-"];

impl HopByHop {
    /// From all values of `Connection`.
    pub fn new<'a>(connection: impl Iterator<Item = &'a str>) -> Result<Self, BadHead> {
        let mut named = BTreeSet::new();
        for option in connection.flat_map(|value| value.split(',')) {
            let option = option.trim_matches([' ', '\t']).to_ascii_lowercase();
            if option.is_empty() {
                continue;
            }
            if !fields::is_token(option.as_bytes()) || is_end_to_end(&option) {
                return Err(BadHead::Connection);
            }
            named.insert(option);
        }
        Ok(Self { named })
    }

    /// Whether the field is not passed on; `name` is lower case. `Upgrade` of
    /// a WebSocket that is permitted is written anew.
    pub fn ends_here(&self, name: &str) -> bool {
        ALWAYS.contains(&name) || name.starts_with("proxy-") || self.names(name)
    }

    /// Whether `Connection` has this option, such as `close` or `upgrade`.
    pub fn names(&self, option: &str) -> bool {
        self.named.contains(option)
    }
}

fn is_end_to_end(name: &str) -> bool {
    END_TO_END.contains(&name)
        || END_TO_END_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(connection: &str) -> Result<HopByHop, BadHead> {
        HopByHop::new(std::iter::once(connection))
    }

    #[test]
    fn row_35_connection_takes_away_only_what_belongs_to_the_hop() {
        let named = of("Keep-Alive, X-Custom,, upgrade").expect("it is good");
        for name in [
            "x-custom",
            "te",
            "transfer-encoding",
            "proxy-authorization",
            "proxy-x",
        ] {
            assert!(named.ends_here(name), "{name}");
        }
        assert!(named.names("upgrade"));
        for name in ["host", "authorization", "accept", "x-other"] {
            assert!(!named.ends_here(name), "{name}");
        }
    }

    #[test]
    fn row_35_connection_cannot_name_a_security_header() {
        for option in [
            "Authorization",
            "close, Host",
            "cookie",
            "Content-Length",
            "x-forwarded-for",
            "sec-fetch-site",
            "origin",
            "set-cookie",
            "a b",
            "\"close\"",
        ] {
            assert_eq!(of(option), Err(BadHead::Connection), "{option}");
        }
    }
}
