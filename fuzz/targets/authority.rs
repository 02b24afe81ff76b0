//! Authorities and paths: what is taken has one canonical form, and that form means itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_fuzz::front::authority::{Authority, connect_target};
use stockade_fuzz::front::path::{EncodedSlash, PathAndQuery};
use stockade_fuzz::front::sniff::sniff;

fuzz_target!(|bytes: &[u8]| {
    let _protocol = sniff(bytes);
    if let Ok(destination) = connect_target(bytes) {
        let text = destination.to_string();
        assert_eq!(connect_target(text.as_bytes()), Ok(destination.clone()));
        let authority = Authority::parse(bytes).expect("a target of CONNECT is an authority");
        assert!(authority.leads_to(&destination, 1));
    }
    for choice in [EncodedSlash::Refused, EncodedSlash::Kept] {
        let Ok(path) = PathAndQuery::parse(bytes, choice) else {
            continue;
        };
        let again = PathAndQuery::parse(path.to_string().as_bytes(), choice);
        assert_eq!(again.as_ref(), Ok(&path));
        let mut segments = path.path().split('/');
        assert!(!segments.any(|segment| matches!(segment, "." | "..")));
        assert!(!path.path().contains("//"));
        assert!(path.parameters().len() <= bytes.len());
    }
});
