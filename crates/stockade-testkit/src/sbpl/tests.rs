//! Profiles as texts, and what they allow.

use super::*;

fn profile(text: &str) -> Profile {
    parse(text, &Parameters::new()).unwrap()
}

fn reads(profile: &Profile, path: &str) -> bool {
    let object = Object::Path(path.as_bytes());
    profile.allows("file-read-data", object, Volume::CaseFolding)
}

#[test]
fn the_last_rule_that_matches_wins() {
    let profile = profile(
        "(version 1)\n(deny default)\n(allow file-read* (subpath \"/a\"))\n\
         (deny file-read-data (regex #\"^/a/[bB](/|$)\"))\n(allow file-read* (literal \"/a/b/c\"))",
    );
    assert!(reads(&profile, "/a/x"));
    assert!(!reads(&profile, "/a/B/x"));
    assert!(reads(&profile, "/a/b/c"));
    assert!(!reads(&profile, "/ab"));
    let metadata = Object::Path(b"/a/b");
    assert!(profile.allows("file-read-metadata", metadata, Volume::CaseSensitive));
}

#[test]
fn volumes_compare_names_and_expressions_do_not() {
    let profile =
        profile("(version 1)(deny default)(allow file-read* (subpath \"/A\") (regex #\"^/b$\"))");
    let reads =
        |path: &'static [u8], volume| profile.allows("file-read-data", Object::Path(path), volume);
    assert!(reads(b"/a/x", Volume::CaseFolding));
    assert!(!reads(b"/a/x", Volume::CaseSensitive));
    assert!(!reads(b"/B", Volume::CaseFolding));
}

#[test]
fn links_of_the_system_are_followed() {
    for (path, resolved) in [
        ("/tmp/x", "/private/tmp/x"),
        ("/TMP", "/private/TMP"),
        ("/System/Volumes/Data/Users/u", "/Users/u"),
        ("/System/Volumes/Data/var/db", "/private/var/db"),
        ("/variable", "/variable"),
    ] {
        assert_eq!(kernel_path(path.as_bytes()), resolved.as_bytes());
    }
}

#[test]
fn filters_are_combined() {
    let profile = profile(
        "(version 1)(deny default)(allow file-write* (require-all (subpath \"/a\") \
         (require-not (require-any (literal \"/a/b\") (regex #\"[.]c$\")))))",
    );
    let writes = |path: &'static [u8]| {
        profile.allows("file-write-data", Object::Path(path), Volume::CaseSensitive)
    };
    assert!(writes(b"/a/x"));
    assert!(!writes(b"/a/b"));
    assert!(!writes(b"/a/x.c"));
    assert!(!writes(b"/x"));
}

#[test]
fn the_network_is_a_host_and_a_port() {
    let parameters = Parameters::from([("PROXY".to_owned(), "localhost:4711".to_owned())]);
    let text = "(version 1)(deny default)(allow network-outbound (remote ip (param \"PROXY\")))";
    let profile = parse(text, &parameters).unwrap();
    let reaches = |loopback, port| {
        let object = Object::Address { loopback, port };
        profile.allows("network-outbound", object, Volume::CaseFolding)
    };
    assert!(reaches(true, 4711));
    assert!(!reaches(true, 4712));
    assert!(!reaches(false, 4711));
    assert!(parse(text, &Parameters::new()).is_err());
}

#[test]
fn what_is_not_the_language_is_an_error() {
    for text in [
        "(allow default)",
        "(version 1)(allow file-raed*)",
        "(version 1)(allow file-read* (subpath \"a\"))",
        "(version 1)(allow file-read* (subpath \"/a\")",
        "(version 1)(allow file-read* (regex \"/a\"))",
        "(version 1)(allow file-read* (regex #\"\\d\"))",
        "(version 1)(allow file-read* (regex #\"(?i)a\"))",
        "(version 1)(allow file-read* (regex #\"a{2}\"))",
        "(version 1)(allow network-outbound (remote ip \"127.0.0.1:1\"))",
        "(version 1)(allow file-read* (subpath \"/\\x41\"))",
        "(version 1))",
    ] {
        assert!(parse(text, &Parameters::new()).is_err(), "{text}");
    }
}
