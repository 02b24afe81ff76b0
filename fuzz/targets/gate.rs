//! The HTTP gate: what passes depends on the bytes alone and not on how they arrive, and what
//! passed once passes again unchanged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_fuzz::front::gate::{Forms, Gate};
use stockade_fuzz::front::head::{BadHead, reply};

fuzz_target!(|bytes: &[u8]| {
    let _is_reply = reply::parse_reply(bytes, "GET").is_ok();
    let [size, stream @ ..] = bytes else { return };
    for forms in [Forms::Origin, Forms::Proxy] {
        let (passed, outcome) = through(forms, stream, stream.len());
        assert!(passed.len() <= stream.len());
        let in_pieces = through(forms, stream, usize::from(*size));
        assert_eq!(in_pieces, (passed.clone(), outcome));
        assert_eq!(through(forms, &passed, passed.len()), (passed, Ok(())));
    }
});

/// A change of protocol is always declined, so that what follows is read too.
fn through(forms: Forms, stream: &[u8], size: usize) -> (Vec<u8>, Result<(), BadHead>) {
    let mut gate = Gate::new(forms);
    let mut passed = Vec::new();
    let mut outcome = Ok(());
    for piece in stream.chunks(size.max(1)) {
        outcome = gate.push(piece, &mut passed);
        while outcome.is_ok() && gate.is_waiting() {
            let before = passed.len();
            outcome = gate.declined(&mut passed);
            if passed.len() == before {
                break;
            }
        }
        if outcome.is_err() {
            break;
        }
    }
    (passed, outcome)
}
