//! The host's side of the agent's protocol: whatever a program inside sends, it is taken apart and
//! checked, and never makes the host believe in more than it asked for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_agent::buffer::Inbox;
use stockade_agent::files::{self, Change, Entry};
use stockade_agent::host::{Kind, Ledger};
use stockade_agent::wire::{Reply, VERSION, WINDOW_IN_BYTES, decode};

fuzz_target!(|input: &[u8]| {
    // Records come out of streams that nobody checked.
    let _entry = files::take::<Entry<'_>>(input).is_ok();
    let _change = files::take::<Change<'_>>(input).is_ok();
    let mut ledger = Ledger::default();
    ledger
        .accept(0, &Reply::Hello { version: VERSION })
        .expect("this version is spoken");
    let kinds = [
        Kind::Exec { has_error: true },
        Kind::Exec { has_error: false },
        Kind::Read,
        Kind::Write,
    ];
    for kind in kinds {
        ledger.begin(kind).expect("there is room");
    }
    let mut inbox = Inbox::default();
    for piece in input.chunks(1000) {
        inbox.free()[..piece.len()].copy_from_slice(piece);
        inbox.fill(piece.len());
        loop {
            let length = match inbox.first() {
                Ok(Some(frame)) => match decode::<Reply<'_>>(frame.body) {
                    Ok(reply) if ledger.accept(frame.task, &reply).is_ok() => frame.length,
                    _ => return,
                },
                Ok(None) => break,
                Err(_) => return,
            };
            inbox.consume(length);
            assert!(ledger.len() <= kinds.len());
            for task in 0..8 {
                assert!(ledger.may_send(task) <= WINDOW_IN_BYTES as usize);
            }
        }
    }
});
