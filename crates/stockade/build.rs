//! Links the unwinder into the program instead of loading it at each start.
//!
//! The shared libgcc_s.so.1 asks the processor for its features when it is
//! loaded, which a virtual machine answers slowly: together with loading it
//! took a fifth of a millisecond of each start. The static libgcc_eh is the
//! same code under the same licence (GPL with the GCC Runtime Library
//! Exception, which covers every program that gcc links). Where the linker
//! has none, the shared one is used as before.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_gnu = std::env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu")
        && std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux");
    let is_native = std::env::var("HOST") == std::env::var("TARGET");
    if !is_gnu || !is_native || !has_static_unwinder() {
        return;
    }
    let directory = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let script = Path::new(&directory).join("libgcc_s.so");
    std::fs::write(script, "GROUP(-lgcc_eh -lc)\n").expect("OUT_DIR can be written");
    println!("cargo::rustc-link-search=native={directory}");
}

fn has_static_unwinder() -> bool {
    let asked = Command::new("cc")
        .arg("-print-file-name=libgcc_eh.a")
        .output();
    // A file that it does not find is answered with its bare name.
    asked
        .is_ok_and(|answer| Path::new(String::from_utf8_lossy(&answer.stdout).trim()).is_absolute())
}
