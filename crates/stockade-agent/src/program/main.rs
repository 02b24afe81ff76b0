//! The program `stockade-agent`: serves one session on descriptor 3, or, as a
//! machine's first program, on the port to the host.
//!
//! It brings no C library, so that it runs whatever the view holds, and is
//! executed from a memory file, so that the view holds nothing of it.

#![no_std]
#![no_main]

extern crate alloc;

mod confine;
mod guest;
mod kernel;
mod raw;
mod relay;
mod serve;

use kernel::Kernel;

/// Called by the entry point; what it returns is the exit code.
fn main() -> i32 {
    let entered = match guest::is_first_program() {
        true => guest::enter().map(|it| (it.channel, Some(it.confinement), it.relay)),
        // Whoever started it confined it.
        false => raw::close_the_rest()
            .map(|()| (raw::channel(), None, None))
            .map_err(drop),
    };
    entered.map_or(serve::EXIT_FAILED, |(channel, confinement, relay)| {
        serve::serve(channel, Kernel { confinement }, relay)
    })
}
