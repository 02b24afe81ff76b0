//! The launcher's decoder: whatever bytes arrive, it refuses or takes a whole assignment, and an
//! assignment that it takes survives the way back and forth.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_launch::wire::{Assignment, Report, Request, decode};

fuzz_target!(|bytes: &[u8]| {
    // The messages of the control socket go through the same decoder.
    let _is_report = decode::<Report>(bytes).is_ok();
    let _is_request = decode::<Request>(bytes).is_ok();
    let Ok(assignment) = Assignment::decode(bytes) else {
        return;
    };
    // An assignment whose canonical form is longer than what came in may be over the limit.
    if let Ok(encoded) = assignment.encode() {
        let again = Assignment::decode(&encoded).expect("an encoded assignment can be decoded");
        assert_eq!(again, assignment);
    }
});
