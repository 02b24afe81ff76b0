//! What this machine can do for a way out. Runs without a network need none
//! of it.

use stockade_policy::facts::Ability;

use super::{Cause, Check, cause, check};
use crate::probe;

/// Largest resolver configuration that is read, in bytes.
const RESOLVERS_BYTES_MAX: usize = 64 * 1024;

/// One check for each part.
pub fn checks() -> Vec<Check> {
    vec![
        check("redirect", redirect()),
        check("IPv6", ipv6()),
        check("resolvers", resolvers()),
    ]
}

/// Without it only programs that use the proxy variables have a way out.
fn redirect() -> Result<String, Cause> {
    match probe::network::tried() {
        Ability::Yes => Ok(
            "nftables redirected connections in a network namespace, so that every program has \
             a way out"
                .into(),
        ),
        Ability::No { reason, remedy } => Err(cause::of(
            format!("{reason}; only programs that use the proxy variables have a way out"),
            remedy,
        )),
    }
}

fn ipv6() -> Result<String, Cause> {
    match std::fs::metadata("/proc/net/if_inet6") {
        Ok(_) => Ok("the kernel speaks it, so that both families are caught inside".into()),
        Err(_) => Err(cause::of(
            "the kernel does not speak IPv6; inside there is only IPv4",
            "nothing needs it; load the module ipv6 to have it",
        )),
    }
}

/// Names are resolved outside, by whom this machine asks.
fn resolvers() -> Result<String, Cause> {
    let path = "/etc/resolv.conf";
    let missing = |reason: String| {
        cause::of(
            reason,
            "name resolvers in /etc/resolv.conf, or in the policy under network.resolvers",
        )
    };
    let text = std::fs::read_to_string(path)
        .map_err(|error| missing(format!("{path} cannot be read: {error}")))?;
    let text = text.get(..RESOLVERS_BYTES_MAX).unwrap_or(&text);
    let count = text
        .lines()
        .filter(|line| line.trim_start().starts_with("nameserver"))
        .count();
    match count {
        0 => Err(missing(format!("{path} names no resolver"))),
        count => Ok(format!("{path} names {count}")),
    }
}
