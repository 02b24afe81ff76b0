//! The DNS stub: any bytes give a short reply to themselves, or none.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::net::{Ipv4Addr, Ipv6Addr};
use stockade_fuzz::names::{Lookup, answer};

/// What fits into UDP without EDNS.
const REPLY_BYTES_MAX: usize = 512;

fuzz_target!(|bytes: &[u8]| {
    let found = Lookup::Found {
        ipv4: Some(Ipv4Addr::LOCALHOST),
        ipv6: Some(Ipv6Addr::LOCALHOST),
    };
    for lookup in [found, Lookup::NotFound, Lookup::Unavailable] {
        let reply = answer(bytes, |name| {
            assert!(name.as_str().len() < bytes.len());
            lookup
        });
        if let Some(reply) = reply {
            assert!((12..=REPLY_BYTES_MAX).contains(&reply.len()));
            assert_eq!(reply[..2], bytes[..2]);
            assert_eq!(reply[2] & 0x80, 0x80);
            // A reply is never answered.
            assert_eq!(answer(&reply, |_| lookup), None);
        }
    }
});
