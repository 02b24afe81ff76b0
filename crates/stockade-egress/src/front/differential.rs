//! What a host means here, against what it means to others: the URL parser of
//! the WHATWG standard and getaddrinfo(3). They may refuse what is taken here;
//! they must never read another host.

use std::net::{IpAddr, ToSocketAddrs};

use proptest::prelude::*;
use stockade_policy::network::{Destination, Host};

use super::authority::Authority;

const PORT: u16 = 8080;

/// Hosts that readers have differed on.
const KNOWN: &[&str] = &[
    "a.test",
    "A.Test.",
    "xn--mnchen-3ya.test",
    "xn--a.test",
    "_dmarc.a.test",
    "a-.test",
    "-a.test",
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "0x7f.1",
    "0X7F.0.0.1",
    "0177.0.0.01",
    "2130706433",
    "0x7f000001",
    "017700000001",
    "1.2.3",
    "1.2.65535",
    "1.16777215",
    "4294967295",
    "00.0.0.0",
    "1.2.3.4.",
    "a.1",
    "1.a",
    "0xa.b",
    "1e3.test",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[2001:DB8:0:0::1]",
    "[64:ff9b::7f00:1]",
    "[0:0:0:0:0:0:0:0]",
    "[::ffff:7f00:1]",
    "[1::2:3.4.5.6]",
];

fn destination(host: &str) -> Option<Destination> {
    let authority = Authority::parse(host.as_bytes()).ok()?;
    authority.destination(PORT).ok()
}

/// The host that the standard's parser finds, in the same form.
fn by_url(host: &str) -> Option<String> {
    let url = url::Url::parse(&format!("http://{host}:{PORT}/")).ok()?;
    let address = |address: IpAddr| match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    Some(match url.host()? {
        url::Host::Domain(name) => name.strip_suffix('.').unwrap_or(name).to_owned(),
        url::Host::Ipv4(ipv4) => address(ipv4.into()),
        url::Host::Ipv6(ipv6) => address(ipv6.into()),
    })
}

fn check_url(host: &str) -> Result<(), TestCaseError> {
    if let (Some(ours), Some(theirs)) = (destination(host), by_url(host)) {
        prop_assert_eq!(ours.host().to_string(), theirs, "{:?}", host);
    }
    Ok(())
}

/// Only for addresses: a name would be looked up in the network.
fn check_resolver(host: &str) -> Result<(), TestCaseError> {
    // A final dot, or no digit at all, makes getaddrinfo look up a name.
    let empty_number = host.split('.').any(|part| part.eq_ignore_ascii_case("0x"));
    let Some(Host::Address(ours)) = destination(host).map(|ours| ours.host().clone()) else {
        return Ok(());
    };
    if host.ends_with('.') || empty_number {
        return Ok(());
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let theirs = (bare, PORT).to_socket_addrs();
    for theirs in theirs.into_iter().flatten() {
        prop_assert_eq!(ours, theirs.ip().to_canonical(), "{:?}", host);
    }
    Ok(())
}

#[test]
fn row_13_known_spellings_mean_the_same_everywhere() {
    for host in KNOWN {
        let both = check_url(host).and_then(|()| check_resolver(host));
        both.unwrap_or_else(|difference| panic!("{difference}"));
    }
    // So that the comparison is known to compare.
    assert_eq!(by_url("0x7f.1").as_deref(), Some("127.0.0.1"));
    assert_eq!(
        destination("0x7f.1").map(|d| d.to_string()).as_deref(),
        Some("127.0.0.1:8080")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn row_10_a_host_of_any_bytes_means_the_same_everywhere(host in "[ -~\u{80}-\u{24F}]{1,12}") {
        check_url(&host)?;
    }

    #[test]
    fn row_08_a_name_means_the_same_everywhere(host in "([a-zA-Z0-9_-]{1,5}\\.){0,3}[a-zA-Z0-9_-]{1,5}\\.?") {
        check_url(&host)?;
    }

    #[test]
    fn row_13_an_address_means_the_same_everywhere(
        host in "((0x|0X|0)?[0-9a-f]{0,8}\\.){0,3}(0x|0X|0)?[0-9a-f]{0,8}",
    ) {
        check_url(&host)?;
    }

    #[test]
    fn row_13_an_address_means_the_same_to_the_resolver(
        host in "((0x|0)?[0-9]{1,3}\\.){0,3}(0x|0)?[0-9]{1,8}",
    ) {
        check_resolver(&host)?;
    }

    #[test]
    fn row_14_an_ipv6_address_means_the_same_everywhere(
        host in "\\[([0-9a-fA-F]{0,4}:){1,7}([0-9a-fA-F]{0,4}|[0-9]{1,3}(\\.[0-9]{1,3}){3})\\]",
    ) {
        check_url(&host)?;
        check_resolver(&host)?;
    }
}
