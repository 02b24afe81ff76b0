//! The agent's session: whatever a host sends, and whatever the kernel answers, it goes on or ends,
//! and says no more than there is room for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_agent::session::Session;
use stockade_agent::system::chance::ChanceKernel;
use stockade_agent::wire::{HEADER_BYTES, Request, VERSION, encode};

fuzz_target!(|input: &[u8]| {
    let Some((seed, mut rest)) = input.split_first() else {
        return;
    };
    let mut session = Session::new(ChanceKernel::new(u64::from(*seed)));
    let mut hello = [0; 32];
    let length = encode(0, &Request::Hello { version: VERSION }, &mut hello).expect("it is short");
    session
        .receive(0, &hello[HEADER_BYTES..length])
        .expect("this version is spoken");
    // A byte for the task, one for the length, and a body: random headers would only test their
    // length.
    while let [task, length, bytes @ ..] = rest {
        let (body, others) = bytes.split_at(bytes.len().min(usize::from(*length)));
        rest = others;
        if !session.has_room() || session.receive(u32::from(*task), body).is_err() {
            return;
        }
        let mut tokens = Vec::new();
        session.waits(|token, _, _| tokens.push(token));
        for token in tokens {
            session.ready(token).expect("what it says has room");
        }
        session.work().expect("what it says has room");
        session.reap().expect("what it says has room");
        if task % 8 == 0 {
            session.out().clear();
        }
    }
});
