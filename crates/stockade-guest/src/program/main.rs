//! A machine with one processor and a vsock device, and nothing else.
//!
//! Firecracker starts it as it starts a Linux kernel: in 64-bit mode, with the
//! first gibibyte mapped to itself. It says so on the serial port, finds the
//! device, and answers on the ports that the library names. Without work it
//! waits for an interrupt.

#![no_std]
#![no_main]

mod raw;
mod service;
mod vsock;

use service::Service;
use vsock::Device;

/// Called once, by the entry point.
fn main() -> ! {
    raw::say(b"stockade-guest\n");
    let Some(device) = Device::find() else {
        raw::say(b"no vsock device\n");
        raw::end();
    };
    let mut service = Service::new(device);
    loop {
        if !service.work() {
            raw::wait_for_interrupt();
        }
    }
}
