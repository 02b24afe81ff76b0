//! SOCKS: a greeting and a request are taken whole or not at all.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_fuzz::front::Progress;
use stockade_fuzz::front::socks::{parse_greeting, parse_request};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Progress::Done { consumed, .. }) = parse_greeting(bytes) {
        assert!(consumed <= bytes.len());
        assert_eq!(parse_greeting(&bytes[..consumed - 1]), Ok(Progress::NeedMore));
    }
    if let Ok(Progress::Done { value, consumed }) = parse_request(bytes) {
        assert!(consumed <= bytes.len() && value.port() != 0);
        assert_eq!(parse_request(&bytes[..consumed - 1]), Ok(Progress::NeedMore));
        let name = value.name().map(|name| name.as_str()).unwrap_or_default();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        assert!(name.bytes().all(plain), "{name}");
    }
});
