//! The ClientHello: the same however it arrives, and never more than its records.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_fuzz::front::hello::{BadHello, ClientHello, HelloReader};

type Outcome = Result<Option<(ClientHello, usize)>, BadHello>;

fuzz_target!(|bytes: &[u8]| {
    let whole = HelloReader::default().read(bytes);
    if let Ok(Some((_, consumed))) = &whole {
        assert!(*consumed <= bytes.len());
        // Nothing behind the records is looked at.
        assert_eq!(HelloReader::default().read(&bytes[..*consumed]), whole);
    }
    assert_eq!(byte_by_byte(bytes), whole);
});

fn byte_by_byte(bytes: &[u8]) -> Outcome {
    let mut reader = HelloReader::default();
    for end in 0..=bytes.len() {
        let outcome = reader.read(&bytes[..end]);
        if outcome != Ok(None) {
            return outcome;
        }
    }
    Ok(None)
}
