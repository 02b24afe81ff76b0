//! The program `stockade-agent`: serves one session on descriptor 3.
//!
//! It brings no C library, so that it runs whatever the view holds, and is
//! executed from a memory file, so that the view holds nothing of it.

#![no_std]
#![no_main]

extern crate alloc;

mod kernel;
mod raw;
mod serve;

/// Called by the entry point; what it returns is the exit code.
fn main() -> i32 {
    serve::serve()
}
